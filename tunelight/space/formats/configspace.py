"""ConfigSpace's serialized spaces, as ``ConfigurationSpace.to_json`` writes them.

https://automl.github.io/ConfigSpace/latest/reference/serialization/
Of hyperparameters, default values, weights that are all the same and meta data are left out.
"""

from __future__ import annotations

import ast
import graphlib
import keyword
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunelight.errors import SpaceError
from tunelight.space.conditions import values_of
from tunelight.space.constraints import constant_of, name_of
from tunelight.space.formats.common import Described, Entry, refuse, unreadable

_CS = "ConfigSpace"
_KINDS = "uniform_float, uniform_int, normal_float, categorical, ordinal, constant"
_FORMAT = 0.4

# --- reading ----------------------------------------------------------------------------------------------


def read(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the domains of a serialized space, each after those that its conditions name, and its constraints."""
    if not isinstance(given.get("hyperparameters"), list):
        raise SpaceError(f"A {_CS} file holds a list of `hyperparameters`, not {given.get('hyperparameters')!r}.")
    found = {str(clause.get("name")): clause for clause in given["hyperparameters"]}
    domains = {key: _domain(key, clause) for key, clause in found.items()}
    when: dict[str, dict[str, list[Any]]] = {}
    for condition in given.get("conditions", []):
        for child, parent, values in _conditions(condition, domains):
            if missing := {child, parent} - domains.keys():
                raise SpaceError(f"A condition names {missing.pop()!r}, which is none of the hyperparameters.")
            before = when.setdefault(child, {})
            before[parent] = [value for value in before.get(parent, values) if value in values]
            if not before[parent]:
                raise unreadable(_CS, child, f"condition on {parent}, which never holds", "conditions that can hold")
    try:
        order = list(graphlib.TopologicalSorter({key: list(when.get(key, {})) for key in domains}).static_order())
    except graphlib.CycleError as error:
        raise SpaceError(f"The conditions of {', '.join(error.args[1])} go round in a circle.") from error
    require = [f"not ({_text(clause)})" for clause in given.get("forbiddens", [])]
    placed = {key: {**domains[key], "when": when[key]} if key in when else domains[key] for key in order}
    return placed, {"require": require} if require else {}


def _domain(key: str, clause: Mapping[str, Any]) -> dict[str, Any]:
    kind, log = clause.get("type"), "log" if clause.get("log") else ""
    try:
        if kind == "uniform_float":
            return {f"{log}uniform": [clause["lower"], clause["upper"]]}
        if kind == "uniform_int":
            return {f"{log}randint": [clause["lower"], clause["upper"] + 1]}
        if kind == "normal_float":
            wanted = _sigma(clause["lower"], clause["upper"], bool(log))
            if not math.isclose(clause["sigma"], wanted, rel_tol=1e-6):
                raise unreadable(_CS, key, f"sigma {clause['sigma']}", f"{wanted}, the width that its own `around` has")
            return {f"{log}uniform": [clause["lower"], clause["upper"]], "around": clause["mu"]}
        if kind == "categorical":
            if len(set(clause.get("weights") or [1])) > 1:
                raise unreadable(_CS, key, f"weights {clause['weights']}", "choices that are all alike")
            return {"choice": list(clause["choices"])}
        if kind == "ordinal":
            return {"ordinal": list(clause["sequence"])}
        if kind == "constant":
            return {"fixed": clause["value"]}
    except KeyError as error:
        raise SpaceError(f"{key}: {kind} lacks its {error}.") from error
    raise unreadable(_CS, key, str(kind), _KINDS)


def _conditions(clause: Mapping[str, Any], domains: Mapping[str, Any]) -> Iterator[tuple[str, str, list[Any]]]:
    """Yield child, parent, and the parent's allowed values, for each part of a condition."""
    kind, child = clause.get("type"), str(clause.get("child"))
    if kind == "AND":
        for part in clause["conditions"]:
            yield from _conditions(part, domains)
        return
    parent = str(clause.get("parent"))
    choices = next((values for name, values in domains.get(parent, {}).items() if name in ("choice", "ordinal")), None)
    if kind in ("EQ", "IN"):
        yield child, parent, list(clause["values"]) if kind == "IN" else [clause["value"]]
    elif kind == "NEQ" and choices is not None:
        yield child, parent, [choice for choice in choices if choice != clause["value"]]
    else:
        raise unreadable(_CS, child, f"condition {kind} on {parent}", "EQ, IN, AND; NEQ on categorical and ordinal")


_SIGNS = {"LT": "<", "LE": "<=", "GT": ">", "GE": ">=", "EQ": "=="}


def _text(clause: Mapping[str, Any]) -> str:
    """Return a forbidden clause as a constraint's expression."""
    kind = str(clause.get("type"))
    if kind in ("AND", "OR"):
        return f" {kind.lower()} ".join(f"({_text(part)})" for part in clause["clauses"])
    head, _, sign = kind.partition("_")
    if head == "RELATION" and sign in _SIGNS:
        return f"{_named(clause['left'])} {_SIGNS[sign]} {_named(clause['right'])}"
    if head == "CLAUSE" and sign in _SIGNS:
        return f"{_named(clause['name'])} {_SIGNS[sign]} {clause['value']!r}"
    if kind == "EQUALS":
        return f"{_named(clause['name'])} == {clause['value']!r}"
    if kind == "IN":
        return " or ".join(f"{_named(clause['name'])} == {value!r}" for value in clause["values"]) or "false"
    raise unreadable(_CS, "forbiddens", kind, f"EQUALS, IN, AND, OR, CLAUSE_ and RELATION_ {', '.join(_SIGNS)}")


def _named(key: str) -> str:
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in key.split(".")):
        raise SpaceError(f"{key}: a constraint cannot name this key; it would need letters, digits, _ and dots only.")
    return key


