"""Words of a command line that tune a script: KEY=DOMAIN for its search space, and its own arguments after ``--``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tunelight.errors import SettingsError, SpaceError, unknown

if TYPE_CHECKING:
    from tunelight.space import SearchSpace

_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_HYDRA = {"interval": "uniform"}
"""Domains of Hydra's sweepers, as tunelight calls them."""


def spell_after_dashes(words: list[str]) -> list[str]:
    """Return a command's words, with those after ``--`` as values of the hidden option ``--after``."""
    if "--" not in words:
        return words
    at = words.index("--")
    return words[:at] + [f"--after={word}" for word in words[at + 1 :]]


def read_domains(words: Sequence[str]) -> dict[str, Any]:
    """Return the domains of KEY=DOMAIN words, described as in a YAML file.

    A domain is ``name(argument, ...)``, a choice ``a,b,c``, or one value, which is fixed. Hydra's ``interval(a,b)`` and
    ``range(a,b,step)`` are known, too. Raises: SpaceError.
    """
    domains: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise SpaceError(
                f"A key of the search space is given as KEY=DOMAIN, lr='loguniform(1e-4, 1e-1)', not {word!r}."
            )
        if key in domains:
            raise SpaceError(f"{key} is given twice. Give it once.")
        try:
            domains[key] = _domain(text)
        except ValueError as error:
            raise SpaceError(f"{word}: {error}") from error
    return domains


def _domain(text: str) -> Any:
    from tunelight.space.domains import ARGUMENTS
    from tunelight.space.files import read_value

    found = _CALL.fullmatch(text.strip())
    if found is None:
        is_list = "," in text and not text.lstrip().startswith(("[", "{", "'", '"'))
        return {"choice": read_value(f"[{text}]")} if is_list else read_value(text)
    name, arguments = _HYDRA.get(found[1], found[1]), read_value(f"[{found[2]}]")
    if name == "range":
        return {"choice": list(range(*arguments))}
    if name not in ARGUMENTS or name == "sample_from":
        known = [one for one in ARGUMENTS if one != "sample_from"]
        raise ValueError(unknown("there is no domain", name, known))
    if len(arguments) == 1 and (isinstance(arguments[0], list) or name == "fixed"):
        arguments = arguments[0]
    return {name: arguments}


def space_of_script(file: str, words: Sequence[str], after: Sequence[str]) -> SearchSpace:
    """Return the search space that KEY=DOMAIN words give a script. Raises: SettingsError, SpaceError."""
    from tunelight.space import SearchSpace

    if not words:
        raise SettingsError(
            f"There is nothing to search. Give keys and domains: tunelight run {file} lr='loguniform(1e-4, 1e-1)'"
        )
    return SearchSpace(read_domains(words), script=file, args=list(after))


def check_words(file: str, words: Sequence[str], after: Sequence[str]) -> None:
    """Refuse words that only a script takes. Raises: SettingsError."""
    if words:
        raise SettingsError(
            f"{words[0]!r}: {file} has a search space of its own. Fix a key by --set {words[0]}, or change the file."
        )
    if after:
        raise SettingsError(
            f"{' '.join(after)}: what comes after -- is for a script, and {file} is none. Say args: in the file."
        )
