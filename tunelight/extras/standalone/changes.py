"""Brings changes that a run on the workers makes to model, callbacks and loggers back into the driver's objects.

They are sent in one pickle with a list of their parts, so that both sides know the same parts by the same numbers. What
all parts hold after the run is returned in one pickle and put into the driver's parts; a reference to a part inside of
another object is returned as its number. So model, callbacks and shared objects are one graph again, as after a run in
the driver's own process. The model's weights are returned separately (``transfer.copy_into``).
"""

from __future__ import annotations

import copyreg
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tunelight.compat.lightning import AttributeDict, Logger, Profiler, ProgressBar, Strategy, _Loop, pl
from tunelight.extras.standalone.transfer import PLAIN, copy_tensor
from tunelight.gang.parcel import Packed, pack_state, unpack_view

_LEAVES = (type, FunctionType, ModuleType, pl.Trainer, Strategy, Profiler, ProgressBar, _Loop)
"""Parts of which nothing is returned: the driver's stay as they are."""
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

Place = tuple[int, str]
"""A part's number, and the name of an attribute of it ("" for all that a container holds)."""
Slot = tuple[int, str, str]
"""A module's number, one of torch's dicts in it (``_parameters``), a name in that."""


@dataclass(frozen=True)
class Changes:
    """What a run may have changed: contents, deleted attributes, and parameters' ``requires_grad``."""

    contents: dict[Place, Any] = field(default_factory=dict)
    gone: list[Place] = field(default_factory=list)
    trained: dict[Slot, bool] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    """Attributes that are not returned, and why."""


