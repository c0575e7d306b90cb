"""The options of a parser of argparse or jsonargparse, and how its types read words.

It imports nothing but Python's own library: the process that reads a script's options, `probe.py`, loads it by path.
"""

from __future__ import annotations

import argparse
import enum
import functools
import itertools
import json
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_MOST_CHOICES = 1000
_SIMPLE = (int, float, str, bool, type(None))


# --- argparse ---------------------------------------------------------------------------------------------


def of_argparse(parser: argparse.ArgumentParser, args: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the options of a parser, after those of its subcommand among the arguments."""
    exclusive = {id(action) for group in parser._mutually_exclusive_groups for action in group._group_actions}
    before = ""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen = next((word for word in args if word in action.choices), None)
            if chosen is not None:
                yield from of_argparse(action.choices[chosen], [*args][args.index(chosen) + 1 :])
                before = chosen
    for action in parser._actions:
        if action.option_strings and not isinstance(action, _LEFT_OUT):
            negatives = getattr(action, "negative_option_strings", None)  # simple-parsing's
            if negatives is None and isinstance(action, argparse.BooleanOptionalAction):
                negatives = [one for one in action.option_strings if one.startswith("--no-")]
            kind = _kind(action)
            yield {
                "names": list(action.option_strings),
                "negatives": negatives or [],
                "dest": action.dest,
                "kind": kind,
                "type": _type_name(action.type),
                "default": _plain(action.default),
                "choices": _choices(action.choices),
                "help": _help(parser, action),
                "required": bool(action.required) and id(action) not in exclusive,
                "before": before,
                "adds": isinstance(action, argparse._AppendAction) and bool(action.default),
                **({"const": _plain(action.const)} if kind == "flag" else {}),
                **_count(action.nargs, kind),
                **_reads(functools.partial(_read_by, parser, action), action.default, _choices(action.choices)),
            }


_LEFT_OUT = (argparse._HelpAction, argparse._VersionAction, argparse._SubParsersAction)


def _kind(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return "both"
    if isinstance(action, argparse._CountAction):
        return "count"
    if isinstance(action, argparse._AppendAction) and not isinstance(action, argparse._ExtendAction):
        return "again"
    if action.nargs == 0:
        return "off" if action.const is False else "flag"
    return "value" if action.nargs in (None, "?") else "many"


def _count(nargs: Any, kind: str) -> dict[str, Any]:
    """Return the fewest and the most values of an option that takes several."""
    if kind not in ("many", "again") or nargs is None:
        return {}
    return {"count": [nargs, nargs] if isinstance(nargs, int) else [int(nargs == argparse.ONE_OR_MORE), None]}


def _read_by(parser: argparse.ArgumentParser, action: argparse.Action, word: str) -> Any:
    value = parser._get_value(action, word)
    parser._check_value(action, value)
    return value


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    if not action.help or action.help == argparse.SUPPRESS:
        return ""
    try:
        return parser._get_formatter()._expand_help(action)
    except Exception:  # noqa: BLE001 - a help text with a lone percent sign: the script never shows it
        return str(action.help)


# --- jsonargparse, and LightningCLI on it -----------------------------------------------------------------


def of_jsonargparse(parser: Any, args: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the options of a parser, or of its subcommand in args; of fit where there is none."""
    before = ""
    for action in parser._actions:
        if (commands := getattr(action, "_name_parser_map", None)) is not None:
            chosen = next((word for word in args if word in commands), "fit")
            if chosen in commands:
                yield from of_jsonargparse(commands[chosen], args)
                before = chosen
    elsewhere = bool(getattr(parser, "default_config_files", None) or getattr(parser, "default_env", False))
    links = getattr(getattr(parser, "_links_group", None), "_group_actions", ())
    targets = {action.target[0] for action in links}  # they get another option's value, and no other
    for action in parser._actions:
        ours = type(action).__name__.lstrip("_")
        if not action.option_strings or ours.startswith(("Help", "ActionHelp", "ActionPrint", "ActionConfigLoad")):
            continue
        if action.dest in targets:
            continue
        hint = getattr(action, "_typehint", None)
        kind = action.type if hint is None else hint
        yield {
            "names": list(action.option_strings),
            "dest": action.dest,
            "kind": _kind(action),
            "type": _type_name(kind),
            "default": _plain(action.default),
            "choices": _choices(action.choices) or _choices_of_type(kind),
            "help": "" if action.help in (None, argparse.SUPPRESS) else str(action.help),
            "required": bool(action.required) and action.default is None and not elsewhere,
            "nested": not _is_simple(kind),
            "before": before if before in args else "",
            "adds": isinstance(action, argparse._AppendAction) and bool(action.default),
            **_count(action.nargs, _kind(action)),
            "spoken": {"True": "true", "False": "false"} if kind is bool else {},
        }


def _is_simple(hint: Any) -> bool:
    """Tell whether values of a type are plain, so that no key goes below it."""
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return True
    if inner:
        return typing.get_origin(hint) in (typing.Union, types.UnionType) and all(map(_is_simple, inner))
    return isinstance(hint, type) and issubclass(hint, (*_SIMPLE, enum.Enum))


def _choices_of_type(hint: Any) -> list[Any]:
    inner = [one for one in typing.get_args(hint) if one is not type(None)]
    if typing.get_origin(hint) is typing.Literal:
        return [_plain(one) for one in inner if one is not None]
    if len(inner) == 1 and typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _choices_of_type(inner[0])
    return [one.name for one in hint] if isinstance(hint, type) and issubclass(hint, enum.Enum) else []


# --- how a type reads words -------------------------------------------------------------------------------

_SPOKEN: dict[Any, tuple[str, ...]] = {
    True: ("True", "true", "1", "yes"),
    False: ("False", "false", "0", "no", ""),
    None: ("None", "none", "null", ""),
}
_BETWEEN = (",", " ", ":", ";", "x", "-", "_", "/", "|")


def _reads(read: Callable[[str], Any], default: Any, choices: Sequence[Any] = ()) -> dict[str, Any]:
    """Return how True, False, None, lists and texts are written for a type, found by what it makes of some words."""
    if isinstance(default, bool) and _try(read, "True") == "True":
        return {"spoken": {"True": "True", "False": ""}}  # text, of which the script asks whether there is any
    spoken = {}
    for value, words in _SPOKEN.items():
        for word in words:
            got = _try(read, word)
            if got is value or (value is not None and type(got) in (int, float) and got == value):
                spoken[str(value)] = word
                break
            if isinstance(got, str) and choices and got.casefold() == str(value).casefold():
                spoken[str(value)] = word
                break
    lists = "literal" if _is_one_and_two(_try(read, "[1, 2]")) else ""
    lists = lists or next((one for one in _BETWEEN if _is_one_and_two(_try(read, f"1{one}2"))), "")
    return {"spoken": spoken, "lists": lists, "quoted": _try(read, '"null"') == "null"}


def _try(read: Callable[[str], Any], word: str) -> Any:
    """Return what a type makes of a word; an object like no other where it refuses the word."""
    try:
        return read(word)
    except BaseException:  # noqa: BLE001 - a type of the script's own
        return object()


def _is_one_and_two(got: Any) -> bool:
    got = got.tolist() if hasattr(got, "tolist") else got
    return isinstance(got, list | tuple) and [*map(str, got)] in (["1", "2"], ["1.0", "2.0"])


# --- plain data -------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it, or else as its text; None for what stands for no value."""
    if value is argparse.SUPPRESS or type(value).__name__ == "Sentinel":
        return None
    if isinstance(value, enum.Enum):
        value = value.value if isinstance(value.value, _SIMPLE) else value.name
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return getattr(value, "__name__", None) or str(value)


def _choices(given: Any) -> list[Any]:
    try:
        found = list(itertools.islice(given or (), _MOST_CHOICES + 1))
    except TypeError:
        return []
    return [] if len(found) > _MOST_CHOICES else [_plain(one) for one in found]


def _type_name(kind: Any) -> str:
    if kind is None:
        return ""
    if typing.get_args(kind):
        return str(kind).replace("typing.", "")
    return str(getattr(kind, "__name__", type(kind).__name__))
