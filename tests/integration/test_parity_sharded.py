"""ray_lightning's themes about its sharded strategy: choice, checkpoint, finetune, resume, test, fewer workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tunelight as tl
from tests.integration.parity import Boring, Tell, loader, same, strategy, trainer, weights
from tunelight.compat.lightning import pl

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_gangs")]  # a port: run by make test-full


def kinds(one: pl.Trainer, module: pl.LightningModule) -> Any:
    from torch.distributed.tensor import DTensor

    shards = [value for value in module.parameters() if isinstance(value, DTensor)]
    return {
        "strategy": type(one.strategy).__name__,
        "whole": [list(value.shape) for value in module.parameters()],
        "here": [list(value.to_local().shape) for value in shards],
    }


def test_sharded_choice(tmp_path: Path) -> None:
    """The strategy is the one that was passed, and each worker holds half of each parameter."""
    told = Tell(tmp_path, kinds)
    one = trainer("sharded", callbacks=[told])
    assert isinstance(one.strategy, tl.RayShardedStrategy)
    model = Boring()
    one.fit(model, loader())
    half = {"strategy": "RayShardedStrategy", "whole": [[2, 8], [2]], "here": [[1, 8], [1]]}
    assert told.heard() == [half, half]
    assert type(model.layer.weight) is torch.nn.Parameter  # and the driver's is whole, and an ordinary one
    assert type(model.layer.weight.data) is torch.Tensor


def fitted(folder: Path, **settings: Any) -> tuple[Boring, pl.Trainer, str]:
    """Fit on two workers; return model, Trainer and the path of the checkpoint that they wrote."""
    model, kept = Boring(), pl.callbacks.ModelCheckpoint(dirpath=folder)
    one = trainer("sharded", callbacks=[kept], enable_checkpointing=True, **settings)
    one.fit(model, loader())
    return model, one, kept.best_model_path


def test_sharded_checkpoint_equals_the_weights(tmp_path: Path) -> None:
    model, one, by_workers = fitted(tmp_path)
    one.save_checkpoint(tmp_path / "driver.ckpt")
    for path in (by_workers, tmp_path / "driver.ckpt"):
        saved = torch.load(path, weights_only=True)
        assert same(saved["state_dict"], weights(model), atol=0)
        assert same(weights(Boring.load_from_checkpoint(path)), weights(model), atol=0)


def test_sharded_finetune(tmp_path: Path) -> None:
    _, _, path = fitted(tmp_path)
    for backend in ("sharded", "auto"):  # on a gang, and in this process
        model = Boring.load_from_checkpoint(path)
        before = weights(model)
        one = trainer(backend, max_epochs=-1, max_steps=1)
        one.fit(model, loader(), loader())
        assert one.global_step == 1
        assert not same(before, weights(model))


class Driven(Boring):
    """Learns by Adam, whose state a checkpoint has to hold; all data is one batch, whose order is of no account."""

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.1)


@pytest.mark.parametrize("workers", [2, 1], ids=["on as many workers", "on fewer workers"])
def test_sharded_resume(workers: int, tmp_path: Path) -> None:
    """Two epochs on two workers and two on these are four in one process."""
    first, whole = Driven(), Driven()
    whole.load_state_dict(weights(first))
    trainer("auto", max_epochs=4).fit(whole, loader(32, 32), loader())
    kept = pl.callbacks.ModelCheckpoint(dirpath=tmp_path)
    half = trainer("sharded", max_epochs=2, callbacks=[kept], enable_checkpointing=True)
    half.fit(first, loader(32, 16))
    rest, ours = Driven(), strategy("sharded", workers)
    one = trainer(ours, max_epochs=4)
    one.fit(rest, loader(32, 32 // workers), ckpt_path=kept.best_model_path)
    assert (one.current_epoch, one.global_step) == (4, 4)
    assert same(weights(rest), weights(whole), atol=1e-5)
    if workers == 1:
        ours.shutdown()  # those of two stay warm for the tests to come


def test_sharded_test() -> None:
    """Without a fit before it, and after one."""
    model, one = Boring(), trainer("sharded")
    for fitted_before in (False, True):
        if fitted_before:
            one.fit(model, loader())
        (there,) = one.test(model, loader(10), verbose=False)
        (here,) = trainer("auto").test(model, loader(10), verbose=False)
        assert there == pytest.approx(here)
