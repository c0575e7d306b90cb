"""What keeps an object alive, in words: a search along the references that Python's garbage collector knows."""

from __future__ import annotations

import gc
import sys
from types import FrameType, ModuleType
from typing import Any, Final

_LOOKS: Final = 40
"""How many objects' referrers are looked up, each of which walks through all objects of the process."""
_INNER: Final = ("_parameters", "_buffers", "_modules", "__dict__")
"""Names inside of a module of torch's that its users do not write."""


class _Node:
    """An object on the way up, and how the object of the search is reached from it."""

    __slots__ = ("held", "path", "value")

    def __init__(self, value: Any, path: tuple[str, ...], held: str | None) -> None:
        self.value = value
        self.path = path
        self.held = held
        """The model or other object that holds it, if one was passed on the way."""


def holder(value: Any) -> str | None:
    """Return the name of what holds ``value``: a module's global or a class's attribute, else an object's class.

    None where nothing is found near by. It takes some tens of milliseconds for each look at a large heap.
    """
    nodes = [_Node(value, (), None)]
    seen = {id(value), id(nodes)}
    best: str | None = None
    looks = 0
    while nodes and looks < _LOOKS:
        node = nodes.pop(0)
        looks += 1
        for parent in gc.get_referrers(node.value):
            if id(parent) in seen or type(parent) is _Node or _ours(parent):
                continue
            seen.add(id(parent))
            key = _key(parent, node.value)
            path = node.path if key is None or key in _INNER else (key, *node.path)
            if path and (owner := _namespace(parent)) is not None:
                return f"{owner}.{path[0]}" + (f" ({node.held})" if node.held else "")
            held = node.held
            if _is_model(parent) or (held is None and _tells(parent)):
                held = best = ".".join((type(parent).__name__, *path))
            nodes.append(_Node(parent, path, held))
    return best


def _namespace(parent: Any) -> str | None:
    """Return the name of the module or class whose names ``parent`` is, or is the dict of."""
    if isinstance(parent, ModuleType):
        return parent.__name__
    if isinstance(parent, type):
        return f"{parent.__module__}.{parent.__qualname__}"
    if type(parent) is dict and isinstance(name := parent.get("__name__"), str):
        module = sys.modules.get(name)
        return name if module is not None and vars(module) is parent else None
    return None


def _key(parent: Any, child: Any) -> str | None:
    """Return the name by which ``parent`` refers to ``child``, if there is one."""
    names = parent if isinstance(parent, dict) else getattr(parent, "__dict__", {})
    return next((name for name, value in list(names.items()) if value is child and isinstance(name, str)), None)


def _is_model(parent: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(type(parent), torch.nn.Module)


def _tells(parent: Any) -> bool:
    """Tell whether an object's class says something to a user: no container, and nothing of Python's own."""
    return type(parent).__module__ != "builtins" and hasattr(parent, "__dict__") and not isinstance(parent, dict)


def _ours(parent: Any) -> bool:
    """Tell whether ``parent`` is a frame of this search or of what started it."""
    return isinstance(parent, FrameType) and "/tunelight/gang/" in parent.f_code.co_filename
