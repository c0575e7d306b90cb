"""Brings changes that a run on the workers makes to model and callbacks back into the driver's objects.

Model and callbacks are sent in one pickle with a list of their parts, so that both sides know the same parts by the
same numbers. Changes of a part are returned and applied to the driver's part; a reference to a part inside of another
object is returned as its number. So model, callbacks and shared objects are one graph again, as after a run in the
driver's own process. The model's weights are returned separately (``transfer.copy_into``).
"""

from __future__ import annotations

import copyreg
import hashlib
import warnings
import zlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tunelight.compat.lightning import AttributeDict, Logger, Profiler, ProgressBar, Strategy, _Loop, pl
from tunelight.extras.standalone.transfer import PLAIN, copy_tensor
from tunelight.gang.parcel import pack_state, unpack_view

_LEAVES = (
    *(type, FunctionType, ModuleType, torch.Tensor, np.ndarray, BaseException),
    *(pl.Trainer, Strategy, Logger, Profiler, ProgressBar, _Loop),
)
"""Objects without parts of interest: known by a name, or sent as one."""
_CONTAINERS = (dict, OrderedDict, defaultdict, AttributeDict, list, deque, set)
_BUILTINS = (dict, list, deque, set, frozenset, tuple, int, float, complex, str, bytes, bytearray, np.generic)
_OF_EACH_SIDE = frozenset(vars(pl.LightningModule())) - {"training", "_automatic_optimization", "_strict_loading"}
"""Attributes of modules that belong to one side, such as devices and hooks; and weights, returned separately."""
_MOST_ITEMS = 1000
"""Containers with more items than this are not searched for parts, and returned as one."""
_MOST_BYTES = 64 * 2**20
"""Larger attributes of the model stay on the workers, except modules' tensors."""
_MOST_NAMED = 5
"""Number of attributes that a warning names."""
_ABSENT = object()

Address = tuple[int, str, str]
"""A location: a part's number, the dict in it ("" for its attributes), a name in that ("" for all of it)."""


@dataclass(frozen=True)
class Changes:
    """Changes of a run: new contents, deleted attributes, and parameters' ``requires_grad``."""

    contents: dict[Address, Any] = field(default_factory=dict)
    gone: list[Address] = field(default_factory=list)
    frozen: dict[Address, bool] = field(default_factory=dict)
    states: dict[int, Any] = field(default_factory=dict)
    """The ``state_dict`` of callbacks with attributes that cannot be sent."""
    lost: dict[str, str] = field(default_factory=dict)
    """Attributes that are not returned, and why."""


@dataclass(frozen=True)
class _Unsent:
    """Replaces a value that cannot be sent; it counts as unchanged while it is the same object."""

    identity: int
    why: str = field(compare=False)


