"""A search space against the options of a script's parser: what the script would refuse, before anything starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tunelight.errors import SettingsError, first_of, guess
from tunelight.extras.scripts.options import Read
from tunelight.extras.scripts.style import Option, option_for, spell_one
from tunelight.settings.code import Style

_CONVERTED: Final = ("", "int", "float", "str", "choice")
"""Types whose values have the text that a search space writes; others may read any text in their own way."""


def check_options(
    script: str,
    read: Read,
    domains: Mapping[str, Any],
    args: Sequence[str],
    named: set[str],
    *,
    style: Style = "argparse",
) -> None:
    """Raise SettingsError for what the script would refuse, or read as another value than the search space has.

    That is a key that is none of its options, a value that cannot be written for its option or is none of its choices,
    a required option left out, and arguments that it refuses.

    Args:
        script: its name, for the errors.
        read: what is known of its parser; little is checked where that is nothing.
        domains: those of the search space, by dotted key.
        args: the script's own arguments.
        named: keys that ``args`` takes the values of.
        style: how the script reads arguments.
    """
    if read.refused:
        raise SettingsError(
            f"{script} refuses its arguments ({' '.join(args) or 'none'}): {read.refused.rstrip('.')}. They are what "
            "args holds; on the command line, what follows --."
        )
    if any(word in ("${args_no_hyphens}", "${args_json}") for word in args):
        return  # keys are no options
    keys = [key for key in domains if key not in named]
    for key in keys:
        option = next((one for one in read.options or () if one.means(key)), None)
        if option is None and read.options is not None and read.strict and not _is_taken(key, read):
            known = list(dict.fromkeys(one.key for one in read.options))
            raise SettingsError(
                f"{script} has no option for the key {key!r} of the search space.{guess(key, known)} It has: "
                f"{first_of(known, 12) or 'none'}."
            )
        if option is not None:
            _check_choices(script, key, option, domains[key])
        for value in examples(domains[key]):
            _check_value(script, key, value, read.options or (), style)
    if read.options is None:
        return
    if not read.strict or any(word.startswith(("@", "--config", "-c")) for word in args):
        return  # a file, or the script itself, may give what is required
    for option in read.options:
        if option.required and not any(map(option.means, keys)) and not _is_given(option, args, keys):
            name = max(option.names, key=len)
            raise SettingsError(
                f"{script} requires {name}, which neither the search space nor args gives. Add the key {option.key!r} "
                f"to the search space, or args=['{name}=...']."
            )


def _check_value(script: str, key: str, value: Any, options: Sequence[Option], style: Style) -> None:
    option, said = option_for(key, value, options), str(value)
    if style != "wandb":
        try:
            spell_one(style, key, value, tuple(options))
        except SettingsError as error:
            raise SettingsError(f"{script}: {error}") from None
    elif isinstance(value, bool) and option is not None and option.spoken.get(said, said) != said:
        raise SettingsError(f"{script}: {option.name} does not read {said}, which W&B's agent writes.")


def _is_taken(key: str, read: Read) -> bool:
    """Tell whether a key that is no option's name is one's beginning, or an argument of what an option names."""
    options = read.options or ()
    if any(option.nested and key.startswith(f"{name.lstrip('-')}.") for option in options for name in option.names):
        return True
    begun = {option.dest for option in options for name in option.names if name.startswith(f"--{key}")}
    return read.abbreviates and len(begun) == 1


def _is_given(option: Option, args: Sequence[str], keys: Sequence[str]) -> bool:
    """Tell whether an option is given by arguments, also in short, or by what holds it (--model for --model.lr)."""
    words = [*(word.partition("=")[0] for word in args), *(f"--{key}" for key in keys)]
    return any(
        word and (name == word or (len(name) == 2 and word.startswith(name)) or _begins(name, word))
        for name in option.names
        for word in words
    )


def _begins(name: str, word: str) -> bool:
    return name.startswith("--") and word.startswith("--") and len(word) > 2 and name.startswith(word)


def _check_choices(script: str, key: str, option: Option, domain: Any) -> None:
    plain = option.type in _CONVERTED or option.type.startswith("Literal[")
    if not (option.choices and plain):
        return
    values = examples(domain)
    several = option.kind in ("many", "again")
    for value in values:
        for one in value if several and isinstance(value, list | tuple) else [value]:
            if one is not None and not any(_same(one, choice) for choice in option.choices):
                allowed = [str(choice) for choice in option.choices]
                raise SettingsError(
                    f"{script} does not take {one!r} for {max(option.names, key=len)}, a value of the key {key!r}."
                    f"{guess(one, allowed)} It takes: {first_of(allowed, 12)}."
                )


def examples(domain: Any) -> list[Any]:
    """Return the values of a finite domain, or one of another; none of a function."""
    if isinstance(domain, Mapping):
        return list(domain.get("grid_search", ()))
    if (values := getattr(domain, "categories", None)) is not None:
        return list(values)
    low, high = getattr(domain, "lower", None), getattr(domain, "upper", None)
    if low is None or high is None or not math.isfinite(high - low):
        return []
    if any(one.__name__ == "Integer" for one in type(domain).__mro__):
        return [low]
    value, step = low + 0.377 * (high - low), getattr(domain.sampler, "q", None)
    return [round(value / step) * step if step else value]


def _same(value: Any, choice: Any) -> bool:
    """Tell whether a parser may take a value for a choice: by its number, or its text in any case."""
    if str(value).casefold() == str(choice).casefold():
        return True
    try:
        return float(value) == float(choice)
    except (TypeError, ValueError):
        return False
