"""Conditions: ``when: {model.optimizer: sgd}``, values that other keys must have for a key to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunelight.errors import SpaceError, guess, unknown
from tunelight.space.plain import to_plain_config

_CLOSE = 1e-9
When = Mapping[str, Sequence[Any]]
"""Allowed values of other keys, by dotted key; each of these keys must have one of its values."""


def read_when(given: Any) -> dict[str, list[Any]]:
    """Return a condition, {key: value} or {key: [values]}, with a list for each key. Raises: SpaceError."""
    if not isinstance(given, Mapping) or not given:
        raise SpaceError(
            f"`when` maps other keys to the values that they must have, {{model.optimizer: sgd}} or "
            f"{{model.layers: [2, 3]}}; {given!r} does not."
        )
    found = {str(key): list(value) if isinstance(value, list | tuple) else [value] for key, value in given.items()}
    if empty := [key for key, values in found.items() if not values]:
        raise SpaceError(f"`when` names no value that {empty[0]} must have. Give one, or a list of them.")
    return found


def holds(when: When, values: Mapping[str, Any]) -> bool:
    """Tell whether a condition holds; it does not if a key that it names was left out."""
    return all(key in values and any(same(values[key], wanted) for wanted in when[key]) for key in when)


def same(value: Any, wanted: Any) -> bool:
    """Tell whether two values are equal (true differs from 1); objects may be given by their import path."""
    if isinstance(value, bool) != isinstance(wanted, bool):
        return False
    return bool(to_plain_config(value) == to_plain_config(wanted))


def check_when(key: str, when: When, domains: Mapping[str, Any], where: Callable[[str, str], str]) -> None:
    """Raise SpaceError unless a key's condition names keys that stand above it, and values that they can have.

    ``where`` says where a name of a key's condition stands.
    """
    order = list(domains)
    for name, wanted in when.items():
        start = f"{where(key, name)}{key}: its `when`"
        if name not in domains:
            others = [other for other in order if other != key]
            raise SpaceError(unknown(f"{start}: the search space has no key", name, others, None, "It has"))
        if order.index(name) >= order.index(key):
            raise SpaceError(
                f"{start} names {name}, which does not stand above it. Put {name} first: keys are drawn in their order."
            )
        domain = domains[name]
        if not isinstance(domain, Mapping) and domain.is_function():
            raise SpaceError(
                f"{start} names {name}, which a function gives, and those are asked last. Name what it follows from."
            )
        for value in wanted:
            if not _possible(domain, value):
                raise SpaceError(f"{start} wants {name} to be {value!r}, which it never is.{_choices(domain, value)}")
        if isinstance(domains[key], Mapping) and not isinstance(domain, Mapping) and not _fixed(domain):
            raise SpaceError(
                f"{start} names {name}, which is drawn, so that points of the grid would be missed. Make {name} a grid "
                f"too, or {key} a choice."
            )


def _fixed(domain: Any) -> bool:
    from tunelight.space.more_domains import Fixed  # imports Ray

    return isinstance(domain, Fixed)


def values_of(domain: Any) -> list[Any] | None:
    """Return the values that a domain chooses from; None if it is not a list of values."""
    return list(domain["grid_search"]) if isinstance(domain, Mapping) else getattr(domain, "categories", None)


def _possible(domain: Any, value: Any) -> bool:
    choices = values_of(domain)
    if choices is not None:
        return any(same(choice, value) for choice in choices)
    if isinstance(value, bool) or not isinstance(value, int | float) or not domain.lower <= value <= domain.upper:
        return False
    return _on_grid(domain, value)


def _on_grid(domain: Any, value: float) -> bool:
    """Tell whether a domain can return a number: a whole number below the upper bound, or a multiple of q."""
    step = getattr(domain.get_sampler(), "q", None)
    if type(domain).__name__ == "Integer" and step in (None, 1):
        return value == int(value) and value < domain.upper
    return step is None or abs(value / step - round(value / step)) < _CLOSE


def _choices(domain: Any, value: Any) -> str:
    choices = values_of(domain)
    if choices is None:
        step = getattr(domain.get_sampler(), "q", 1 if type(domain).__name__ == "Integer" else None)
        steps = "" if step is None else f", in steps of {step}"
        return f" It lies between {domain.lower} and {domain.upper}{steps}."
    texts = [str(choice) for choice in choices]
    near = " That is text; leave the quotes out." if isinstance(value, str) and value in texts else guess(value, texts)
    return f"{near} It is one of: {', '.join(texts)}."
