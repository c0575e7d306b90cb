"""Trainers of a driver's own: what goes wrong, what must work after it, and LightningCLI."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tunelight as tl
from tests import flavours
from tests.kit.training import QUIET, Line, LineData
from tunelight import errors
from tunelight.compat.lightning import pl
from tunelight.extras.digits import DigitsClassifier, DigitsData
from tunelight.extras.standalone import driver as drivers
from tunelight.extras.standalone import transfer

pytestmark = pytest.mark.usefixtures("warm_gangs")


class Small(pl.LightningModule):
    """A linear model that does in its training step what the test asks for."""

    def __init__(self, fail_on: int | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.fail_on = fail_on

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.fail_on == self.global_rank and batch_idx == 1:
            raise ZeroDivisionError("on purpose")
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        sums: torch.Tensor = batch[0].sum(dim=1)
        return sums

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.1)


def data(size: int = 16, batch_size: int = 4) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(4.0 * size).reshape(size, 4) / size), batch_size=batch_size)


def trainer(strategy: Any = None, **settings: Any) -> pl.Trainer:
    return pl.Trainer(strategy=strategy or tl.RayStrategy(num_workers=2), **{**QUIET, "max_epochs": 1, **settings})


BACKENDS = pytest.mark.parametrize(
    "kind",
    [
        tl.RayStrategy,
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in (tl.HorovodRayStrategy, tl.RayShardedStrategy)),
    ],
)


@BACKENDS
def test_an_error_names_rank_node_and_type_and_the_next_fit_works(kind: Any) -> None:
    one = trainer(kind(num_workers=2))
    model = Small(fail_on=1)
    before = model.layer.weight.detach().clone()
    with pytest.raises(ZeroDivisionError, match=r"rank 1 on .*: ZeroDivisionError: on purpose\n[\s\S]*training_step"):
        one.fit(model, data())
    assert one.interrupted
    assert torch.equal(before, model.layer.weight)
    model.fail_on = None
    one.fit(model, data())
    assert not torch.equal(before, model.layer.weight)


class Noting(pl.Callback):
    """Counts the exceptions that it hears of."""

    def __init__(self) -> None:
        self.heard: list[BaseException] = []

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.heard.append(exception)


class Dying(Small):
    """Its rank 0 dies in its first prediction, once, and late enough for rank 1 to have handed in its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.died = folder / "died"

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_rank == 0 and not self.died.exists():
            self.died.touch()
            time.sleep(2)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().predict_step(batch, batch_idx)


@pytest.mark.slow
def test_predictions_come_once_where_a_gang_had_to_start_again(warm_gangs: Any, tmp_path: Path) -> None:
    got: Any = trainer(tl.RayStrategy(num_workers=(1, 2))).predict(Dying(tmp_path), data())
    warm_gangs.close()
    assert (tmp_path / "died").exists()
    assert torch.equal(torch.cat(got), torch.cat([batch.sum(dim=1) for (batch,) in data()]))


def test_slots_of_one_host_share_its_bundle() -> None:
    strategy = tl.HorovodRayStrategy(num_hosts=1, num_slots=2)
    with strategy:
        one = trainer(strategy)
        one.fit(Small(), data())
        assert one.world_size == 2


def test_optimizer_states_of_no_fit_and_a_strategy_of_another_trainer_are_refused() -> None:
    strategy = tl.RayStrategy(num_workers=2)
    first = trainer(strategy)
    with pytest.raises(errors.StrategyError, match="there was no fit"):
        strategy.optimizer_states()
    trainer(strategy, precision="bf16-mixed").fit(Small(), data())
    with pytest.raises(errors.StrategyError, match="another Trainer"):
        first.fit(Small(), data())


def test_checkpoints_reach_nodes_with_other_disks_and_come_back(monkeypatch, tmp_path):
    """The file is gone from its path when a worker looks, as it would be on another node."""
    monkeypatch.setattr(drivers, "_elsewhere", lambda gang: True)
    read = transfer.read

    def take(paths: Any) -> Any:
        found = read(paths)
        for path in paths:
            Path(path).unlink()
        return found

    monkeypatch.setattr(drivers, "read", take)
    one = trainer()
    one.fit(Small(), data())
    one.save_checkpoint(tmp_path / "there.ckpt")
    trainer(max_epochs=2).fit(Small(), data(), ckpt_path=tmp_path / "there.ckpt", weights_only=True)
    assert (tmp_path / "there.ckpt").exists()


