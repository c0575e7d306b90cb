"""ray_lightning's themes about training: train, load, predict, early stop, metrics, data, several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler

from tests import flavours
from tests.integration.parity import (
    BACKENDS,
    EVERY_BACKEND,
    Boring,
    Tell,
    indices,
    loader,
    numbers,
    same,
    strategy,
    trainer,
    weights,
)
from tunelight import errors
from tunelight.compat.lightning import pl
from tunelight.digits import DigitsClassifier, DigitsData, load_digits

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_gangs")]  # a port: run by make test-full


@EVERY_BACKEND
def test_train(backend: str) -> None:
    model, one = Boring(), trainer(backend, max_epochs=2)
    before = weights(model)
    one.fit(model, loader(), loader())
    assert not same(before, weights(model))
    assert one.state.finished
    assert (one.current_epoch, one.global_step) == (2, 8)
    during = float(one.callback_metrics["val_loss"])
    (after,) = one.validate(model, loader(), verbose=False)
    assert after["val_loss"] == pytest.approx(during)


@EVERY_BACKEND
def test_load(backend: str, tmp_path: Path) -> None:
    """A checkpoint that was written on the workers loads on the driver, and the driver's on the workers."""
    model, best = Boring(), pl.callbacks.ModelCheckpoint(dirpath=tmp_path)
    one = trainer(backend, callbacks=[best], enable_checkpointing=True)
    one.fit(model, loader())
    loaded = Boring.load_from_checkpoint(best.best_model_path)
    assert same(weights(loaded), weights(model), atol=0)
    one.save_checkpoint(tmp_path / "driver.ckpt")
    other = Boring()
    (by_path,) = trainer(backend).validate(other, loader(), ckpt_path=tmp_path / "driver.ckpt", verbose=False)
    (by_model,) = trainer(backend).validate(model, loader(), verbose=False)
    (by_best,) = one.validate(dataloaders=loader(), ckpt_path="best", verbose=False)
    assert by_path == by_model == by_best
    assert same(weights(other), weights(model), atol=0)


@EVERY_BACKEND
def test_predict_has_an_accuracy_of_half_at_least(backend: str) -> None:
    model, data = DigitsClassifier(lr=1e-2), DigitsData()
    one = trainer(strategy(backend, evaluation="exact"), max_epochs=2)
    one.fit(model, datamodule=data)
    found = one.predict(model, datamodule=data)
    assert found is not None
    predicted = torch.cat([batch for batch in found if isinstance(batch, torch.Tensor)])
    labels = load_digits()[2].tensors[1]
    assert len(predicted) == len(labels)
    accuracy = float((predicted == labels).float().mean())
    assert accuracy >= 0.5
    assert one.test(model, datamodule=data, verbose=False)[0]["test_acc"] == pytest.approx(accuracy)


@EVERY_BACKEND
def test_early_stop(backend: str) -> None:
    stop = pl.callbacks.EarlyStopping("val_loss", patience=2)
    one = trainer(backend, max_epochs=50, callbacks=[stop])
    one.fit(Boring(lr=0), loader(), loader())
    assert one.current_epoch == 3
    assert (stop.stopped_epoch, stop.wait_count) == (2, 2)
    assert stop.best_score == one.callback_metrics["val_loss"]


class Counting(Boring):
    """Logs metrics of which each can be told from the others."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.log("of_step", torch.tensor(batch_idx + 1.0))
        self.log("of_bar", 3.0, prog_bar=True, on_step=False, on_epoch=True, sync_dist=True)
        self.log("of_rank", float(self.global_rank + 1), on_epoch=True, on_step=False, sync_dist=True)
        return super().training_step(batch, batch_idx)


def metrics(one: pl.Trainer, module: pl.LightningModule) -> Any:
    return [numbers(found) for found in (one.callback_metrics, one.logged_metrics, one.progress_bar_metrics)]


@EVERY_BACKEND
def test_metrics_are_equal_on_driver_and_worker(backend: str, tmp_path: Path) -> None:
    told = Tell(tmp_path, metrics, on="train_end")
    model, one = Counting(), trainer(backend, callbacks=[told], log_every_n_steps=1)
    one.fit(model, loader(), loader())
    first, second = told.heard()
    assert metrics(one, model) == first
    assert first == second  # all of them are reduced, or equal on every rank
    assert first[0]["of_rank"] == 1.5
    assert first[0]["of_step"] == 4
    assert {"loss", "val_loss", "of_bar"} <= set(first[0]) & set(first[1])
    assert first[2] == {"of_bar": 3}


class Forked(Boring):
    """Logs validation by step and by epoch, under names that Lightning forks."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("forked", self.loss(batch), on_step=True, on_epoch=True, sync_dist=True)
        self.log("constant", 1.25, sync_dist=True)
        super().validation_step(batch, batch_idx)