class SharedParts:
    """The parts of a model, its callbacks and its data that both sides of a run have, in the same order.

    It is made on the driver and sent with them. Arguments ``named`` are further objects of both sides, by name.
    """

    def __init__(self, model: nn.Module | None, callbacks: Iterable[object], data: Iterable[object]) -> None:
        models = [] if model is None else [model]
        self.all = _walk([*models, *callbacks, *data])
        self._of_model = len(_walk(models))
        """Number of parts of the model; they come first."""
        modules = [(number, part) for number, part in enumerate(self.all) if isinstance(part, nn.Module)]
        self._slots: list[Address] = [
            (number, kind, name)
            for number, module in modules
            for kind in ("_parameters", "_buffers", "_modules")
            for name, value in vars(module).get(kind, {}).items()
            if value is not None
        ]
        weights = set() if model is None else _weights(model)
        self._apart = [slot for slot in self._slots if slot[1] != "_modules" and id(self._at(slot)) not in weights]
        """Tensors that are not returned with the model's weights: those of other modules, and some buffers."""
        self._marks: dict[Address, Any] = {}
        self._grads: dict[Address, bool] = {}

    def _at(self, slot: Address) -> Any:
        number, kind, name = slot
        return vars(self.all[number])[kind].get(name)

    def references(self, named: Mapping[str, object]) -> dict[str, object]:
        """Return the objects that both sides have at present, by name."""
        found = {f"part {number}": part for number, part in enumerate(self.all)}
        found |= {"{}.{}.{}".format(*slot): self._at(slot) for slot in self._slots}
        return {name: value for name, value in {**found, **named}.items() if value is not None}

    # -- on rank 0

    def watch(self, named: Mapping[str, object]) -> None:
        """Remember the state before the run."""
        self._marks = {place: mark for place, _, mark in self._marked(self.references(named))}
        self._grads = self._wanting()

    def changes(self, named: Mapping[str, object]) -> Changes:
        """Return what has changed since `watch`."""
        made, seen = Changes(), set[Address]()
        for place, value, mark in self._marked(self.references(named)):
            seen.add(place)
            if mark == self._marks.get(place, _ABSENT):
                continue
            why = mark.why if isinstance(mark, _Unsent) else why_lost(value, self.references(named))
            if why is None:
                made.contents[place] = value
            elif not self._tell_state(place[0], made):
                made.lost[self._called(place)] = why
        made.gone.extend(place for place in self._marks if place not in seen and self._is_gone(place))
        made.frozen.update(
            {slot: wanted for slot, wanted in self._wanting().items() if wanted != self._grads.get(slot, wanted)}
        )
        return made

    def _wanting(self) -> dict[Address, bool]:
        slots = [slot for slot in self._slots if slot[1] == "_parameters"]
        return {slot: value.requires_grad for slot in slots if (value := self._at(slot)) is not None}

    def _marked(self, known: Mapping[str, object]) -> Iterator[tuple[Address, Any, Any]]:
        """Yield all values that can change: place, value, and a mark that is equal while the value is unchanged."""
        names = {id(value): name for name, value in known.items()}
        for number, part in enumerate(self.all):
            for name, value in _contents(part):
                yield (number, "", name), value, _mark(value, names, known, limited=number < self._of_model)
        for slot in self._apart:
            if isinstance(value := self._at(slot), torch.Tensor) and not is_lazy(value):
                tensor = value.detach()
                yield slot, tensor, _mark(tensor, {}, {}, limited=False)

    def _tell_state(self, number: int, made: Changes) -> bool:
        """Send a callback's ``state_dict`` if an attribute cannot be sent; return False if it has none."""
        part = self.all[number]
        if not isinstance(part, pl.Callback) or type(part).state_dict is pl.Callback.state_dict:
            return False
        state = part.state_dict()
        if why_lost(state, {}) is not None:
            return False
        made.states[number] = state
        return True

    def _is_gone(self, place: Address) -> bool:
        number, kind, name = place
        return not kind and bool(name) and name not in vars(self.all[number])

    def _called(self, place: Address) -> str:
        """Return the name of an attribute for a warning; for a container, the attribute that holds it."""
        number, _, name = place
        part = self.all[number]
        if not name:
            holders = (
                (number, at) for number, one in enumerate(self.all) for at, value in _contents(one) if value is part
            )
            number, name = next(holders, (number, "content"))
            part = self.all[number]
        return f"{'model' if isinstance(part, pl.LightningModule) else type(part).__name__}.{name}"

    # -- on the driver

    def put(self, changes: Changes) -> None:
        """Apply changes to the driver's parts; warn of those that could not be sent."""
        for place, value in changes.contents.items():
            self._put(place, value)
        for number, _, name in changes.gone:
            vars(self.all[number]).pop(name, None)
        for slot, wanted in changes.frozen.items():
            self._at(slot).requires_grad_(wanted)
        for number, state in changes.states.items():
            self.all[number].load_state_dict(state)
        if changes.lost:
            named = [f"{name} ({why})" for name, why in list(changes.lost.items())[:_MOST_NAMED]]
            more = len(changes.lost) - len(named)
            warnings.warn(
                f"Not all that changed on the workers came back: {', '.join(named)}"
                f"{f' and {more} more' if more > 0 else ''}. The driver's own stay what they were.",
                stacklevel=2,
            )

    def _put(self, place: Address, value: Any) -> None:
        number, kind, name = place
        part = self.all[number]
        if kind:
            copy_tensor(self._at(place), value)
        elif name:
            vars(part)[name] = value
        elif isinstance(part, dict | set):
            part.clear()
            part.update(value)
        elif isinstance(part, list | deque):
            part.clear()
            part.extend(value)
        else:
            part.__setstate__(value)


# --- parts and their contents ------------------------------------------------------------


def _walk(roots: list[Any]) -> list[Any]:
    """Return the roots and the modules, containers and plain objects in them, each once."""
    found: dict[int, Any] = {}
    left = [(root, True) for root in roots[::-1]]
    while left:
        value, root = left.pop()
        kind = type(value)
        if id(value) in found or issubclass(kind, (*PLAIN, *_LEAVES)):
            continue
        if issubclass(kind, tuple):
            left += [(item, False) for item in value[:_MOST_ITEMS]]
            continue
        if not (root or kind in _CONTAINERS or issubclass(kind, nn.Module) or _is_its_attributes(value)):
            continue
        found[id(value)] = value
        left += [(item, False) for item in _inside(value)][::-1]
    return list(found.values())


