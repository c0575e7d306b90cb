"""What is sent to workers and comes back: pickled by Ray's cloudpickle, with as few copies of large data as possible.

Plain pickling copies a tensor at least three times on its way to Ray's object store. A `Packed` holds the memory of
tensors and arrays as arrays of bytes without a copy, and ``ray.put`` writes them directly into shared memory: the
sender's only copy. A receiver makes another one, since objects in the store are read-only and shared (`unpack`), or
reads them there (`unpack_view`).

Ray's cloudpickle, and not the one that it is a copy of: only Ray's keeps the owner of an ObjectRef, without which
``ray.get`` waits for ever, and classes of a script are one class on a worker only if all that brings them is pickled by
the same copy. What a script calls ``__main__`` is sent by value, and `receive` makes it the worker's ``__main__``.
"""

from __future__ import annotations

import functools
import io
import itertools
import pickle
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

import cloudpickle as plain_cloudpickle
import numpy as np
import numpy.typing as npt
import ray
from ray import cloudpickle

from tunelight.errors import TrainFunctionError
from tunelight.gang import script
from tunelight.settings import import_path
from tunelight.settings.code import find_unpicklable

if TYPE_CHECKING:
    import torch

Bytes = npt.NDArray[np.uint8]

_SMALL = 1024
"""Memory of fewer bytes is sent inside the pickle: each buffer costs Ray about 10 µs, however small it is."""
_NOTHING: Mapping[str, object] = MappingProxyType({})
_INLINE_BYTES = 100_000
"""Code that is pickled to fewer bytes is sent with each trial; larger code is in the object store."""
_TRIED_BYTES = 64 * 2**20
"""Code that is pickled to more bytes, memory apart, is not unpickled for a trial: that takes long."""
_FETCH_LIMIT_S = 600.0
"""How long training code may take to arrive from Ray's object store."""
_HEAVY_BYTES = 100 * 2**20
"""Code of more bytes is worth a note."""


_CloudPickler: Any = cloudpickle.Pickler  # without types
_AS_USUAL: Any = object.__reduce__, object.__getstate__


@dataclass(frozen=True, eq=False)
class Packed:
    """The result of `pack`, to be pickled with protocol 5 or passed to ``ray.put``.

    Until then it shares the memory of the packed object: changes to one are changes to the other.
    """

    data: bytes
    """The pickle, without large memory."""
    storages: list[Bytes]
    """The memory of tensors: one array for each storage, which several tensors may share."""
    buffers: list[Bytes]
    """Pickle's other out-of-band buffers in its order, mostly numpy's arrays."""

    @property
    def nbytes(self) -> int:
        """Return its size in the object store in bytes, to within some dozens for each buffer."""
        return len(self.data) + sum(part.nbytes for part in itertools.chain(self.storages, self.buffers))


# --- pack ------------------------------------------------------------------------------------------------


