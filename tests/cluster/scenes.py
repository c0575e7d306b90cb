"""What is run on a cluster of several nodes, by a driver of its own: three raylets here, or real addresses.

Called as ``python -m tests.cluster.scenes ADDRESS FOLDER SCENE...``; prints one line of JSON for each scene.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # type: ignore[attr-defined]  # generated
from ray.tune import Callback

import tunelight as tl
from tests.kit.recording import read_lines
from tests.kit.sweeps import run
from tests.kit.training import Line, LineData, trainer
from tests.kit.waiting import until
from tunelight import stores
from tunelight.compat.lightning import pl


def where(config: dict[str, Any]) -> None:
    """Write down where each rank is, then train and save. Runs on: worker."""
    me = tl.get_context()
    names = ("MASTER_ADDR", "GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
    here = {
        "node": ray.get_runtime_context().get_node_id(),
        "address": ray.util.get_node_ip_address(),
        "ranks": [me.rank, me.local_rank, me.node_rank, me.local_world_size],
        "told": {name: os.environ.get(name) for name in names},
        "env": {name: value for name, value in os.environ.items() if name.startswith("MINE_")},
        "file": sys.modules[tl.__name__].__file__,
        "sent": find_spec("only_there") is not None,
    }
    Path(me.trial_dir, f"rank-{me.rank}.json").write_text(json.dumps(here))
    report = tl.TuneReportCheckpointCallback({"loss": "val_loss"})
    trainer(config["epochs"], report).fit(Slow(config["lr"], config["slow_s"]), datamodule=LineData())


class Slow(Line):
    """Takes its time with each batch."""

    def __init__(self, lr: float, slow_s: float = 0.0) -> None:
        super().__init__(lr)
        self.slow_s = slow_s

    def training_step(self, batch: Any, number: int) -> Any:
        time.sleep(self.slow_s)
        return super().training_step(batch, number)


def sweep(folder: Path, name: str, epochs: int = 2, slow_s: float = 0.0, **kwargs: Any) -> dict[str, Any]:
    space = {"lr": tl.uniform(0.01, 0.1), "epochs": tl.choice([epochs]), "slow_s": tl.choice([slow_s])}
    return told(run(space, where, folder, 3, **{"name": name, "seed": 1, **kwargs}), kwargs["workers"])


def told(results: tl.SweepResults, workers: int, read: Callable[[Path], bytes] = Path.read_bytes) -> dict[str, Any]:
    """Return what came of a sweep, and what its ranks have written down."""
    return {
        "trials": [
            [json.loads(read(trial.path / f"rank-{rank}.json")) for rank in range(workers)] for trial in results.trials
        ],
        "states": [trial.state for trial in results.trials],
        "errors": [str(trial.error) for trial in results.errors],
        "losses": [report["loss"] for report in results.best.history],
        "loaded": type(results.best.load_model(Line)).__name__,
    }


def refused(folder: Path) -> dict[str, Any]:
    """Run gangs that cannot be, and say what is said."""
    began = time.monotonic()
    try:
        ran = sweep(folder, "refused", workers=3, num_samples=1)
    except tl.errors.TunelightError as error:
        said = {"error": str(error), "kind": type(error).__name__, "seconds": time.monotonic() - began}
        return said | {"trials": len([*folder.glob("*/trial_*")])}
    return ran | {"error": "nothing"}


def drain_node(node_id: str) -> None:
    """Tell Ray that a node is taken away in a minute, as a cloud does."""
    soon = int((time.time() + 60) * 1000)
    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    client = GcsClient(ray.get_runtime_context().gcs_address)
    accepted, why = client.drain_node(node_id, reason, "taken away", soon)
    assert accepted, why


def stored(folder: Path) -> dict[str, Any]:
    """Run a sweep in a store on nodes that share nothing else, and have a trial pause and go on elsewhere."""
    url = f"local://{folder}/store"
    space = {"lr": tl.uniform(0.01, 0.1), "epochs": tl.choice([4]), "slow_s": tl.choice([0.0])}
    halving = {"name": "elastic_asha", "grace_period": 1, "reduction_factor": 2}
    results = run(space, where, url, 4, max_epochs=4, scheduler=halving, workers=3, seed=1)
    ends = tl.SweepResults.load(f"{url}/s")
    working, store = Path(os.environ["XDG_CACHE_HOME"]), stores.store_of(ends.folder)
    assert store is not None
    return told(ends, 3, store.read) | {
        "losses": [report["loss"] for report in results.best.history],
        "resumed": sum(line["kind"] == "state" and line["state"] == "PAUSED" for line in read_lines(ends.folder)),
        "logs": sorted(one.name for one in store.listed(ends.best.path, "log*.txt")),
        "here": sorted(str(one.relative_to(working)) for one in working.rglob("*.ckpt")),
        "best": str(ends.best.path.relative_to(working)),
    }


class Drain(Callback):
    """Drains the node of the first trial after its second report. Runs on: driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.drained = ""

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        if result["training_iteration"] != 2 or self.drained:
            return
        self.drained = json.loads((Path(trial.path) / "rank-0.json").read_text())["node"]
        drain_node(self.drained)