def _weights(model: nn.Module) -> set[int]:
    """Return the ids of tensors that are returned with the model's weights: parameters and persistent buffers."""
    found = {id(value) for value in model.parameters()}
    for module in model.modules():
        passing = module._non_persistent_buffers_set
        found |= {id(value) for name, value in module._buffers.items() if name not in passing}
    return found


def _inside(part: Any) -> list[Any]:
    if type(part) in _CONTAINERS:
        items = part.values() if isinstance(part, dict) else part
        return list(items) if len(part) <= _MOST_ITEMS else []
    modules = part._modules.values() if isinstance(part, nn.Module) else ()
    return [*modules, *(value for name, value in _contents(part) if name)]


def _contents(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the contents of a part: its attributes by name, or "" and all of it."""
    kind = type(part)
    if kind in _CONTAINERS:
        yield "", dict(part) if isinstance(part, dict) else set(part) if kind is set else list(part)
    elif isinstance(part, nn.Module) or _is_its_attributes(part):
        yield from _attributes(part)
    elif hasattr(part, "__setstate__"):
        reduced = part.__reduce_ex__(2)
        if isinstance(reduced, tuple) and len(reduced) > 2:
            yield "", reduced[2]


def _is_its_attributes(value: Any) -> bool:
    """Return whether pickle restores an object from its attributes alone."""
    kind: Any = type(value)
    if kind is SimpleNamespace:
        return True
    reduced_as_usual = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    return (
        reduced_as_usual
        and not issubclass(kind, _BUILTINS)
        and not hasattr(kind, "__setstate__")
        and not hasattr(kind, "__getnewargs__")
        and not hasattr(kind, "__getnewargs_ex__")
        and kind not in copyreg.dispatch_table
        and not any(vars(base).get("__slots__") for base in kind.__mro__)
        and hasattr(value, "__dict__")
    )


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that are sent unchanged; a ``__getstate__`` may omit some. Of data modules: plain ones."""
    own, kind = dict(vars(owner)), cast("Any", type(owner))
    sent: Any = own if kind.__getstate__ is object.__getstate__ else owner.__getstate__()
    for name, value in own.items():
        if isinstance(owner, nn.Module) and (name in _OF_EACH_SIDE or name.startswith("__")):
            continue  # torch's own; FSDP's attributes of a module begin with two underscores
        if callable(getattr(kind, name, None)):
            continue  # a method replaced on one side, by FSDP or Lightning for example
        if isinstance(owner, pl.LightningDataModule) and not _is_simple(value):
            continue  # loaded data stays where it was loaded
        if isinstance(sent, Mapping) and sent.get(name, _ABSENT) is value:
            yield name, value


def _is_simple(value: Any) -> bool:
    """Return whether a value is plain, or a small container of plain values."""
    if isinstance(value, dict | list | tuple | set) and len(value) <= _MOST_ITEMS:
        return all(_is_simple(item) for item in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, PLAIN)


def why_lost(value: Any, known: Mapping[str, object]) -> str | None:
    """Return why a value would not arrive on the driver; None if it would."""
    try:
        unpack_view(pack_state(value, known), known)
    except Exception as error:  # noqa: BLE001 - what is pickled raises anything
        return f"{type(error).__name__}: {error}"
    return None


def _mark(value: Any, names: Mapping[int, str], known: Mapping[str, object], limited: bool = True) -> Any:
    """Return a mark that is equal for equal values; an `_Unsent` for a value that cannot be sent."""
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if id(value) in names:
        return "known", names[id(value)]
    try:
        packed = pack_state(value, known)
    except Exception as error:  # noqa: BLE001 - pickling raises anything; the value cannot be sent
        return _Unsent(id(value), f"{type(error).__name__}: {error}")
    if limited and packed.nbytes > _MOST_BYTES:
        return _Unsent(id(value), f"it is {packed.nbytes / 2**20:.0f} MB")
    checksum = 0
    for memory in (*packed.storages, *packed.buffers):
        checksum = zlib.crc32(memory.data, checksum)
    return hashlib.sha256(packed.data).digest(), packed.nbytes, checksum
