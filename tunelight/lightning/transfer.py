"""Sends objects with tensors in them through Ray's object store, copying what is large as seldom as can be.

Plain pickling copies a tensor at least three times on its way to the store. Here the memory of tensors and arrays is
left where it is: a `Packed` shows it as arrays of bytes, which ``ray.put`` writes straight into shared memory. That is
the sender's only copy. A receiver makes one more, since what lies in the store is read-only and shared; weights that
come back are copied from the store straight into the model (`unpack_view`, `copy_into`).
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import pickle
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy

from tunelight.errors import first_of
from tunelight.settings import pickling

Bytes = npt.NDArray[np.uint8]

_SMALL = 1024
"""Memory of fewer bytes travels inside the pickle: each buffer costs Ray some 10 µs, however small it is."""
_NOTHING: Mapping[str, object] = MappingProxyType({})
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
"""What always can be."""
_HOLDERS = frozenset({"_modules", "_parameters", "_buffers", "class"})
"""Parts that a reader would not write in the path to what is in them."""
_NEVER_SENT = frozenset({"__dict__", "__weakref__", "_abc_impl"})
"""Parts of a class that cloudpickle makes anew."""


@dataclass(frozen=True, eq=False)
class Packed:
    """What `pack` made of an object; itself to be pickled, with protocol 5, or handed to ``ray.put``.

    Until then it shows the memory of what was packed, without a copy: whoever changes that changes this.
    """

    data: bytes
    """The pickle, without what is large."""
    storages: list[Bytes]
    """The memory of tensors: one for each storage, however many tensors share it."""
    buffers: list[Bytes]
    """What else pickle leaves out of band, numpy's arrays above all, in pickle's order."""

    @property
    def nbytes(self) -> int:
        """Return the bytes that this takes in the object store, but for some dozens for each buffer."""
        return len(self.data) + sum(part.nbytes for part in itertools.chain(self.storages, self.buffers))


# --- there ------------------------------------------------------------------------------------------------


def pack(value: object, references: Mapping[str, object] = _NOTHING) -> Packed:
    """Pickle ``value`` as cloudpickle does, but leave the memory of CPU tensors and arrays where it is.

    Tensors that share memory (views, tied parameters) share it again when unpacked. Memory on other devices goes
    through torch's own pickling, and comes back on the device that it was on. As with torch's, gradients, autograd's
    history and ``share_memory_`` stay behind.

    Args:
        references: what the receiver has already, by name: wherever one of these objects (not an equal one) is met,
            only its name is sent. None is never taken for one.

    Raises: what pickle raises, mostly TypeError and PicklingError; `find_unpicklable` says what it was about.
    Runs on: driver.
    """
    return _pack(value, references, to_cpu=False)


def pack_state(state: object, references: Mapping[str, object] = _NOTHING) -> Packed:
    """Pack what another machine is to have, such as a state dict: memory of every device is copied to the CPU's, once.

    Args:
        state: anything with tensors of any device in it, whole: the shards of a DTensor are to be gathered first.
        references: as in `pack`.

    Raises: what pickle raises. Runs on: worker.
    """
    return _pack(state, references, to_cpu=True)


def _pack(value: object, references: Mapping[str, object], *, to_cpu: bool) -> Packed:
    file = io.BytesIO()
    pickler = _Pickler(file, references, to_cpu=to_cpu)
    pickler.dump(value)
    return Packed(file.getvalue(), pickler.storages, pickler.buffers)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    """Cloudpickle, but that storages and references are sent as persistent ids.

    A storage's id is ("storage", number, where, dtype), where being its place in ``storages`` or, of a small one, its
    bytes; a reference's is ("reference", name). torch wraps a storage anew for each tensor, so that pickle's own memo
    would send a shared one once for each of them.
    """

    def __init__(self, file: io.BytesIO, references: Mapping[str, object], *, to_cpu: bool) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._take)
        self.storages: list[Bytes] = []
        self.buffers: list[Bytes] = []
        self._names = {id(value): name for name, value in references.items() if value is not None}
        self._to_cpu = to_cpu
        # The storage is kept too, so that its address stays its own until the pickle is done.
        self._known: dict[int, tuple[int, int | bytes, torch.UntypedStorage]] = {}

    def persistent_id(self, value: Any) -> tuple[object, ...] | None:
        kind = type(value)  # isinstance would ask a proxy what it stands for
        if issubclass(kind, torch.TypedStorage):
            storage, dtype = value._untyped_storage, value.dtype
        elif issubclass(kind, torch.UntypedStorage):
            storage, dtype = value, torch.uint8  # as torch.save has it
        else:
            name = self._names.get(id(value))
            return None if name is None else ("reference", name)
        device = storage.device.type
        if device != "cpu" and (device == "meta" or not self._to_cpu):
            return None
        if storage._cdata not in self._known:
            self._known[storage._cdata] = (len(self._known), self._place(storage.cpu()), storage)
        number, where, _ = self._known[storage._cdata]
        return "storage", number, where, dtype

    def _place(self, storage: torch.UntypedStorage) -> int | bytes:
        content = _bytes_of(storage)
        if content.nbytes < _SMALL:
            return content.tobytes()
        self.storages.append(content)
        return len(self.storages) - 1

    def _take(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a buffer out of the pickle; return whether it is to stay in."""
        content = np.asarray(buffer.raw())
        if content.nbytes >= _SMALL:
            self.buffers.append(content)
        return content.nbytes < _SMALL


