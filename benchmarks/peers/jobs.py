"""What peers share: a job that travels as JSON, events by which it is timed, and ways to start ranks."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

THREADS = 1
"""Threads of torch in every worker of every peer."""
ATTEMPTS = 4
"""Starts of ddp_spawn, whose processes may die of a signal."""
QUIET: Mapping[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
"""What all Trainers of all peers are given."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A peer's job; events and storage are in ``folder``."""

    folder: str
    ranks: int = 2

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a job."""
        return cls(**json.loads(Path(path).read_text()))

    def text(self) -> str:
        """Return the job as JSON."""
        return json.dumps(asdict(self), indent=1)

    @property
    def storage(self) -> str:
        """Where a peer's checkpoints and records go."""
        return str(Path(self.folder, "storage"))

    def tell(self, rank: int, trial: int, event: str, **fields: Any) -> None:
        """Append an event to the file of ``rank``; one short write, safe from any process."""
        line = {"trial": trial, "event": event, "time": time.time(), "pid": os.getpid(), **fields}
        with Path(self.folder, f"events-{rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def events(self) -> list[dict[str, Any]]:
        """Return all ranks' events in the order of their times."""
        events = [
            {**json.loads(line), "rank": int(path.stem.split("-")[1])}
            for path in Path(self.folder).glob("events-*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return sorted(events, key=lambda event: float(event["time"]))

    def collect(self) -> list[dict[str, Any]]:
        """Return what was measured: the events, where a job makes nothing else of them."""
        return self.events()


W = TypeVar("W", bound=Work)
Way = Callable[[W, str], None]


def run_ways(kind: type[W], ways: Mapping[str, Way[W]]) -> None:
    """Run one of a file's peers from its command line: do the job, then write what was measured to OUT."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=ways)
    parser.add_argument("job", help="the job, as JSON")
    parser.add_argument("out", type=Path, help="where to write the measurements, as JSON")
    args = parser.parse_args()
    job = kind.load(args.job)
    called = time.time()
    ways[args.way](job, args.way)
    done = time.time()
    args.out.write_text(json.dumps({"called": called, "done": done, "trials": job.collect()}, indent=1))


# --- torch's own launchers --------------------------------------------------------------------------------


def by_torchrun(loop: Callable[[W], None], options: Sequence[str] = ("--standalone",)) -> Way[W]:
    """Return a way that becomes torchrun, which runs this file again as every rank; each calls ``loop``."""

    def way(job: W, _: str) -> None:
        if "RANK" not in os.environ:
            torchrun = [sys.executable, "-m", "torch.distributed.run", *options, "--nproc-per-node", str(job.ranks)]
            os.execv(sys.executable, [*torchrun, *sys.argv])
        import torch.distributed as dist

        loop(job)
        dist.destroy_process_group()  # Lightning leaves it alive, which the next fit of a loop has used
        if os.environ["RANK"] != "0":
            sys.exit(0)  # rank 0 writes the measurements

    return way


def by_spawn(fit: Callable[[Any], Any]) -> Any:
    """Call ``fit`` with Lightning's ddp_spawn, anew where a process died of a signal; return what it returns."""
    from pytorch_lightning.strategies import DDPStrategy
    from torch.multiprocessing import ProcessExitedException

    for _ in range(ATTEMPTS):
        try:
            return fit(DDPStrategy(start_method="spawn", process_group_backend="gloo"))
        except ProcessExitedException as error:  # gloo now and then aborts one of two ranks that exit
            print(f"a start of ddp_spawn failed: {error}")
    raise RuntimeError(f"ddp_spawn failed {ATTEMPTS} times")


# --- Ray Train (V2) ---------------------------------------------------------------------------------------


def ray_lightning() -> tuple[Any, dict[str, Any]]:
    """Return `ray.train.lightning`, and what it wants a Trainer to be given. Runs on: worker.

    It is imported with pytorch_lightning, as the peers do: it would take `lightning` if that is there.
    """
    sys.modules["lightning"] = None  # type: ignore[assignment]  # which means: there is no such module
    try:
        found: Any = importlib.import_module("ray.train.lightning")
    finally:
        del sys.modules["lightning"]
    settings = {"strategy": found.RayDDPStrategy(), "plugins": [found.RayLightningEnvironment()], "devices": "auto"}
    return found, settings


@contextmanager
def local_ray(cpus: int, **more: Any) -> Iterator[None]:
    """Have a Ray of this process's own."""
    import ray

    ray.init(address="local", num_cpus=cpus, log_to_driver=False, **more)
    try:
        yield
    finally:
        ray.shutdown()


def fit_by_ray(
    job: Work, worker: Callable[[dict[str, Any]], None], config: Mapping[str, Any], name: str, **settings: Any
) -> None:
    """Train by a TorchTrainer of its own, with ``worker`` on each rank."""
    from ray import train
    from ray.train.torch import TorchTrainer

    scaling = train.ScalingConfig(num_workers=job.ranks, use_gpu=settings.pop("use_gpu", False))
    run = train.RunConfig(name=name, storage_path=job.storage, **settings)
    TorchTrainer(worker, train_loop_config=dict(config), scaling_config=scaling, run_config=run).fit()
