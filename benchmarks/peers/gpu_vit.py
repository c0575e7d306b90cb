"""The vision transformer that gpu.py trains: in this process, in new ones (ddp_spawn, Ray Train), or in a trial.

Every fit tells when its first and its last step had ended (seconds of the wall clock), the images a second between
them, the first few steps left out, and how many graphs its process has compiled so far.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
import torch._dynamo.utils
from jobs import QUIET, Work, fit_by_ray, local_ray, ray_lightning, run_ways
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from tunelight.extras.zoo import VisionTransformer

IMAGES = 10_000


@dataclass(frozen=True, kw_only=True)
class Vit(Work):
    """What to train, and how often. ``compiler``: of torch.compile, "" for none."""

    ranks: int = 1
    model: dict[str, int]
    batch: int
    steps: int
    warmup: int
    device: str
    compiler: str = ""
    fits: int = 1

    def collect(self) -> list[dict[str, Any]]:
        """Return what the fits told, in the order in which they ended."""
        return sorted(self.events(), key=lambda event: float(event["last"]))


class Whole(torch.nn.Module):
    """The network as one module of its own, since ``Module.compile`` compiles nothing of a bare ``Sequential``."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: torch.Tensor) -> Any:
        """Return logits."""
        return self.net(images)


class Model(VisionTransformer):
    """The template, compiled if that is asked; its images are bytes."""

    def __init__(self, job: Vit, lr: float) -> None:
        super().__init__(lr, **job.model)
        self.net = Whole(self.net)
        self.job = job

    def setup(self, stage: str) -> None:
        """Compile in the process that trains: a module that is sent to one arrives as it was before."""
        torch.set_float32_matmul_precision("high")
        if self.job.compiler:
            self.net.compile(backend=self.job.compiler)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Make numbers from -1 to 1 of the bytes, on the device."""
        return batch[0].float() / 127.5 - 1, batch[1]


class Clock(pl.Callback):
    """Notes when steps end, once the device has done them, and writes the fit's line after the last."""

    def __init__(self, job: Vit) -> None:
        self.job = job
        self.times: dict[int, float] = {}

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Note the first step, the last one before those that are measured, and the last."""
        job, step = self.job, trainer.global_step
        if step not in (1, job.warmup, job.steps):
            return
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize()
        self.times[step] = time.time()
        if step == job.steps and trainer.is_global_zero:
            speed = (job.steps - job.warmup) * job.batch / (self.times[step] - self.times[job.warmup])
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            job.tell(0, 0, "fit", first=self.times[1], last=self.times[step], speed=speed, graphs=graphs)


def loader(job: Vit) -> DataLoader[Any]:
    """Return batches of generated images, the same for everyone."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (max(IMAGES, job.batch), 3, 32, 32), dtype=torch.uint8, generator=generator)
    data = TensorDataset(images, torch.randint(0, 10, (len(images),), generator=generator))
    order = BatchSampler(RandomSampler(data), job.batch, drop_last=True)
    return DataLoader(data, sampler=order, batch_size=None)


def fit(job: Vit, number: int, **settings: Any) -> None:
    """Train once."""
    own = {
        "accelerator": "gpu" if job.device == "cuda" else "cpu",
        "precision": "bf16-mixed",
        "callbacks": [Clock(job)],
    }
    given: dict[str, Any] = {**QUIET, **own, "use_distributed_sampler": False, **settings}
    pl.Trainer(max_steps=job.steps, **given).fit(Model(job, 1e-4 * (1 + number)), loader(job))


def lightning(job: Vit, way: str) -> None:
    """Train several times without Ray: here alone, here by DDP with one rank as a trial does, or in new processes."""
    from pytorch_lightning.strategies import DDPStrategy

    backend = "nccl" if job.device == "cuda" else "gloo"
    for number in range(job.fits):
        start: Any = "spawn" if way == "spawn" else "popen"
        ddp = DDPStrategy(start_method=start, process_group_backend=backend)
        fit(job, number, devices=1, strategy="auto" if way == "alone" else ddp)


def ray_train(job: Vit, _: str) -> None:
    """Train several times, each by a TorchTrainer of its own."""
    with local_ray(max(2, job.ranks)):
        for number in range(job.fits):
            config = {"job": job, "number": number}
            fit_by_ray(job, ray_train_worker, config, f"fit-{number}", use_gpu=job.device == "cuda")


def ray_train_worker(config: dict[str, Any]) -> None:
    """Train once on a worker of Ray Train."""
    _, settings = ray_lightning()
    fit(config["job"], config["number"], **settings)


if __name__ == "__main__":
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    run_ways(Vit, {"alone": lightning, "ddp": lightning, "spawn": lightning, "ray_train": ray_train})
