"""Words of a command line that tune a script: KEY=DOMAIN for its search space, and its own arguments after ``--``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tunelight.errors import SettingsError, SpaceError

if TYPE_CHECKING:
    from tunelight.space import SearchSpace


def spell_after_dashes(words: list[str]) -> list[str]:
    """Return a command's words, with those after ``--`` as values of the hidden option ``--after``.

    ``-m pkg.train`` is a script that is run as a module, as by Python.
    """
    at = words.index("--") if "--" in words else len(words)
    if "-m" in words[: at - 1]:
        option = words.index("-m")
        name = words[option + 1]
        words = [*words[:option], name if "." in name else _whole_name(name), *words[option + 2 :]]
        at -= 1
    return words[:at] + [f"--after={word}" for word in words[at + 1 :]]


def _whole_name(module: str) -> str:
    """Return the dotted name of a module's program, or its file: a package's program is its ``__main__``."""
    return f"{module}.__main__" if Path(module).is_dir() else f"{module}.py"


def is_script(file: str) -> bool:
    """Tell whether what a command was given is a script: a Python file, or a module by its dotted name."""
    is_module = "." in file and all(part.isidentifier() for part in file.split(".")) and not Path(file).exists()
    return file.endswith(".py") or (is_module and not file.endswith((".yaml", ".yml", ".json")))


def space_of_script(file: str, words: Sequence[str], after: Sequence[str]) -> SearchSpace:
    """Return the search space that KEY=DOMAIN words give a script. Raises: SettingsError, SpaceError."""
    from tunelight.space import SearchSpace
    from tunelight.space.text import read_domain, read_pairs

    if not words:
        raise SettingsError(
            f"There is nothing to search. Give keys and domains: tunelight run {file} lr='loguniform(1e-4, 1e-1)'. To "
            f"train one configuration: tunelight train {file}"
        )
    form = "A key of the search space is given as KEY=DOMAIN, lr='loguniform(1e-4, 1e-1)'"
    return SearchSpace(read_pairs(words, read_domain, SpaceError, form), script=file, args=list(after))


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