def _bytes_of(storage: torch.UntypedStorage) -> Bytes:
    """Return the memory of a CPU storage as an array of bytes, whatever dtype its tensors have."""
    return np.asarray(_Memory(storage)) if storage.nbytes() else np.empty(0, np.uint8)


class _Memory:
    """A storage as numpy wants to be told of it. A tensor's ``numpy()`` would forbid that the storage be resized."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage  # the array keeps this, and so the memory

    @property
    def __array_interface__(self) -> dict[str, object]:
        shape = (self._storage.nbytes(),)
        return {"version": 3, "typestr": "|u1", "shape": shape, "data": (self._storage.data_ptr(), False)}


# --- and back ---------------------------------------------------------------------------------------------


def unpack(packed: Packed, references: Mapping[str, object] = _NOTHING) -> Any:
    """Return what was packed, in memory of its own: one copy of each storage and each array.

    Args:
        references: what to put where the sender met its own; the same names.

    Raises: ModuleNotFoundError when something packed needs a module that this process cannot import,
    UnpicklingError for a reference that was not given. Runs on: worker.
    """
    return _Unpickler(packed, references, _fresh, (buffer.copy() for buffer in packed.buffers)).load()


def unpack_view(packed: Packed) -> Any:
    """Return what was packed, its tensors and arrays lying where ``packed`` lies: no copy.

    Of a ``packed`` that came from Ray's object store everything is read-only, which torch does not know: a write
    to such a tensor may end the process. The store keeps the object for as long as one of its tensors lives.

    Raises: as `unpack`. Runs on: driver.
    """
    with warnings.catch_warnings():
        # torch warns of read-only memory, for it knows no read-only tensors: the docstring says it instead
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        return _Unpickler(packed, _NOTHING, _there, packed.buffers).load()


class _Unpickler(pickle.Unpickler):
    """Undoes `_Pickler`; ``storage_of`` makes a storage of the bytes that came."""

    def __init__(
        self,
        packed: Packed,
        references: Mapping[str, object],
        storage_of: Callable[[Bytes], torch.UntypedStorage],
        buffers: Iterable[Bytes],
    ) -> None:
        super().__init__(io.BytesIO(packed.data), buffers=buffers)
        self._storages = packed.storages
        self._references = references
        self._storage_of = storage_of
        self._made: dict[int, torch.UntypedStorage] = {}

    def persistent_load(self, found: Any) -> Any:
        if found[0] == "reference":
            if found[1] not in self._references:
                raise pickle.UnpicklingError(
                    f"What was packed refers to {found[1]!r}, and unpack was given "
                    f"{', '.join(map(repr, self._references)) or 'no references'}: give the names that pack was given."
                )
            return self._references[found[1]]
        _, number, where, dtype = found
        if number not in self._made:
            inside = isinstance(where, bytes)
            self._made[number] = (
                _fresh(np.frombuffer(where, np.uint8)) if inside else self._storage_of(self._storages[where])
            )
        return torch.TypedStorage(wrap_storage=self._made[number], dtype=dtype, _internal=True)


def _fresh(content: Bytes) -> torch.UntypedStorage:
    """Copy bytes into a storage of torch's own, which can be written and resized."""
    storage = torch.UntypedStorage(content.nbytes, device="cpu")
    _bytes_of(storage)[:] = content
    return storage


def _there(content: Bytes) -> torch.UntypedStorage:
    """Return a storage that lies where the bytes lie, and keeps them alive."""
    return torch.frombuffer(content, dtype=torch.uint8).untyped_storage()


# --- weights into a model ---------------------------------------------------------------------------------