def pack(value: object, references: Mapping[str, object] = _NOTHING, *, to_cpu: bool = False) -> Packed:
    """Pickle ``value`` by cloudpickle, without copying the memory of CPU tensors and arrays.

    Tensors that share memory (views, tied parameters) share it again when unpacked. As with torch's pickling,
    gradients, autograd's history and ``share_memory_`` are lost.

    Args:
        references: objects that the receiver has already, by name: of these (not of equal ones) only the name is
            sent. Names of None are ignored.
        to_cpu: copy memory of other devices to the CPU, for another machine; else it is unpacked on the same device.
            Shards of a DTensor must be gathered before.

    Raises: pickle's errors, mostly TypeError and PicklingError; `find_unpicklable` finds their cause.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, references, to_cpu=to_cpu)
    pickler.dump(value)
    pickler.dump(pickler.script)  # by now all of it is in the pickle's memo
    return Packed(file.getvalue(), pickler.storages, pickler.buffers)


pack_state = functools.partial(pack, to_cpu=True)
"""Pack an object for another machine, such as a state dict."""


class _Pickler(_CloudPickler):  # type: ignore[misc]
    """Cloudpickle with persistent ids for storages and references, which notes what it has pickled of a script.

    A storage's id is ("storage", number, where, dtype), where ``where`` is its index in ``storages`` or, for a small
    one, its bytes; a reference's is ("reference", name). torch wraps a storage in a new object for each tensor, so
    that pickle's own memo would send a shared storage several times.
    """

    def __init__(self, file: io.BytesIO, references: Mapping[str, object], *, to_cpu: bool) -> None:
        self.storages: list[Bytes] = []
        self.buffers: list[Bytes] = []
        # No method of this object: it would hold what it has pickled until Python looks for cycles.
        super().__init__(file, protocol=5, buffer_callback=functools.partial(_take, self.buffers))
        self._names = {id(value): name for name, value in references.items() if value is not None}
        self._to_cpu = to_cpu
        # The storage is kept too, so that its address is not reused before the pickle is done.
        self._known: dict[int, tuple[int, int | bytes, torch.UntypedStorage]] = {}
        self.script: dict[str, Any] = {}
        """Functions and classes of ``__main__`` by their names."""
        self._main = vars(sys.modules["__main__"])
        self._torch: Any = sys.modules.get("torch")  # without it there are no tensors
        for name in plain_cloudpickle.list_registry_pickle_by_value() - cloudpickle.list_registry_pickle_by_value():
            if name in sys.modules:
                cloudpickle.register_pickle_by_value(sys.modules[name])

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            name = value.__qualname__
            # A trial's process, which packs parameters of Ray's, has another ``__main__`` without the script's names.
            if name.isidentifier() and self._main.get(name, value) is value:
                self.script[name] = value
        kind: Any = type(value)
        if hasattr(kind, "__slots__") and (kind.__reduce__, kind.__getstate__) == _AS_USUAL:
            reduced: Any = object.__reduce_ex__(value, 2)
            if isinstance(state := reduced[2], tuple) and state[1].keys() <= (state[0] or {}).keys():
                # cloudpickle has made the class without its slots, which it may have where this goes.
                return *reduced[:2], (None, state[0]), *reduced[3:]
        return super().reducer_override(value)

    def persistent_id(self, value: Any) -> tuple[object, ...] | None:
        kind, torch = type(value), self._torch  # isinstance would resolve a proxy
        if torch is not None and issubclass(kind, torch.TypedStorage):
            storage, dtype = value._untyped_storage, value.dtype
        elif torch is not None and issubclass(kind, torch.UntypedStorage):
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


def _take(buffers: list[Bytes], buffer: pickle.PickleBuffer) -> bool:
    """Take a buffer out of the pickle, unless it is small; return whether it stays in."""
    content = np.asarray(buffer.raw())
    if content.nbytes >= _SMALL:
        buffers.append(content)
    return content.nbytes < _SMALL


def _bytes_of(storage: torch.UntypedStorage) -> Bytes:
    """Return the memory of a CPU storage as an array of bytes."""
    return np.asarray(_Memory(storage)) if storage.nbytes() else np.empty(0, np.uint8)


class _Memory:
    """A storage with numpy's array interface. A tensor's ``numpy()`` would make the storage fixed in size."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage  # the array keeps this, and so the memory

    @property
    def __array_interface__(self) -> dict[str, object]:
        shape = (self._storage.nbytes(),)
        return {"version": 3, "typestr": "|u1", "shape": shape, "data": (self._storage.data_ptr(), False)}


# --- unpack -----------------------------------------------------------------------------------------------


def unpack(packed: Packed, references: Mapping[str, object] = _NOTHING) -> Any:
    """Return the packed object, with a copy of each storage and each array.

    ``references``: the receiver's objects for the names that `pack` was given. Raises: ModuleNotFoundError if the
    object needs a module that this process cannot import, UnpicklingError for a missing reference. Runs on: worker.
    """
    return _unpickler(packed, references).load()


def receive(sent: Any) -> Any:
    """Return what the driver has sent, as `unpack` does, and let ``__main__`` hold what it brings of a script.

    ``sent``: something packed, or a reference to it in Ray's object store, or a pickle; or a function and its
    parameters, each sent so. Runs on: worker; after the run it calls ``script.end()``.
    """
    value, names = _received(sent)
    if names:
        script.play(names)
    return value


def _received(sent: Any) -> tuple[Any, dict[str, Any]]:
    """Return what was sent, and the script's names that came with it."""
    if isinstance(sent, tuple):
        (function, names), (parameters, others) = map(_received, sent)
        return functools.partial(function, **parameters), {**others, **names}
    packed = ray.get(sent, timeout=_FETCH_LIMIT_S) if isinstance(sent, ray.ObjectRef) else sent
    if isinstance(packed, bytes):
        return cloudpickle.loads(packed), {}
    reader = _unpickler(packed, _NOTHING)
    return reader.load(), reader.load()


def _unpickler(packed: Packed, references: Mapping[str, object]) -> _Unpickler:
    return _Unpickler(packed, references, _fresh, (buffer.copy() for buffer in packed.buffers))


