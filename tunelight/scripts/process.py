"""What a script may do to its process, which other trials use after it: undone, or a reason to replace the worker."""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import logging
import os
import runpy
import signal
import site
import sys
import sysconfig
import threading
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tunelight.errors import ScriptError, last_line

_LAST_LINES = 20
"""How much of what a script writes to standard error is kept, to say why it exited."""
_RESTORED = ("argv", "excepthook", "displayhook", "stdout", "stderr", "stdin")
_OURS = (
    *(str(Path(path).resolve()) for path in {*site.getsitepackages(), site.getusersitepackages()}),
    *(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).resolve().parents[1]),
)
"""Folders of modules that stay from trial to trial: Python's own, what is installed, and tunelight."""


def run(file: Path, module: str | None, argv: list[str]) -> None:
    """Run a script as ``__main__`` of this process, like ``python file`` or ``python -m module``, to its end.

    Raises: ScriptError for an exit code that says it failed, and whatever the script raises. Runs on: worker.
    """
    thread = threading.current_thread()
    known = set(sys.modules)
    tail = _Tail(sys.stderr)
    with contextlib.ExitStack() as stack:
        for name in _RESTORED:
            stack.callback(setattr, sys, name, getattr(sys, name))
        stack.callback(_forget_modules, known)
        stack.enter_context(_import_path(str(Path.cwd()) if module else str(file.parent)))
        at_exit = stack.enter_context(_at_exit(known))
        stack.enter_context(_signals())
        stack.enter_context(_loggers())
        stack.enter_context(_exit_of(thread))
        sys.stdin = stack.enter_context(open(os.devnull))  # noqa: PTH123 - nobody answers a script that asks
        sys.argv, sys.stderr = argv, tail
        try:
            if module:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(file), run_name="__main__")
        except SystemExit as error:
            _check_exit(error.code, tail, file)
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
    said = "\n".join(tail.lines)
    why = last_line(said) if isinstance(code, int) else str(code)
    raise ScriptError(f"{file.name} exited with {code if isinstance(code, int) else 1}{f': {why}' if why else ''}")


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
def _import_path(first: str) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, first)
    try:
        yield
    finally:
        sys.path[:] = before


@contextlib.contextmanager
def _at_exit(known: set[str]) -> Iterator[list[Callable[[], object]]]:
    """Collect the functions of the script itself that are to run at exit; those of libraries are for the process."""
    functions: list[Callable[[], object]] = []
    register = atexit.register

    def collect(function: Any, *args: Any, **kwargs: Any) -> Any:
        home = getattr(function, "__module__", None) or "__main__"
        if home != "__main__" and (home in known or not _is_local(sys.modules.get(home))):
            return register(function, *args, **kwargs)
        functions.append(functools.partial(function, *args, **kwargs))
        return function

    atexit.register = collect  # type: ignore[assignment]  # a decorator too, as the original
    try:
        yield functions
    finally:
        atexit.register = register


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Let a script set signal handlers, which Python allows in the main thread alone: they are kept, not installed."""
    handlers: dict[int, Any] = {}
    set_handler = signal.signal

    def keep(number: int, handler: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return set_handler(number, handler)
        before = handlers.get(number, signal.getsignal(number))
        handlers[number] = handler
        return before

    signal.signal = keep  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = set_handler


@contextlib.contextmanager
def _loggers() -> Iterator[None]:
    """Give loggers back the handlers and levels that they had; those that the script has made lose theirs."""
    loggers = logging.root.manager.loggerDict

    def state() -> dict[str, tuple[Any, ...]]:
        return {
            name: (list(one.handlers), one.level, one.propagate, one.disabled)
            for name, one in list(loggers.items())
            if isinstance(one, logging.Logger)
        }

    before = state()
    try:
        yield
    finally:
        for name, now in state().items():
            if now != (was := before.get(name, ([], logging.NOTSET, True, False))):
                one = logging.getLogger(name)
                one.handlers[:], level, one.propagate, one.disabled = was
                one.setLevel(level)


@contextlib.contextmanager
def _exit_of(thread: threading.Thread) -> Iterator[None]:
    """Let ``os._exit`` end the script where its own thread calls it; in a child process, or elsewhere, the process."""
    leave, process = os._exit, os.getpid()

    def exit_script(status: int) -> Any:
        if os.getpid() == process and threading.current_thread() is thread:
            raise SystemExit(status)
        leave(status)

    os._exit = exit_script
    try:
        yield
    finally:
        os._exit = leave


# --- what is left -----------------------------------------------------------------------------------------


def _is_local(module: types.ModuleType | None) -> bool:
    """Tell whether a module is of the script's own code: neither Python's nor installed, and no compiled one."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith((".py", ".pyc")):
        return False
    path = str(Path(file).resolve())
    return not any(path.startswith(f"{folder}{os.sep}") for folder in _OURS)


