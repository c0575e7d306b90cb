"""What a run changes in a model, its weights and its callbacks, and how it comes back."""

from __future__ import annotations

import enum
import re
import threading
from collections import OrderedDict, deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanMetric

from tests.unit.gang.test_parcel import MANY, as_stored, tied
from tunelight.compat.lightning import Logger, pl
from tunelight.extras.standalone import changes
from tunelight.extras.standalone.changes import SharedParts
from tunelight.extras.standalone.transfer import copy_into
from tunelight.gang.parcel import pack, pack_state, unpack, unpack_view


class Net(pl.LightningModule):
    """A model with attributes of all kinds."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"lr": 0.5})
        self.layer = nn.Linear(3, 2)
        self.register_buffer("mask", torch.zeros(2), persistent=False)
        self.own: Any = SimpleNamespace(lines=["first"], limits={"low": 1})
        self.last: Any = deque([1], maxlen=2)
        self.seen: Any = {1}
        self.array = np.zeros(3)
        self.table = torch.zeros(3)
        self.kept: Any = OrderedDict(a=[1])


class Averaging(pl.Callback):
    """Holds a copy of the model, whose weights are no part of the model's."""

    def __init__(self, model: Net) -> None:
        self.model, self.average = model, nn.Linear(3, 2)
        self.own = model.own


class Side:
    """The driver's or the worker's objects."""

    def __init__(self, model: Any, callbacks: list[Any]) -> None:
        self.model, self.callbacks = model, callbacks
        self.parts = SharedParts(model, callbacks)

    def sent(self) -> Side:
        """Return what a worker gets, as it takes it down before the run."""
        there: Side = unpack(pack(self))
        there.parts.watch()
        return there

    def take(self, there: Side) -> changes.Changes:
        """Take back what has become of it there."""
        copy_into(self.model, unpack_view(pack_state(there.model.state_dict())))
        self.parts.put_tensors(unpack_view(pack_state(there.parts.tensors())))
        found = there.parts.changes()
        came: changes.Changes = unpack(pack_state(found, there.parts.references()), self.parts.references())
        self.parts.put(came)
        return found


@pytest.fixture
def here() -> Side:
    model = Net()
    return Side(model, [Averaging(model)])


def test_what_changed_comes_into_the_driver_s_own_objects(here: Side) -> None:
    model, there = here.model, here.sent()
    before = {name: getattr(model, name) for name in ("own", "last", "seen", "kept", "hparams")}
    lines, limits, inner, average = model.own.lines, model.own.limits, model.kept["a"], here.callbacks[0].average.weight
    run = there.model
    run.own.lines.append("second")
    run.own.limits["high"] = 2
    run.own.fresh = "yes"
    run.last.extend([2, 3])
    run.seen.add(2)
    run.array[0] = run.table[0] = run.mask[0] = 1
    run.kept["a"].append(2)
    run.hparams["lr"] = 0.1
    there.callbacks[0].later = {"module": run, "layer": run.layer, "own": run.own}
    torch.nn.init.ones_(there.callbacks[0].average.weight)
    run.eval()
    here.take(there)
    assert all(getattr(model, name) is value for name, value in before.items())
    assert (model.own.lines is lines, model.own.limits is limits, model.kept["a"] is inner) == (True, True, True)
    assert (lines, limits, model.own.fresh) == (["first", "second"], {"low": 1, "high": 2}, "yes")
    assert (model.last, model.seen, inner) == (deque([2, 3]), {1, 2}, [1, 2])
    assert (model.array[0], model.table[0], model.mask[0]) == (1, 1, 1)
    assert model.hparams == {"lr": 0.1}
    assert not model.layer.training
    assert here.callbacks[0].own is model.own
    assert here.callbacks[0].later == {"module": model, "layer": model.layer, "own": model.own}
    assert (here.callbacks[0].average.weight is average, average.sum()) == (True, 6)


def test_functions_classes_and_keys_stay_the_driver_s_own() -> None:
    class Kind(enum.Enum):
        ONE = 1

        def is_one(self) -> bool:
            return True

    model, key, square = Net(), Averaging(Net()), lambda value: value**2
    model.own = SimpleNamespace(kind=Kind.ONE, square=partial(square), keyed={key: (square, [1])})
    here = Side(model, [])
    there, method = here.sent(), Kind.is_one
    next(iter(there.model.own.keyed.values()))[1].append(2)
    here.take(there)
    assert (model.own.keyed, model.own.kind) == ({key: (square, [1, 2])}, Kind.ONE)
    assert (model.own.square.func is square, Kind.is_one is method) == (True, True)


