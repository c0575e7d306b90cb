"""Text of a command line that names values or domains: NAME=VALUE, lr='loguniform(1e-4, 1e-1)'."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tunelight.errors import TunelightError, unknown
from tunelight.space.domains import ARGUMENTS, without_commas
from tunelight.space.files import read_value

_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_HYDRA = {"interval": "uniform"}
"""Domains of Hydra's sweepers, as tunelight calls them."""
_OTHER = ("sample_from", "wandb_parameter")
"""Domains that no text describes."""
_MOST = 10_000
"""The largest number of values that a range may have."""


def read_pairs(
    words: Sequence[str], read: Callable[[str], Any], error: type[TunelightError], form: str, by: str = ""
) -> dict[str, Any]:
    """Return the names and values of words NAME=VALUE; ``read`` reads a value.

    Args:
        words: the words.
        read: reads a value from its text; raises ValueError.
        error: what is raised.
        form: how a word is to look, with an example.
        by: the option that the words are given by, for the errors.

    Raises: ``error`` for a word of another form, a name that is given twice, a value that cannot be read.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip()
        if not equals or not name:
            raise error(f"{form}, not {word!r}.")
        if name in found:
            raise error(f"{by}{name} is given twice. Give it once.")
        try:
            found[name] = read(text)
        except ValueError as reason:
            raise error(f"{by}{word}: {reason}") from reason
    return found


def read_domain(text: str) -> Any:
    """Return the domain that a text describes, as in a YAML file.

    It is ``name(argument, ...)``, a choice ``a,b,c``, or one value, which is fixed. Hydra's ``interval(a,b)`` and
    ``range(a,b,step)`` are known, too. Raises: ValueError.
    """
    found = _CALL.fullmatch(text.strip())
    if found is None:
        is_list = "," in text and not text.lstrip().startswith(("[", "{", "'", '"'))
        return {"choice": read_value(f"[{text}]")} if is_list else read_value(text)
    name, arguments = _HYDRA.get(found[1], found[1]), read_value(f"[{found[2]}]")
    if name == "range":
        return {"choice": _range(arguments)}
    if name not in ARGUMENTS or name in _OTHER:
        known = [*(one for one in ARGUMENTS if one not in _OTHER), *_HYDRA, "range"]
        raise ValueError(unknown("there is no domain", name, known))
    if name != "fixed" and (parted := without_commas(arguments)) is not None:
        raise ValueError(f"commas stand between arguments: {name}({parted})")
    if len(arguments) == 1 and (isinstance(arguments[0], list) or name == "fixed"):
        arguments = arguments[0]
    return {name: arguments}


def _range(arguments: Sequence[Any]) -> list[Any]:
    """Return the values of Hydra's ``range``: the start, and steps from it up to the stop, which is left out."""
    numbers = [one for one in arguments if isinstance(one, int | float) and not isinstance(one, bool)]
    if len(numbers) != len(arguments) or not 1 <= len(numbers) <= 3:
        raise ValueError("a range is range(stop), range(start, stop) or range(start, stop, step), of numbers")
    start, stop, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    count = 0 if step == 0 else -((start - stop) // step)  # rounded up
    if not 1 <= count <= _MOST:
        raise ValueError(f"a range has one value or more, and at most {_MOST:,}; this one has none or more")
    values = [start + index * step for index in range(int(count))]
    return [one if isinstance(one, int) else round(one, 12) for one in values]
