"""A script as the main program of a process."""

from __future__ import annotations

import atexit
import concurrent.futures.thread as executors
import contextlib
import functools
import os
import runpy
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tunelight.compat import replaced
from tunelight.errors import ScriptError, last_line
from tunelight.extras.scripts import installed
from tunelight.extras.scripts.installed import forget_shadowed

_LAST_LINES = 20
"""How much of what a script writes to standard error is kept, to say why it exited."""
_RESTORED = ("argv", "excepthook", "displayhook", "stdout", "stderr", "stdin")
"""What a next script in this process would stumble over, beside the path of modules."""


def run(file: Path, module: str | None, argv: list[str]) -> None:
    """Run a script as ``__main__`` of this process, like ``python file`` or ``python -m module``, to its end.

    Raises: ScriptError for an exit code that says it failed, and whatever the script raises. Runs on: worker.
    """
    thread, threads = threading.current_thread(), set(threading.enumerate())
    tail = _Tail(sys.stderr)
    with contextlib.ExitStack() as stack:
        first = Path.cwd() if module else file.parent
        same = {name: getattr(sys, name) for name in _RESTORED}
        stack.enter_context(replaced(sys, **same, path=[str(first), *sys.path]))
        forget_shadowed(first)
        at_exit = stack.enter_context(_at_exit())
        if thread is not threading.main_thread():
            stack.enter_context(_signals())
        stack.enter_context(_exit_of(thread))
        if installed.current is not None:
            stack.enter_context(installed.current.watched(_own_folder(file, module)))
        sys.stdin = stack.enter_context(open(os.devnull))  # noqa: PTH123 - nobody answers a script that asks
        sys.argv, sys.stderr = argv, tail
        try:
            if module:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(file), run_name="__main__")
            _join(threads)
        except ImportError as error:
            if "no known parent package" not in str(error) or (name := _name_of(file)) is None:
                raise
            raise ScriptError(
                f"{error}. {file.name} is a part of a package: give the script as its module, {name}, for which "
                f"`python -m {name}` would run it."
            ) from error
        except SystemExit as error:
            _check_exit(error.code, tail, file)
            _join(threads)
        finally:
            for function in reversed(at_exit):
                try:
                    function()
                except Exception:  # noqa: BLE001 - as Python, which goes on to the next
                    traceback.print_exc()


def _check_exit(code: object, tail: _Tail, file: Path) -> None:
    """Raise ScriptError for an exit that tells of a failure: a number that is not 0, or a text."""
    if code is None or code == 0:
        return
    printed = "\n".join(tail.lines)
    why = _last_words(printed) if isinstance(code, int) else str(code)
    raise ScriptError(f"{file.name} exited with {code if isinstance(code, int) else 1}{f': {why}' if why else ''}")


def _last_words(printed: str) -> str:
    """Return the last line of a text; of a box that rich has drawn, as typer has it, what is inside."""
    last = last_line(printed)
    if not last.startswith(("╰", "└", "+-")):
        return last
    inside: list[str] = []
    for line in reversed(printed.rstrip().splitlines()[:-1]):
        if not line.lstrip().startswith(("│", "|")):
            break
        inside.insert(0, line.strip(" │|"))
    return " ".join(word for word in inside if word) or last


class _Tail:
    """A stream that passes text on and keeps the last lines of it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._open = ""
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)

    def write(self, text: str) -> int:
        self._stream.write(text)
        *whole, self._open = (self._open + text).split("\n")
        self._open = self._open[-1000:]
        self._lines.extend(whole)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def lines(self) -> list[str]:
        return [*self._lines, *([self._open] if self._open else [])]


@contextlib.contextmanager
def _at_exit() -> Iterator[list[Callable[[], object]]]:
    """Collect the functions of the script itself that are to run at exit; those of libraries are for the process."""
    functions: list[Callable[[], object]] = []
    register = atexit.register

    def collect(function: Any, *args: Any, **kwargs: Any) -> Any:
        if (getattr(function, "__module__", None) or "__main__") != "__main__":
            return register(function, *args, **kwargs)
        functions.append(functools.partial(function, *args, **kwargs))
        return function

    with replaced(atexit, register=collect):  # a decorator too, as the original
        yield functions


def _join(known: set[threading.Thread]) -> None:
    """Wait for threads that the script has started and that are no daemons, as Python does before it exits.

    The threads of an executor end when their work is done.
    """
    started = [running for running in threading.enumerate() if running not in known and not running.daemon]
    queues = executors._threads_queues
    if working := [queues[thread] for thread in started if thread in queues]:
        executors._shutdown = True
        for work in working:
            work.put(None)
    for thread in started:
        thread.join()
    executors._shutdown = False


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Let a script set signal handlers, which Python allows in the main thread alone: they are kept, not installed."""
    handlers: dict[int, Any] = {}

    def keep(number: int, handler: Any) -> Any:
        before = handlers.get(number, signal.getsignal(number))
        handlers[number] = handler
        return before

    with replaced(signal, signal=keep):
        yield


@contextlib.contextmanager
def _exit_of(thread: threading.Thread) -> Iterator[None]:
    """Let ``os._exit`` end the script where its own thread calls it; in a child process, or elsewhere, the process."""
    leave, process = os._exit, os.getpid()

    def exit_script(status: int) -> Any:
        if os.getpid() == process and threading.current_thread() is thread:
            raise SystemExit(status)
        leave(status)

    with replaced(os, _exit=exit_script):
        yield


def _own_folder(file: Path, module: str | None) -> Path:
    """Return the folder of a script's own code: its own, or that of the package that it is a part of."""
    inside = 0 if module is None else module.count(".") - (file.name != "__main__.py")
    return file.resolve().parents[max(0, inside)]


def _name_of(file: Path) -> str | None:
    """Return the name of the module that a file of a package is; None for one of no package."""
    names, folder = [file.stem], file.resolve().parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names) if names[1:] else None