def test_a_checkpoint_on_rank_0_s_disk_alone_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listen = drivers._listen
    moved: list[Path] = []

    def without_the_file(gang: Any, reporter: Any) -> Any:
        """Hide the checkpoints from this disk from the end of the run on, and what rank 0 has read of them after it."""
        if moved:
            handed_in = listen(gang, reporter)
            moved[0].with_suffix(".ckpt").unlink()
            return handed_in
        handed_in = listen(gang, reporter)
        (found,) = tmp_path.glob("*.ckpt")
        moved.append(found.rename(found.with_suffix(".hidden")))
        return handed_in

    missing = transfer.missing

    def until_rank_0_reads(paths: list[str]) -> list[str]:
        lacking = missing(paths)
        if moved and moved[0].exists():
            moved[0].rename(moved[0].with_suffix(".ckpt"))
        return lacking

    monkeypatch.setattr(drivers, "_listen", without_the_file)
    monkeypatch.setattr(transfer, "missing", until_rank_0_reads)
    best = pl.callbacks.ModelCheckpoint(dirpath=tmp_path)
    trainer(callbacks=[best], enable_checkpointing=True).fit(Small(), data())
    assert Path(best.best_model_path).exists()


@BACKENDS
def test_what_a_run_leaves_is_as_in_one_process(kind: Any, tmp_path: Path) -> None:
    """Loop progress, callbacks, metrics and weights, against one process; one batch, for its order is shuffled.

    States of optimizers come on demand, and into the driver's checkpoints.
    """
    here, there, strategy = Small(), Small(), kind(num_workers=2)
    there.load_state_dict(here.state_dict())
    alone, ours = (
        trainer(
            one,
            max_epochs=2,
            enable_checkpointing=True,
            callbacks=[pl.callbacks.ModelCheckpoint(dirpath=tmp_path / str(number), monitor="loss")],
        )
        for number, one in enumerate(("auto", strategy))
    )
    alone.fit(here, data(16, 16))
    ours.fit(there, data(16, 8))
    assert torch.allclose(here.layer.weight, there.layer.weight, atol=1e-6)
    assert ours.current_epoch == alone.current_epoch == 2
    assert ours.global_step == alone.global_step
    assert ours.state == alone.state
    assert ours.fit_loop.epoch_progress == alone.fit_loop.epoch_progress
    assert torch.allclose(ours.callback_metrics["loss"], alone.callback_metrics["loss"], atol=1e-6)
    names = [Path(one.checkpoint_callback.best_model_path).name for one in (ours, alone)]  # type: ignore[union-attr]  # ModelCheckpoint's
    assert names[0] == names[1]
    (states,) = strategy.optimizer_states()
    assert {name for state in states["state"].values() for name in state} >= {"exp_avg", "exp_avg_sq"}
    ours.save_checkpoint(tmp_path / "end.ckpt")
    (kept,) = torch.load(tmp_path / "end.ckpt", weights_only=True)["optimizer_states"]
    assert kept["param_groups"][0]["lr"] == 0.1
    assert [float(state["step"]) for state in kept["state"].values()] == [2.0, 2.0]


class Loading(pl.LightningDataModule):
    """Data that is made where it is used."""

    def __init__(self, batch_size: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.classes: list[str] = []
        self.points: Any = None

    def setup(self, stage: str) -> None:
        self.points = data(16).dataset
        self.classes.append("one")
        self.hparams["batch_size"] = self.size = 8

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.points, self.hparams["batch_size"])


class Replacing(Small):
    """Brings callbacks of its own, one of them in the place of the Trainer's."""

    def configure_callbacks(self) -> list[pl.Callback]:
        return [pl.callbacks.EarlyStopping("loss", patience=7), Noting()]


def test_callbacks_of_the_model_take_the_places_that_they_take_in_one_process() -> None:
    timer, stopping = pl.callbacks.Timer(), pl.callbacks.EarlyStopping("loss")
    one, alone = (trainer(kind, callbacks=[stopping, timer]) for kind in (None, "auto"))
    alone.fit(Replacing(), data())
    one.fit(Replacing(), data())
    ours, theirs = one.callbacks, alone.callbacks  # type: ignore[attr-defined]  # Lightning's
    assert [type(callback) for callback in ours] == [type(callback) for callback in theirs]
    assert ours[0] is timer
    assert ours[1].patience == 7


def test_what_a_tuner_finds_is_set_on_the_driver(tmp_path: Path) -> None:
    model = Line(0.5)
    one = trainer(default_root_dir=tmp_path, max_epochs=9, callbacks=[pl.callbacks.Timer()])
    found = flavours.module("tuner").Tuner(one).lr_find(model, datamodule=LineData(4), num_training=30)
    assert found is not None
    assert model.lr == found.suggestion() != 0.5
    assert model.hparams["lr"] == model.lr
    assert [type(callback).__name__ for callback in one.callbacks] == ["Timer"]  # type: ignore[attr-defined]  # Lightning's


class NotingCheckpoint(Noting, pl.callbacks.Checkpoint):
    """As a callback that writes a checkpoint at an exception."""


