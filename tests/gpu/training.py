"""What GPU tests train: on workers, and without gangs in a process of its own: python -m tests.gpu.training JSON."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import tunelight as tl
from tests.kit.training import Line, note, trainer
from tunelight.compat.lightning import Callback, pl
from tunelight.session.session import get_session

SEED, BATCH, SAMPLES, INPUTS, WIDTH = 11, 16, 128, 8, 256
EPOCHS = 3


class Layers(torch.nn.Module):
    """Two layers. A class of its own, since ``Module.compile`` compiles nothing of a bare ``Sequential``."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(INPUTS, width), torch.nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(torch.nn.functional.gelu(self.first(x)))


class Net(Line):
    """A net without dropout and BatchNorm: halves of a batch teach it what the whole does."""

    net: Any

    def __init__(self, lr: float, compiler: str = "") -> None:
        super().__init__(lr)
        torch.manual_seed(SEED)
        self.net = Layers()
        if compiler:
            self.net.compile(backend=compiler)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class Points(pl.LightningDataModule):
    """Points whose sums are learned; each step takes the same ones, whatever the number of ranks."""

    def train_dataloader(self) -> DataLoader[Any]:
        x = torch.randn(SAMPLES, INPUTS, generator=torch.Generator().manual_seed(SEED))
        data = TensorDataset(x, x.sum(1, keepdim=True))
        assert self.trainer is not None
        ranks, rank = self.trainer.world_size, self.trainer.global_rank
        order: Any = DistributedSampler(data, ranks, rank, shuffle=False)
        return DataLoader(data, BATCH // ranks, sampler=order)

    val_dataloader = train_dataloader


class Curve(Callback):
    """Keeps the validation loss of each epoch."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.losses.append(float(trainer.callback_metrics["val_loss"]))


def fit(kind: str, model: Any, report: Any = None, callbacks: Any = (), epochs: int = EPOCHS, **settings: Any) -> None:
    """Train a model quietly, on the trial's gang where ``settings`` name no strategy. ``kind``: "cuda" or "cpu"."""
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "use_distributed_sampler"), False)
    accelerator = {"cuda": "gpu", "cpu": "cpu"}[kind]
    made = trainer(epochs, report, callbacks, accelerator=accelerator, num_sanity_val_steps=0, **quiet, **settings)
    made.fit(model, datamodule=Points())


def alone(config: dict[str, Any]) -> list[float]:
    """Train in this process, on its first device; return the losses."""
    model, curve = Net(config["lr"], config["compiler"]), Curve()
    fit(config["device"], model, curve, strategy="auto", devices=1, precision=config["precision"])
    return curve.losses


class Seen(Callback):
    """Writes down what a rank trains on: where, by which process group, and how it holds its parameters."""

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step:
            return
        parameters = sorted({type(one).__name__ for one in pl_module.parameters()})
        note("seen", group=torch.distributed.get_backend(), device=pl_module.device.type, parameters=parameters)


def in_a_trial(config: dict[str, Any]) -> None:
    """Train as :func:`alone` does, on the trial's gang."""
    sharded = tl.get_context().backend == "sharded"
    more: dict[str, Any] = {"strategy": tl.RayShardedStrategy(min_sharded=1)} if sharded else {}
    model = Net(config["lr"], config["compiler"])
    fit(config["device"], model, callbacks=[Seen()], precision=config["precision"], **more)


