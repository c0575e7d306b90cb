"""What a process runs to read a script's options: the script, up to where it parses its command line.

It is started by its path, not as a module, and imports nothing but Python's own library: what it reads is to see no
more of tunelight than the script imports by itself. `draft.py` starts it.
"""

from __future__ import annotations

import argparse
import ast
import enum
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import os
import runpy
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

_MOST_CHOICES = 1000
_SIMPLE = (int, float, str, bool, type(None))


def main(request: Path) -> None:
    """Run the script that ``request`` describes; the answer is written beside it."""
    asked = json.loads(request.read_text())
    answer = _Answer(request.with_name("answer.json"))
    file, module = asked["file"], asked["module"]
    first = str(Path.cwd()) if module else str(Path(file).parent)
    sys.path[:] = [first, *sys.path, *(path for path in asked["path"] if path not in sys.path)]
    sys.argv = [file, *asked["args"]]
    _replace_argparse(answer)
    sys.meta_path.insert(0, _Importer(answer))
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(file, run_name="__main__")
    finally:
        answer.end()


class _Answer:
    """Where the answer goes; giving it ends the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: list[dict[str, Any]] = []

    def give(self, **answer: Any) -> None:
        """Write the answer, all of it or nothing, and end the process at once."""
        part = self._path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(answer))
        part.replace(self._path)
        os._exit(0)

    def options(self, found: Iterable[dict[str, Any]], *, strict: bool, **more: Any) -> None:
        """Give options, and whether the parser refuses others; ``more``: other attributes of `options.Read`."""
        known: dict[
            tuple[str, ...], dict[str, Any]
        ] = {}  # a second parser may repeat the first's, a command its group's
        for option in (*self._kept, *found):
            known.setdefault(tuple(option["names"]), option)
        self.give(options=list(known.values()), strict=strict, **more)

    def keep(self, found: Iterable[dict[str, Any]]) -> None:
        """Keep the options of a parser that takes its own and leaves the rest to a second one, which is to come."""
        self._kept += found

    def end(self, why: str = "") -> None:
        """Give what was kept, where no second parser came; else why there is nothing, if that is known."""
        if self._kept:
            self.options((), strict=False)
        elif why:
            self.give(why=why)


def _is_the_command_line(args: Any) -> bool:
    """Tell whether a parser that is given these arguments reads the script's own, rather than some of its making."""
    try:
        return args is None or not list(args) or bool({*map(str, args)} & {*sys.argv})
    except TypeError:
        return False


def _replaced(kind: type, name: str, give: Callable[[Any], None]) -> None:
    """Replace a method that parses: it gives the options of its parser where it reads the command line."""
    parse = getattr(kind, name)

    @functools.wraps(parse)
    def read(self: Any, args: Any = None, *more: Any, **named: Any) -> Any:
        if _is_the_command_line(args):
            give(self)
        return parse(self, args, *more, **named)

    setattr(kind, name, read)


# --- argparse ---------------------------------------------------------------------------------------------

_PARSES = ("parse_args", "parse_known_args", "parse_intermixed_args", "parse_known_intermixed_args")


def _replace_argparse(answer: _Answer) -> None:
    """Replace what every way to parse comes to: wrappers of argparse have added their options by then."""

    def give(parser: argparse.ArgumentParser) -> None:
        caller = sys._getframe(2)
        outer, by, strict = caller, parser, False  # who parses, and the method that the script calls
        for frame, _ in traceback.walk_stack(caller):
            name, owner = frame.f_code.co_name, frame.f_locals.get("self")
            if name in _PARSES and isinstance(owner, argparse.ArgumentParser):
                outer, by, strict = frame.f_back or caller, owner, name in ("parse_args", "parse_intermixed_args")
        if by is not parser:
            return  # it is one that another parser makes while it parses
        if outer.f_code.co_name == "parse_args_into_dataclasses":  # HfArgumentParser's, which may refuse what is left
            strict = strict or not outer.f_locals.get("return_remaining_strings")
        found = list(of_argparse(parser, sys.argv[1:]))
        if not strict and _parses_again(outer):
            answer.keep(found)
            return
        answer.options(found, strict=strict, abbreviates=getattr(parser, "allow_abbrev", True))

    for name in ("parse_known_args", "parse_known_intermixed_args"):
        _replaced(argparse.ArgumentParser, name, give)


def _parses_again(frame: types.FrameType) -> bool:
    """Tell whether parse_args is called, too, in the file that calls parse_known_args: for what that has left."""
    try:
        tree = ast.parse(Path(frame.f_code.co_filename).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(func, ast.Attribute) and func.attr == "parse_args" for func in called)


# --- jsonargparse, and LightningCLI on it -----------------------------------------------------------------


