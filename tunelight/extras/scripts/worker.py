"""A rank whose trials each run in a process of their own: the actor that Ray knows, and that process.

The process is forked from one that has its imports, where there is one; else it is a new Python. The actor passes calls
on to it, and imports nothing of the training code.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import psutil

from tunelight.compat.ray import set_process_title
from tunelight.errors import GangError
from tunelight.extras.scripts import installed
from tunelight.gang.placement import Assigned, Location
from tunelight.gang.worker import GangWorker, TrialBox
from tunelight.session.task import Home, Start, Task

_END_S = 10.0
"""How long a trial that has ended may take to tidy up before its process is killed."""
_GONE_S = 5.0
_SET_SIGNAL = 10
"""F_SETSIG of Linux, which Python does not name: the signal that a file's owner gets."""
_NEW_PYTHON = "import sys; sys.path[:] = {path!r}; from tunelight.extras.scripts.worker import main; main()"


class ScriptWorker:
    """One rank of a gang, which gets a new process for each trial. Its other methods are those of the process.

    Runs on: worker.
    """

    def __init__(self, home: Home, environ: dict[str, str]) -> None:
        os.environ.update(environ)
        self._home = home
        self._assigned = Assigned.here()
        self._hook: bytes | None = None
        self._modules: dict[str, str] = {}
        self._process: _Process | None = None

    def arrive(self, hook: bytes | None) -> Location:
        """Start the first process; return where it runs."""
        self._hook = hook
        return self.renew()

    def renew(self) -> Location:
        """End the process, with all that it has started, and start another; return where that runs."""
        before = self._process
        if before is not None:
            self._modules |= before.end()
        self._process = _Process(self._modules)
        self._process.begin(self._home, dict(os.environ), self._assigned)
        if before is not None:
            before.wait()  # what it holds on a GPU, another one may need
        location: Location = self._process.call("arrive", self._hook)
        return location

    def start(self, start: Start, task: Task | None) -> None:
        """Start a trial."""
        self._call("start", replace(start, lead=None), task)

    def _call(self, name: str, *args: Any) -> Any:
        if self._process is None:
            raise GangError("the worker has no process")
        return self._process.call(name, *args)


def _passed_on(name: str) -> Callable[..., Any]:
    def call(self: ScriptWorker, *args: Any) -> Any:
        return self._call(name, *args)

    call.__name__, call.__doc__ = name, getattr(GangWorker, name).__doc__
    return call


for _name in ("locate", "host", "join", "leave", "poll", "collectives", "answer", "tell", "abort", "writes"):
    setattr(ScriptWorker, _name, _passed_on(_name))


class _Process:
    """A process of one trial, as its actor sees it. Where it dies by itself, so does the actor."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._calls: dict[int, Future[tuple[str, bytes]]] = {}
        self._lock = threading.Lock()
        self._number = 0
        self._ends = False
        mine, its = socket.socketpair()
        ended, self._lives = os.pipe()
        with its, open(os.devnull, "r+b") as null:  # noqa: PTH123 - a file descriptor
            try:
                _start([null.fileno(), 1, 2, its.fileno(), ended], modules)
            finally:
                os.close(ended)
        self._link = Connection(mine.detach())
        self._reader = threading.Thread(target=self._read, name="tunelight-process", daemon=True)

    def begin(self, home: Home, environ: Mapping[str, str], assigned: Assigned) -> None:
        """Let the process make its rank."""
        self._link.send_bytes(pickle.dumps((home, environ, assigned)))
        self._reader.start()

    def call(self, name: str, *args: Any) -> Any:
        """Return the result of a method of the process's rank."""
        answer: Future[tuple[str, bytes]] = Future()
        with self._lock:
            self._number += 1
            self._calls[self._number] = answer
            self._link.send_bytes(pickle.dumps((self._number, name, args)))
        return _unpacked(*answer.result())

    def end(self) -> dict[str, str]:
        """End the process and what it has started; return which modules another one may have from the beginning."""
        found: dict[str, str] = {}
        with contextlib.suppress(GangError):
            found = self.call("imported", _END_S)
        self._ends = True
        os.close(self._lives)  # the kernel kills its process group
        return found

    def wait(self) -> None:
        """Wait until the process has ended."""
        self._reader.join(_GONE_S)
        self._link.close()

    def _read(self) -> None:
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    number, answer = pickle.loads(self._link.recv_bytes())  # noqa: S301 - from the process that it has started
                    self._calls.pop(number).set_result(answer)
        finally:
            if not self._ends:
                os._exit(1)  # as if it had died itself: the gang knows what to do
        for call in self._calls.values():
            call.set_exception(GangError("the process has ended"))


def _unpacked(trace: str, data: bytes) -> Any:
    """Return the result in an answer, or raise its error. Raises: GangError for what this process cannot unpickle."""
    try:
        result, error = pickle.loads(data)  # noqa: S301 - from the process that it has started
    except Exception as why:  # noqa: BLE001 - of a class that only the training code can import
        text = trace or f"a result of the trial's process cannot be read: {type(why).__name__}: {why}"
        raise GangError(text, "exception") from None
    if error is not None:
        raise error
    return result


