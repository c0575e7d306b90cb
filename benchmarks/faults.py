"""Faults that chaos.py injects, one a trial: what, at which moment, on which rank; and the training that they hit.

Each step of a trial is written to one file of the sweep, one JSON object a line.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import ray
import torch
from ray.tune.schedulers import FIFOScheduler
from torch.utils.data import DataLoader, TensorDataset

import tunelight as tl
from tunelight.errors import TrialStopped
from tunelight.messages import RESULT_KEY, Resize
from tunelight.settings.backends import BACKENDS

KINDS = ("sigkill", "segfault", "abort", "sigstop", "stuck", "exception", "node", "head")
MOMENTS = ("setup", "batch", "collective", "validation", "checkpoint", "between", "resize")
STAGES = ("leaves two", "starts as one", "leaves one", "starts as two")
"""Where a fault hits an elastic trial that goes from two workers to one and back to two."""
EPOCHS, BATCHES = 4, 8
SMALL_S = 11.0
"""For how long an elastic gang of one worker trains slowly: longer than its cool-down, so that it grows after it."""
_LATE_S = 0.4
_FROM_OUTSIDE_S = 2.5
"""How long a rank waits to be hit from outside."""
_SIGNALS = {"sigkill": signal.SIGKILL, "segfault": signal.SIGSEGV, "abort": signal.SIGABRT, "sigstop": signal.SIGSTOP}


@dataclass(frozen=True)
class Fault:
    """One fault: ``epoch`` and ``batch`` where they say anything, a resize's ``stage``, a checkpoint's ``delay_s``."""

    kind: str
    moment: str
    rank: int
    epoch: int
    batch: int
    stage: int = 0
    delay_s: float = 0.0

    @property
    def elastic(self) -> bool:
        """True for a fault of an elastic trial."""
        return self.moment == "resize"

    def __str__(self) -> str:
        at = STAGES[self.stage] if self.elastic else f"epoch {self.epoch}, batch {self.batch}"
        return f"{self.kind} in {self.moment} on rank {self.rank} ({at})"


def draw(count: int, seed: int, kinds: Iterable[str], moments: Iterable[str]) -> list[Fault]:
    """Return ``count`` faults: every kind at every moment once, as far as they go, and the rest drawn."""
    draws = random.Random(seed)
    every = [(kind, moment) for kind in kinds for moment in moments]
    draws.shuffle(every)
    pairs = [*every, *(draws.choice(every) for _ in range(count - len(every)))][:count]
    return [_draw_one(draws, kind, moment) for kind, moment in pairs]


def _draw_one(draws: random.Random, kind: str, moment: str) -> Fault:
    stages = {"node": (0, 3), "stuck": (0, 2, 3)}.get(kind, (0, 1, 2, 3))  # one worker alone has no peers, nor nodes
    stage = draws.choice(stages)
    rank = 0 if moment == "resize" and stage in (1, 2) else draws.randrange(2)
    if (kind, moment) == ("stuck", "between"):
        rank = 1  # behind its last fit rank 0 may evaluate or export for hours
    epoch = draws.randrange(EPOCHS)
    delay = draws.choice((0.0, 0.002, 0.01)) if moment == "checkpoint" and kind in _SIGNALS else 0.0
    fault = Fault(kind, moment, rank, epoch, draws.randrange(1, BATCHES), stage, delay)
    if kind == "node":
        return replace(fault, rank=-1)  # whichever is not on the driver's node
    return fault


class Events:
    """The file that processes tell what happened, and when."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def tell(self, what: str, context: Any = None, **more: Any) -> None:
        """Add a line; it is one write, so that lines of several processes do not mix. Runs on: worker."""
        context = context or tl.get_context()  # between two trials there is none
        line = {"what": what, "trial": context.trial_id, "rank": context.rank, "pid": os.getpid(), "time": time.time()}
        with self.path.open("a") as file:
            file.write(json.dumps({**line, "ranks": context.world_size, **more}) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """Return what was told so far, in order of time."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return sorted((json.loads(line) for line in lines), key=lambda line: line["time"])


class Injector:
    """Makes a trial's fault happen, once. Runs on: worker."""

    def __init__(self, fault: Fault | None, events: Events, home: str) -> None:
        self.fault = fault
        self.events = events
        context = tl.get_context()
        self._context = context
        self._began = time.monotonic()
        self._fired = Path(context.trial_dir, "fired")
        self._small = Path(context.trial_dir, "small")
        if context.world_size == 1:
            self._small.touch()
        self._mine = fault is not None and context.rank == fault.rank
        self._node = ray.get_runtime_context().get_node_id()
        if fault is not None and fault.rank < 0:
            self._mine = self._node != home

    def at(self, moment: str, epoch: int | None = None, batch: int | None = None, stages: tuple[int, ...] = ()) -> None:
        """Let the fault happen, if this is its moment."""
        fault = self.fault
        if fault is None or not self._mine or fault.moment != moment or self._fired.exists():
            return
        if (
            epoch not in (None, fault.epoch)
            or batch not in (None, fault.batch)
            or (stages and fault.stage not in stages)
        ):
            return
        if moment in ("collective", "validation"):
            time.sleep(_LATE_S)  # the others wait by now
        if moment in ("checkpoint", "between") and fault.kind in _SIGNALS:
            delay = fault.delay_s if moment == "checkpoint" else 0.02
            threading.Thread(target=self._act, args=(delay,), daemon=True).start()
            return
        self._act()

    def at_start(self) -> None:
        """Let a fault of a resize happen that hits a start in another size."""
        one = self._context.world_size == 1
        self.at("resize", stages=(1,) if one else (3,) if self._small.exists() else (-1,))

    def at_leave(self) -> None:
        """Let a fault of a resize happen that hits ranks that leave."""
        self.at("resize", stages=(2,) if self._context.world_size == 1 else (0,))

    def slow(self) -> None:
        """Keep an elastic gang small for as long as it takes to grow again."""
        late = self.fault is not None and self.fault.elastic and self.fault.stage != 1
        small = self._context.world_size == 1 and not self._fired.exists()
        if late and small and time.monotonic() - self._began < SMALL_S:
            time.sleep(1.0)

    def _act(self, delay_s: float = 0.0) -> None:
        assert self.fault is not None  # it is what was asked for before
        time.sleep(delay_s)
        self._fired.touch()
        self.events.tell("fault", self._context, kind=self.fault.kind, node=self._node)
        match self.fault.kind:
            case "exception":
                raise RuntimeError(f"injected in {self.fault.moment}")
            case "stuck":
                time.sleep(3600)
            case "node" | "head":
                time.sleep(_FROM_OUTSIDE_S)
            case kind:
                os.kill(os.getpid(), _SIGNALS[kind])


class Net(pl.LightningModule):
    """A small net; dropout makes every random number count."""

    def __init__(self, lr: float, injector: Injector) -> None:
        super().__init__()
        self.lr = lr
        self.injector = injector
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )

    def setup(self, stage: str) -> None:
        """Tell of a start."""
        self.injector.events.tell("start")
        self.injector.at("setup")
        self.injector.at_start()

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        self.injector.slow()
        self.injector.at("batch", self.current_epoch, number)
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def on_before_backward(self, loss: torch.Tensor) -> None:
        """Be late into the all-reduce."""
        # The loop's own number: that of training_step is not handed on to this hook.
        self.injector.at("collective", self.current_epoch, self.trainer.fit_loop.epoch_loop.batch_idx)

    def on_train_batch_end(self, *_: Any) -> None:
        """Tell of a finished batch."""
        if self.global_rank == 0:
            self.injector.events.tell("batch", epoch=self.current_epoch)

    def validation_step(self, batch: Any, number: int) -> None:
        """Log the loss of a batch."""
        self.injector.at("validation", self.current_epoch)
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def on_validation_end(self) -> None:
        """Tell of a report to come."""
        if self.global_rank == 0:
            self.injector.events.tell("validated", epoch=self.current_epoch)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Be hit while a checkpoint is made."""
        self.injector.at("checkpoint", self.current_epoch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def loader(seed: int, batches: int, shuffle: bool) -> DataLoader[Any]:
    """Return ``batches`` batches for each of two ranks."""
    x = torch.randn(2 * batches * 8, 4, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=shuffle)


def training(faults: list[Fault | None], events: Events, home: str) -> Callable[[dict[str, Any]], None]:
    """Return a train function that is hit by fault ``config["fault"]``; none below 0. ``home`` is the driver's node."""

    def train(config: dict[str, Any]) -> None:
        injector = Injector(faults[config["fault"]] if config["fault"] >= 0 else None, events, home)
        trainer = pl.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            strategy=BACKENDS[tl.get_context().backend].load_strategy()(),
            callbacks=[tl.TuneReportCheckpointCallback({"loss": "val_loss"})],
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
        )
        try:
            trainer.fit(Net(config["lr"], injector), loader(0, BATCHES, True), loader(1, 2, False))
            injector.at("between")
        except TrialStopped as stop:
            if "resize" in str(stop):
                injector.at_leave()
            raise
        except BaseException as error:
            events.tell("noticed", error=type(error).__name__)
            raise

    return train


class Resizer(FIFOScheduler):  # type: ignore[misc,unused-ignore]
    """Lets trials run on, and has each gang go on as one once it reports as two, and as two again."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shrunk: set[str] = set()

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Send the trial's head another size; it takes it before it goes on."""
        workers, trial_id = result.get(f"{RESULT_KEY}/workers"), trial.trial_id  # Tune hands it on flat
        if workers == 2 and trial_id not in self._shrunk:  # it may have begun as one, after the last trial's fault
            self._shrunk.add(trial_id)
            trial.temporary_state.ray_actor.decide.remote(Resize(1))
        elif workers and trial_id in self._shrunk:
            trial.temporary_state.ray_actor.decide.remote(Resize(2))
        return str(self.CONTINUE)