def test_what_is_frozen_and_what_is_gone(here: Side) -> None:
    there = here.sent()
    there.model.layer.bias.requires_grad_(False)
    del there.model.array
    here.take(there)
    assert [value.requires_grad for value in here.model.parameters()] == [True, False]
    assert not hasattr(here.model, "array")


class Proxy:
    """Pickles, and does not unpickle: pickle asks for ``__setstate__`` before there is an ``inner``."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_what_cannot_come_back_is_said_and_the_rest_comes(here: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_MOST_BYTES", 2**20)
    here.model.large = large = torch.zeros(2**19)
    there = here.sent()
    there.model.lock, there.model.table, there.model.own.lines[0] = threading.Lock(), torch.ones(2**19), "changed"
    there.model.last.append(threading.Lock())
    there.model.proxy, there.callbacks[0].proxy, there.model.array = Proxy([1]), Proxy([1]), np.ones(3)
    there.callbacks[0].table = torch.ones(2**19)  # of callbacks what is large comes too: averaged weights, say
    with pytest.warns(UserWarning, match="Not all that changed on the workers came back") as said:
        here.take(there)
    for text in ("model.table (it is 2 MB)", "model.lock (TypeError: cannot pickle", "model.last (TypeError: cannot"):
        assert text in str(said[0].message)
    assert re.search(r"model\.proxy \(RecursionError.*, Averaging\.proxy \(RecursionError", str(said[0].message))
    assert (here.model.array.sum(), hasattr(here.model, "proxy")) == (3, False)
    assert (here.model.table.sum(), here.model.own.lines) == (0, ["changed"])
    assert (here.model.large is large, "large" in str(said[0].message)) == (True, False)
    assert here.callbacks[0].table.sum() == 2**19


def test_what_torch_and_lightning_put_into_a_module_stays_on_its_side(here: Side) -> None:
    there = here.sent()
    there.model.forward = lambda *_: None  # as FSDP does with a method that is registered with it
    vars(there.model)["__composable_api_state_key_1"] = threading.Lock()
    there.model._device = torch.device("meta")
    found = here.take(there)
    assert found.lost == {}
    assert not {"forward", "__composable_api_state_key_1", "_device"} & {name for _, name in found.contents}
    assert "forward" not in vars(here.model)


class Leaving(pl.Callback):
    """Leaves out what is its process's own, and makes it anew."""

    def __init__(self) -> None:
        self.lock, self.count = threading.Lock(), 0

    def __getstate__(self) -> dict[str, Any]:
        return {"count": self.count}


class Remaking(Leaving):
    def __setstate__(self, state: dict[str, Any]) -> None:
        self.lock, self.count = threading.Lock(), state["count"]


class Emptying(Leaving):
    def __getstate__(self) -> dict[str, Any]:
        return {"count": self.count, "lock": None}


class Naming(Logger):
    name: Any = None
    version = log_metrics = log_hyperparams = name
    count: int
    __init__: Any = Leaving.__init__

    def __getstate__(self) -> dict[str, Any]:
        return {"count": self.count + 1, "lock": None}


@pytest.mark.parametrize("kind", [Leaving, Remaking, Emptying, Naming])
def test_what_a_callback_or_logger_leaves_out_stays_on_its_side(kind: Any) -> None:
    here = Side(Net(), [kind()])
    there = here.sent()
    there.callbacks[0].count = 3
    here.take(there)
    assert here.callbacks[0].count == 3 + (kind is Naming)
    assert here.callbacks[0].lock.acquire(blocking=False)


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


class Loads(nn.Linear):
    def load_state_dict(self, state_dict, strict=True):  # type: ignore[override]  # as users do
        super().load_state_dict(state_dict, strict)


@pytest.mark.parametrize(
    ("model", "trained"),
    [(nn.Linear(50, 50), nn.Linear(50, 50, dtype=torch.bfloat16)), (nn.Embedding(10, 50), nn.Embedding(20, 50)),
     (nn.LazyLinear(50), nn.Linear(60, 50)), (Loads(50, 50), nn.Linear(50, 50))],
    ids=["of another dtype", "of another shape", "into a lazy layer", "as the model loads them"],
)  # fmt: skip
def test_weights_come_back(model, trained):
    parameter = model.weight
    copy_into(model, came_back(trained))
    assert model.weight is parameter
    assert model.weight.dtype == trained.weight.dtype
    assert torch.equal(model.weight, trained.weight)


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