def _start(files: list[int], modules: Mapping[str, str]) -> None:
    """Start a process with these open files: as a fork where this one is a fork, else as a new Python."""
    forks = sys.modules.get("tunelight.extras.forks.setup_worker")
    if forks is not None:
        template = f"with-{installed.version(modules)}" if modules else ""
        with contextlib.suppress(OSError, EOFError, ValueError):
            if forks.fork_beside([__file__], files, template, tuple(modules)):
                return
    command = [sys.executable, "-c", _NEW_PYTHON.format(path=sys.path), *map(str, files[3:])]
    subprocess.Popen(command, stdin=files[0], pass_fds=files[3:], start_new_session=True)  # noqa: S603 - this Python


# --- in the process ---------------------------------------------------------------------------------------


class _Rank(GangWorker):
    """The rank itself. Its trial runs in the main thread, as a script does."""

    def __init__(self, home: Home, assigned: Assigned) -> None:
        self.runs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.over = threading.Event()
        self.over.set()
        super().__init__(home, {}, assigned)

    def arrive(self, hook: bytes | None) -> Location:
        """Run the user's hook; return where this process runs."""
        location = super().arrive(hook)
        installed.current = installed.Imports()
        return location

    def start(self, start: Start, task: Task | None) -> None:
        """Start a trial, in the main thread."""
        self.over.clear()
        super().start(start, task)
        self._thread = threading.main_thread()

    def _run(self, task: Task, start: Start, box: TrialBox) -> None:
        self.runs.put(lambda: super(_Rank, self)._run(task, start, box))

    def _clean_up(self, task: Task, late: tuple[str, ...]) -> bool:
        """Do what Python does at a process's end."""
        if (summary := self._compiled.end()) and self._rank == 0:
            sys.stdout.write(f"{summary}\n")
        atexit._run_exitfuncs()
        with contextlib.suppress(ChildProcessError):  # it has none
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            for child in psutil.Process().children(recursive=True):  # reads of all processes of the machine
                with contextlib.suppress(OSError, psutil.Error):
                    if os.getpgid(child.pid) != os.getpgrp():  # the others end with this process
                        child.kill()
        return False

    def imported(self, limit_s: float) -> dict[str, str]:
        """Return the installed modules that the trial has imported, once it has ended; none after ``limit_s``."""
        over = self.over.wait(limit_s)
        return installed.current.found() if over and installed.current is not None else {}


def main() -> None:
    """Be a trial's process until the actor ends it. The last two arguments are its connection, and what ends it."""
    link_file, life = map(int, sys.argv[-2:])
    _end_with(life)
    set_process_title("ray::GangWorker.script")  # by which the gang knows its workers
    os.set_inheritable(link_file, False)
    link = Connection(link_file)
    os.register_at_fork(after_in_child=link.close)
    home, environ, assigned = pickle.loads(link.recv_bytes())  # noqa: S301 - from its actor, as all that comes
    os.environ.clear()
    os.environ.update(environ)
    try:
        rank = _Rank(home, assigned)
    except BaseException as error:  # noqa: BLE001 - the answer to the first call
        return _serve(link, error)
    threading.Thread(target=_serve, args=(link, rank), name="tunelight-calls", daemon=True).start()
    while True:
        rank.runs.get()()
        rank.over.set()


def _end_with(life: int) -> None:
    """Let the kernel kill this process, and its group, once the actor has closed its end of a pipe, or is gone."""
    os.set_inheritable(life, False)
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(life, _SET_SIGNAL, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def _packed(rank: _Rank | BaseException, name: str, args: tuple[Any, ...]) -> tuple[str, bytes]:
    """Return the result of a rank's method, or its error, for ``_unpacked``. ``rank``: or why there is none."""
    try:
        if isinstance(rank, BaseException):
            raise rank
        return "", pickle.dumps((getattr(rank, name)(*args), None))
    except BaseException as error:  # noqa: BLE001 - it is the caller's
        trace = "".join(traceback.format_exception(error))
        with contextlib.suppress(Exception):  # of an error that does not pickle
            return trace, pickle.dumps((None, error)) if isinstance(error, Exception) else b""
        return trace, b""


def _serve(link: Connection, rank: _Rank | BaseException) -> None:
    """Answer the actor's calls, several at a time, until it is gone; then end this process."""
    lock = threading.Lock()

    def answer(number: int, *call: Any) -> None:
        data = pickle.dumps((number, _packed(rank, *call)))
        with lock:
            link.send_bytes(data)

    try:
        with contextlib.suppress(EOFError, OSError):
            while True:
                call = pickle.loads(link.recv_bytes())  # noqa: S301
                threading.Thread(target=answer, args=call, name=f"tunelight-{call[1]}", daemon=True).start()
    finally:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