def drain(folder: Path) -> dict[str, Any]:
    """Drain the node that a trial runs on; compare it with one that nobody disturbed."""
    drained = Drain(folder)
    away = {"extra_cpu": 2, "extra_custom_resources": {"away": 2}}  # a head is not drained: the driver is there
    settings: dict[str, Any] = {
        "workers": 2, "num_samples": 1, "epochs": 8, "slow_s": 0.1, "failures": 0, "resources_per_trial": away,
    }  # fmt: skip
    alone = sweep(folder, "undisturbed", **settings)
    moved = sweep(folder, "moved", callbacks=[drained], **settings)
    record = tl.SweepResults.load(folder / "moved").record
    return {
        "drained": drained.drained,
        "nodes": [rank["node"] for rank in moved["trials"][0]],
        "losses": [alone["losses"], moved["losses"]],
        "states": moved["states"],
        "notes": [str(note) for note in record.notes],
    }


def code(folder: Path) -> dict[str, Any]:
    """Connect as a sweep does, and send code and variables along."""
    address = ray.get_runtime_context().gcs_address
    ray.shutdown()
    sent = folder / "sent"
    sent.mkdir()
    (sent / "only_there.py").write_text("WORD = 'sent'")
    environment = {"working_dir": str(sent), "env_vars": {"MINE_TOO": "yes"}}
    return sweep(folder, "code", workers=2, num_samples=1, address=address, runtime_env=environment)


class Places(pl.Callback):
    """Write down where the ranks of a Trainer's gang are. Runs on: worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        node = ray.get_runtime_context().get_node_id()
        ranks = [trainer.global_rank, trainer.local_rank, trainer.node_rank, trainer.num_nodes]
        Path(self.folder, f"fit-{trainer.global_rank}.json").write_text(json.dumps({"node": node, "ranks": ranks}))


def fit(folder: Path) -> dict[str, Any]:
    """Fit with a Trainer on the driver, over all nodes."""
    root = folder / "fit"
    root.mkdir()
    best = pl.callbacks.ModelCheckpoint(root / "best", monitor="val_loss")
    trainer = pl.Trainer(
        max_epochs=2, strategy=tl.RayStrategy(num_workers=4), default_root_dir=root, logger=False,
        callbacks=[best, Places(root)], enable_progress_bar=False, accelerator="cpu",
    )  # fmt: skip
    model = Line(0.05)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    trainer.fit(model, datamodule=LineData())
    return {
        "places": [json.loads(file.read_text()) for file in sorted(root.glob("fit-*.json"))],
        "best": Path(best.best_model_path).is_file(),
        "learned": any(not weight.equal(before[name]) for name, weight in model.state_dict().items()),
    }


SCENES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "packed": lambda folder: sweep(folder, "packed", workers=2),  # as many gangs as there are nodes with two CPUs
    "spread": lambda folder: sweep(folder, "spread", workers=3, num_samples=1),  # a gang that no node holds alone
    "horovod": lambda folder: sweep(folder, "horovod", workers=3, num_samples=1, backend="horovod"),
    **{scene.__name__: scene for scene in (refused, fit, stored, drain, code)},
}


def main(address: str, folder: str, *names: str) -> None:
    ray.init(address=address, log_to_driver=False)
    try:
        count = int(os.environ.get("NODES", "1"))
        until(lambda: sum(node["Alive"] for node in ray.nodes()) >= count, 60, every_s=0.2)  # they start one by one
        for name in names:
            print(json.dumps({"scene": name, **SCENES[name](Path(folder))}), flush=True)  # noqa: T201 - read by a test
    finally:
        ray.shutdown()


def read(output: str) -> dict[str, dict[str, Any]]:
    """Return what scenes printed, by name."""
    lines: Sequence[str] = output.splitlines()
    found = [json.loads(line) for line in lines if line.startswith('{"scene"')]
    return {one["scene"]: one for one in found}


if __name__ == "__main__":
    main(*sys.argv[1:])
