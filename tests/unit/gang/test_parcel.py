"""What is sent to workers: what is packed for the object store, what is unpacked of it, and what refuses to travel."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
import ray
import torch
from torch import nn

from tests.kit.programs import python
from tunelight.errors import TrainFunctionError
from tunelight.gang.parcel import Code, Packed, check_picklable, heavy, pack, unpack

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


def peak_of(call: Callable[[], Packed]) -> tuple[Packed, int]:
    """Return what a call packed, and the most memory that it had."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_shown_and_not_copied():
    tensor, array = torch.zeros(50 * MB // 4), np.zeros(MB)
    packed, peak = peak_of(lambda: pack({"tensor": tensor, "part": tensor[1:], "array": array}))
    assert [part.ctypes.data for part in packed.storages] == [tensor.data_ptr()]
    assert [part.ctypes.data for part in packed.buffers] == [array.ctypes.data]
    assert packed.nbytes == len(packed.data) + 58 * MB
    assert len(packed.data) < 1000
    assert peak < MB
    assert tensor.untyped_storage().resizable()  # it is not after tensor.numpy()
    data = np.zeros(50 * MB // 8)
    captured, peak = peak_of(lambda: check_picklable(_closing_over(data), "train"))
    assert captured.nbytes > 50 * MB
    assert peak < MB


def test_what_was_packed_goes_as_soon_as_nobody_holds_it():
    model = nn.Linear(100, 100)
    packed, weight = pack({"model": model, "rows": np.zeros(1000)}), weakref.ref(model.weight)
    gc.disable()
    try:
        del model, packed
        assert weight() is None
    finally:
        gc.enable()


def test_what_is_packed_is_pickled_out_of_band_itself_unless_it_is_small():
    buffers: list[Any] = []
    packed = pack([torch.zeros(MANY), np.zeros(MANY)])
    assert len(pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)) < 2000
    assert [buffer.raw().nbytes for buffer in buffers] == [MANY * 4, MANY * 8]
    packed = pack([torch.arange(FEW), np.arange(FEW)])
    assert (packed.storages, packed.buffers) == ([], [])
    assert [part.sum() for part in unpack(packed)] == [4950, 4950]


@pytest.mark.parametrize("length", [FEW, MANY])
def test_views_share_their_memory_again(length):
    whole = torch.zeros(length)
    again, part = sent([whole, whole[10:20]])
    part += 1
    assert again.sum() == 10
    assert again.untyped_storage().nbytes() == length * 4


def test_what_is_unpacked_is_its_owners_and_what_was_read_only_stays_so():
    source = torch.zeros(MANY), np.zeros(MANY)
    packed = as_stored(pack(source))
    (tensor, array), second = unpack(packed), unpack(packed)
    tensor += 1
    array += 1
    tensor.untyped_storage().resize_(8 * MANY)
    assert [part.sum() for part in (*source, *second)] == [0, 0, 0, 0]
    assert not sent(np.frombuffer(bytes(MANY), np.uint8)).flags.writeable


@pytest.mark.parametrize(
    "tensor",
    [*(torch.arange(MANY).remainder(7).to(dtype) for dtype in (torch.bfloat16, torch.bool, torch.uint16)),
     torch.arange(FEW).to(torch.float8_e4m3fn), torch.zeros(0), torch.randn(60, 70)[::2].t(),
     torch.randn(MANY, dtype=torch.complex64).conj(), torch.randn(MANY).share_memory_(),
     torch.randn(MANY, requires_grad=True)],
)  # fmt: skip
def test_every_kind_of_tensor_travels_whatever_the_default_device_is(tensor):
    with torch.device("meta"):
        again = sent(tensor)
    assert (again.dtype, again.stride()) == (tensor.dtype, tensor.stride())
    assert (again.is_conj(), again.requires_grad) == (tensor.is_conj(), tensor.requires_grad)
    assert again.tolist() == tensor.tolist()


# Quantized tensors are deprecated, and found in models all the same.
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:TypedStorage is deprecated")
def test_what_is_more_than_a_tensor_travels_as_it_is():
    class Named(torch.Tensor): ...

    tensor = torch.arange(MANY).as_subclass(Named)
    tensor.label = "mine"  # type: ignore[attr-defined]  # the test is about it
    again = sent(tensor)
    assert (type(again).__name__, again.label) == ("Named", "mine")
    assert torch.equal(again.as_subclass(torch.Tensor), torch.arange(MANY))
    quantized = torch._empty_affine_quantized([MANY], scale=0.5, zero_point=3, dtype=torch.quint8).fill_(2)
    again = sent(quantized)
    assert (again.q_scale(), again.q_zero_point()) == (0.5, 3)
    assert torch.equal(again.int_repr(), quantized.int_repr())
    sparse = torch.ones(MANY, 1).to_sparse()
    packed = pack(sparse)
    assert len(packed.storages) == 2
    assert torch.equal(unpack(packed).values(), sparse.values())
    packed = pack(nn.Linear(MANY, MANY, device="meta"))
    assert packed.nbytes < 10_000, "a meta tensor has no memory"
    weight = unpack(packed).weight
    assert (weight.is_meta, weight.shape) == (True, (MANY, MANY))


def test_a_reference_is_the_receivers_own_object_and_neither_an_equal_one_nor_none_is_one():
    here, there = Holder(lock=LOCK), Holder()
    again = unpack(pack({"a": here, "b": [here]}, {"trainer": here}), {"trainer": there})
    assert again["a"] is again["b"][0] is there
    first, second = [1], [1]
    again = unpack(pack([first, second, None], {"one": first, "logger": None}), {"one": 1, "logger": 2})
    assert again == [1, [1], None]


def test_slots_of_a_class_that_was_sent_by_value_are_slots_again():
    class Slotted:
        __slots__ = ("unset", "value")

    class There: ...

    here, there = Slotted(), There()
    There.__slots__ = Slotted.__slots__  # type: ignore[attr-defined]  # as cloudpickle makes the class on a worker
    here.value = there.value = [1]  # type: ignore[attr-defined]
    for source, kind in ((here, There), (there, Slotted)):
        again = unpack(pack(source, {"kind": type(source)}), {"kind": kind})
        assert (type(again), again.value, hasattr(again, "unset")) == (kind, [1], False)
    assert not hasattr(again, "__dict__")


def test_what_is_missing_where_it_is_unpacked_is_named():
    packed = pack(here := Holder(), {"trainer": here})
    with pytest.raises(pickle.UnpicklingError, match="refers to 'trainer', and unpack was given 'model'"):
        unpack(packed, {"model": here})
    with pytest.raises(ModuleNotFoundError, match="only_there"):
        unpack(Packed(b"conly_there\nThing\n.", [], []))


def _uses(source: str, **names: Any) -> Any:
    exec(source, names)
    return names["train"]


def _closing_over(value: Any) -> Any:
    def closure(config):
        return value

    return closure


def _looped(holder: Holder) -> Holder:
    holder.__dict__ = {"me": holder, **holder.__dict__}
    return holder


@pytest.mark.parametrize(
    ("given", "where"),
    [
        (_closing_over(LOCK), "closure variable 'value', an object of _thread:lock"),
        (_uses("def train(config): lock.acquire()", lock=LOCK), "global variable 'lock', an object"),
        (_uses("def train(config): (lambda: lock)()", lock=LOCK), "global variable 'lock'"),
        (_closing_over(Holder(db=Holder(lock=LOCK))), "'value', attribute 'db', attribute 'lock', an object"),
        (_closing_over({"a": [1, LOCK]}), "'value', item 'a', item 1, an object"),
        (_uses("def train(config, lock=lock): pass", lock=LOCK), "default value of 'lock'"),
        (functools.partial(_closing_over(1), lock=LOCK), "argument 'lock'"),
        (Holder(lock=LOCK), "attribute 'lock'"),
        (LOCK, "It, an object of _thread:lock"),
        (_looped(Holder(lock=LOCK)), "attribute 'lock'"),
    ],
)  # fmt: skip
def test_what_cannot_be_pickled_is_named(given, where, capfd):
    with pytest.raises(TrainFunctionError, match="(?i)" + where):
        check_picklable(given, "train")
    assert capfd.readouterr() == ("", "")


def test_code_is_pickled_when_it_is_sent_and_named_with_its_size_where_it_takes_much_data_along(monkeypatch):
    captured: list[int] = []
    code = Code(_closing_over(captured))
    captured.append(1)
    assert unpack(pickle.loads(pickle.dumps(code)))({}) == [1]
    monkeypatch.setattr("tunelight.gang.parcel._HEAVY_BYTES", MB)
    holder = Holder(small=np.zeros(MB // 8), data=np.zeros(3 * MB // 8))
    said: Any = heavy(_closing_over(holder), "train")
    assert said.startswith("train takes 4 MB to the workers")
    assert "tl.cached" in said
    assert heavy(_closing_over(3), "train") is None


def test_modules_that_cloudpickle_sends_by_value_are_sent_so():
    module = ModuleType("a_module_of_a_test")
    exec("def answer(): return 42", vars(module))
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)
    try:
        packed = pack(module.answer)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        ray.cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[module.__name__]
    assert unpack(packed)() == 42


SCRIPT = """
import pickle, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tunelight.gang import parcel

class Box:
    def __init__(self, value):
        self.value = value

def square(value):
    return Box(value * value)

def train(config):
    context = get_context(config["context"])
    with context.Pool(1) as pool:
        (first,) = pool.map(square, [2])
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        second = executor.submit(square, 3).result(timeout=60)
    assert type(first) is type(second) is Box
    assert type(pickle.loads(pickle.dumps(first))) is Box
    return first.value, second.value

if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        pickle.dump(parcel.pack(train), file)
else:
    raise RuntimeError("The script was run again.")
"""

WORKER = """
import pickle, sys
import __main__
from tunelight.gang import parcel, script

if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        packed = pickle.load(file)
    print(parcel.receive(packed)({"context": sys.argv[2]}))
    script.end()
    assert sys.modules["__main__"] is __main__
"""


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_processes_of_training_code_know_the_scripts_functions_and_classes(tmp_path: Path, context: str) -> None:
    for name, text in (("driver.py", SCRIPT), ("worker.py", WORKER)):
        Path(tmp_path, name).write_text(text)
    for command in (["driver.py"], ["worker.py", context]):
        done = python(tmp_path / command[0], tmp_path / "packed", *command[1:], limit_s=100, env=os.environ)
    assert done.stdout == "(4, 9)\n"