def _forget_modules(known: set[str]) -> None:
    """Forget the script's own modules: the next trial imports them anew, as they are then."""
    for name in set(sys.modules) - known:
        if _is_local(sys.modules.get(name)):
            del sys.modules[name]


def left_behind(files: Iterable[Path], own: set[threading.Thread]) -> tuple[str, ...]:
    """Return why other trials must not use this process: what a script has changed in libraries, or still runs.

    Args:
        files: the script and its modules.
        own: threads that were there before the script.
    """
    files = set(files)
    local = frozenset(name for file in files for name in (file.stem, file.parent.name))
    found = (line for file in files for line in _patches(file, file.stat().st_mtime_ns, local))
    if patched := next(found, None):
        return (f"a library that the script has changed: {patched}",)
    for thread in threading.enumerate():
        target = getattr(thread, "_target", None) or type(thread).run
        code = getattr(target, "__code__", None)
        if thread not in own and code is not None and Path(code.co_filename) in files:
            return (f"a thread of the script: {thread.name}",)
    return ()


@functools.lru_cache(maxsize=256)
def _patches(file: Path, _changed: int, local: frozenset[str]) -> tuple[str, ...]:
    """Return where a file assigns to an attribute of something imported: "train.py:12: torch.save = ...".

    Settings that each trial gets anew (``sys``, torch's flags) do not count, nor do modules of the script's own, whose
    names are in ``local``.
    """
    found = _Patches()
    found.visit(ast.parse(file.read_bytes()))
    return tuple(
        f"{file.name}:{line}: {text}"
        for line, full, text in found.found
        if full.partition(".")[0] not in local and not any(f"{full}.".startswith(f"{name}.") for name in _SETTINGS)
    )


_SETTINGS = ("sys", "os", "warnings", "logging", "matplotlib", "torch.backends")
"""What each trial gets anew."""


class _Patches(ast.NodeVisitor):
    """Finds assignments to attributes of imported names, each with its line, the full name and the source."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str, str]] = []
        self._imported: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            first = alias.name.partition(".")[0]
            self._imported[alias.asname or first] = alias.name if alias.asname else first

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._imported[alias.asname or alias.name] = f"{node.module or '.'}.{alias.name}"

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        before = dict(self._imported)
        arguments = node.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
            if each is not None:
                self._imported.pop(each.arg, None)  # an argument of the same name
        self.generic_visit(node)
        self._imported = before

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef  # noqa: N815 - ast's names

    def visit_Assign(self, node: ast.Assign) -> None:
        self._assigned(node, node.targets)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._assigned(node, [node.target])

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "setattr" and node.args:
            self._assigned(node, [ast.Attribute(node.args[0], "attribute", ast.Store())])
        self.generic_visit(node)

    def _assigned(self, node: ast.stmt | ast.expr, targets: list[ast.expr]) -> None:
        for target in targets:
            names: list[str] = []
            inner = target
            while isinstance(inner, ast.Attribute):
                names.insert(0, inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and names and inner.id in self._imported:
                full = ".".join((self._imported[inner.id], *names))
                self.found.append((node.lineno, full, ast.unparse(target) + " = ..."))
            elif isinstance(inner, ast.Name) and not names:
                self._imported.pop(inner.id, None)  # the name is the script's own from here on
        self.generic_visit(node)
