"""What Lightning's own tests check of its DDP strategy, in our words; what other tests cover is named in them.

Warm workers, wrapped models and the devices that models see; distributed optimizers; hooks of DDP's communication.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook

from tests.integration.parity import Boring, Tell, loader, same, strategy, trainer, weights
from tunelight import errors
from tunelight.compat.lightning import pl

with warnings.catch_warnings():  # torch compiles a part of its distributed optimizers in a way that it deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_gangs")]  # a port: run by make test-full


class Looking(Boring):
    """Takes down what it finds at its hooks, which comes back from rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.ignored = nn.Linear(2, 2)
        self._ddp_params_and_buffers_to_ignore = ["ignored.weight", "ignored.bias"]
        self.tied = nn.Linear(8, 2, bias=False)
        self.tied.weight = self.layer.weight
        self.found: dict[str, Any] = {}

    def loss(self, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = (self.layer(self.norm(batch[1])) - self.tied(batch[1])).square().mean()
        return loss

    def setup(self, stage: str) -> None:
        self.found = {"met": torch.distributed.is_initialized(), "size": torch.distributed.get_world_size()}

    def configure_optimizers(self) -> Any:
        self.found["devices"] = {value.device.type for value in self.parameters()}
        return super().configure_optimizers()

    def _look(self) -> None:
        wrapper = self.trainer.strategy.model
        self.found["wrapper"] = type(wrapper).__name__
        self.found["ignored"] = sorted(getattr(wrapper, "parameters_to_ignore", ()))
        self.found["norm"] = type(self.norm).__name__
        self.found["tied"] = self.tied.weight is self.layer.weight
        self.found["shared"] = self.layer.weight.is_shared()
        self.found["device"] = self.device.type

    on_train_start = on_validation_start = on_test_start = on_predict_start = _look


def test_a_model_is_wrapped_to_train_and_not_to_evaluate() -> None:
    model, one = Looking(), trainer("ddp", num_sanity_val_steps=0)
    before = weights(model)["ignored.weight"]
    one.fit(model, loader())
    here = {"met": True, "size": 2, "norm": "BatchNorm1d", "tied": True, "shared": False, "device": "cpu"}
    assert model.found == {
        **here,
        "devices": {"cpu"},
        "wrapper": "DistributedDataParallel",
        "ignored": ["ignored.bias", "ignored.weight"],
    }
    assert torch.equal(model.ignored.weight, before)
    assert model.tied.weight is model.layer.weight
    evaluated = trainer("ddp", sync_batchnorm=True)  # a CPU has no synchronised form: to train with it is refused
    for run in (evaluated.validate, evaluated.test, evaluated.predict):
        run(model, loader())
        assert model.found == {**here, "wrapper": "Looking", "ignored": []}


class Sharing(Boring):
    """Shards its optimizer's states over the ranks."""

    def configure_optimizers(self) -> Any:
        return ZeroRedundancyOptimizer(self.parameters(), optimizer_class=torch.optim.Adam, lr=0.1)


def test_a_checkpoint_of_an_optimizer_that_is_sharded_over_the_ranks_is_whole(tmp_path: Path) -> None:
    model, one = Sharing(), trainer("ddp")
    one.fit(model, loader())
    one.save_checkpoint(tmp_path / "whole.ckpt")
    assert same(weights(Boring.load_from_checkpoint(tmp_path / "whole.ckpt")), weights(model), atol=0)
    (state,) = torch.load(tmp_path / "whole.ckpt", weights_only=True)["optimizer_states"]
    assert sorted(state["state"]) == [0, 1]  # weight and bias, each of which one rank has
    trainer("ddp", max_epochs=2).fit(Sharing(), loader(), ckpt_path=tmp_path / "whole.ckpt")


def _averaging(**settings: Any) -> Any:
    state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=None, start_localSGD_iter=8)
    hook = post_localSGD_hook.post_localSGD_hook
    return strategy("ddp", ddp_comm_state=state, ddp_comm_hook=hook, model_averaging_period=4, **settings)


def _hook(one: pl.Trainer, module: pl.LightningModule) -> Any:
    logging: Any = one.strategy.model
    averager = getattr(one.strategy, "_model_averager", None)
    return [logging._get_ddp_logging_data().get("comm_hook", ""), type(averager).__name__]


def test_hooks_of_ddp_s_communication_reach_the_workers(tmp_path: Path) -> None:
    """Lightning registers a hook where gradients are on a GPU; the averaging of weights runs everywhere."""
    told = Tell(tmp_path, _hook)
    compressed = strategy("ddp", ddp_comm_hook=default_hooks.fp16_compress_hook)
    trainer(compressed, callbacks=[told]).fit(Boring(), loader())
    assert told.heard() == [["", "NoneType"]] * 2
    trainer(_averaging(), callbacks=[told]).fit(Boring(), loader())
    assert told.heard() == [["", "PeriodicModelAverager"]] * 2


def test_averaging_refuses_an_optimizer_that_is_sharded_over_the_ranks() -> None:
    with pytest.raises(ValueError, match="model averaging cannot work with a distributed optimizer"):
        trainer(_averaging()).fit(Sharing(), loader())


class Leaving(Boring):
    """Ends its process's program where it is set up."""

    def setup(self, stage: str) -> None:
        raise SystemExit(3)


def test_an_exit_on_a_worker_is_an_error_and_not_the_driver_s_end() -> None:
    with pytest.raises(errors.WorkerFailedError, match=r"rank [01] on .*: SystemExit: 3") as caught:
        trainer("ddp").fit(Leaving(), loader())
    assert not isinstance(caught.value, SystemExit)


@pytest.mark.parametrize("backend", ["glo", "cpu:glo,cuda:nccl"])
def test_a_backend_that_torch_does_not_have_is_refused_before_workers_start(backend: str) -> None:
    with pytest.raises(errors.StrategyError, match=r"no process_group_backend='glo'.* Did you mean 'gloo'\?"):
        trainer(strategy("ddp", process_group_backend=backend)).fit(Boring(), loader())
