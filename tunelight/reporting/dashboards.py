"""Serve a sweep with optuna-dashboard and TensorBoard, as child processes that end with this one."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tunelight.errors import SettingsError, StorageError
from tunelight.machine.network import HOST, free_port, is_free
from tunelight.record.names import STUDY_FILE

_START_S: Final = 60.0
_END_S: Final = 5.0
_LOOK_S: Final = 0.2


@dataclass(frozen=True)
class Server:
    """A child process that serves pages on a port."""

    name: str
    command: Sequence[str]
    port: int

    @property
    def address(self) -> str:
        """The URL of its pages."""
        return f"http://{HOST}:{self.port}"


def servers(folder: Path, optuna_port: int, tensorboard_port: int) -> tuple[list[Server], list[str]]:
    """Return the servers for a sweep, and notes on those that cannot be started.

    Raises: SettingsError for a port that is in use; StorageError if there is nothing to serve.
    """
    found, notes = [], []
    study, program = folder / STUDY_FILE, _program("optuna-dashboard")
    if not study.exists():
        notes.append(
            f"no optuna-dashboard: the sweep has no {STUDY_FILE} (searcher='tpe' and others of Optuna's write one)"
        )
    elif program is None:
        notes.append("no optuna-dashboard: it is not installed (pip install optuna-dashboard)")
    else:
        command = [program, str(study), "--host", HOST, "--port", str(optuna_port)]
        found.append(Server("optuna-dashboard", command, optuna_port))
    if importlib.util.find_spec("tensorboard") is None:
        notes.append("no TensorBoard: it is not installed (pip install tensorboard)")
    else:
        # -P: modules in the working directory, which may be somebody else's folder, are not looked for.
        command = [sys.executable, "-P", "-m", "tensorboard.main", "--logdir", str(folder), "--host", HOST]
        found.append(Server("TensorBoard", [*command, "--port", str(tensorboard_port)], tensorboard_port))
    if not found:
        raise StorageError(f"Nothing of {folder} can be served: {'; '.join(notes)}.")
    options = {"optuna-dashboard": "--optuna-port", "TensorBoard": "--tensorboard-port"}
    for server in found:
        if not is_free(server.port):
            raise SettingsError(
                f"Port {server.port} is in use, so that {server.name} cannot listen there. Give another: "
                f"{options[server.name]} {free_port()}"
            )
    if len({server.port for server in found}) < len(found):
        raise SettingsError(f"Both cannot listen on port {optuna_port}. Give --tensorboard-port another number.")
    return found, notes


def serve(wanted: Sequence[Server], say: Callable[[str], Any]) -> None:
    """Start servers, report their URLs once they answer, wait for Ctrl-C or SIGTERM, and end them.

    Raises: StorageError if one ends by itself, with its last output. Runs on: the main thread of a process.
    """
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory(prefix="tunelight-dashboard-") as logs:
        stack.enter_context(_terminated_as_interrupted())
        running = [(server, stack.enter_context(_child(server, Path(logs)))) for server in wanted]
        try:
            for server, child in running:
                _wait_for(server, child, Path(logs))
                say(f"{server.name}: {server.address}")
            say("Ctrl-C ends them.")
            while True:
                for server, child in running:
                    _check(server, child, Path(logs))
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            return


def _program(name: str) -> str | None:
    """Return the path of a program in this Python's environment, else on PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)


@contextlib.contextmanager
def _child(server: Server, logs: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server while the context lasts; its output goes to a file."""
    with (logs / f"{server.name}.log").open("wb") as log:
        child = subprocess.Popen(  # noqa: S603 - our own commands
            list(server.command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield child
    finally:
        for end in (child.terminate, child.kill):
            if child.poll() is None:
                end()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_END_S)


def _wait_for(server: Server, child: subprocess.Popen[bytes], logs: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        _check(server, child, logs)
        with contextlib.suppress(OSError), socket.create_connection((HOST, server.port), timeout=1):
            return
        time.sleep(_LOOK_S)
    raise StorageError(
        f"{server.name} did not answer on port {server.port} within {_START_S:.0f} s.{_words(server, logs)}"
    )


def _check(server: Server, child: subprocess.Popen[bytes], logs: Path) -> None:
    if child.poll() is not None:
        raise StorageError(f"{server.name} ended by itself (exit code {child.returncode}).{_words(server, logs)}")


def _words(server: Server, logs: Path) -> str:
    lines = (logs / f"{server.name}.log").read_text(errors="replace").strip().splitlines()
    return f" It said: {' / '.join(lines[-3:])}" if lines else ""


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that children do not outlive this process."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {one: signal.signal(one, interrupt) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
