"""The frame of the command line: how commands are declared, errors and exit codes.

Exit codes: 0 done, or stopped by command; 1 the sweep failed, or metrics differ;
2 bad input; 4 some trials failed; 75 SIGTERM, or Ray's head is lost; 130 Ctrl-C.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from tunelight.errors import GangError, HeadLostError, TunelightError, WorkerFailedError

OK, FAILED, BAD_INPUT, SOME_FAILED, AGAIN, INTERRUPTED = 0, 1, 2, 4, 75, 130
_CODES: Final = {HeadLostError: AGAIN, GangError: FAILED, WorkerFailedError: FAILED}
"""The exit codes of a run's errors; all others are bad input."""
_RUNS_CODE: Final[set[str]] = set()
"""Commands that import a user's code; the others only read."""
_STAYS: Final[set[str]] = set()
"""Commands whose Ray stays for the next one."""
_USAGE: Final[Any] = typer.BadParameter.__base__
"""What a wrong flag or a missing argument raises; typer vendors click without exporting this class."""
_AS_JSON: Final = "tunelight.json"
_DEBUG: Final = "--debug"
_QUOTES: Final = "'\""
_KEYWORD: Final = re.compile(r"(?<![\w.])(?P<name>[a-z_]+)=(?P<value>True|'[^']*'|\d[\d.]*)?(?![\w(\[{'\"=])")
"""A keyword of a Python call, alone or with a plain value."""
_PLACE: Final = re.compile(r"\S+:\d+:\d+: ")
"""How an error in a file begins."""
_OTHER_NAMES: Final = {
    "extend": "resume SWEEP --num-samples N",
    "export": "best SWEEP [TRIAL] --export FILE",
    "plot": "report SWEEP --figures all",
    "simulate": "plan FILE",
    "dashboard": "report SWEEP --study FILE",
    "watch": "show SWEEP --follow",
    "list": "ls",
    "delete": "rm SWEEP",
}
"""Other programs' names of commands."""


