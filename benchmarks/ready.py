"""How soon a run reports first: the first of a process, the next one, and one after an edit; and its workers' memory.

One process calls `tunelight.run` three times (two trials of two workers, digits), the last time with another model.

  forked     as it is: Ray stays from run to run, and workers are forked with their libraries
  started    Ray stays, and each worker is a new Python that imports them (TUNELIGHT_FORK=0)
  alone      neither (reuse_gangs=False)
  shell      three commands, `tunelight run`, of which the first's driver and Ray stay for the others
  torchrun   the same training by `torchrun`, from its start to its first epoch's end, each time anew

    python benchmarks/ready.py            # about 6 minutes on 2 cores
    python benchmarks/ready.py --short    # forked only, once
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import headline, median, show, spread, table
from measure import options, said

RANKS, RUNS, LIMIT_S = 2, 3, 300
VARIANTS = {
    "forked": {}, "started": {"TUNELIGHT_FORK": "0"}, "alone": {"BENCHMARK_REUSE": "0"}, "shell": {}, "torchrun": {},
}  # fmt: skip
SPACE = f"""
space: {{lr: {{loguniform: [1e-3, 1e-1]}}}}
train: ready:train
metric: val_loss
num_samples: 2
workers: {RANKS}
max_concurrent: 1
scheduler: fifo
"""
MODEL = """
from tunelight.extras.digits import DigitsClassifier
class Model(DigitsClassifier):
    hidden = {hidden}
    def __init__(self, lr):
        super().__init__(lr=lr, hidden=self.hidden)
"""


def train(config: dict[str, Any]) -> None:
    """Train two epochs with a model from a file. Runs on every worker."""
    import pytorch_lightning as pl
    from edited_model import Model  # type: ignore[import-not-found]  # written by `runs`

    import tunelight as tl
    from tunelight.extras.digits import DigitsData

    began = time.time()

    class Clock(pl.Callback):
        def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            if not trainer.sanity_checking:
                tl.report({"val_loss": trainer.callback_metrics["val_loss"], "trained": time.time() - began})

    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", strategy=tl.RayStrategy(), callbacks=[Clock()], enable_progress_bar=False,
        num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(Model(config["lr"]), datamodule=DigitsData(batch_size=64))


def runs(folder: Path) -> None:
    """Call `tunelight.run` in this process, and print for each run the seconds to its first report, and its memory."""
    import psutil
    from ray.tune import Callback

    import tunelight as tl

    class Watch(Callback):
        """Notes the first report, and what the workers take then."""

        first = pss = trained = 0.0

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            if not self.first:
                self.first, self.trained = time.time(), result["trained"]
                self.pss = sum(
                    process.memory_full_info().pss
                    for process in psutil.process_iter(["cmdline"])
                    if "GangWorker" in " ".join(process.info["cmdline"] or ())
                )

    sys.path.insert(0, str(folder))
    for number in range(RUNS):
        (folder / "edited_model.py").write_text(MODEL.format(hidden=32 if number < RUNS - 1 else 64))
        watch, began = Watch(), time.time()
        tl.run(
            {"lr": tl.loguniform(1e-3, 1e-1)}, train, metric="val_loss", num_samples=2, workers=RANKS,
            max_concurrent=1, scheduler="fifo", storage=folder / "runs", name=f"run-{number}", progress=False, seed=1,
            callbacks=[watch], reuse_gangs=os.environ.get("BENCHMARK_REUSE") != "0",
        )  # fmt: skip
        found = {"first": watch.first - began, "trained": watch.trained, "mb": watch.pss / 1e6}
        print("FOUND", json.dumps(found), flush=True)
    print("END", flush=True)


def by_torchrun(folder: Path) -> dict[str, float]:
    """Return the seconds from torchrun's start to the end of the first epoch."""
    (folder / "edited_model.py").write_text(MODEL.format(hidden=32))
    script = folder / "loop.py"
    script.write_text(
        "import sys, time\nsys.path.insert(0, sys.argv[1])\nbegan = time.time()\nimport pytorch_lightning as pl\n"
        "from edited_model import Model\nfrom tunelight.extras.digits import DigitsData\n"
        "class Clock(pl.Callback):\n    def on_validation_end(self, trainer, module):\n"
        "        if trainer.is_global_zero: print('EPOCH', time.time(), time.time() - began, flush=True)\n"
        "        trainer.should_stop = True\n"
        "t = pl.Trainer(max_epochs=1, accelerator='cpu', devices=2, strategy='ddp', num_sanity_val_steps=0,\n"
        "    enable_progress_bar=False, callbacks=[Clock()], logger=False, enable_checkpointing=False)\n"
        "t.fit(Model(0.01), datamodule=DigitsData(batch_size=64))\n"
    )
    began = time.time()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    done = subprocess.run(
        [*command, str(script), str(folder)], capture_output=True, text=True, timeout=LIMIT_S, check=True, cwd=folder
    )
    ended = min(float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("EPOCH"))
    return {"first": ended - began, "trained": 0.0, "mb": 0.0}


