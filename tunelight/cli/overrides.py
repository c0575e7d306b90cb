"""`--set NAME=VALUE`: sets a setting, or fixes a key of the search space."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunelight.errors import SettingsError, SpaceError, TunelightError, guess, unknown

if TYPE_CHECKING:
    from tunelight.space import SearchSpace


def read_sets(lines: Sequence[str], by: str = "--set ") -> dict[str, Any]:
    """Parse the NAME=VALUE lines of ``--set``; values are YAML (1e-4 is a number, [a, b] a list).

    Raises: SettingsError for a line without ``=``, a value that is not YAML, or a repeated name.
    """
    from tunelight.space.files import read_value

    form = f"{by.strip() or 'A configuration'} takes NAME=VALUE, model.lr=0.01 for example"
    return _pairs(lines, read_value, SettingsError, form, by)


def _pairs(
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


def parsed(**options: str | None) -> dict[str, Any]:
    """Return the values of options that are YAML, as ``--set`` reads them; those that are None are left out."""
    return read_sets([f"{name}={text}" for name, text in options.items() if text is not None])


def settings_of(sets: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``sets`` if all are settings of ``tunelight.run``. Raises: SettingsError."""
    from tunelight.settings import check_names

    check_names(sets)
    return dict(sets)


def load_space_and_settings(
    file: str, lines: Sequence[str], options: Mapping[str, Any], words: Sequence[str] = (), after: Sequence[str] = ()
) -> tuple[SearchSpace, dict[str, Any]]:
    """Return a file's search space, with ``--set``'s keys fixed, and the settings of ``--set`` and of other options.

    A script's is given by ``words``, KEY=DOMAIN; ``after`` are its arguments.

    Raises: SettingsError for a name that is neither a setting nor a key, or given as an option too; any error of the
    file.
    """
    from tunelight.settings import NAMES
    from tunelight.space import SearchSpace
    from tunelight.space.kinds import KINDS

    sets = read_sets(lines)
    for name in sets:
        if name in options:
            option = "gpus" if name == "gpus_per_worker" else name.replace("_", "-")
            raise SettingsError(f"{name} is given by --set and by --{option}. Leave one of them out.")
    if is_script(file):
        space = space_of_script(file, words, after)
    else:
        if words:
            raise SettingsError(
                f"{words[0]!r}: {file} has a search space of its own. Fix a key by --set {words[0]}, or change the "
                "file."
            )
        if after:
            raise SettingsError(
                f"{' '.join(after)}: what comes after -- is for a script, and {file} is none. Say args: in the file."
            )
        space = SearchSpace.of(file)
    settings = {name: value for name, value in sets.items() if name in NAMES}
    keys = {name: value for name, value in sets.items() if name not in NAMES}
    for name, value in keys.items():
        if isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in KINDS:
            raise SettingsError(
                f"--set {name}: it fixes a key to one value. To give it another domain, change the file."
            )
        if "." not in name and name not in space.domains:
            valid = [*space.domains, *NAMES]
            raise SettingsError(
                f"--set {name}: that is neither a key of the space nor a setting.{guess(name, valid)} The "
                f"space has {', '.join(space.domains)}; settings are {', '.join(NAMES)}."
            )
    return (space.fixed(keys) if keys else space), {**settings, **options}


# --- Words of a command line that tune a script: KEY=DOMAIN for its search space, and its own arguments after ``--``


def spell_after_dashes(words: list[str]) -> list[str]:
    """Return a command's words, with those after ``--`` as values of the hidden option ``--after``.

    ``-m pkg.train`` is a script that is run as a module, as by Python.
    """
    at = words.index("--") if "--" in words else len(words)
    if "-m" in words[: at - 1]:
        option = words.index("-m")
        name = words[option + 1]
        if "." not in name:  # its dotted name, or its file: a package's program is its __main__
            name = f"{name}.__main__" if Path(name).is_dir() else f"{name}.py"
        words = [*words[:option], name, *words[option + 2 :]]
        at -= 1
    return words[:at] + [f"--after={word}" for word in words[at + 1 :]]


def is_script(file: str) -> bool:
    """Tell whether what a command was given is a script: a Python file, or a module by its dotted name."""
    is_module = "." in file and all(part.isidentifier() for part in file.split(".")) and not Path(file).exists()
    return file.endswith(".py") or (is_module and not file.endswith((".yaml", ".yml", ".json")))


def space_of_script(file: str, words: Sequence[str], after: Sequence[str]) -> SearchSpace:
    """Return the search space that KEY=DOMAIN words give a script. Raises: SettingsError, SpaceError."""
    from tunelight.space import SearchSpace

    if not words:
        raise SettingsError(
            f"There is nothing to search. Give keys and domains: tunelight run {file} lr='loguniform(1e-4, 1e-1)'. To "
            f"train one configuration: tunelight train {file}"
        )
    form = "A key of the search space is given as KEY=DOMAIN, lr='loguniform(1e-4, 1e-1)'"
    return SearchSpace(_pairs(words, read_domain, SpaceError, form), script=file, args=list(after))


_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)


def read_domain(text: str) -> Any:
    """Return the domain that a text describes, as in a YAML file.

    It is ``name(argument, ...)``, a choice ``a,b,c``, or one value, which is fixed. Raises: ValueError.
    """
    from tunelight.space.files import read_value
    from tunelight.space.kinds import KINDS, without_commas

    found = _CALL.fullmatch(text.strip())
    if found is None:
        is_list = "," in text and not text.lstrip().startswith(("[", "{", "'", '"'))
        return {"choice": read_value(f"[{text}]")} if is_list else read_value(text)
    name, arguments = found[1], read_value(f"[{found[2]}]")
    known = [kind.name for kind in KINDS.values() if kind.in_words]
    if name not in known:
        raise ValueError(unknown("there is no domain", name, known))
    if name != "fixed" and (parted := without_commas(arguments)) is not None:
        raise ValueError(f"commas stand between arguments: {name}({parted})")
    if len(arguments) == 1 and (isinstance(arguments[0], list) or name == "fixed"):
        arguments = arguments[0]
    return {name: arguments}
