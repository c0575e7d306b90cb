"""What is packed for the object store, what is unpacked of it, and how weights come back into a model."""

from __future__ import annotations

import abc
import pickle
import threading
import tracemalloc
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanMetric

from tunelight.compat.lightning import pl
from tunelight.lightning.transfer import Packed, copy_into, find_unpicklable, pack, pack_state, unpack, unpack_view

MB = 2**20
FEW, MANY = 100, 5000  # numbers of a tensor whose memory stays inside the pickle, and of one whose memory does not
LOCK = threading.Lock()


class Holder:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


def sent(value: Any, **references: Any) -> Any:
    return unpack(pack(value, references), references)


def as_stored(packed: Packed) -> Any:
    """Return what Ray's object store would give: everything read-only."""
    buffers: list[Any] = []
    data = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[memoryview(bytes(buffer.raw())) for buffer in buffers])


def tied(device: str = "cpu") -> Any:
    model = nn.Sequential(*(nn.Linear(40, 40, bias=False, device=device) for _ in range(2)))
    model[1].weight = model[0].weight
    return model


# --- no copies --------------------------------------------------------------------------------------------


def test_memory_is_shown_and_not_copied():
    tensor, array = torch.zeros(50 * MB // 4), np.zeros(MB)
    tracemalloc.start()
    try:
        packed = pack({"tensor": tensor, "part": tensor[1:], "array": array})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [part.ctypes.data for part in packed.storages] == [tensor.data_ptr()]
    assert [part.ctypes.data for part in packed.buffers] == [array.ctypes.data]
    assert packed.nbytes == len(packed.data) + 58 * MB
    assert len(packed.data) < 1000
    assert peak < MB
    assert tensor.untyped_storage().resizable()  # it is not after tensor.numpy()


def test_what_is_packed_is_pickled_out_of_band_itself():
    buffers: list[Any] = []
    packed = pack([torch.zeros(MANY), np.zeros(MANY)])
    assert len(pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)) < 2000
    assert [buffer.raw().nbytes for buffer in buffers] == [MANY * 4, MANY * 8]


def test_small_memory_stays_inside_the_pickle():
    packed = pack([torch.arange(FEW), np.arange(FEW)])
    assert (packed.storages, packed.buffers) == ([], [])
    assert [part.sum() for part in unpack(packed)] == [4950, 4950]


def test_a_view_of_the_store_is_no_copy_either():
    stored = as_stored(pack(torch.arange(MANY)))
    tensor, place = unpack_view(stored), stored.storages[0].ctypes.data
    assert tensor.data_ptr() == place
    del stored  # the view keeps the memory
    assert torch.equal(tensor, torch.arange(MANY))


# --- the same again ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [FEW, MANY])
def test_views_share_their_memory_again(length):
    whole = torch.zeros(length)
    again, part = sent([whole, whole[10:20]])
    part += 1
    assert again.sum() == 10
    assert again.untyped_storage().nbytes() == length * 4


def test_tied_parameters_stay_tied():
    packed = pack(tied())
    assert len(packed.storages) == 1
    assert len(list(unpack(packed).parameters())) == 1


def test_a_model_comes_out_equal():
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Embedding(100, 100)).requires_grad_(False)
    model[2].requires_grad_(True)
    again = sent(model.eval())
    assert not again.training
    assert [value.requires_grad for value in again.parameters()] == [False] * 4 + [True]
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())


def test_what_is_unpacked_is_its_owners():
    source = torch.zeros(MANY), np.zeros(MANY)
    packed = as_stored(pack(source))
    (tensor, array), second = unpack(packed), unpack(packed)
    tensor += 1
    array += 1
    tensor.untyped_storage().resize_(8 * MANY)
    assert [part.sum() for part in (*source, *second)] == [0, 0, 0, 0]


def test_a_read_only_array_stays_read_only():
    assert not sent(np.frombuffer(bytes(MANY), np.uint8)).flags.writeable


@pytest.mark.parametrize("length", [0, FEW, MANY])
@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float64, torch.complex64, torch.bool, torch.int8, torch.uint16, torch.float8_e4m3fn],
)
def test_every_dtype_travels(dtype, length):
    tensor = torch.arange(length).remainder(7).to(dtype)
    again = sent(tensor)
    assert again.dtype == dtype
    assert torch.equal(again.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(60, 70)[::2].t(), torch.randn(MANY, dtype=torch.complex64).conj(),
     torch.randn(MANY).share_memory_(), torch.randn(MANY, requires_grad=True)],
)  # fmt: skip
def test_every_kind_of_tensor_travels(tensor):
    again = sent(tensor)
    assert torch.equal(again, tensor)
    assert again.stride() == tensor.stride()
    assert (again.is_conj(), again.requires_grad) == (tensor.is_conj(), tensor.requires_grad)


def test_a_subclass_and_its_attributes_travel():
    class Named(torch.Tensor): ...

    tensor = torch.arange(MANY).as_subclass(Named)
    tensor.label = "mine"  # type: ignore[attr-defined]  # the test is about it
    again = sent(tensor)
    assert (type(again).__name__, again.label) == ("Named", "mine")
    assert torch.equal(again.as_subclass(torch.Tensor), torch.arange(MANY))