def by_commands(folder: Path) -> list[dict[str, float]]:
    """Return the seconds from the start of each of three commands to its first report."""
    (folder / "space.yaml").write_text(SPACE)
    env = {**os.environ, "TUNELIGHT_KEEP": "1", "PYTHONPATH": str(Path(__file__).parent)}
    command, found = [sys.executable, "-m", "tunelight"], []
    for number in range(RUNS):
        (folder / "edited_model.py").write_text(MODEL.format(hidden=32 if number < RUNS - 1 else 64))
        began = time.time()
        run = [*command, "run", "space.yaml", "--name", str(number), "--seed", "1"]
        subprocess.run(run, env=env, cwd=folder, capture_output=True, timeout=LIMIT_S, check=True)
        lines = (folder / "tunelight_runs" / str(number) / "record.jsonl").read_text().splitlines()
        first = next(one for one in map(json.loads, lines) if one["kind"] == "report")
        found.append({"first": first["time"] - began, "trained": first["metrics"]["trained"], "mb": 0.0})
    subprocess.run([*command, "down"], env=env, capture_output=True, timeout=LIMIT_S, check=True)
    return found


def measured(variant: str, folder: Path) -> list[dict[str, float]]:
    """Return what each run of one process took."""
    folder.mkdir()
    if variant == "shell":
        return by_commands(folder)
    if variant == "torchrun":
        return [by_torchrun(folder)] * RUNS
    done = subprocess.run(
        [sys.executable, __file__, "--runs", str(folder)], capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env=os.environ | VARIANTS[variant],
    )  # fmt: skip
    if "END" not in done.stdout:
        raise SystemExit(f"{variant}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("FOUND ")]


def declare(found: dict[str, list[list[dict[str, float]]]]) -> None:
    """Declare the figures by which this benchmark is known."""

    def times(variant: str, run: int, what: str = "first") -> list[float]:
        return [one[run][what] for one in found.get(variant, [])]

    names = ("first run", "next run", "run after an edit")
    for run, name in enumerate(names):
        ours = times("forked", run)
        headline(f"{name}: call of tl.run to the first report", median(ours), "s", of=spread(ours))
        other = median(times("torchrun", run))
        headline(f"{name}: torchrun / tl.run", other / median(ours), of=f"torchrun {other:.2f} s")
    first, second = (times("shell", run) for run in range(2))
    headline("from a shell: second command / first, to the first report", median(second) / median(first), most=0.25)
    headline("from a shell: second command / torchrun, to the first report", median(second) / other, most=0.5)
    for variant, title in (("started", "each worker a new Python"), ("alone", "reuse_gangs=False")):
        headline(f"{names[1]}: {title} / as it is", median(times(variant, 1)) / median(times("forked", 1)))
    both = [median(times(variant, 1, "mb")) for variant in ("forked", "started")]
    headline("memory of two workers, as they are / each a new Python", both[0] / both[1])


def main() -> int:
    """Measure, and print a table of medians with ratios."""
    args = options(__doc__, "forked only, once", repeats=3)
    found: dict[str, list[list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="ready-") as parent:
        for number in range(args.repeats):
            for variant in ["forked"] if args.short else VARIANTS:  # in turn, so that noise falls on all
                with said(f"{variant}, process {number + 1}"):
                    found.setdefault(variant, []).append(measured(variant, Path(parent, f"{variant}-{number}")))
    head = ["", "1st run s", "2nd run s", "after an edit s", "2nd / 1st", "2nd beyond training s", "2 workers MB"]
    lines = []
    for variant, processes in found.items():
        first, second, edited = ([one[run] for one in processes] for run in range(RUNS))
        times = [median(one["first"] for one in each) for each in (first, second, edited)]
        beyond = median(one["first"] - one["trained"] for one in second)
        own = variant != "torchrun"
        lines.append([
            variant, *map(show, times), show(times[1] / times[0]), show(beyond) if own else "-",
            show(median(one["mb"] for one in second), 0) if own else "-",
        ])  # fmt: skip
    print(f"\nready: seconds from the call to the first report, {RANKS} workers, {os.cpu_count()} cores; medians.\n")
    print(table(head, lines) + "\n")
    declare(found)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--runs"]:  # the process that is measured
        runs(Path(sys.argv[2]))
    else:
        sys.exit(main())