def copy_into(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Copy weights that came back into the model's own parameters and buffers, which stay the objects they are.

    What differs in shape takes on the shape that came, what is lazy, on the meta device or still None is made, and
    a dtype is converted to the model's. The rest is ``load_state_dict``'s: hooks, extra state, modules with a way of
    their own. Of ``state`` nothing is kept, so it may be a view (`unpack_view`). Keys without a place in the model,
    and places without a key, are named in one warning.

    Raises: what the model's own hooks raise. Runs on: driver.
    """
    weights: OrderedDict[str, Any] = OrderedDict(state)
    if (versions := getattr(state, "_metadata", None)) is not None:
        vars(weights)["_metadata"] = versions  # by which modules load what an older version of them saved
    unmade = {name for name, value in weights.items() if isinstance(value, torch.Tensor) and is_lazy(value)}
    for name in unmade:
        del weights[name]
    for name in weights.keys() - _make_room(model, weights):
        weights[name] = copy.deepcopy(weights[name])  # a metric's state, say: who takes it may keep it
    # a model with a load_state_dict of its own may return nothing
    missing, unexpected = model.load_state_dict(weights, strict=False) or ((), ())
    said = [f"the model here has no place for {first_of(unexpected)}"] if unexpected else []
    if without := [name for name in missing if name not in unmade]:
        said.append(f"nothing came for {first_of(without)}")
    if said:
        warnings.warn(
            f"Not all trained weights came back into the model: {', and '.join(said)}. All others did. Make every "
            "layer in the model's __init__, so that driver and workers have the same.",
            stacklevel=2,
        )


def _make_room(model: torch.nn.Module, weights: Mapping[str, Any]) -> set[str]:
    """Give every parameter and buffer the shape of what came for it; return the keys that have such a place."""
    places: set[str] = set()
    made: dict[torch.Tensor, torch.Tensor] = {}  # tied ones stay tied; tensors are hashed by identity
    for path, module in model.named_modules(remove_duplicate=False):
        for slots in (module._parameters, module._buffers):
            for name, own in list(slots.items()):
                key = f"{path}.{name}" if path else name
                came = weights.get(key)
                if not isinstance(came, torch.Tensor) or name in module._non_persistent_buffers_set:
                    continue
                places.add(key)
                if own is not None and is_lazy(own):
                    own.materialize(came.shape)
                if own is not None and not own.is_meta:
                    if own.shape != came.shape:
                        own.data, own.grad = own.new_empty(came.shape), None
                    continue
                new = made.get(own) if own is not None else None
                if new is None:
                    new = _made_for(own, came, parameter=slots is module._parameters)
                if own is not None:
                    made[own] = new
                setattr(module, name, new)
    return places


def copy_tensor(own: torch.Tensor, came: torch.Tensor) -> None:
    """Copy a tensor that came back into one of the driver's, which takes on its shape."""
    with torch.no_grad():
        if is_lazy(own):
            own.materialize(came.shape)
        if own.shape != came.shape:
            own.data, own.grad = own.new_empty(came.shape), None
        own.copy_(came)


def _made_for(own: torch.Tensor | None, came: torch.Tensor, *, parameter: bool) -> torch.Tensor:
    """Return memory for a parameter or buffer that has none yet."""
    new = torch.empty(came.shape, dtype=came.dtype if own is None else own.dtype, device=came.device)
    if not parameter:
        return new
    return torch.nn.Parameter(new, requires_grad=new.is_floating_point() if own is None else own.requires_grad)


# --- what cannot be packed --------------------------------------------------------------------------------


def find_unpicklable(
    value: object, name: str, references: Mapping[str, object] = _NOTHING, *, limit_s: float = 5.0
) -> str:
    """Return the path to the smallest part that makes `pack` fail, such as "model.encoder.lock".

    Attributes, submodules, items, closure variables and globals that a function uses are each one word of it.

    Args:
        value: what could not be packed.
        name: what to call it: where no smaller part is found, this alone is returned.
        references: as `pack` was given them.
        limit_s: after so many seconds, what was found by then is returned.

    Runs on: driver.
    """
    labels, _, _ = pickling.find_unpicklable(value, lambda part: pack(part, references), _parts_sent, limit_s)
    return ".".join([name, *(word for word in map(_word, labels) if word not in _HOLDERS)])


def _parts_sent(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of what is pickled of an object: what it says itself, then its class if that is sent too."""
    kind = type(value)
    state = None
    if not isinstance(value, type) and getattr(kind, "__getstate__", None) is not object.__getstate__:
        with contextlib.suppress(Exception):  # then what is in it must do
            state = value.__getstate__()
    for label, part in pickling.parts_of(value if state is None else state):
        if not isinstance(part, _PLAIN) and _word(label) not in _NEVER_SENT:
            yield label, part
    yield from (("class", base) for base in (value if isinstance(value, type) else kind).__mro__)


def _word(label: str) -> str:
    """Return a part's own name: "lock" for the label "attribute 'lock'" of `parts_of`."""
    return re.sub(r"^[a-z ]+ (?=\S)", "", label).strip("'")
