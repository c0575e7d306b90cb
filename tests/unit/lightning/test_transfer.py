"""How weights come back into a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics import MeanMetric

from tests.unit.gang.test_parcel import MANY, as_stored, tied
from tunelight.extras.standalone.transfer import copy_into
from tunelight.gang.parcel import pack_state, unpack_view

# --- weights into a model ---------------------------------------------------------------------------------


def came_back(model: nn.Module) -> Any:
    return unpack_view(as_stored(pack_state(model.state_dict())))


def test_weights_come_back_into_the_parameters_there_are():
    model, trained = nn.BatchNorm1d(MANY), nn.BatchNorm1d(MANY)
    nn.init.normal_(trained.weight)
    trained(torch.randn(4, MANY))
    before = [(id(tensor), tensor.data_ptr()) for tensor in (*model.parameters(), *model.buffers())]
    state = came_back(trained)
    copy_into(model, state)
    assert [(id(tensor), tensor.data_ptr()) for tensor in (*model.parameters(), *model.buffers())] == before
    assert state._metadata[""]["version"] == 2  # which tells modules what an older version of them saved
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in trained.state_dict().items())


class Own(nn.Linear):
    def load_state_dict(self, state_dict, strict=True):  # type: ignore[override]  # as users do
        super().load_state_dict(state_dict, strict)


@pytest.mark.parametrize(
    ("model", "trained"),
    [(nn.Linear(50, 50), nn.Linear(50, 50, dtype=torch.bfloat16)), (nn.Embedding(10, 50), nn.Embedding(20, 50)),
     (nn.LazyLinear(50), nn.Linear(60, 50)), (Own(50, 50), nn.Linear(50, 50))],
    ids=["of another dtype", "of another shape", "into a lazy layer", "as the model loads them"],
)  # fmt: skip
def test_weights_come_back(model, trained):
    parameter = model.weight
    copy_into(model, came_back(trained))
    assert model.weight is parameter
    assert model.weight.dtype == trained.weight.dtype
    assert torch.equal(model.weight, trained.weight)


def test_a_layer_that_stayed_lazy_is_nothing_to_warn_of():
    model = nn.LazyLinear(3)
    copy_into(model, came_back(nn.LazyLinear(3)))
    assert model.has_uninitialized_params()


def test_what_was_none_is_made():
    model: Any = nn.Module()
    trained: Any = nn.Module()
    for module, value in ((model, None), (trained, torch.randn(MANY))):
        module.register_buffer("mean", value)
        module.register_parameter("scale", None if value is None else nn.Parameter(value + 1))
    copy_into(model, came_back(trained))
    assert torch.equal(model.mean, trained.mean)
    assert torch.equal(model.scale, trained.scale)
    assert [name for name, _ in model.named_parameters()] == ["scale"]


def test_weights_on_the_meta_device_are_made_and_stay_tied():
    model, trained = tied("meta"), tied()
    copy_into(model, came_back(trained))
    assert model[0].weight is model[1].weight
    assert torch.equal(model[0].weight, trained[0].weight)


class Extra(MeanMetric):
    extra: Any = None

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def test_extra_state_and_metrics_come_back_and_nothing_of_a_view_is_kept():
    model, trained = Extra(), Extra()
    trained.persistent(True)
    trained.update(torch.ones(5))
    trained.extra = [3, torch.arange(MANY)]
    state = came_back(trained)
    copy_into(model, state)
    assert [model.extra[0], float(model.mean_value)] == [3, 5]
    assert torch.equal(model.extra[1], torch.arange(MANY))
    assert model.extra[1].data_ptr() != state["_extra_state"][1].data_ptr()
    assert model.mean_value.data_ptr() != state["mean_value"].data_ptr()


def test_keys_that_do_not_fit_are_named_once():
    model, trained = nn.ModuleDict({"a": nn.Linear(3, 3)}), nn.ModuleList(nn.Linear(1, 1) for _ in range(4))
    places = "no place for 0.weight, 0.bias, 1.weight, 1.bias, 2.weight and 3 more"
    with pytest.warns(UserWarning, match=f"{places}, and nothing came for a.weight, a.bias") as said:
        copy_into(model, came_back(trained))
    assert len(said) == 1


@pytest.mark.gpu
def test_weights_on_a_gpu_come_back_on_the_cpu():
    lstm: Any = nn.LSTM(50, 50).cuda()  # its weights share one storage there
    packed = pack_state(lstm.state_dict())
    assert len(packed.storages) == 1
    model: Any = nn.LSTM(50, 50)
    copy_into(model, unpack_view(packed))
    assert torch.equal(model.weight_hh_l0, lstm.weight_hh_l0.cpu())