# --- writing ----------------------------------------------------------------------------------------------


def write(space: Described) -> dict[str, Any]:
    """Return a space in ConfigSpace's serialized form, by dotted keys. Raises: SpaceError."""
    forbidden = _Forbidden(space)
    return {
        "name": None,
        "hyperparameters": [_write(entry) for entry in space.entries.values()],
        "conditions": [_when(key, when) for key, when in space.when.items()],
        "forbiddens": [clause for tree in space.trees for clause in forbidden.of(tree)],
        "format_version": _FORMAT,
    }


def _write(entry: Entry) -> dict[str, Any]:
    key, name, arguments = entry.key, entry.name, entry.arguments
    if entry.around is not None and name not in ("uniform", "loguniform"):
        raise refuse(_CS, key, f"around of {name}", "Leave it out.")
    if name in ("choice", "ordinal", "fixed"):
        kind, word = {"choice": ("categorical", "choices"), "ordinal": ("ordinal", "sequence")}.get(
            name, ("constant", "value")
        )
        return {"type": kind, "name": key, word: arguments}
    if name not in ("uniform", "loguniform", "randint", "lograndint"):
        raise refuse(_CS, key, name)
    low, high, _ = entry.bounds()
    if low == high:
        return {"type": "constant", "name": key, "value": low}
    log = "log" in name
    clause = {"name": key, "lower": low, "upper": high, "log": log}
    if entry.around is not None:
        return {"type": "normal_float", **clause, "mu": entry.around, "sigma": _sigma(low, high, log)}
    return {"type": "uniform_int" if "int" in name else "uniform_float", **clause}


def _sigma(low: float, high: float, log: bool) -> float:
    """Return the sigma that is our `around`; on a log scale, ConfigSpace takes log(low + sigma) for its width."""
    from tunelight.space.more_domains import WIDTH  # imports Ray

    return math.exp(WIDTH * math.log(high / low)) - low if log else WIDTH * (high - low)


