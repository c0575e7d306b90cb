"""Trials that go on from a report's checkpoint, in a gang of the same size and in smaller ones."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

from tests.conftest import share_holdings
from tests.kit import tasks
from tunelight.checkpoints.files import FOLDER, file_name
from tunelight.gang.gang import Gang
from tunelight.gang.spec import GangSpec
from tunelight.messages import CheckpointInfo
from tunelight.resources import Reservation
from tunelight.session.task import Home, Start, Task


@pytest.fixture(scope="module")
def gangs(ray4: Any) -> Iterator[dict[Any, Gang]]:
    """Gangs by backend and size, one at a time alive, since they share four logical CPUs."""
    held: dict[Any, Gang] = {}
    yield held
    for gang in held.values():
        gang.close()


def gang_of(gangs: dict[Any, Gang], backend: str, workers: int) -> Gang:
    key = (backend, workers)
    if key not in gangs:
        while sum(size for _, size in gangs) + workers > 4:
            gangs.pop(next(iter(gangs))).close()
        gangs[key] = Gang.form(GangSpec(Reservation(workers), home=Home.here(), backend=backend), None)
        share_holdings()
    gangs[key].heal()
    return gangs[key]


def train(config: dict[str, Any]) -> None:
    """Train with all that remembers something: the weights at the end go to the trial's folder."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import tunelight as tl
    from tunelight.compat.lightning import CSVLogger, pl
    from tunelight.settings.backends import BACKENDS

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(
                torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.3),
                torch.nn.Linear(16, 1),
            )  # fmt: skip

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
            self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
            steps = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
            return [optimizer], [
                {"scheduler": steps, "interval": "step"},
                {"scheduler": plateau, "interval": "epoch", "monitor": "loss"},
            ]

    class Fault(pl.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            me = tl.get_context()
            if me.number == config.get("fault") and trainer.global_step > getattr(self, "step", 10**9):
                raise ZeroDivisionError("on purpose")
            if me.number == config.get("fault"):
                self.step = getattr(self, "step", trainer.global_step)

    def loader(seed: int, count: int, shuffle: bool) -> Any:
        x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 6, shuffle=shuffle)

    me = tl.get_context()
    seen = tl.TuneReportCheckpointCallback(["loss"], on="validation_end")
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", strategy=BACKENDS[me.backend].load_strategy()(), enable_checkpointing=False,
        callbacks=[seen, pl.callbacks.EarlyStopping("loss", patience=50), Fault()], logger=CSVLogger(me.trial_dir),
        log_every_n_steps=1, **config.get("trainer", {}),
    )  # fmt: skip
    model = Net()
    trainer.fit(model, loader(0, 100, True), loader(1, 32, False))
    vars(trainer.strategy)["_save_distributed_checkpoint"] = False  # one file also of shards
    trainer.save_checkpoint(Path(me.trial_dir, "end.ckpt"))


class Run:
    """What a start of a trial left."""

    def __init__(self, gang: Gang, folder: Path, task: tuple[Task, Start]) -> None:
        self.reports, self.cause = tasks.run(gang, *task)
        self.metrics = {report.number: report.metrics for report in self.reports}
        end = folder / "end.ckpt"
        self.end: dict[str, Any] = torch.load(end, weights_only=True) if end.exists() else {}
        logs = folder / "lightning_logs" / "version_0" / "metrics.csv"
        self.rows = list(csv.DictReader(logs.read_text().splitlines())) if logs.exists() else []


def start(gang: Gang, folder: Path, config: dict[str, Any], go_on: int = 0, *, wanted: int = 2) -> Run:
    least = None if config.get("fixed") else 1
    missing = replace(gang.spec.reservation, most=wanted, least=least)  # as if the others had been lost
    gang.spec = replace(gang.spec, reservation=missing)
    gang.met = False
    gang.heal()
    resume = None
    if go_on:
        resume = CheckpointInfo(str(folder / FOLDER / file_name(go_on)), go_on, fit=0)
    whole = tasks.here(folder, cloudpickle.dumps(train), config=config, resume=resume, evaluation="exact")
    return Run(gang, folder, whole)


def furthest(one: Run, other: Run) -> float:
    """Return how far the weights, and the optimizers' momenta, of two runs lie apart."""
    a, b = one.end["state_dict"], other.end["state_dict"]
    momenta = [
        [state["momentum_buffer"] for state in run.end["optimizer_states"][0]["state"].values()] for run in (one, other)
    ]
    pairs = [(a[name], b[name]) for name in a] + list(zip(*momenta, strict=True))
    return max(float((x.double() - y.double()).abs().max()) for x, y in pairs)


def apart(one: Run, other: Run) -> float:
    """Return how far the metrics of the reports that both made lie apart."""
    return max(
        float(abs(one.metrics[number][name] - value))
        for number, metrics in other.metrics.items()
        for name, value in metrics.items()
    )


HALF = {"trainer": {"val_check_interval": 0.5, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5}}
SETTINGS: dict[str, dict[str, Any]] = {"half": HALF, "fixed": {**HALF, "fixed": True}}


@pytest.mark.parametrize(
    "case",
    [
        ("ddp", 2, 2, "half", 3),  # in the middle of an epoch
        ("ddp", 2, 1, "half", 3),
        ("ddp", 2, 2, "fixed", 3),  # each rank has random numbers of its own
        pytest.param(("horovod", 2, 1, "half", 3), marks=pytest.mark.slow),
        pytest.param(("ddp", 3, 3, "half", 3), marks=pytest.mark.slow),  # between two batches of a step
        pytest.param(("sharded", 3, 2, "half", 3), marks=pytest.mark.slow),  # one rank plays two parts, the other one
    ],
    ids=str,
)
def test_a_trial_that_goes_on_is_the_run_without_a_failure(gangs, tmp_path, case):
    backend, wanted, workers, name, report = case
    cut = tmp_path / "cut"
    whole = start(gang_of(gangs, backend, wanted), tmp_path / "whole", SETTINGS[name], wanted=wanted)
    assert whole.cause is None
    failing = {**SETTINGS[name], "fault": report}  # two steps after that report
    assert start(gang_of(gangs, backend, wanted), cut, failing, wanted=wanted).cause.type_name == "ZeroDivisionError"
    path = cut / FOLDER / file_name(report)
    saved = torch.load(path / "meta.pt" if path.is_dir() else path, weights_only=True)["tunelight"]["now"]
    assert torch.equal(saved[0]["torch"], saved[1]["torch"]) == (name != "fixed")
    after = start(gang_of(gangs, backend, workers), cut, SETTINGS[name], report, wanted=wanted)
    assert after.cause is None
    bitwise = backend == "ddp" and workers == wanted == 2
    near = 0 if bitwise else 1e-6 if workers == wanted else 1e-5
    assert [one.number for one in after.reports] == [one.number for one in whole.reports][report:]
    assert furthest(whole, after) <= near
    assert apart(whole, after) <= near
    assert rates(after) == pytest.approx(rates(whole))
    assert [row["step"] for row in after.rows] == [row["step"] for row in whole.rows]
    if bitwise:
        assert after.rows == whole.rows
        assert after.end["loops"]["fit_loop"] == whole.end["loops"]["fit_loop"]
    assert [path.name for path in (cut / "lightning_logs").iterdir()] == ["version_0"]


def rates(run: Run) -> list[float]:
    return [group["lr"] for group in run.end["optimizer_states"][0]["param_groups"]]
