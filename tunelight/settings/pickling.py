"""What an object takes with it when it is pickled, and which part of it cannot be."""

from __future__ import annotations

import dis
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

_MOST_PARTS = 1000


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object takes with it when it is pickled, each part with a label: "attribute 'lock'"."""
    if isinstance(value, FunctionType):
        yield from captured(value)
    elif isinstance(value, MethodType):
        yield from (("object", value.__self__), ("function", value.__func__))
    elif isinstance(value, functools.partial):
        yield "function", value.func
        yield from ((f"argument {index}", part) for index, part in enumerate(value.args))
        yield from ((f"argument {name!r}", part) for name, part in value.keywords.items())
    elif isinstance(value, Mapping):
        yield from ((f"item {key!r}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {index}", part) for index, part in enumerate(value))
    else:
        attributes = dict(getattr(value, "__dict__", {}))
        yield from ((f"attribute {name!r}", part) for name, part in attributes.items())


def captured(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield a function's closure variables, the globals that its code names, and its default values."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        yield f"closure variable {name!r}", content
    for name in dict.fromkeys(operands(code, "LOAD_GLOBAL")):
        if name in function.__globals__:
            yield f"global variable {name!r}", function.__globals__[name]
    defaults = function.__defaults__ or ()
    first = code.co_argcount - len(defaults)
    named = dict(zip(code.co_varnames[first : code.co_argcount], defaults, strict=True))
    for name, default in {**named, **(function.__kwdefaults__ or {})}.items():
        yield f"default value of {name!r}", default


def operands(code: CodeType, operation: str) -> Iterator[str]:
    """Yield the names that one kind of instruction uses in some code and in the functions inside it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == operation:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from operands(constant, operation)


def imports(code: CodeType) -> Iterator[str]:
    """Yield the modules that some code and the functions inside it import by absolute names."""
    level: Any = 0
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            # Before an import come its level and the names that it takes of the module.
            level = instruction.argval if isinstance(instruction.argval, int) else level
        elif instruction.opname == "IMPORT_NAME":
            if not level:
                yield instruction.argval
            level = 0
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from imports(constant)


def find_unpicklable(
    value: Any,
    dumps: Callable[[Any], object],
    parts: Callable[[Any], Iterable[tuple[str, Any]]] = parts_of,
    limit_s: float = 5.0,
) -> tuple[list[str], Any, Exception | None]:
    """Find the innermost part that ``dumps`` fails on, in a value that it has failed on.

    Returns: the labels that lead to it, the part, and its error (None where that is the value itself). What was found
    after ``limit_s`` seconds is returned.
    """
    end = time.monotonic() + limit_s
    labels: list[str] = []
    reason: Exception | None = None
    seen = {id(value): value}  # keeps the parts, so that no later object gets the id of one that was seen
    searching = True
    while searching:
        searching = False
        for label, part in itertools.islice(parts(value), _MOST_PARTS):
            if time.monotonic() > end:
                break
            if id(part) in seen:
                continue
            seen[id(part)] = part
            try:
                dumps(part)
            except Exception as error:  # noqa: BLE001 - an object may raise anything when it is pickled
                labels.append(label)
                value, reason, searching = part, error, True
                break
    return labels, value, reason
