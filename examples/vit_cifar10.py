"""A vision transformer on CIFAR-10 in four steps: one process, a gang, a gang fed by Ray Data, and a sweep.

python examples/vit_cifar10.py --size tiny                    # generated images, about a minute on two cores
python examples/vit_cifar10.py --data ~/data/cifar10 --gpu    # CIFAR-10, on two GPUs
python examples/vit_cifar10.py --steps 2 --backend horovod --workers 8
examples/README.md compares it with the tutorial that it follows.
"""

from __future__ import annotations

import argparse
import logging
import os
import pickle
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, DistributedSampler

import tunelight as tl
from tunelight.extras.zoo import Cifar10Data, VisionTransformer

if TYPE_CHECKING:
    from ray.data import Dataset

STRATEGIES = {"ddp": tl.RayStrategy, "horovod": tl.HorovodRayStrategy, "sharded": tl.RayShardedStrategy}
SEED = 7


# --- what is trained: a model, images, and how much of both -----------------------------------------------


@dataclass(frozen=True)
class Size:
    """Size of model and data. ``batch`` counts the images of a step over all workers."""

    model: dict[str, int]
    lr: float
    batch: int
    epochs: int
    trials: int
    at_once: int | None  # trials; None: as many as fit
    generated: tuple[int, int]  # images for training and test, without CIFAR-10