def _replace_jsonargparse(module: types.ModuleType, answer: _Answer) -> None:
    def give(parser: Any, *, strict: bool) -> None:
        commands = [name for action in parser._actions for name in getattr(action, "_name_parser_map", None) or ()]
        assumed = "fit" if "fit" in commands and not {*commands} & {*sys.argv[1:]} else ""
        answer.options(of_jsonargparse(parser, sys.argv[1:]), strict=strict, command=assumed)

    _replaced(module.ArgumentParser, "parse_args", functools.partial(give, strict=True))
    parse = module.ArgumentParser.parse_object

    def parse_object(self: Any, *args: Any, **named: Any) -> Any:
        give(self, strict=False)  # it is given a configuration, and may read no command line at all
        return parse(self, *args, **named)

    module.ArgumentParser.parse_object = parse_object


# --- libraries that the script imports --------------------------------------------------------------------


def _replace_training(module: types.ModuleType, answer: _Answer) -> None:
    """End where the script trains: it parses its command line later, or not at all."""

    def end(*_args: Any, **_named: Any) -> None:
        answer.end("it trains without having parsed a command line")

    for kind, name in (("Trainer", "fit"), ("Tensor", "backward")):
        if hasattr(module, kind):
            setattr(getattr(module, kind), name, end)


_BY_MODULE: dict[str, Callable[[types.ModuleType, _Answer], None]] = {
    "jsonargparse._core": _replace_jsonargparse,
    "jsonargparse.core": _replace_jsonargparse,
    "pytorch_lightning.trainer.trainer": _replace_training,
    "lightning.pytorch.trainer.trainer": _replace_training,
    "torch._tensor": _replace_training,
}


class _Importer(importlib.abc.MetaPathFinder):
    """Replaces what parses in a library as soon as the script has imported it."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._busy: set[str] = set()

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Find a module as without this finder, and replace what parses once it has run."""
        if name not in _BY_MODULE or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_replace(module: types.ModuleType) -> None:
            run(module)
            _BY_MODULE[name](module, self._answer)

        spec.loader.exec_module = run_and_replace  # type: ignore[method-assign]
        return spec


# --- the options of a parser of argparse -------------------------------------------------------------------


def of_argparse(parser: argparse.ArgumentParser, args: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the options of a parser, after those of its subcommand among the arguments."""
    exclusive = {id(action) for group in parser._mutually_exclusive_groups for action in group._group_actions}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen = next((word for word in args if word in action.choices), None)
            if chosen is not None:
                yield from of_argparse(action.choices[chosen], [*args][args.index(chosen) + 1 :])
    for action in parser._actions:
        if action.option_strings and not isinstance(action, _LEFT_OUT):
            negatives = getattr(action, "negative_option_strings", None)  # simple-parsing's
            if negatives is None and isinstance(action, argparse.BooleanOptionalAction):
                negatives = [flag for flag in action.option_strings if flag.startswith("--no-")]
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
                **({"const": _plain(action.const)} if kind == "flag" else {}),
            }


_LEFT_OUT = (argparse._HelpAction, argparse._VersionAction, argparse._SubParsersAction)


def _kind(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return "both"
    if isinstance(action, argparse._AppendAction) and not isinstance(action, argparse._ExtendAction):
        return "again"
    if action.nargs == 0:
        return "off" if action.const is False else "flag"
    return "value" if action.nargs in (None, "?") else "many"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    if not action.help or action.help == argparse.SUPPRESS:
        return ""
    try:
        return parser._get_formatter()._expand_help(action)
    except Exception:  # noqa: BLE001 - a help text with a lone percent sign: the script never shows it
        return str(action.help)


# --- those of jsonargparse, and of LightningCLI on it -------------------------------------------------------


def of_jsonargparse(parser: Any, args: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the options of a parser, or of its subcommand in args; of fit where there is none."""
    for action in parser._actions:
        if (commands := getattr(action, "_name_parser_map", None)) is not None:
            chosen = next((word for word in args if word in commands), "fit")
            if chosen in commands:
                yield from of_jsonargparse(commands[chosen], args)
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
            "reads_truth": kind is bool,
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
    inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    if typing.get_origin(hint) is typing.Literal:
        return [_plain(value) for value in inner if value is not None]
    if len(inner) == 1 and typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _choices_of_type(inner[0])
    return [member.name for member in hint] if isinstance(hint, type) and issubclass(hint, enum.Enum) else []


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
    return [] if len(found) > _MOST_CHOICES else [_plain(choice) for choice in found]


def _type_name(kind: Any) -> str:
    if kind is None:
        return ""
    if typing.get_args(kind):
        return str(kind).replace("typing.", "")
    return str(getattr(kind, "__name__", type(kind).__name__))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