def _when(key: str, when: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    parts = [
        {"type": "EQ", "child": key, "parent": parent, "value": values[0]}
        if len(values) == 1
        else {"type": "IN", "child": key, "parent": parent, "values": list(values)}
        for parent, values in when.items()
    ]
    return parts[0] if len(parts) == 1 else {"type": "AND", "child": key, "conditions": parts}


_OPPOSITE: dict[type, type] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
_TURNED: dict[type, type] = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}
_WORDS: dict[type, str] = {ast.Lt: "LT", ast.LtE: "LE", ast.Gt: "GT", ast.GtE: "GE", ast.Eq: "EQ"}


class _Forbidden:
    """Turns constraints into forbidden clauses: comparisons of a key with a value or a key, with and, or, not."""

    def __init__(self, space: Described) -> None:
        self._domains = {key: entry.domain for key, entry in space.entries.items()}

    def of(self, tree: ast.expr) -> list[dict[str, Any]]:
        """Return the clauses that are forbidden, each by itself, where ``tree`` has to hold."""
        clause = self._clause(tree, held=False)
        return [] if _never(clause) else clause["clauses"] if clause["type"] == "OR" else [clause]

    def _clause(self, node: ast.expr, held: bool) -> dict[str, Any]:
        """Return the clause for an expression, or for its negation."""
        match node:
            case ast.BoolOp(op, parts):
                return _joined(isinstance(op, ast.And) is held, [self._clause(part, held) for part in parts])
            case ast.UnaryOp(ast.Not(), operand):
                return self._clause(operand, not held)
            case ast.Compare(left, ops, rights):
                pairs = zip(ops, (left, *rights), rights, strict=False)
                return _joined(held, [self._compared(node, type(op), a, b, held) for op, a, b in pairs])
        if name_of(node) in self._domains:
            return {"type": "EQUALS", "name": name_of(node), "value": held}
        raise refuse(_CS, "require", f"{ast.unparse(node)!r}", "It compares keys with values and each other.")

    def _compared(self, node: ast.expr, op: type, left: ast.expr, right: ast.expr, held: bool) -> dict[str, Any]:
        if constant_of(left) is not None:
            left, right, op = right, left, _TURNED.get(op, op)
        op = op if held else _OPPOSITE[op]
        name, other, constant = name_of(left), name_of(right), constant_of(right)
        if name not in self._domains or (constant is None and other not in self._domains):
            raise refuse(_CS, "require", f"{ast.unparse(node)!r}", "It compares keys with values and each other.")
        if constant is None:
            if op is ast.NotEq:
                return _joined(
                    False, [{"type": f"RELATION_{end}", "left": name, "right": other} for end in ("LT", "GT")]
                )
            return {"type": f"RELATION_{_WORDS[op]}", "left": name, "right": other}
        if op is ast.Eq:
            return {"type": "EQUALS", "name": name, "value": constant[0]}
        if op is ast.NotEq:
            choices = values_of(self._domains[name])
            if choices is not None:
                return {"type": "IN", "name": name, "values": [one for one in choices if one != constant[0]]}
            return _joined(
                False, [{"type": f"CLAUSE_{end}", "name": name, "value": constant[0]} for end in ("LT", "GT")]
            )
        return {"type": f"CLAUSE_{_WORDS[op]}", "name": name, "value": constant[0]}


def _never(clause: Mapping[str, Any]) -> bool:
    """Tell whether a clause is never true: a key in an empty list of values."""
    return clause["type"] == "IN" and not clause["values"]


def _joined(every: bool, clauses: list[dict[str, Any]]) -> dict[str, Any]:
    """Join clauses with AND or OR; nested clauses of the same kind are flattened."""
    never = [clause for clause in clauses if _never(clause)]
    if never and (every or len(never) == len(clauses)):
        return never[0]
    clauses = [clause for clause in clauses if not _never(clause)]
    if len(clauses) == 1:
        return clauses[0]
    kind = "AND" if every else "OR"
    flat = [part for clause in clauses for part in (clause["clauses"] if clause["type"] == kind else [clause])]
    return {"type": kind, "clauses": flat}
