"""What is lost in a fault of ``chaos.py --cluster``: a Ray cluster of two nodes, or the driver of a sweep on it.

    python benchmarks/peers/lost_cluster.py cluster READY
    python benchmarks/peers/lost_cluster.py drive '{"storage": ..., "name": ...}'

READY is the file that gets the cluster's address once it is up.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pytorch_lightning as pl
from faults import BATCHES, Events, Net, loader

import tunelight as tl
from tunelight.settings.backends import BACKENDS

BATCH_S = 0.2
"""How long a batch takes at least: a report comes every 8 batches."""
_HELD_S = 120.0
"""How long a process stands still at the planned moment; it is killed before."""
_STORE = 80 * 1024**2


@dataclass(frozen=True)
class Sweep:
    """What a driver is told."""

    address: str
    storage: str
    name: str
    machine: str
    events: str
    trials: int
    reports: int
    moment: str = ""
    """Where a process stands still until it is killed; none by default."""
    after: int = 1
    """At which of the reports that are trained on this cluster."""
    beat_s: float | None = None
    stale_s: float | None = None
    """The lease's times, where they are not tunelight's own."""


class Drivers(Events):
    """The file of events, for a driver."""

    def tell(self, what: str, context: Any = None, **more: Any) -> None:
        """Add a line."""
        with self.path.open("a") as file:
            file.write(json.dumps({"what": what, "time": time.time(), **more}) + "\n")


class Standstill:
    """Tells what a rank does, and stands still at the planned moment. Runs on: worker.

    It has the methods that ``faults.Net`` calls.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.events = Events(Path(sweep.events))
        self._sweep = sweep
        self._context = tl.get_context()  # checkpoints are committed in another thread

    def _trained(self) -> int:
        return sum(line["what"] == "validated" for line in self.events.read())

    def at(self, moment: str, epoch: int | None = None, batch: int | None = None) -> None:
        """Stand still if this is the moment; tell of checkpoints that begin."""
        if self._context.rank == 0:
            if moment == "checkpoint":
                self.events.tell("checkpoint", self._context, epoch=epoch)
            if moment == self._sweep.moment and self._trained() >= self._sweep.after:
                self.events.tell("now", self._context)
                time.sleep(_HELD_S)

    def at_start(self) -> None:
        """Do nothing."""

    def slow(self) -> None:
        """Let a batch take some time."""
        time.sleep(BATCH_S)

    def watch_commits(self) -> None:
        """Stand still, if planned, before a checkpoint is committed, or before the file that makes it one is there."""
        from tunelight.checkpoints import files

        commit, write_json = _original(files.commit), _original(files.write_json)

        def watched_commit(*args: Any, **kwargs: Any) -> Any:
            self.at("write")
            return commit(*args, **kwargs)

        def watched_write(path: Path, data: object) -> None:
            if path.name.startswith("report-"):
                self.at("upload")
            write_json(path, data)

        files.commit, files.write_json = _marked(watched_commit, commit), _marked(watched_write, write_json)


def _original(function: Any) -> Any:
    return getattr(function, "watched", function)  # workers are used by one trial after the other


def _marked(function: Any, original: Any) -> Any:
    function.watched = original
    return function


def training(sweep: Sweep) -> Callable[[dict[str, Any]], None]:
    """Return the train function of a sweep."""

    def train(config: dict[str, Any]) -> None:
        standstill: Any = Standstill(sweep)
        standstill.watch_commits()
        trainer = pl.Trainer(
            max_epochs=sweep.reports,
            accelerator="cpu",
            strategy=BACKENDS[tl.get_context().backend].load_strategy()(),
            callbacks=[tl.TuneReportCheckpointCallback({"loss": "val_loss"})],
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(Net(config["lr"], standstill), loader(0, BATCHES, True), loader(1, 2, False))

    return train


def watch_lease(sweep: Sweep, events: Drivers) -> None:
    """Pretend to be on the sweep's machine, and tell of the lease; stand still where it is half taken, if planned."""
    from tunelight.record import lease

    lease.process_table = lambda: sweep.machine  # type: ignore[assignment,unused-ignore]
    if sweep.beat_s is not None and sweep.stale_s is not None:
        lease.BEAT_S, lease.STALE_S = sweep.beat_s, sweep.stale_s  # type: ignore[misc]
    claim, create = lease.claim, lease.Owners.create

    def told(*args: Any, **kwargs: Any) -> Any:
        began = time.time()
        events.tell("claims")
        held = claim(*args, **kwargs)
        events.tell("leased", waited=time.time() - began, generation=held.generation)
        return held

    def created(*args: Any, **kwargs: Any) -> bool:
        done = create(*args, **kwargs)
        if sweep.moment == "claim":
            events.tell("now")
            time.sleep(_HELD_S)
        return done

    lease.claim, lease.Owners.create = told, created  # type: ignore[method-assign]


def drive(given: str) -> None:
    """Run the sweep, or go on with it."""
    sweep = Sweep(**json.loads(given))
    events = Drivers(Path(sweep.events))
    watch_lease(sweep, events)
    events.tell("imported")
    tl.run(
        {"lr": tl.uniform(0.01, 0.1)},
        training(sweep),
        metric="loss",
        num_samples=sweep.trials,
        workers=2,
        max_concurrent=1,
        scheduler="fifo",
        checkpoints=tl.Checkpoints(share=1),  # at most one report is lost where each has its checkpoint
        seed=1,
        storage=sweep.storage,
        name=sweep.name,
        resume=True,
        address=sweep.address,
        progress=False,
    )
    events.tell("ended")


def cluster(ready: str) -> None:
    """Run a head without CPUs and two nodes of one CPU each, until the process is killed."""
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"object_store_memory": _STORE}
    quick = {"prestart_worker_first_driver": False}  # idle task workers would only take processor time
    head = {**node, "num_cpus": 0, "include_dashboard": False, "_system_config": quick}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        made.add_node(num_cpus=1, **node)
    Path(f"{ready}.part").write_text(made.address)
    Path(f"{ready}.part").rename(ready)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    {"cluster": cluster, "drive": drive}[sys.argv[1]](sys.argv[2])