class Commands(TyperGroup):
    """The group of commands, which turns errors into a message and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of their definition."""
        return list(self.commands)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept --debug anywhere, and note whether the output is to be JSON."""
        at = args.index("--") if "--" in args else len(args)  # what follows is a script's
        rest = [word for word in args[:at] if word != _DEBUG]
        ctx.meta[_AS_JSON] = "--json" in rest
        return super().parse_args(ctx, [*([_DEBUG] if len(rest) < at else []), *rest, *args[at:]])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command, or an error that names the one to use."""
        if args and (name := _OTHER_NAMES.get(args[0])) is not None:
            ctx.fail(f"No such command {args[0]!r}. Use: tunelight {name}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Raises: typer.Exit with the exit code of its error."""
        try:
            return super().invoke(ctx)
        except TunelightError as error:
            _print_error(ctx, error, self._in_options(ctx, str(error)))
            raise typer.Exit(next((_CODES[kind] for kind in _CODES if isinstance(error, kind)), BAD_INPUT)) from error
        except OSError as error:  # no permission, or standard output on a full disk
            if error.errno == errno.EPIPE:
                raise
            _print_error(
                ctx, error, f"{error}. Make it possible, or give another path; --debug shows where it happened."
            )
            _let_go(sys.stdout)
            raise typer.Exit(BAD_INPUT) from error
        except _USAGE as error:
            if instead := _instead(getattr(error, "option_name", None)):
                error.message += f".{instead}"
            if ctx.meta[_AS_JSON]:
                _print_json_error(error, error.format_message())
            raise
        except KeyboardInterrupt as error:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from error

    def _in_options(self, ctx: Any, message: str) -> str:
        """Return an error's text with options in place of Python's keywords; errors in a file stay as they are."""
        if _PLACE.match(message):
            return message
        commands = [self.commands[name] for name in ("run", ctx.invoked_subcommand) if name in self.commands]
        params = [param for command in commands for param in command.params]
        options = {param.name: param.opts[0] for param in params if param.opts[0].startswith("--")}
        options["gpus_per_worker"] = options.pop("gpus", "--gpus")

        def as_option(found: re.Match[str]) -> str:
            option, value = options.get(found["name"]), found["value"]
            if option is None:
                return found[0]
            return option if value in (None, "True") else f"{option} {shlex.quote(value.strip(_QUOTES))}"

        first, space, rest = message.partition(" ")  # "num_samples must be ..."
        return _KEYWORD.sub(as_option, f"{options.get(first, first)}{space}{rest}")


def _print_error(ctx: Any, error: Exception, message: str) -> None:
    """Print an error to standard error, and with --json also as JSON."""
    if ctx.params.get("debug"):
        traceback.print_exception(error)
    typer.echo(f"Error: {message}", err=True)
    if ctx.meta[_AS_JSON]:
        with contextlib.suppress(OSError):
            _print_json_error(error, message)


def _print_json_error(error: Exception, message: str) -> None:
    typer.echo(json.dumps({"error": {"type": type(error).__name__, "message": message}}))


class Command(TyperCommand):
    """A command; what follows ``--`` is a script's, if it takes one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep what comes after ``--`` apart, which would be taken for words of the command."""
        from tunelight.cli.overrides import spell_after_dashes

        takes_script = any(param.name == "after" for param in self.params)
        return super().parse_args(ctx, spell_after_dashes(args) if takes_script else args)


class TakesSettings(Command):
    """A command whose ``--set`` takes every setting; its help lists them."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the list before the example."""
        from tunelight.settings import SETTINGS  # takes a moment to import

        with formatter.section("Settings for --set NAME=VALUE"):
            formatter.write_dl([(name, setting.help) for name, setting in SETTINGS.items()])
        super().format_epilog(ctx, formatter)


def _instead(option: str | None) -> str:
    """Return a hint for an unknown option that is a setting."""
    from tunelight.settings import NAMES  # settings take a moment to import

    name = (option or "").lstrip("-").replace("-", "_")
    return f" Say --set {name}=VALUE." if name in NAMES else ""


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """Let the reader of standard output leave early: the exit code still says how the sweep went."""
    try:
        yield
    except BrokenPipeError:
        _let_go(sys.stdout)


def _let_go(stream: Any) -> None:
    """Discard what a stream cannot write, or the interpreter would report it once more at exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


app = typer.Typer(
    name="tunelight",
    cls=Commands,
    help="Hyperparameter search over distributed PyTorch Lightning training.",
    epilog=(
        "Exit codes: 0 done; 1 the sweep failed, metrics differ, or something is wrong with this machine; 2 bad input; "
        "4 some trials failed; 75 run it again (SIGTERM, or Ray's head is lost); 130 Ctrl-C.  "
        "Start with: tunelight init my-sweep"
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


F = TypeVar("F", bound=Callable[..., Any])


def command(
    example: str, *, runs_code: bool = False, takes_settings: bool = False, stays: bool = False
) -> Callable[[F], F]:
    """Make a function a command of ``tunelight``, named like it; ``--help`` shows commands in the order of definition.

    Args:
        example: its help ends with it.
        runs_code: it imports a user's code, also from the working directory.
        takes_settings: ``--set`` takes every setting, and its help lists them.
        stays: its Ray stays for the next such command.
    """

    def register(function: F) -> F:
        if runs_code:
            _RUNS_CODE.add(function.__name__)
        if stays:
            _STAYS.add(function.__name__)
        kind = TakesSettings if takes_settings else Command
        summary = " ".join((function.__doc__ or "").split("\n\n")[0].split())  # Typer would cut it at 45 characters
        short = f"{summary.partition('. ')[0].rstrip('.')}."
        return app.command(cls=kind, short_help=short, epilog=f"Example: tunelight {example}")(function)

    return register


def _version(show: bool) -> None:
    if show:
        typer.echo(sys.modules["tunelight"].__version__)
        raise typer.Exit(OK)


@app.callback()
def _start(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; allowed anywhere.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Handle the options that every command has."""


def main() -> None:
    """Run the command line of this process."""
    if _name() in _STAYS:
        from tunelight.extras.stay import through_driver

        through_driver(_main)
    else:
        _main()


def _name() -> str:
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _main() -> None:
    """Run it in this process.

    Only commands that run a user's code import from the working directory: reading a sweep must not run code that is
    in its folder. They look there last: a module of Python's name there is for a script's own process alone.
    """
    here = os.getcwd()  # noqa: PTH109 - sys.path holds text
    if _name() in _RUNS_CODE and here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"
    app()