def test_a_sparse_tensor_travels_out_of_band():
    tensor = torch.ones(MANY, 1).to_sparse()
    packed = pack(tensor)
    assert len(packed.storages) == 2
    assert torch.equal(unpack(packed).values(), tensor.values())


# Quantized tensors are deprecated, and found in models all the same.
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:TypedStorage is deprecated")
def test_a_quantized_tensor_travels():
    tensor = torch._empty_affine_quantized([MANY], scale=0.5, zero_point=3, dtype=torch.quint8).fill_(2)
    again = sent(tensor)
    assert (again.q_scale(), again.q_zero_point()) == (0.5, 3)
    assert torch.equal(again.int_repr(), tensor.int_repr())


def test_a_meta_tensor_keeps_its_shape_and_has_no_memory():
    packed = pack(nn.Linear(MANY, MANY, device="meta"))
    assert packed.nbytes < 10_000
    weight = unpack(packed).weight
    assert (weight.is_meta, weight.shape) == (True, (MANY, MANY))


def test_an_lstm_runs_again():
    lstm = nn.LSTM(20, 30, num_layers=2, batch_first=True)
    given = torch.randn(2, 5, 20)
    assert torch.equal(sent(lstm)(given)[0], lstm(given)[0])


def test_the_default_device_decides_nothing():
    with torch.device("meta"):
        again = sent(torch.arange(MANY, device="cpu"))
    assert torch.equal(again, torch.arange(MANY))


def test_lambdas_and_local_classes_travel_by_value():
    class Local(nn.Module):
        def forward(self, given):
            return shift(given)

    weights = torch.ones(MANY)
    shift: Any = lambda given: given + weights  # noqa: E731 - a lambda is what this tests
    assert torch.equal(sent(Local())(torch.ones(1)), weights + 1)


def test_a_module_that_is_missing_is_named():
    with pytest.raises(ModuleNotFoundError, match="only_there"):
        unpack(Packed(b"conly_there\nThing\n.", [], []))


# --- references -------------------------------------------------------------------------------------------


def test_a_reference_is_the_receivers_own_object():
    here, there = Holder(lock=LOCK), Holder()
    again = unpack(pack({"a": here, "b": [here]}, {"trainer": here}), {"trainer": there})
    assert again["a"] is again["b"][0] is there


def test_neither_an_equal_object_nor_none_is_a_reference():
    first, second = [1], [1]
    again = unpack(pack([first, second, None], {"one": first, "logger": None}), {"one": 1, "logger": 2})
    assert again == [1, [1], None]


def test_a_missing_reference_is_named():
    packed = pack(here := Holder(), {"trainer": here})
    with pytest.raises(pickle.UnpicklingError, match="refers to 'trainer', and unpack was given 'model'"):
        unpack(packed, {"model": here})


def test_a_trainer_travels_with_its_model_and_without_its_strategy():
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, barebones=True)
    model = pl.LightningModule()
    model.net, model.trainer = nn.Linear(50, 50), trainer
    again, net = unpack(pack([trainer, model], {"strategy": trainer.strategy}), {"strategy": "its own"})
    assert again.strategy == "its own"
    assert torch.equal(net.net.weight, model.net.weight)


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
    parameter, dtype = model.weight, model.weight.dtype
    copy_into(model, came_back(trained))
    assert model.weight is parameter
    assert model.weight.dtype == dtype
    assert torch.equal(model.weight, trained.weight.to(dtype))


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


# --- what cannot be packed --------------------------------------------------------------------------------


class Dropping(Holder):
    def __getstate__(self) -> dict[str, Any]:
        return {name: part for name, part in self.__dict__.items() if name != "own"}


def nested(**parts: Any) -> Any:
    model: Any = nn.Sequential(OrderedDict(encoder=nn.Linear(100, 100)))
    model.encoder.__dict__.update(parts)
    return model


def of_a_local_class(lock: Any) -> Any:
    class Local(abc.ABC):  # noqa: B024 - what an abstract class holds besides cannot be pickled either
        def step(self) -> None:
            lock.acquire()

    return Local()


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (nested(lock=LOCK), "model.encoder.lock"),
        (nested(parts={"a": [1, (2, LOCK)]}), "model.encoder.parts.a.1.1"),
        (nested(parts={"two words": LOCK}), "model.encoder.parts.two words"),
        (nested(transform=lambda: LOCK), "model.encoder.transform.LOCK"),
        (Dropping(own=LOCK, client=Holder(lock=LOCK)), "model.client.lock"),
        (of_a_local_class(LOCK), "model.step.lock"),
        (LOCK, "model"),
    ],
)
def test_the_smallest_part_that_cannot_be_packed_is_named(given, path):
    with pytest.raises(TypeError):
        pack(given)
    assert find_unpicklable(given, "model") == path


def test_a_reference_is_not_looked_into():
    strategy = Holder(lock=LOCK)
    assert find_unpicklable(Holder(strategy=strategy, db=LOCK), "trainer", {"strategy": strategy}) == "trainer.db"


def test_a_search_that_takes_too_long_ends_with_what_it_has():
    assert find_unpicklable(Holder(lock=LOCK), "model", limit_s=0) == "model"


def test_a_loop_of_objects_ends():
    holder = Holder(me=None, lock=LOCK)
    holder.__dict__["me"] = holder
    assert find_unpicklable(holder, "model") == "model.lock"
