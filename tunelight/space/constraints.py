"""Constraints: ``require: "model.hidden * model.layers <= 4096"``, read into a small language and never run as code.

There are numbers, text and true/false; keys of the space by their dotted names; + - * / // % **; comparisons, chained
too; and, or, not; min, max, abs, log. Whole numbers to a power become real ones, so that none grows without bound.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tunelight.errors import SpaceError, guess
from tunelight.space.conditions import values_of

_LONGEST: Final = 1000
_ARITHMETIC: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,
}
COMPARISONS: Final[dict[type, Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_SIGNS: Final[dict[type, Callable[[Any], Any]]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_FUNCTIONS: Final[dict[str, tuple[Callable[..., Any], int, int]]] = {
    "min": (min, 2, 99),
    "max": (max, 2, 99),
    "abs": (abs, 1, 1),
    "log": (math.log, 1, 1),
}
"""Each with the least and the most arguments that it takes."""

NUMBER, TEXT, TRUTH, OTHER = "a number", "text", "true or false", "another value"
_UNKNOWN = frozenset((NUMBER, TEXT, TRUTH, OTHER))
_ALLOWED = (
    "There are numbers, text, true/false, keys of the space, + - * / // % **, comparisons, and, or, not, "
    f"{', '.join(_FUNCTIONS)}."
)


@dataclass(frozen=True)
class Constraint:
    """One constraint: its text, the keys that it names, and the tree that it was read into."""

    text: str
    names: frozenset[str]
    tree: ast.expr

    def met(self, values: Mapping[str, Any]) -> bool:
        """Tell whether values by dotted key meet it; where one of its keys has none, it does not apply.

        What cannot be computed, as a division by zero, is not met.
        """
        if not self.names <= values.keys():
            return True
        try:
            return bool(_value(self.tree, values))
        except (ArithmeticError, ValueError, TypeError):
            return False


def read_constraint(text: Any, domains: Mapping[str, Any]) -> Constraint:
    """Read a constraint on the keys of ``domains``. Raises: SpaceError, saying which part of it is wrong."""
    if not isinstance(text, str) or not text.strip():
        raise SpaceError(f"`require` holds text such as 'model.hidden * model.layers <= 4096', not {text!r}.")
    text = " ".join(text.split())
    if len(text) > _LONGEST:
        raise SpaceError(
            f"`require` holds {len(text)} characters, and {_LONGEST} are the most. Split it: all must hold."
        )
    try:
        tree = ast.parse(text, mode="eval").body
        reader = _Reader(text, domains)
        kinds = reader.kinds(tree)
    except SyntaxError as error:
        raise SpaceError(
            f"`require: {text}` cannot be read, from character {error.offset or 1}: {error.msg}. {_ALLOWED}"
        ) from error
    except (RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, SpaceError):
            raise
        raise SpaceError(f"`require: {text}` cannot be read: {error}. {_ALLOWED}") from error
    if not kinds <= {TRUTH} and kinds != _UNKNOWN:
        raise SpaceError(
            f"`require: {text}` is {_or(kinds)}, and no condition. Compare it with something: {text} <= 10."
        )
    if not reader.names:
        raise SpaceError(f"`require: {text}` names no key of the space, so it says nothing of a configuration.")
    return Constraint(text, frozenset(reader.names), tree)


def _name_of(node: ast.expr) -> str | None:
    """Return the dotted name if an expression is a name, else None."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (head := _name_of(node.value)) is not None:
        return f"{head}.{node.attr}"
    return None


_WORDS: Final = {"true": True, "false": False, "null": None}
"""As YAML and JSON write them; Python's own words are constants already."""