class OwnError(ValueError):
    """An error with an attribute."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def test_a_worker_s_exception_is_raised_on_the_driver_and_heard_by_all_callbacks_but_those_of_checkpoints() -> None:
    class Raising(Small):
        def on_train_start(self) -> None:
            raise OwnError(7)

    noting, kept = Noting(), NotingCheckpoint()
    one = trainer(callbacks=[noting, kept], enable_checkpointing=True)
    with pytest.raises(ValueError, match=r"rank [01] on .*: OwnError: 7") as caught:
        one.fit(Raising(), data())
    assert isinstance(caught.value, OwnError)
    assert caught.value.code == 7
    assert noting.heard == [caught.value]
    assert kept.heard == []


@pytest.mark.parametrize("settings", [{"devices": 3}, {"num_nodes": 2, "devices": 2}])
def test_devices_that_contradict_the_strategy_are_an_error(settings: Any) -> None:
    with pytest.raises(errors.StrategyError, match="contradicts RayStrategy"):
        trainer(**settings).fit(Small(), data())


def test_plain_attributes_of_data_come_back_and_what_it_loaded_does_not() -> None:
    numbers = Loading()
    trainer().fit(Small(), datamodule=numbers)
    assert (numbers.classes, numbers.hparams["batch_size"], numbers.size) == (["one"], 8, 8)
    assert numbers.points is None


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_an_error_of_a_start_hook_is_not_masked(stage: str) -> None:
    class Raising(Small):
        def on_validation_start(self) -> None:
            raise AssertionError("mine")

        on_test_start = on_predict_start = on_validation_start

        def validation_step(self, batch: Any, batch_idx: int) -> None: ...

        test_step = validation_step

    with pytest.raises(AssertionError, match="AssertionError: mine"):
        getattr(trainer(), stage)(Raising(), data())


@pytest.fixture(autouse=True)
def no_arguments_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let LightningCLI see the arguments of the test alone: it warns where the command line has some too."""
    monkeypatch.setattr(sys, "argv", ["train.py"])


def cli(*args: str, run: bool = True) -> Any:
    return flavours.module("cli").LightningCLI(
        DigitsClassifier, DigitsData, seed_everything_default=False, run=run, args=list(args)
    )


def settings(folder: Path) -> list[str]:
    """Return the arguments that every run here has, beside its strategy."""
    told = {
        "accelerator": "cpu", "max_epochs": 2, "enable_progress_bar": "false", "enable_model_summary": "false",
        "default_root_dir": folder,
    }  # fmt: skip
    return [*(f"--trainer.{name}={value}" for name, value in told.items()), "--model.lr=0.02"]


def accuracy(model: Any, data: Any) -> float:
    """Return a model's accuracy on the validation images, computed in this process."""
    data.setup()
    images, labels = data.val.tensors
    with torch.no_grad():
        return float((model(images).argmax(dim=-1) == labels).double().mean())


def test_a_strategy_by_arguments_trains_the_driver_s_model_and_saves_its_configuration_once(tmp_path: Path) -> None:
    strategy = ["--trainer.strategy=tunelight.RayStrategy", "--trainer.strategy.num_workers=2"]
    done = cli("fit", *strategy, *settings(tmp_path))
    assert isinstance(done.trainer.strategy, tl.RayStrategy)
    assert done.trainer.world_size == 2
    assert float(done.trainer.callback_metrics["val_acc"]) == pytest.approx(accuracy(done.model, done.datamodule))
    assert accuracy(done.model, done.datamodule) > 0.5

    done.trainer.fit_loop.max_epochs = 3
    done.trainer.fit(done.model, datamodule=done.datamodule)  # the callback must not find its own file in the way
    (written,) = tmp_path.rglob("config.yaml")
    told = yaml.safe_load(written.read_text())["trainer"]["strategy"]
    assert told["class_path"] == "tunelight.RayStrategy"
    assert told["init_args"]["num_workers"] == 2


def hook() -> None:
    """Do nothing: a command line names it."""


@pytest.mark.parametrize(
    ("kind", "args", "expected"),
    [
        (tl.RayStrategy, ["resources_per_worker={CPU: 0.5}", "use_gpu=false"], {"number": 2, "cpus": 0.5}),
        (tl.HorovodRayStrategy, ["num_hosts=1", "num_slots=2", "compression=fp16"], {"number": 2, "hosts": 1}),
        (tl.RayShardedStrategy, ["min_sharded=1000", "num_cpus_per_worker=2"], {"number": 2, "cpus": 2}),
    ],
)
def test_every_strategy_is_made_of_its_arguments(kind: Any, args: list[str], expected: dict[str, Any]) -> None:
    name = f"tunelight.{kind.__name__}"
    size = [] if "num_slots=2" in args else ["num_workers=2"]
    made = cli(
        f"--trainer.strategy={name}",
        *(f"--trainer.strategy.{arg}" for arg in [*size, *args]),
        f"--trainer.strategy.init_hook={__name__}.hook",
        "--trainer.accelerator=cpu",
        "--trainer.logger=false",
        run=False,
    )
    strategy: Any = made.trainer.strategy
    assert type(strategy) is kind
    wanted = vars(strategy.workers)
    assert {key: wanted[key] for key in expected} == expected
    assert wanted["init_hook"] is hook