@EVERY_BACKEND
def test_metrics_are_equal_on_a_gang_and_in_one_process(backend: str) -> None:
    """Their names are too: those of steps are logged, and no callback's."""
    model, found = Forked(lr=0), []
    for kind in (backend, "auto"):
        one = trainer(kind)
        one.fit(model, loader(), loader())
        found.append(metrics(one, model))
    ours, theirs = found
    for there, here in zip(ours, theirs, strict=True):
        assert there.keys() == here.keys()
    assert "forked_step" in ours[1]
    assert ours[0]["forked_epoch"] == ours[1]["forked_epoch"] == pytest.approx(theirs[0]["forked_epoch"])
    assert ours[0]["constant"] == ours[1]["constant"] == 1.25


class Remembering(Boring):
    """Counts its validations, and keeps that number in checkpoints."""

    validations = 0

    def on_validation_end(self) -> None:
        self.validations += 1

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["validations"] = self.validations

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.validations = checkpoint["validations"]


@EVERY_BACKEND
def test_the_best_checkpoint_of_an_early_stop_holds_what_the_model_keeps_in_it(backend: str, tmp_path: Path) -> None:
    stop, best = pl.callbacks.EarlyStopping("val_loss", patience=2), pl.callbacks.ModelCheckpoint(dirpath=tmp_path)
    settings = {"max_epochs": 50, "num_sanity_val_steps": 0, "enable_checkpointing": True}
    trainer(backend, callbacks=[stop, best], **settings).fit(Remembering(lr=0), loader(), loader())
    assert Remembering.load_from_checkpoint(best.best_model_path).validations == stop.patience + 1


class Unused(Boring):
    """Has a layer that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)


def ddp_arguments(one: pl.Trainer, module: pl.LightningModule) -> Any:
    model: Any = one.strategy.model
    return getattr(model, "find_unused_parameters", None)


@EVERY_BACKEND
def test_unused_parameters(backend: str, tmp_path: Path) -> None:
    told = Tell(tmp_path, ddp_arguments)
    passed = {"find_unused_parameters": True} if backend == "ddp" else {}
    model = Unused()
    before = weights(model)
    trainer(strategy(backend, **passed), callbacks=[told]).fit(model, loader())
    assert told.heard() == [passed.get("find_unused_parameters")] * 2
    assert torch.equal(model.unused.weight, before["unused.weight"])
    assert not torch.equal(model.layer.weight, before["layer.weight"])


def test_unused_parameters_are_an_error_where_ddp_is_not_told() -> None:
    advice = r"strategy='ray_find_unused_parameters_true'.*strategy=tl\.RayStrategy\(find_unused_parameters=True\)"
    with pytest.raises(errors.WorkerFailedError, match=advice):
        trainer("ddp").fit(Unused(), loader())


# --- data -------------------------------------------------------------------------------------------------


class Seeing(Boring):
    """Remembers which points this rank has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[Any]] = {"train": [], "val": []}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen["train"].append(batch[0].tolist())
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["val"].append(batch[0].tolist())
        super().validation_step(batch, batch_idx)


def samplers(one: pl.Trainer, module: Any) -> Any:
    found = {}
    assert one.val_dataloaders is not None
    assert one.train_dataloader is not None
    for name, data in (("train", one.train_dataloader), ("val", one.val_dataloaders)):
        sampler = data.sampler
        assert isinstance(sampler, DistributedSampler)
        found[name] = {"shuffle": sampler.shuffle, "replicas": int(sampler.num_replicas), "rank": sampler.rank}
    return {"samplers": found, "seen": module.seen}