def _constant_of(node: ast.expr) -> tuple[Any] | None:
    """Return the value of a constant expression, in a tuple; None for any other expression."""
    if isinstance(node, ast.Constant):
        return (node.value,)
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return (_WORDS[node.id],)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return (_SIGNS[type(node.op)](value),) if _kind(value) == NUMBER else None
    return None


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Evaluate a parsed expression for these values."""
    if (name := _name_of(node)) is not None and name in values:
        return values[name]
    if (constant := _constant_of(node)) is not None:
        return constant[0]
    match node:
        case ast.BinOp(left, op, right):
            return _ARITHMETIC[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(ast.Not(), operand):
            return not _value(operand, values)
        case ast.UnaryOp(op, operand):
            return _SIGNS[type(op)](_value(operand, values))
        case ast.BoolOp(op, parts):
            decide = all if isinstance(op, ast.And) else any
            return decide(_value(part, values) for part in parts)
        case ast.Call(ast.Name(function), arguments):
            return _FUNCTIONS[function][0](*(_value(argument, values) for argument in arguments))
        case ast.Compare(left, ops, rights):
            chain = [_value(part, values) for part in (left, *rights)]
            return all(COMPARISONS[type(op)](a, b) for op, a, b in zip(ops, chain, chain[1:], strict=False))
    raise TypeError(type(node).__name__)


class _Reader:
    """Walks a parsed expression: collects the keys that it names, and rejects what is not allowed or never true."""

    def __init__(self, text: str, domains: Mapping[str, Any]) -> None:
        self._text = text
        self._domains = domains
        self.names: set[str] = set()

    def _error(self, node: ast.expr, message: str) -> SpaceError:
        part = ast.get_source_segment(self._text, node) or self._text
        return SpaceError(f"`require: {self._text}`, character {node.col_offset + 1}: {part} {message}")

    def kinds(self, node: ast.expr) -> frozenset[str]:
        """Return which kinds of value an expression can be."""
        name = _name_of(node)
        if name is not None and name in self._domains:
            self.names.add(name)
            return _kinds_of(self._domains[name])
        if (constant := _constant_of(node)) is not None:
            return frozenset((_kind(constant[0]),))
        if name is not None:
            raise self._error(node, f"is no key of the space.{guess(name, self._domains)} {self._keys()}")
        match node:
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                return self._all(NUMBER, (left, right))
            case ast.UnaryOp(ast.Not(), operand):
                return self._all(TRUTH, (operand,))
            case ast.UnaryOp(op, operand) if type(op) in _SIGNS:
                return self._all(NUMBER, (operand,))
            case ast.BoolOp(_, parts):
                return self._all(TRUTH, parts)
            case ast.Call(ast.Name(function), arguments, []):
                return self._call(node, function, arguments)
            case ast.Compare(left, comparisons, rights):
                for comparison, before, after in zip(comparisons, (left, *rights), rights, strict=False):
                    self._compare(comparison, before, after)
                return frozenset((TRUTH,))
        raise self._error(node, f"is nothing that a constraint can hold. {_ALLOWED}")

    def _call(self, node: ast.expr, function: str, arguments: list[ast.expr]) -> frozenset[str]:
        if function not in _FUNCTIONS:
            raise self._error(node, f"is no function that there is.{guess(function, _FUNCTIONS)} {_ALLOWED}")
        _, least, most = _FUNCTIONS[function]
        if not least <= len(arguments) <= most:
            wanted = f"{least} or more values" if most > least else "1 value"
            raise self._error(node, f"is wrong: {function} takes {wanted}, not {len(arguments)}.")
        return self._all(NUMBER, arguments)

    def _keys(self) -> str:
        return f"The space has: {', '.join(self._domains)}."

    def _all(self, wanted: str, parts: Iterable[ast.expr]) -> frozenset[str]:
        for part in parts:
            kinds = self.kinds(part)
            if kinds not in (_UNKNOWN, {wanted}):
                raise self._error(part, f"must be {wanted} here, and can be {_or(kinds - {wanted})}.")
        return frozenset((wanted,))

    def _compare(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> None:
        if type(op) not in COMPARISONS:
            raise self._error(left, f"is compared in a way that there is not. {_ALLOWED}")
        if not isinstance(op, ast.Eq | ast.NotEq):
            self._all(NUMBER, (left, right))
            return
        one, other = self.kinds(left), self.kinds(right)
        if not one & other:
            raise self._error(left, f"is {_or(one)}, and never equal to {_or(other)}.")
        for key, constant in ((left, _constant_of(right)), (right, _constant_of(left))):
            choices = values_of(self._domains.get(_name_of(key) or ""))
            if constant is None or choices is None or constant[0] in choices:
                continue
            texts = [str(choice) for choice in choices]
            raise self._error(
                key, f"is never {constant[0]!r}.{guess(constant[0], texts)} It is one of: {', '.join(texts)}."
            )


def _kinds_of(domain: Any) -> frozenset[str]:
    choices = values_of(domain)
    if choices is not None:
        return frozenset(_kind(choice) for choice in choices)
    return _UNKNOWN if domain.is_function() else frozenset((NUMBER,))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return TRUTH
    if isinstance(value, str):
        return TEXT
    return NUMBER if isinstance(value, int | float) or hasattr(value, "__float__") else OTHER


def _or(kinds: Iterable[str]) -> str:
    return " or ".join(sorted(kinds))
