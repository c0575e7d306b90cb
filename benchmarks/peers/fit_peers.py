"""The peers of strategies.py: tunelight's strategies on a driver, torchrun, horovodrun, ddp_spawn and Ray Train."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from fits import Fits
from jobs import THREADS, by_spawn, by_torchrun, fit_by_ray, local_ray, ray_lightning, run_ways

SAMPLE_S = 0.005
_FIELDS = {"RssAnon": "private", "RssShmem": "shared"}


class Memory:
    """Samples processes' memory while a fit runs: what is private to each, and pages of Ray's store that it has read.

    Workers are watched from here, so that nothing of this runs in them. Runs on: driver.
    """

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.before = {pid: read_memory(pid) for pid in pids}
        self.peak = {pid: dict(found) for pid, found in self.before.items()}

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while self._pids and not self._stop.wait(SAMPLE_S):
            for pid, peak in self.peak.items():
                found = read_memory(pid)
                found["both"] = sum(found.values())
                for name, value in found.items():
                    peak[name] = max(peak.get(name, 0), value)

    def grown(self, pid: int) -> dict[str, int]:
        """Return by how many bytes each figure rose at its peak above where it began."""
        before = {**self.before[pid], "both": sum(self.before[pid].values())}
        return {name: value - before[name] for name, value in self.peak[pid].items()}


def read_memory(pid: int) -> dict[str, int]:
    """Return a process's resident bytes, private ones and those in shared memory; zeros for one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        lines = []
    found = dict.fromkeys(_FIELDS.values(), 0)
    for line in lines:
        name, _, rest = line.partition(":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(rest.split()[0]) * 1024
    return found


def tunelight(job: Fits, _: str) -> None:
    """Run every fit from this process, Ray's start included in the first; the gang is warm from the second on."""
    from models import build

    import tunelight as tl

    strategies: dict[str, Any] = {
        "ddp": tl.RayStrategy,
        "horovod": tl.HorovodRayStrategy,
        "sharded": tl.RayShardedStrategy,
    }
    pids = {"driver": os.getpid()}
    for index, fit in enumerate(job.fits):
        strategy = strategies[fit.strategy](num_workers=job.ranks)
        trainer, model = build(job, index, strategy=strategy)
        with Memory(list(pids.values()) if fit.watched else []) as memory, job.timed(index):
            trainer.fit(model)
        if fit.watched:
            job.tell(0, index, "memory", grown={name: memory.grown(pid) for name, pid in pids.items()})
        if index + 1 < len(job.fits) and job.fits[index + 1].strategy != fit.strategy:
            strategy.shutdown()
        # the gang's processes are known once they have trained, which is what a later fit is watched for
        ranks = job.collect()[index]["ranks"]
        pids = {"driver": os.getpid(), **{rank: event["pid"] for rank, event in ranks.items()}}


def torchrun(job: Fits) -> None:
    """Run every fit on this process's rank, by Lightning's own DDP."""
    from models import build
    from pytorch_lightning.strategies import DDPStrategy

    for index in range(len(job.fits)):
        trainer, model = build(job, index, strategy=DDPStrategy(process_group_backend="gloo"), devices=job.ranks)
        trainer.fit(model)


def spawn(job: Fits, _: str) -> None:
    """Run every fit from this process, with new processes for each."""
    from models import build

    for index in range(len(job.fits)):

        def fit(strategy: Any, index: int = index) -> None:
            trainer, model = build(job, index, strategy=strategy, devices=job.ranks)
            with job.timed(index):
                trainer.fit(model)

        by_spawn(fit)


def train_on_worker(config: dict[str, Any]) -> None:
    """Run one fit as this rank. Runs on: each of Ray Train's workers."""
    from models import build

    module, settings = ray_lightning()
    trainer, model = build(config["job"], config["index"], **settings)
    module.prepare_trainer(trainer).fit(model)


def ray_train(job: Fits, _: str) -> None:
    """Run every fit from this process, each by a TorchTrainer of its own."""
    with local_ray(job.ranks):
        for index in range(len(job.fits)):
            with job.timed(index):
                fit_by_ray(job, train_on_worker, {"job": job, "index": index}, f"fit-{index}")


def horovod(job: Fits, _: str) -> None:
    """Run a plain loop over the same steps, by Horovod's own recipe and without Lightning's Trainer, by horovodrun."""
    if "HOROVOD_RANK" not in os.environ:  # this file is run again as every rank
        horovodrun = str(Path(sys.executable).with_name("horovodrun"))
        hosts = ["-np", str(job.ranks), "-H", f"localhost:{job.ranks}"]
        os.execv(sys.executable, [sys.executable, horovodrun, "--gloo", *hosts, sys.executable, *sys.argv])
    import horovod.torch as hvd
    import pytorch_lightning as pl
    import torch
    from models import SEED, Classifier, Clock
    from torch.utils.data import DataLoader, DistributedSampler

    hvd.init()
    torch.set_num_threads(THREADS)
    for index, fit in enumerate(job.fits):
        pl.seed_everything(SEED, verbose=False)
        model, clock = Classifier(fit, job.ranks), Clock(job, index)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(model.configure_optimizers(), named_parameters=model.named_parameters())
        sampler: DistributedSampler[Any] = DistributedSampler(
            model.data, hvd.size(), hvd.rank(), shuffle=True, seed=SEED
        )  # as Lightning does
        for number, batch in enumerate(DataLoader(model.data, batch_size=model.batch, sampler=sampler)):
            clock.begin_batch()
            optimizer.zero_grad()
            loss = model.training_step(batch, number)
            loss.backward()
            optimizer.step()
            clock.end_batch(loss.detach())
        clock.write(hvd.rank(), model.parameters(), [optimizer])
    hvd.barrier()
    leave = hvd.rank() != 0
    hvd.shutdown()
    if leave:
        sys.exit(0)  # rank 0 writes the measurements


if __name__ == "__main__":
    ways = {"tunelight": tunelight, "torchrun": by_torchrun(torchrun), "spawn": spawn}
    run_ways(Fits, {**ways, "ray_train": ray_train, "horovod": horovod})
