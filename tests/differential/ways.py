"""The ways in which tunelight trains a program: in trials of a sweep, by a driver's strategy, and disturbed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tunelight as tl
from tests.differential.grammar import MOMENTS
from tests.differential.observe import maker, observed
from tests.differential.reference import load
from tunelight.compat.lightning import Callback

ROOT = Path(__file__).parents[2]


def by_lightning(folders: Sequence[Path], package: str) -> None:
    """Train programs by Lightning's own DDP, several in one torchrun; one that fails costs a new one."""
    left = [folder for folder in folders if not (folder / "wanted" / "done-0").exists()]
    while left:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        environment = os.environ | {"TUNELIGHT_LIGHTNING": package, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                [*command, "-m", "tests.differential.reference", *map(str, left)], cwd=ROOT, env=environment,
                timeout=60 + 20 * len(left), capture_output=True, text=True, check=False,
            )  # fmt: skip
            said = done.stderr
        except subprocess.TimeoutExpired as error:
            said = (error.stderr or b"").decode()
        now = [folder for folder in left if not (folder / "wanted" / "done-0").exists()]
        if len(now) == len(left):  # the first has ended both processes
            (now[0] / "wanted").mkdir(exist_ok=True)
            (now[0] / "wanted" / "died.txt").write_text(said)
            (now[0] / "wanted" / "done-0").touch()
            now = now[1:]
        left = now


def _trial(config: dict[str, Any], extra: Callable[[Path], list[Callback]], way: str) -> None:
    program = Path(config["program"])
    here = program / way
    here.mkdir(exist_ok=True)

    def strategy(unused: bool) -> dict[str, Any]:
        return {"strategy": tl.RayStrategy(find_unused_parameters=unused)}

    raised = observed(
        load(program).main, maker(here, strategy, lambda: extra(program)), here,
        lambda: tl.get_context().rank,
    )  # fmt: skip
    if raised is not None:
        raise raised
    tl.report({"outcome": 1.0})


class Report(tl.TuneReportCheckpointCallback):
    """Reports and saves each epoch of training, with the metric that the sweep asks for."""

    def __init__(self) -> None:
        super().__init__(on="train_epoch_end")

    def _read(self, trainer: Any, session: Any) -> dict[str, Any]:
        return {**super()._read(trainer, session), "outcome": 0.0}


def trial(config: dict[str, Any]) -> None:
    """Train a program as one trial of a sweep."""
    _trial(config, lambda _: [Report()], "trial")


class Kill(Callback):
    """Ends this process once, at the moment that the program names."""

    def __init__(self, program: Path) -> None:
        self.moment, self.rank, self.count = json.loads((program / "program.json").read_text())["kill"]
        self.flag = program / "killed-at"

    def reach(self, moment: str) -> None:
        if moment != self.moment or tl.get_context().rank != self.rank or self.flag.exists():
            return
        self.count -= 1
        if self.count == 0:
            self.flag.write_text(f"{self.moment} on rank {self.rank}")
            os.kill(os.getpid(), signal.SIGKILL)


def _reaching(moment: str) -> Callable[..., None]:
    return lambda self, *_, **__: self.reach(moment)


for _moment in MOMENTS:
    setattr(Kill, _moment, _reaching(_moment))


def killed(config: dict[str, Any]) -> None:
    """Train a program as a trial, of which one worker is killed."""
    _trial(
        config,
        lambda program: [Kill(program), Report()],
        "killed",
    )


def by_trials(folders: Sequence[Path], way: Callable[..., None], storage: Path) -> None:
    """Train programs as the trials of one sweep, one after another on one gang."""
    tl.run(
        {"program": tl.grid_search([str(folder) for folder in folders])}, way, metric="outcome", mode="max", workers=2,
        scheduler="fifo", num_samples=1, storage=storage, progress=False,
        failures=tl.FailurePolicy(max_failures=int(way is killed), hang_timeout_s=60, give_up_after=0),
    )  # fmt: skip


def by_driver(folders: Sequence[Path]) -> None:
    """Train programs on warm workers of this driver."""
    for folder in folders:
        here = folder / "driver"
        here.mkdir(exist_ok=True)

        def strategy(unused: bool) -> dict[str, Any]:
            return {"strategy": tl.RayStrategy(num_workers=2, find_unused_parameters=unused)}

        observed(load(folder).main, maker(here, strategy), here, lambda: 0)