@EVERY_BACKEND
def test_distributed_sampler(backend: str, tmp_path: Path) -> None:
    """Shuffle, replicas and rank."""
    told = Tell(tmp_path, samplers, on="train_end")
    one = trainer(backend, callbacks=[told], num_sanity_val_steps=0)
    one.fit(Seeing(), loader(32, 4, shuffle=True), loader(22, 4))
    ranks = told.heard()
    for rank, heard in enumerate(ranks):
        assert heard["samplers"]["train"] == {"shuffle": True, "replicas": 2, "rank": rank}
        assert heard["samplers"]["val"] == {"shuffle": False, "replicas": 2, "rank": rank}
    train, val = ([rank["seen"][name] for rank in ranks] for name in ("train", "val"))
    assert sorted(indices(train[0]) + indices(train[1])) == list(range(32))
    assert indices(train[0]) != list(range(0, 32, 2))  # what it is without shuffling
    assert [indices(rank) for rank in val] == [list(range(0, 22, 2)), list(range(1, 22, 2))]


@EVERY_BACKEND
def test_test_with_dataloader_workers(backend: str) -> None:
    model, one = Boring(), trainer(strategy(backend, evaluation="exact"))
    (here,) = trainer("auto").test(model, loader(23), verbose=False)
    for workers in (1, 2):
        (there,) = one.test(model, loader(23, num_workers=workers), verbose=False)
        assert there == pytest.approx(here)


# --- several runs -----------------------------------------------------------------------------------------


@EVERY_BACKEND
def test_fit_validate_test_and_predict_in_one_script(backend: str) -> None:
    model, one = Boring(), trainer(backend)
    data = loader(10)
    one.fit(model, data, data)
    alone: Any = trainer("auto")
    assert one.validate(model, data, verbose=False)[0] == pytest.approx(alone.validate(model, data, verbose=False)[0])
    assert one.test(model, data, verbose=False)[0] == pytest.approx(alone.test(model, data, verbose=False)[0])
    there, here = one.predict(model, data), alone.predict(model, data)
    assert there is not None
    assert len(there) == len(here) == 3
    assert all(torch.allclose(torch.as_tensor(ours), theirs) for ours, theirs in zip(there, here, strict=True))


@EVERY_BACKEND
def test_several_fits_in_a_row_and_several_trainers(backend: str, warm_gangs: Any) -> None:
    """They go on from one another, on the same workers; another Trainer begins anew."""
    model, one = Boring(), trainer(backend)
    found = []
    for epochs in (1, 2, 3):
        assert one.fit_loop.max_epochs is not None
        one.fit_loop.max_epochs = epochs
        one.fit(model, loader())
        found.append((one.current_epoch, one.global_step, float(one.callback_metrics["loss"])))
    assert [entry[:2] for entry in found] == [(1, 4), (2, 8), (3, 12)]
    assert found[0][2] > found[1][2] > found[2][2]
    gangs = [held.gang for held in warm_gangs._idle]
    other = trainer(backend)
    other.fit(model, loader())
    assert (other.current_epoch, other.global_step) == (1, 4)
    assert other.callback_metrics["loss"] < found[2][2]
    assert {id(held.gang) for held in warm_gangs._idle} == {id(gang) for gang in gangs}


@EVERY_BACKEND
def test_several_fits_in_a_row_equal_one_process(backend: str) -> None:
    """A batch is the whole data set here, since the ranks' sampler shuffles, as in all of Lightning's strategies."""
    ours, theirs = Boring(), Boring()
    theirs.load_state_dict(weights(ours))
    for kind, model, batch in ((backend, ours, 16), ("auto", theirs, 32)):
        one = trainer(kind)
        for epochs in (2, 4):
            one.fit_loop.max_epochs = epochs
            one.fit(model, loader(32, batch), loader())
    assert same(weights(ours), weights(theirs))


@EVERY_BACKEND
def test_validate_before_fit(backend: str) -> None:
    model, one = Boring(), trainer(backend)
    before = weights(model)
    (first,) = one.validate(model, loader(), verbose=False)
    assert same(before, weights(model), atol=0)
    one.fit(model, loader(), loader())
    (second,) = one.validate(model, loader(), verbose=False)
    assert second["val_loss"] < first["val_loss"]


@BACKENDS
def test_notebooks_are_fine(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning refuses some strategies there, when the Trainer is made."""
    connector = flavours.module("trainer.connectors.accelerator_connector")
    monkeypatch.setattr(connector, "_IS_INTERACTIVE", True)
    trainer(backend).fit(Boring(), loader())
    with pytest.raises(pl.utilities.exceptions.MisconfigurationException, match="interactive"):
        trainer("ddp_spawn")