SIZES = {
    "full": Size(
        model={"patch": 4, "layers": 12, "heads": 8, "hidden": 384, "mlp": 768},
        lr=1e-3, batch=512, epochs=10, trials=16, at_once=None, generated=(50_000, 10_000),
    ),
    "tiny": Size(
        model={"patch": 8, "layers": 2, "heads": 4, "hidden": 48, "mlp": 96},
        lr=3e-3, batch=128, epochs=4, trials=4, at_once=1, generated=(2560, 512),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """The command line."""

    size: Size
    images: Path
    runs: Path
    backend: str = "ddp"
    workers: int = 2
    gpu: bool = False

    def model(self, **config: float) -> VisionTransformer:
        """Return the model, 32 x 32 pixels in, ten classes out, with AdamW; its initial weights are always the same."""
        torch.manual_seed(SEED)
        return VisionTransformer(**{"lr": self.size.lr, "weight_decay": 1e-2, **self.size.model, **config})  # type: ignore[arg-type]  # numbers of two kinds

    def data(self, workers: int) -> Images:
        """Return the images for a gang of ``workers`` workers."""
        return Images(self.images, batch_size=share(self.size.batch, workers))

    def trainer(self, *callbacks: pl.Callback, **settings: Any) -> pl.Trainer:
        """Return a Trainer that prints only what its callbacks print."""
        quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        accelerator = "auto" if self.gpu else "cpu"
        return pl.Trainer(
            max_epochs=self.size.epochs, accelerator=accelerator, callbacks=list(callbacks), **quiet, **settings
        )

    def checkpoints(self, step: int) -> pl.callbacks.ModelCheckpoint:
        """Return a callback that writes a checkpoint each epoch, and keeps the best and the last."""
        return pl.callbacks.ModelCheckpoint(self.runs / f"step-{step}", monitor="val_loss", save_last=True)


def share(batch: int, workers: int) -> int:
    """Return how many of a step's images each worker takes. Raises: ValueError if they cannot be split equally."""
    if batch % workers:
        raise ValueError(
            f"A batch of {batch} images cannot be split evenly over {workers} workers. Take a number of workers that "
            f"divides {batch}."
        )
    return batch // workers


def to_model(images: Any) -> Any:
    """Scale images from 0..1 to -1..1, on which the model learns faster."""
    return images * 2 - 1


class Images(Cifar10Data):
    """CIFAR-10 in an order that does not depend on the number of workers: each step has the same images."""

    def train_dataloader(self) -> DataLoader[Any]:
        """Return this rank's share of the training images."""
        assert self.trainer is not None  # Lightning sets it before it calls this
        order: DistributedSampler[Any] = DistributedSampler(
            self.train, self.trainer.world_size, self.trainer.global_rank, seed=SEED
        )
        return DataLoader(self.train, self.batch_size, sampler=order)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Convert a batch's images from bytes to the model's numbers, on the device."""
        images, labels = super().on_after_batch_transfer(batch, dataloader_idx)
        return to_model(images), labels


class Curve(pl.Callback):
    """Prints and keeps the metrics of each epoch."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note losses and accuracy, which are averages over all ranks."""
        now = {name: float(trainer.callback_metrics[name]) for name in ("train_loss", "val_loss", "val_acc")}
        self.epochs.append(now)
        if trainer.is_global_zero:
            print(f"epoch {trainer.current_epoch + 1}: " + ", ".join(f"{key} {now[key]:.4f}" for key in now))


# --- step 1: one process ----------------------------------------------------------------------------------


def one_process(job: Job) -> Curve:
    """Train in this process."""
    curve = Curve()
    trainer = job.trainer(curve, job.checkpoints(1), devices=1)
    trainer.fit(job.model(), datamodule=job.data(workers=1))
    return curve


# --- step 2: a gang ---------------------------------------------------------------------------------------


def gang(job: Job) -> Curve:
    """Train on a gang of workers: only the strategy is new."""
    curve = Curve()
    with STRATEGIES[job.backend](num_workers=job.workers, use_gpu=job.gpu) as strategy:
        trainer = job.trainer(curve, job.checkpoints(2), strategy=strategy)
        trainer.fit(job.model(), datamodule=job.data(job.workers))
    return curve


# --- step 3: a gang that Ray Data feeds -------------------------------------------------------------------


def fed_gang(job: Job) -> Curve:
    """Train on a gang whose images are prepared by Ray Data's own tasks, and streamed to its ranks."""
    train, val = datasets(job)
    data = tl.RayDataModule(
        train, val, columns=("image", "label"), batch_size=share(job.size.batch, job.workers), seed=SEED
    )
    curve = Curve()
    with STRATEGIES[job.backend](num_workers=job.workers, use_gpu=job.gpu) as strategy:
        trainer = job.trainer(curve, job.checkpoints(3), strategy=strategy)
        trainer.fit(job.model(), datamodule=data)
    return curve


def datasets(job: Job) -> tuple[Dataset, Dataset]:
    """Return the other steps' training and validation images, prepared lazily by tasks."""
    import ray.data  # the other steps do without it

    known = job.data(job.workers)
    known.setup()
    parts = []
    for name, part in (("train", known.train), ("val", known.val)):
        images, labels = (tensor.numpy() for tensor in part.tensors)
        path = job.runs / f"{name}.parquet"
        write_parquet(path, images, labels)
        parts.append(ray.data.read_parquet(str(path)).map_batches(prepared))
    return parts[0], parts[1]


def prepared(batch: Any) -> dict[str, Any]:
    """Convert images of bytes, [N, 32, 32, 3], to the model's numbers, [N, 3, 32, 32]. Runs in a task of Ray Data."""
    images = batch["image"].transpose(0, 3, 1, 2).astype(np.float32) / 255
    return {"image": to_model(images), "label": batch["label"]}


# --- step 4: a sweep --------------------------------------------------------------------------------------


def sweep(job: Job) -> tl.SweepResults:
    """Search learning rate and weight decay by ASHA; each trial is a gang. Write the best model and its config."""

    def train(config: dict[str, Any]) -> None:
        report = {"loss": "val_loss", "acc": "val_acc"}
        trainer = job.trainer(
            tl.TuneReportCheckpointCallback(report), strategy=STRATEGIES[job.backend](), enable_checkpointing=False
        )
        trainer.fit(job.model(**config), datamodule=job.data(trainer.world_size))

    results = tl.run(
        {"lr": tl.loguniform(1e-4, 1e-2), "weight_decay": tl.loguniform(1e-3, 1e-1)},
        train,
        metric="loss",
        num_samples=job.size.trials,
        max_epochs=job.size.epochs,
        scheduler={"name": "asha", "grace_period": 1, "reduction_factor": 2},
        workers=job.workers,
        gpus_per_worker=int(job.gpu),
        backend=job.backend,  # type: ignore[arg-type]  # argparse has checked it
        max_concurrent=job.size.at_once,
        seed=SEED,
        storage=job.runs,
        name="step-4",
    )
    best = results.best
    print(f"Best of {len(results)}: {best.config}, accuracy {best.metrics['acc']:.4f}")
    written = results.export_best(job.runs / "best.yaml", checkpoint=True)
    print(f"Written to {written}, and its model beside it")
    model = best.load_model(VisionTransformer)
    tested = job.trainer(devices=1, enable_checkpointing=False).test(model, datamodule=job.data(1), verbose=False)
    print(f"Accuracy on the test images: {tested[0]['test_acc']:.4f}")
    return results


# --- which of them, on what -------------------------------------------------------------------------------

STEPS: dict[int, Callable[[Job], object]] = {1: one_process, 2: gang, 3: fed_gang, 4: sweep}


def steps(text: str) -> list[int]:
    """Return the steps that "1,2,4" names. Raises: argparse.ArgumentTypeError for an unknown step."""
    named = text.split(",")
    if wrong := [name for name in named if name not in map(str, STEPS)]:
        raise argparse.ArgumentTypeError(f"there is no step {wrong[0]!r}: there are 1, 2, 3 and 4")
    return [int(name) for name in named]


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--steps", type=steps, default=[1, 2, 3, 4], help="some of 1,2,3,4")
    parser.add_argument("--backend", choices=STRATEGIES, default="ddp", help="how workers train together")
    parser.add_argument("--workers", type=int, default=2, help="workers of each gang")
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    parser.add_argument("--data", help="CIFAR-10's folder, on every node (default: generated images)")
    parser.add_argument("--storage", type=Path, default=Path("runs"), help="folder for all that is written")
    return parser


def start_ray(workers: int) -> None:
    """Start a Ray on this machine, unless RAY_ADDRESS names a cluster, with CPUs to spare for Ray Data's tasks."""
    import ray  # step 1 does without it

    if "RAY_ADDRESS" not in os.environ:
        cpus = max(os.cpu_count() or 1, workers + 2)
        ray.init(
            address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )


def generate_cifar10(folder: Path, train: int = 50_000, test: int = 10_000) -> Path:
    """Write generated images in CIFAR-10's format, and return the folder; leave one alone that is there.

    Each of ten classes is a tint and a texture, three waves in colours of their own. Each image shows them from another
    place, in another light and strength, under noise: the tint tells some of the classes at once, and whoever learns
    the textures tells more.
    """
    if folder.is_dir():
        return folder
    random = np.random.default_rng(0)
    classes = (
        random.uniform(2, 9, (10, 3, 2)) * random.choice([-1, 1], (10, 3, 2)),
        random.normal(0, 1, (10, 3, 3)),
        random.normal(0, 0.06, (10, 3, 1, 1)),
    )
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        unfinished.mkdir(parents=True)
        for names, count in (([f"data_batch_{number}" for number in range(1, 6)], train), (["test_batch"], test)):
            labels = random.permutation(np.arange(count) % 10).astype(np.int64)
            images = np.concatenate(
                [_drawn(classes, labels[start : start + 1000], random) for start in range(0, count, 1000)]
            )
            files = zip(names, np.array_split(images, len(names)), np.array_split(labels, len(names)), strict=True)
            for name, part, its_labels in files:
                batch = {b"data": part.reshape(len(part), -1), b"labels": its_labels.tolist()}
                (unfinished / name).write_bytes(pickle.dumps(batch))
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def write_parquet(path: Path, images: Any, labels: Any) -> None:
    """Write images of shape [N, 3, 32, 32] as tensors [32, 32, 3], as picture files have them, with their labels."""
    import pyarrow as pa  # steps 1 and 2 on images of your own do without it
    from pyarrow import parquet

    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(images.transpose(0, 2, 3, 1)))
    parquet.write_table(pa.table({"image": tensors, "label": labels}), path, row_group_size=2048)


def _drawn(classes: tuple[Any, ...], labels: Any, random: np.random.Generator) -> Any:
    """Return an image of each label's class, shape [N, 3, 32, 32]."""
    waves, colours, tints = (part[labels].astype(np.float32) for part in classes)
    count, steps = len(labels), np.arange(32) / 32
    places = np.stack(np.meshgrid(steps, steps, indexing="ij"))
    phases = np.einsum("nkd,dhw->nkhw", waves, places.astype(np.float32)) + random.random((count, 3, 1, 1), np.float32)
    texture = np.einsum("nkc,nkhw->nchw", colours, np.sin(2 * np.pi * phases))
    strength, light = random.uniform(0.02, 0.12, (count, 1, 1, 1)), random.normal(0, 0.08, (count, 3, 1, 1))
    clean = 0.5 + tints + light.astype(np.float32) + strength.astype(np.float32) * texture
    noisy = clean + 0.2 * random.standard_normal((count, 3, 32, 32), np.float32)
    return (noisy.clip(0, 1) * 255).astype(np.uint8)


def main(arguments: list[str] | None = None) -> None:
    """Run the chosen steps (``argv`` None: those of the command line)."""
    parser = options()
    args = parser.parse_args(arguments)
    size = SIZES[args.size]
    storage = args.storage.absolute()
    images = args.data or generate_cifar10(storage / f"generated-{args.size}", *size.generated)
    runs = storage / f"vit-{time.strftime('%Y%m%d-%H%M%S')}"
    job = Job(size, Path(images).expanduser().absolute(), runs, args.backend, args.workers, args.gpu)
    try:
        job.data(job.workers)
    except (ValueError, tl.errors.TunelightError) as error:
        parser.error(str(error))
    if args.data is None:
        print("No --data: the images are GENERATED, in CIFAR-10's shape. Accuracies say nothing about CIFAR-10.")
    print(f"Images: {images}. What is written: {runs}")
    runs.mkdir(parents=True)
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    if max(args.steps) > 1:
        start_ray(job.workers)
    for step in args.steps:
        print(f"--- step {step}: {STEPS[step].__name__.replace('_', ' ')}", flush=True)
        began = time.monotonic()
        STEPS[step](job)
        print(f"{time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