def unpack_view(packed: Packed, references: Mapping[str, object] = _NOTHING, *, trial: bool = False) -> Any:
    """Return the packed object without a copy: its tensors and arrays share the memory of ``packed``.

    Memory in Ray's object store is read-only, which torch does not know: a write to such a tensor may end the
    process. The store keeps the object as long as one of its tensors exists. ``trial``: only find out whether it can
    be unpacked, in the process that has packed it.

    Raises: as `unpack`. Runs on: driver.
    """
    with warnings.catch_warnings():
        # torch has no read-only tensors, and warns of read-only memory
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        return _Unpickler(packed, references, _there, packed.buffers, trial=trial).load()


class _Unpickler(pickle.Unpickler):
    """Undoes `_Pickler`; ``storage_of`` makes a storage of received bytes."""

    def __init__(
        self,
        packed: Packed,
        references: Mapping[str, object],
        storage_of: Callable[[Bytes], torch.UntypedStorage],
        buffers: Iterable[Bytes],
        *,
        trial: bool = False,
    ) -> None:
        super().__init__(io.BytesIO(packed.data), buffers=buffers)
        self._storages = packed.storages
        self._references = references
        self._storage_of = storage_of
        self._trial = trial
        self._made: dict[int, torch.UntypedStorage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function by its name.

        In a trial, cloudpickle finds the classes that this process has pickled. They stay as they are: it would put
        copies of their methods and attributes in the place of their own.
        """
        found = super().find_class(module, name)
        return _left_alone if self._trial and found is cloudpickle.cloudpickle._class_setstate else found

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
        import torch

        return torch.TypedStorage(wrap_storage=self._made[number], dtype=dtype, _internal=True)


def _fresh(content: Bytes) -> torch.UntypedStorage:
    """Copy bytes into a new storage, which can be written and resized."""
    import torch

    storage = torch.UntypedStorage(content.nbytes, device="cpu")
    _bytes_of(storage)[:] = content
    return storage


def _there(content: Bytes) -> torch.UntypedStorage:
    """Return a storage that shares the memory of the bytes, and keeps them alive."""
    import torch

    return torch.frombuffer(content, dtype=torch.uint8).untyped_storage()


# --- training code ----------------------------------------------------------------------------------------


def check_picklable(value: Any, what: str) -> Packed:
    """Return ``value`` packed for the workers. Runs on: driver.

    Raises: TrainFunctionError, which names the part that cannot be pickled, or not unpickled.
    """
    packed = None
    try:
        packed = pack(value)
        if len(packed.data) <= _TRIED_BYTES:
            unpack_view(packed, trial=True)
    except Exception as error:
        labels, part, reason = find_unpicklable(value, pack if packed is None else arrives)
        where = f"Its {', '.join(labels)}" if labels else "It"
        cannot = "cannot be pickled" if packed is None else "can be pickled, but not unpickled"
        raise TrainFunctionError(
            f"{what} cannot be sent to the workers. {where}, an object of {import_path(type(part))}, "
            f"{cannot}: {reason or error}. Make it on the worker, inside the training code."
        ) from error
    return packed


def arrives(value: object, references: Mapping[str, object] = _NOTHING) -> None:
    """Pack and unpack a value. Raises: whatever pickling or unpickling it raises."""
    unpack_view(pack(value, references), references, trial=True)


def _left_alone(made: Any, _: object) -> Any:
    """Replace the function by which cloudpickle fills a class."""
    return made


class Code:
    """Training code that is pickled when it is sent: once, into Ray's object store where it is large.

    Parameters that Ray's ``tune.with_parameters`` was given before Ray started are in the object store by then.
    """

    def __init__(self, code: Any) -> None:
        self._code = code
        self._sent: Any = None
        self._sent_by: str | None = None

    def sent(self) -> Any:
        """Return what workers `receive`."""
        here = ray.get_runtime_context().get_worker_id() if ray.is_initialized() else None
        if self._sent is None or here != self._sent_by:  # a Ray that has ended took its objects along
            self._sent_by = here
            packed = pack(self._code)
            self._sent = packed if packed.nbytes <= _INLINE_BYTES else ray.put(packed)
        return self._sent

    def __reduce__(self) -> tuple[Any, ...]:
        return _as_sent, (self.sent(),)


def _as_sent(sent: Any) -> Any:
    return sent


def with_parameters(sent: Any, parameters: Mapping[str, Any]) -> Any:
    """Return a train function with parameters, which are in the object store once. Runs on: trial."""
    return sent, ray.put(pack(parameters))


def heavy(code: Any, what: str) -> str | None:
    """Return a note on training code that takes much data with it; None where it does not. Runs on: driver."""
    size = pack(code).nbytes
    if size < _HEAVY_BYTES:
        return None
    return (
        f"{what} takes {size / 2**20:,.0f} MB to the workers, and each holds a copy of its own for every trial. Load "
        "the data in the training code instead, by a function of tl.cached: a node's workers share it in memory."
    )
