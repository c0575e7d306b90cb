"""The options of a parser of argparse, jsonargparse, click, typer, tyro, absl or Fire, and how its types read words.

It imports nothing but Python's own library: the process that reads a script's options, `probe.py`, loads it by path.
"""

from __future__ import annotations

import argparse
import ast
import enum
import functools
import inspect
import itertools
import json
import re
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
                "dashes": False,
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
            "dashes": False,
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


# --- click, and typer on it -------------------------------------------------------------------------------


def of_click(command: Any, args: Sequence[str], loose: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the options of a command and of its subcommand in args; ``loose`` gets those that take any other."""
    settings = getattr(command, "context_settings", None) or {}
    if settings.get("ignore_unknown_options"):
        loose.append(command)
    elsewhere = settings.keys() & {"default_map", "auto_envvar_prefix"}
    before = ""
    if hasattr(command, "get_command"):
        for place, word in enumerate(args):
            try:
                chosen = command.get_command(None, word)
            except Exception:  # noqa: BLE001 - a command of the script's own, which wants its context
                loose.append(command)
                break
            if chosen is not None:
                yield from of_click(chosen, args[place + 1 :], loose)
                before = word
                break
    for option in command.params:
        if option.param_type_name != "option":
            continue
        kind = getattr(option, "type", None)
        by_value = type(option).__module__.startswith("typer")
        if kind is None:  # typer without click
            kind = getattr(getattr(option, "type_descriptor", None), "annotation", None)
        known = _kind_of_click(option)
        choices = _choices_of_click(kind, by_value=by_value)
        read = kind if kind in (int, float) else functools.partial(_convert, kind, option)
        default = _plain(option.default)
        yield {
            "names": [*option.opts, *option.secondary_opts],
            "negatives": list(option.secondary_opts),
            "dest": option.name,
            "kind": known,
            "type": _CLICK_TYPES.get(name := str(getattr(kind, "name", None) or _type_name(kind)), name),
            "default": {"again": [], "flag": False}.get(known) if default is None else default,
            "choices": choices,
            "help": str(option.help or ""),
            "required": bool(option.required or option.prompt) and not option.envvar and not elsewhere,
            "before": before,
            **({"const": _plain(getattr(option, "flag_value", True))} if known == "flag" else {}),
            **(_count(option.nargs, known) if option.nargs != 1 else {}),
            **_reads(read, option.default, choices),
        }


def _convert(kind: Any, option: Any, word: str) -> Any:
    return kind.convert(word, option, None)


_CLICK_TYPES = {"integer": "int", "text": "str", "boolean": "bool", "integer range": "int", "float range": "float"}


def _choices_of_click(kind: Any, *, by_value: bool) -> list[Any]:
    if typing.get_args(kind):
        return _choices_of_type(kind)
    known = getattr(kind, "choices", None) or (kind if isinstance(kind, enum.EnumType) else ())
    return [str(one.value if by_value else one.name) if isinstance(one, enum.Enum) else str(one) for one in known]


def _kind_of_click(option: Any) -> str:
    if getattr(option, "secondary_opts", None):
        return "both"
    if getattr(option, "count", False):
        return "count"
    if getattr(option, "is_flag", False):
        return "off" if getattr(option, "flag_value", True) is False else "flag"
    if getattr(option, "multiple", False):
        return "again"
    return "value" if option.nargs == 1 else "many"


# --- tyro, absl, Fire -------------------------------------------------------------------------------------


def of_tyro(parser: argparse.ArgumentParser, args: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the options of the parser of argparse that tyro makes: it reads words alone, and converts them later."""
    before = ""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen = next((word for word in args if word in action.choices), None)
            if chosen is not None:
                yield from of_tyro(action.choices[chosen], args)
                before = chosen
    for action in parser._actions:
        if not action.option_strings or isinstance(action, _LEFT_OUT):
            continue
        both = any(one.__name__ == "BooleanOptionalAction" for one in type(action).__mro__)
        negatives = [one for one in action.option_strings if "no-" in one or "no_" in one][-1:] if both else []
        kind = "both" if both else "value" if action.nargs == 1 else _kind(action)
        metavar = " ".join(action.metavar) if isinstance(action.metavar, tuple) else str(action.metavar or "")
        kinds = dict.fromkeys(re.findall(r"\b[A-Z]+\b", metavar))
        said = re.search(r"\(default: (.*?)\)", str(action.help or ""))
        yield {
            "names": list(action.option_strings),
            "negatives": negatives,
            "dest": action.dest,
            "kind": kind,
            "type": {"INT": "int", "FLOAT": "float", "STR": "str"}.get("".join(kinds), metavar),
            "default": action.default if both else said and _as_literal(said[1]),
            "choices": _choices(action.choices),
            "required": bool(action.required),
            "before": before,
            "dashes": False,
            "spoken": {word: word for word in ("True", "False", "None") if word in re.findall(r"\w+", metavar)},
            **_count(action.nargs, kind),
        }


def _as_literal(text: str) -> Any:
    try:
        return _plain(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def of_absl(flags: Any) -> Iterator[dict[str, Any]]:
    """Yield the flags that a script and its modules define, without absl's own."""
    for module, found in flags.flags_by_module_dict().items():
        for flag in found if module.partition(".")[0] != "absl" else ():
            inherits = {one.__name__ for one in (*type(flag).__mro__, *type(flag.parser).__mro__)}
            choices = _choices(getattr(flag.parser, "enum_values", None) or getattr(flag.parser, "enum_class", None))
            lists = {"lists": "csv" if "ListParser" in inherits else " "} if "BaseListParser" in inherits else None
            yield {
                "names": [f"--{flag.name}", *([f"-{flag.short_name}"] if flag.short_name else [])],
                "dest": flag.name,
                "kind": "again" if "MultiFlag" in inherits else "value",
                "type": str(flag.flag_type()).removeprefix("multi ").replace("string", "str"),
                "default": _plain(flag.default),
                "choices": choices,
                "help": str(flag.help or ""),
                "required": any("other than None" in str(getattr(one, "message", "")) for one in flag.validators),
                **(lists or _reads(flag.parser.parse, flag.default, choices)),
            }


def of_fire(component: Any, args: Sequence[str]) -> tuple[list[dict[str, Any]], bool]:
    """Return the arguments of what Fire calls, and whether it refuses others. Raises: TypeError where none is known."""
    if isinstance(component, dict) and args and args[0] in component:
        return of_fire(component[args[0]], args[1:])
    if not callable(component):
        raise TypeError
    parameters = inspect.signature(component).parameters.values()
    given = sum(
        not word.startswith("-") and not (before.startswith("--") and "=" not in before)
        for before, word in itertools.pairwise(["", *args])
    )
    found = []
    for place, one in enumerate(one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)):
        needed = one.default is one.empty
        found.append(
            {
                "names": [f"--{one.name}"],
                "dest": one.name,
                "type": "" if one.annotation is one.empty else _type_name(one.annotation),
                "default": None if needed else _plain(one.default),
                "required": needed and place >= given,
            }
        )
    strict = not isinstance(component, type) and not any(one.kind is one.VAR_KEYWORD for one in parameters)
    return found, strict


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