class SharedParts:
    """The parts of a model and of ``others``, such as callbacks, that both sides of a run have, in the same order.

    It is made on the driver and sent with them.
    """

    def __init__(self, model: nn.Module | None, others: Iterable[object]) -> None:
        models = [] if model is None else [model]
        self.all = _walk([*models, *others])
        self._of_model = len(_walk(models))
        """Number of parts of the model; they come first."""
        modules = [(number, part) for number, part in enumerate(self.all) if isinstance(part, nn.Module)]
        self._slots: list[Slot] = [
            (number, kind, name)
            for number, module in modules
            for kind in ("_parameters", "_buffers", "_modules")
            for name, value in vars(module).get(kind, {}).items()
            if value is not None
        ]
        weights = set() if model is None else _weights(model)
        self._apart = [slot for slot in self._slots if slot[1] != "_modules" and id(self._at(slot)) not in weights]
        """Tensors that are not returned with the model's weights: those of other modules, and some buffers."""
        self._before: dict[Place, Any] = {}

    def _at(self, slot: Slot) -> Any:
        number, kind, name = slot
        return vars(self.all[number])[kind].get(name)

    def references(self) -> dict[str, object]:
        """Return the objects that both sides have at present, by name."""
        found = {f"part {number}": part for number, part in enumerate(self.all)}
        return found | {"{}.{}.{}".format(*slot): self._at(slot) for slot in self._slots}

    # -- on rank 0

    def watch(self) -> None:
        """Remember what the parts hold before the run; of objects that can change, which they are."""
        fixed = (*PLAIN, *_LEAVES)
        self._before = {place: value if isinstance(value, fixed) else id(value) for place, value in self._held()}

    def changes(self) -> Changes:
        """Return what the parts hold after the run, but for values that cannot change and are the same as before."""
        parameters = [(slot, self._at(slot)) for slot in self._slots if slot[1] == "_parameters"]
        made = Changes(
            gone=[(number, name) for number, name in self._before if name and name not in vars(self.all[number])],
            trained={slot: value.requires_grad for slot, value in parameters if value is not None},
        )
        held = {place: value for place, value in self._held() if self._before.get(place, _ABSENT) is not value}
        self._sort_out(held, self.references(), made)
        return made

    def _sort_out(self, held: Mapping[Place, Any], here: Mapping[str, object], made: Changes) -> None:
        """Add to ``made`` what can be sent, and why the rest cannot, which is found by halves."""
        packed = try_packing(held, here)
        why = packed if isinstance(packed, str) else None
        if isinstance(packed, Packed) and packed.nbytes > _MOST_BYTES and min(held)[0] < self._of_model:
            why = f"it is {packed.nbytes / 2**20:.0f} MB"
        if why is None:
            made.contents.update(held)
        elif len(places := list(held)) > 1:
            for half in (places[: len(places) // 2], places[len(places) // 2 :]):
                self._sort_out({place: held[place] for place in half}, here, made)
        elif isinstance(packed, str) or self._before.get(places[0]) != id(held[places[0]]):  # else the driver has it
            made.lost[self._called(places[0])] = why

    def tensors(self) -> dict[Slot, torch.Tensor]:
        """Return tensors that are neither weights of the model nor in `changes`."""
        found = ((slot, self._at(slot)) for slot in self._apart)
        return {slot: value.detach() for slot, value in found if isinstance(value, torch.Tensor) and not is_lazy(value)}

    def _held(self) -> Iterator[tuple[Place, Any]]:
        """Yield what the parts hold, and where."""
        for number, part in enumerate(self.all):
            for name, value in _contents(part):
                yield (number, name), value

    def _called(self, place: Place) -> str:
        """Return the name of an attribute for a warning; for a container, the attribute that holds it."""
        number, name = place
        part = self.all[number]
        if not name:
            holders = (
                (number, at) for number, owner in enumerate(self.all) for at, value in _contents(owner) if value is part
            )
            number, name = next(holders, (number, "content"))
            part = self.all[number]
        return f"{'model' if isinstance(part, pl.LightningModule) else type(part).__name__}.{name}"

    # -- on the driver

    def put_tensors(self, tensors: Mapping[Slot, torch.Tensor]) -> None:
        """Copy returned tensors into the driver's own, which stay the same objects."""
        for slot, tensor in tensors.items():
            copy_tensor(self._at(slot), tensor)

    def put(self, changes: Changes) -> None:
        """Apply changes to the driver's parts; warn of those that could not be sent."""
        for (number, name), value in changes.contents.items():
            _put(self.all[number], name, value)
        for number, name in changes.gone:
            vars(self.all[number]).pop(name, None)
        for slot, trained in changes.trained.items():
            self._at(slot).requires_grad_(trained)
        if changes.lost:
            named = [f"{name} ({why})" for name, why in list(changes.lost.items())[:_MOST_NAMED]]
            more = len(changes.lost) - len(named)
            warnings.warn(
                f"Not all that changed on the workers came back: {', '.join(named)}"
                f"{f' and {more} more' if more > 0 else ''}. The driver's own stay what they were.",
                stacklevel=2,
            )


def _put(part: Any, name: str, value: Any) -> None:
    if name:
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
    """Return the roots, and the modules, containers, plain objects, functions and classes in them, each once."""
    found: dict[int, Any] = {}
    left = [(root, True) for root in roots[::-1]]
    while left:
        value, root = left.pop()
        kind = type(value)
        if id(value) in found or kind in PLAIN:
            continue
        if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
            found[id(kind)] = kind  # its code is sent with it
        inside: Iterable[Any] = ()
        if issubclass(kind, tuple):
            inside = value[:_MOST_ITEMS]
        elif issubclass(kind, partial):
            inside = (value.func, *value.args, *value.keywords.values())
        elif root or kind in _CONTAINERS or issubclass(kind, (*_LEAVES, nn.Module)) or _is_its_attributes(value):
            found[id(value)] = value
            inside = _inside(value)
        left += [(item, False) for item in inside][::-1]
    return list(found.values())


def _weights(model: nn.Module) -> set[int]:
    """Return the ids of tensors that are returned with the model's weights: parameters and persistent buffers."""
    return {
        id(value)
        for module in model.modules()
        for name, value in (*module._parameters.items(), *module._buffers.items())
        if name not in module._non_persistent_buffers_set
    }


def _inside(part: Any) -> list[Any]:
    if type(part) in _CONTAINERS:
        items = [*part, *part.values()] if isinstance(part, dict) else list(part)
        return items if len(part) <= _MOST_ITEMS else []
    if isinstance(part, Logger):
        return []  # a client of a tracker's, for example
    modules = part._modules.values() if isinstance(part, nn.Module) else ()
    return [*modules, *(value for name, value in _contents(part) if name)]


def _contents(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the contents of a part: its attributes by name, or "" and all of it."""
    kind = type(part)
    if issubclass(kind, _LEAVES):
        return
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
    kind = type(value)
    if kind is SimpleNamespace:
        return True
    usual = ("__reduce_ex__", "__reduce__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
    return (
        all(getattr(kind, name, None) is getattr(object, name, None) for name in usual)
        and not issubclass(kind, _BUILTINS)
        and kind not in copyreg.dispatch_table
        and not any(vars(base).get("__slots__") for base in kind.__mro__)
        and hasattr(value, "__dict__")
    )


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that are sent unchanged; a ``__getstate__`` may omit some. Of data modules: plain ones.

    A logger's also count with the values that ``__getstate__`` gives them, by which it may name its run.
    """
    attributes, kind = dict(vars(owner)), cast("Any", type(owner))
    try:
        sent: Any = attributes if kind.__getstate__ is object.__getstate__ else owner.__getstate__()
    except Exception:  # noqa: BLE001 - the user's own, which must not cost the results of a run
        return
    if not isinstance(sent, Mapping):
        return
    for name, value in (sent if isinstance(owner, Logger) else attributes).items():
        if isinstance(owner, nn.Module) and (name in _OF_EACH_SIDE or name.startswith("__")):
            continue  # torch's own; FSDP's attributes of a module begin with two underscores
        if callable(getattr(kind, name, None)):
            continue  # a method replaced on one side, by FSDP or Lightning for example
        if isinstance(owner, pl.LightningDataModule) and not _is_simple(value):
            continue  # loaded data stays where it was loaded
        if sent.get(name, _ABSENT) is value and (value is not None or attributes.get(name) is None):
            yield name, value


def _is_simple(value: Any) -> bool:
    """Return whether a value is plain, or a small container of plain values."""
    if isinstance(value, dict | list | tuple | set) and len(value) <= _MOST_ITEMS:
        return all(_is_simple(item) for item in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, PLAIN)


def try_packing(value: Any, known: Mapping[str, object]) -> Packed | str:
    """Return a value packed for the driver, or why it would not arrive there."""
    try:
        packed = pack_state(value, known)
        unpack_view(packed, known, trial=True)
    except Exception as error:  # noqa: BLE001 - what is pickled raises anything
        return f"{type(error).__name__}: {error}"
    return packed
