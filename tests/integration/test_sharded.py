"""RayShardedStrategy: what is sharded, that all of it learns, and models that parallelise themselves."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tunelight as tl
from tests.integration.test_strategies import Small, data, trainer
from tunelight.compat.lightning import pl
from tunelight.errors import CheckpointError
from tunelight.extras.export import _join

pytestmark = pytest.mark.usefixtures("warm_gangs")


class Parts(Small):
    """A big block, a small one, a container, and a parameter of the module's own."""

    def __init__(self) -> None:
        super().__init__()
        self.big = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 4))
        self.several = nn.ModuleList([nn.Linear(4, 4)])
        self.scale = nn.Parameter(torch.ones(4))
        self.layer = nn.Linear(4, 2)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x = self.several[0](self.big(batch[0])) * self.scale
        loss: torch.Tensor = (self.layer(x) - batch[0][:, :2] * (1 + self.global_rank)).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss


class Equal(pl.Callback):
    """Compares every parameter with rank 0's after each step, and says how it is held."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self.equal = True

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        from torch.distributed.tensor import DTensor

        for name, one in pl_module.named_parameters():
            self.kinds[name] = type(one).__name__
            whole = one.full_tensor() if isinstance(one, DTensor) else one
            first = trainer.strategy.broadcast(whole.detach())
            self.equal &= torch.equal(first, whole)


@pytest.mark.slow
def test_a_folder_of_shards_is_a_checkpoint_that_fewer_workers_go_on_from(tmp_path: Path) -> None:
    best = pl.callbacks.ModelCheckpoint(dirpath=tmp_path)
    two = tl.RayShardedStrategy(num_workers=2, save_distributed_checkpoint=True)
    trainer(two, callbacks=[best], enable_checkpointing=True).fit(Parts(), data())
    assert Path(best.best_model_path).is_dir()
    rest = Parts()
    one = trainer(tl.RayShardedStrategy(num_workers=1), max_epochs=2)
    one.fit(rest, data(), ckpt_path=best.best_model_path, weights_only=False)
    assert one.current_epoch == 2
    assert one.global_step == 2 + 4


@pytest.mark.usefixtures("ray4")
def test_a_trials_shards_load_and_are_exported_as_one_file(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        reports = tl.TuneReportCheckpointCallback({"loss": "loss"}, on="train_epoch_end")
        sharded = tl.RayShardedStrategy(min_sharded=100)
        trainer(sharded, callbacks=[reports], enable_checkpointing=True).fit(Parts(), data())

    results = tl.run(
        {"lr": 0.1}, train, metric="loss", num_samples=1, workers=2, backend="sharded", storage=tmp_path, name="shards"
    )
    best = results.best
    assert best.checkpoint is not None
    assert best.checkpoint.is_dir()
    model = best.load_model(Parts)
    results.export_best(tmp_path / "best.yaml", checkpoint=True)
    whole = torch.load(tmp_path / "best.ckpt", weights_only=True)
    assert whole["epoch"] == 0
    assert whole["state_dict"].keys() == model.state_dict().keys() == Parts().state_dict().keys()
    assert all(torch.equal(value, whole["state_dict"][name]) for name, value in model.state_dict().items())
    assert Parts.load_from_checkpoint(tmp_path / "best.ckpt").layer.weight.isfinite().all()
    (best.checkpoint / ".metadata").write_bytes(pickle.dumps(print))
    with pytest.raises(CheckpointError, match="torn"):
        best.load_model(Parts)
    with pytest.raises(pickle.UnpicklingError, match=r"builtins\.print describes no tensor"):
        _join(best.checkpoint, tmp_path / "whole.ckpt")


class Own(Parts):
    """Shards one block only, by itself."""

    def configure_model(self) -> None:
        from torch.distributed.fsdp import FSDPModule, fully_shard

        if not isinstance(self.big, FSDPModule):
            fully_shard(self.big, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]  # in a gang it is there


class Late(Parts):
    """Makes a layer in configure_model, as models for Lightning's FSDPStrategy do, from another seed on each rank."""

    def __init__(self) -> None:
        super().__init__()
        del self.layer

    def configure_model(self) -> None:
        if not hasattr(self, "layer"):
            torch.manual_seed(self.global_rank)
            self.layer = nn.Linear(4, 2)


@pytest.mark.parametrize("kind", [Parts, Own, Late])
def test_all_that_configure_model_leaves_is_sharded_and_trains_on_all_ranks_as_by_ddp(kind):
    torch.manual_seed(1)
    model, equal = kind(), Equal()
    plain = copy.deepcopy(model)
    one = trainer(tl.RayShardedStrategy(num_workers=2, min_sharded=100), max_epochs=2, callbacks=[equal])
    one.fit(model, data())
    assert equal.equal
    assert set(equal.kinds.values()) == {"DTensor"}
    if kind is Own:
        plain.__class__ = Parts
    trainer(max_epochs=2).fit(plain, data())
    assert equal.kinds.keys() == dict(plain.named_parameters()).keys()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


class TensorParallel(Small):
    """Splits its two layers over the gang, by columns and by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))  # type: ignore[assignment]  # Small's is linear

    def configure_model(self) -> None:
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        if isinstance(self.layer[0].weight, DTensor):  # type: ignore[index]  # a Sequential
            return
        mesh = self.device_mesh["tensor_parallel"]  # type: ignore[index]  # in a gang it is there
        parallelize_module(self.layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.layer(batch[0]).square().mean(), sync_dist=True)


def test_tensor_parallel_ranks_share_their_data_and_compute_what_one_process_does() -> None:
    here, there = TensorParallel(), TensorParallel()
    there.load_state_dict(here.state_dict())
    here.configure_model = lambda: None  # type: ignore[method-assign]  # one process has no mesh
    alone = trainer("auto", max_epochs=2)
    alone.fit(here, data(16, 16), data(7, 2))
    ours = trainer(tl.RayShardedStrategy(num_workers=2, tensor_parallel_size=2), max_epochs=2)
    ours.fit(there, data(16, 16), data(7, 2))
    for mine, theirs in zip(there.parameters(), here.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
    assert torch.allclose(ours.callback_metrics["val_loss"], alone.callback_metrics["val_loss"], atol=1e-5)
