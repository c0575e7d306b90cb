"""What a process runs to read a script's options: the script, up to where it parses its command line.

It is started by its path, not as a module, and imports nothing but Python's own library: what it reads is to see no
more of tunelight than the script imports by itself. `options.py` starts it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import runpy
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


def _load_parsers() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("_tunelight_parsers", Path(__file__).with_name("parsers.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


parsers: Any = _load_parsers()


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
        for one in (*self._kept, *found):
            known.setdefault(tuple(one["names"]), one)
        self.give(options=list(known.values()), strict=strict, **more)

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in another folder: a type that is tried may make files of the words that it gets."""
        return contextlib.chdir(self._path.parent)

    def keep(self, found: Iterable[dict[str, Any]]) -> None:
        """Keep the options of a parser that takes its own and leaves the rest to a second one, which is to come."""
        self._kept += found

    def end(self, why: str = "") -> None:
        """Give what was kept, where no second parser came; else why there is nothing, if that is known."""
        if self._kept:
            self.options((), strict=False)
        elif why:
            self.give(why=why)


@contextlib.contextmanager
def _nothing_written() -> Iterator[None]:
    """Raise where a file is opened to write: the type of an argument may empty the file that it names."""
    inside = [True]

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and inside and args[2] & (os.O_WRONLY | os.O_RDWR):
            raise RuntimeError(f"{args[0]} would be written")

    sys.addaudithook(refuse)  # for good: no hook can be taken away
    try:
        yield
    finally:
        inside.clear()


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
            name, one = frame.f_code.co_name, frame.f_locals.get("self")
            if name in _PARSES and isinstance(one, argparse.ArgumentParser):
                outer, by, strict = frame.f_back or caller, one, name in ("parse_args", "parse_intermixed_args")
        if by is not parser:
            return  # it is one that another parser makes while it parses
        strict = strict or _refuses_the_rest(outer)
        with answer.aside():
            found = list(parsers.of_argparse(parser, sys.argv[1:]))
        if not strict and _parses_again(outer):
            answer.keep(found)
            return
        refused = _refused_by_argparse(parser, strict=strict)
        answer.options(found, strict=strict, abbreviates=getattr(parser, "allow_abbrev", True), refused=refused)

    for name in ("parse_known_args", "parse_known_intermixed_args"):
        _replaced(argparse.ArgumentParser, name, give)


def _refuses_the_rest(frame: types.FrameType) -> bool:
    """Tell whether the caller of parse_known_args refuses what is left, as HfArgumentParser does by default."""
    return frame.f_code.co_name == "parse_args_into_dataclasses" and not frame.f_locals.get("return_remaining_strings")


def _parses_again(frame: types.FrameType) -> bool:
    """Tell whether parse_args is called, too, in the file that calls parse_known_args: for what that has left."""
    try:
        tree = ast.parse(Path(frame.f_code.co_filename).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(one, ast.Attribute) and one.attr == "parse_args" for one in called)


def _refused_by_argparse(parser: argparse.ArgumentParser, *, strict: bool) -> str:
    """Return what a parser says against the arguments that it has, of which options that it requires may be missing."""
    every = [parser]
    for one in every:
        for action in one._actions:
            action.required = action.required and not action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                every += {id(inner): inner for inner in action.choices.values()}.values()
        for group in one._mutually_exclusive_groups:
            group.required = False
        one.error = _refuse  # type: ignore[method-assign]
    parse = argparse.ArgumentParser.parse_known_args.__wrapped__  # type: ignore[attr-defined]
    try:
        with _nothing_written():
            _, rest = parse(parser, sys.argv[1:])
    except (_RefusedError, argparse.ArgumentError) as error:
        return str(error)
    except BaseException:  # noqa: BLE001 - the script will say it
        return ""
    return f"unrecognized arguments: {' '.join(rest)}" if strict and rest else ""


class _RefusedError(Exception):
    """What a parser says before it would end the process."""


def _refuse(message: str) -> typing.NoReturn:
    raise _RefusedError(message)


# --- jsonargparse, and LightningCLI on it -----------------------------------------------------------------


def _replace_jsonargparse(module: types.ModuleType, answer: _Answer) -> None:
    def give(parser: Any, *, strict: bool) -> None:
        commands = [one for action in parser._actions for one in getattr(action, "_name_parser_map", None) or ()]
        assumed = "fit" if "fit" in commands and not {*commands} & {*sys.argv[1:]} else ""
        answer.options(parsers.of_jsonargparse(parser, sys.argv[1:]), strict=strict, command=assumed)

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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