def compiling(config: dict[str, Any]) -> None:
    """Run a compiled net of a width, whose kernels no cache on disk has, once inductor's processes are there."""
    from torch._inductor.async_compile import AsyncCompile

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(tl.get_context().trial_dir, "inductor"))
    net: Any = Layers(config["width"]).cuda()
    compiled: Any = torch.compile(net, mode=config["mode"])
    for _ in range(4):  # to warm up, to record a CUDA graph, and to replay it
        torch.compiler.cudagraph_mark_step_begin()
        compiled(torch.randn(BATCH, INPUTS, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    end = time.monotonic() + 60
    while not AsyncCompile.use_process_pool() and time.monotonic() < end:
        time.sleep(0.1)
    note("compiled")
    tl.report({"loss": 1.0})


def used_memory(kind: str) -> int:
    """Return the bytes in use on this worker's GPU, by all processes; 0 on CPUs."""
    if kind != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def measured(config: dict[str, Any]) -> None:
    """Note how much memory is in use, then train with more of it, as much as the configuration says."""
    note("began", used=used_memory(config["device"]))
    own = torch.ones(config["megabytes"], 2**18, device=config["device"])
    fit(config["device"], Net(config["lr"] * float(own.mean())))


KEPT: list[torch.Tensor] = []


def leaking(config: dict[str, Any]) -> None:
    """Leave 3 % of the GPU's memory in a global of this module."""
    note("began")
    _, total = torch.cuda.mem_get_info()
    KEPT.append(torch.empty(int(0.03 * total), dtype=torch.uint8, device="cuda"))
    tl.report({"loss": 1.0})


class Needy(Net):
    """Takes ``need`` times the memory of its GPU for a whole batch, and half of it for half a batch."""

    def __init__(self, lr: float, need: float) -> None:
        super().__init__(lr)
        self.need = need

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        need = self.need * len(batch[0]) / BATCH
        if self.device.type == "cuda":
            _, total = torch.cuda.mem_get_info()
            held = torch.empty(int(need * total), dtype=torch.uint8, device=self.device)
            del held
            torch.cuda.empty_cache()  # else a small tensor may be put into it, and the next one does not fit
        elif need > 1:
            raise torch.OutOfMemoryError("out of memory, if this were a GPU")
        return super().training_step(batch, number)


def needy(config: dict[str, Any]) -> None:
    """Train a model that needs so much memory."""
    fit(config["device"], Needy(config["lr"], config["need"]))


HELD = 2**30
"""Bytes that the process holds when it is killed."""


class Killed(Callback):
    """Kills its process in the second epoch, while a kernel runs on the GPU that would take a minute."""

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch != 1 or Path(tl.get_context().trial_dir, "killed-0.jsonl").exists():
            return
        if pl_module.device.type == "cuda":
            self.held = torch.ones(HELD, dtype=torch.uint8, device=pl_module.device)
            torch.cuda._sleep(10**11)
        note("killed")
        os.kill(os.getpid(), signal.SIGKILL)


def killed(config: dict[str, Any]) -> None:
    """Train with checkpoints, and lose the process on the way; wait until the memory of a lost one is free again."""
    note("began")
    before = Path(tl.get_context().trial_dir, "free-0.jsonl")
    limit = json.loads(before.read_text())["used"] + HELD / 4 if before.exists() else None
    end = time.monotonic() + 60
    while limit is not None and used_memory(config["device"]) > limit and time.monotonic() < end:
        time.sleep(0.1)
    note("free", used=used_memory(config["device"]))
    fit(config["device"], Net(config["lr"]), tl.TuneReportCheckpointCallback({"loss": "val_loss"}), [Killed()])


class Breaking(Callback):
    """Breaks CUDA in this process in the second epoch, or raises an error on rank 1, as ``how`` says."""

    def __init__(self, how: str) -> None:
        self.how = how

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        if trainer.current_epoch != 1 or trainer.global_step % 8 != 4:
            return
        if self.how == "step":
            break_cuda()
        elif self.how == "one rank" and trainer.global_rank == 1:
            raise ArithmeticError("only this rank")


def break_cuda() -> None:
    """Cause a device-side assert: each later call of CUDA raises it again."""
    torch.zeros(3, device="cuda")[torch.tensor([5], device="cuda")]
    torch.cuda.synchronize()


def asserting(config: dict[str, Any]) -> None:
    """Train, and break as the configuration says: "start", "step", "one rank" or "" for not at all."""
    note("began")
    if config["breaks"] == "start":
        break_cuda()
    fit("cuda", Net(0.01), callbacks=[Breaking(config["breaks"])])


class Big(pl.LightningModule):
    """One matrix of ``width`` squared numbers of 4 bytes. Its loss is its learning rate: it is known who adopts."""

    def __init__(self, lr: float, width: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(width, width, bias=False)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.log("loss", float(self.hparams["lr"]), on_step=False, on_epoch=True, sync_dist=True)
        loss: torch.Tensor = self.net.weight[: len(batch[0]), :INPUTS].square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])


class Timed(Callback):
    """Notes how long this rank takes to adopt another member's weights."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        exchange: Any = get_session().exchange
        adopt = exchange.adopt

        def timed(*args: Any) -> Any:
            adopted = adopt(*args)
            note("adopted", seconds=adopted.seconds)
            return adopted

        exchange.adopt = timed


def member(config: dict[str, Any]) -> None:
    """Train one member of a population."""
    saving = tl.TuneReportCheckpointCallback({"loss": "loss"}, on="train_epoch_end")
    model, few = Big(config["lr"], config["width"]), {"limit_train_batches": 2, "limit_val_batches": 0}
    fit(config["device"], model, saving, [Timed()], epochs=6, **few)


if __name__ == "__main__":
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    for order, asked in enumerate(json.loads(sys.argv[1])):
        try:
            sys.stdout.write(f"LOSSES {json.dumps([order, alone(asked)])}\n")
        except Exception:  # noqa: BLE001 - such as a compiler that is missing: the other configurations need none
            traceback.print_exc()
