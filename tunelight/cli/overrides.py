"""`--set NAME=VALUE`: sets a setting, or fixes a key of the search space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunelight.cli.words import check_words, is_script, space_of_script
from tunelight.errors import SettingsError, guess, unknown

if TYPE_CHECKING:
    from tunelight.space import SearchSpace


def read_sets(lines: Sequence[str], by: str = "--set ") -> dict[str, Any]:
    """Parse the NAME=VALUE lines of ``--set``; values are YAML (1e-4 is a number, [a, b] a list).

    Raises: SettingsError for a line without ``=``, a value that is not YAML, or a repeated name.
    """
    from tunelight.space.files import read_value
    from tunelight.space.text import read_pairs

    form = f"{by.strip() or 'A configuration'} takes NAME=VALUE, model.lr=0.01 for example"
    return read_pairs(lines, read_value, SettingsError, form, by)


def parsed(**options: str | None) -> dict[str, Any]:
    """Return the values of options that are YAML, as ``--set`` reads them; those that are None are left out."""
    return read_sets([f"{name}={text}" for name, text in options.items() if text is not None])


def settings_of(sets: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``sets`` if all are settings of ``tunelight.run``. Raises: SettingsError."""
    from tunelight.settings import NAMES

    for name in sets:
        if name not in NAMES:
            raise SettingsError(unknown("There is no setting", name, NAMES))
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
    from tunelight.space.domains import ARGUMENTS

    sets = read_sets(lines)
    for name in sets:
        if name in options:
            option = "gpus" if name == "gpus_per_worker" else name.replace("_", "-")
            raise SettingsError(f"{name} is given by --set and by --{option}. Leave one of them out.")
    if is_script(file):
        space = space_of_script(file, words, after)
    else:
        check_words(file, words, after)
        space = SearchSpace.of(file)
    settings = {name: value for name, value in sets.items() if name in NAMES}
    keys = {name: value for name, value in sets.items() if name not in NAMES}
    for name, value in keys.items():
        if isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in ARGUMENTS:
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
