"""Imports libraries once, and forks workers that have them.

The first server imports MODULES and forks a second server for each Ray job. That one takes over the job's environment,
imports LATER (Ray itself, whose libraries read their settings then) and forks the job's workers, each a new process
that shares the memory of all imports. For processes that need further modules it forks a third server, which imports
these.

A server refuses to fork for another environment than its own, since libraries read variables when they are imported;
the worker is then started as Ray would. Servers end with the job's raylet, after ``_IDLE_S`` without a worker, and when
memory gets short. They are run as a script:

    python server.py FOLDER THREADS MODULES LATER
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[3])  # in place of this script's folder
from tunelight.extras.forks import setup_worker
from tunelight.extras.forks.setup_worker import Request
from tunelight.machine.processes import is_running, memory_is_short

sys.path.pop(0)

_IDLE_S = 300.0
"""How long a job's server without a living worker waits for the next."""
_FIRST_S = 60.0
"""How long the first request may take, while Ray starts."""
_IMPORT_S = 180
_END_S = 5.0
"""How long workers may take to end after their raylet."""
_LOOK_S = 1.0
_ANSWER_S = 10.0
"""How long a launcher may take to send its request, and to say that it waits for the fork."""
_MOST_FILES = 8
"""How many open files a process may be given."""
_BAD_ADJUSTMENT = "1000"
"""As Ray marks its workers: the kernel ends them first where memory is short, and never the raylet."""


def main(argv: list[str]) -> Request | None:
    """Serve until the end; return what a fork of it, a worker, has to become."""
    folder, threads, modules, later = argv
    if not setup_worker.own(folder):
        return None
    if memory_is_short():
        sys.exit(setup_worker.NO_ROOM)
    lock = (Path(folder) / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None  # another one serves
    _log_to(folder)
    listener = setup_worker.listen(folder, setup_worker.BASE)
    mine = dict(os.environ)
    os.environ.setdefault("OMP_NUM_THREADS", threads)  # Ray sets it for a worker before that imports anything
    why = _prepare(modules)
    os.environ.clear()
    os.environ.update(mine)
    server = Server(folder, [listener, lock], lambda env: not why and _same(env, mine))
    request = server.serve_jobs(later)
    if request is None:
        shutil.rmtree(folder, ignore_errors=True)
    return request


class Server:
    """Forks a process for each request at a socket."""

    def __init__(self, folder: str, holds: Sequence[Any], takes: Callable[[Mapping[str, str]], bool]) -> None:
        self._folder, self._takes = folder, takes
        self._holds = holds  # its socket, and what else a fork closes
        self._listener: socket.socket = holds[0]
        self._children: dict[int, str] = {}
        self._raylet = 0  # the process of the Ray node that has asked last
        self._last = time.monotonic()
        signal.signal(signal.SIGCHLD, self._reap)

    def serve_jobs(self, later: str) -> Request | None:
        """Fork a server for each job; return a worker's request in a worker that it has forked."""
        while (asked := self._next()) is not None:
            link, request, files = asked
            with contextlib.closing(link):
                if not self._takes(request.env):
                    _answer(link, setup_worker.REFUSED)
                elif request.job in self._children.values():
                    _answer(link, setup_worker.ELSEWHERE)
                else:
                    listener = setup_worker.listen(self._folder, request.job)
                    if self._fork(request.job):
                        return Server(self._folder, [listener], self._takes).serve_workers(later, link, request, files)
                    listener.close()
            _close(files)
        return None

    def serve_workers(self, later: str, link: socket.socket, request: Request, files: list[int]) -> Request | None:
        """Fork workers of one job; return the request in a worker."""
        mine = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ.clear()
        os.environ.update(request.env)
        # Where Python would import from: the script's folder, the request's PYTHONPATH, the environment's own.
        given = [str(Path(request.cwd, path)) for path in request.env.get("PYTHONPATH", "").split(os.pathsep) if path]
        rest = [path for path in sys.path if path not in mine]
        sys.path[:] = [str(Path(request.argv[0]).parent), *given, *rest]
        return self._serve(request.job, later, link, request, files)

    def _serve(self, name: str, modules: str, link: socket.socket, request: Request, files: list[int]) -> Request:
        """Import modules and fork processes at the socket ``name``; return the request in one of them."""
        self._raylet = raylet_of(request)
        why = _prepare(modules)
        asked: tuple[socket.socket, Request, list[int]] | None = (link, request, files)
        while asked is not None:
            link, request, files = asked
            with contextlib.closing(link):
                if why or not self._takes(request.env):
                    _answer(link, setup_worker.REFUSED)
                elif request.template not in ("", name):
                    if request.template in self._children.values():
                        _answer(link, setup_worker.ELSEWHERE)
                    else:
                        listener = setup_worker.listen(self._folder, request.template)
                        if self._fork(request.template):
                            server = Server(self._folder, [listener], self._takes)
                            return server._serve(request.template, ",".join(request.modules), link, request, files)
                        listener.close()
                elif self._fork("worker"):
                    if not _answer(link, setup_worker.FORKED, setup_worker.GO):
                        os._exit(0)  # the launcher gave up, and has started the worker itself
                    return _become(self._folder, request, files)
            _close(files)
            asked = self._next()
        (Path(self._folder) / name).unlink(missing_ok=True)
        self._end_children()
        os._exit(0)  # what was registered to be done at exit belongs to workers

    def _fork(self, name: str) -> bool:
        """Fork, and tell whether this is the child."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # a child that ends at once is known by then
        if pid := os.fork():
            self._children[pid] = name
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            return False
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        for held in self._holds:
            held.close()
        return True

    def _next(self) -> tuple[socket.socket, Request, list[int]] | None:
        """Return the next request and its connection; None once this server has to end."""
        while not self._over():
            if not select.select([self._listener], [], [], _LOOK_S)[0]:
                continue
            link, _ = self._listener.accept()
            link.settimeout(_ANSWER_S)
            try:
                peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                if struct.unpack("3i", peer)[1] != os.geteuid():  # of process, user and group
                    raise EOFError
                request, files = setup_worker.receive(link, _MOST_FILES)
            except (OSError, EOFError, ValueError):
                link.close()
                continue
            self._last = time.monotonic()
            self._raylet = raylet_of(request)
            return link, request, files
        return None

    def _reap(self, *_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self._children.pop(ended, None)
                self._last = time.monotonic()

    def _end_children(self) -> None:
        """End workers that have not ended with their raylet, which knows no process that never registered."""
        if not self._raylet or is_running(self._raylet):
            return
        end = time.monotonic() + _END_S
        while self._children and time.monotonic() < end:
            time.sleep(_LOOK_S / 10)
        for pid in list(self._children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _over(self) -> bool:
        """Tell whether to end: Ray has ended, nothing was asked for long, or memory is short."""
        if not Path(self._folder).exists():
            return True  # who has started it wants no more workers
        if self._raylet and not is_running(self._raylet):
            return "worker" in self._children.values() or not self._children  # a server of jobs outlives another Ray's
        limit_s = _IDLE_S if self._raylet else _FIRST_S
        return (not self._children and time.monotonic() - self._last > limit_s) or memory_is_short()


def raylet_of(request: Request) -> int:
    """Return the id of the process that manages the node, which asks for the worker."""
    return int(request.env.get("RAY_RAYLET_PID", "0"))


def _log_to(folder: str) -> None:
    """Write what libraries print to a file in the server's folder, and read nothing."""
    os.chdir("/")
    log = os.open(Path(folder) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for file, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(file, number)
    for file in (log, null):
        os.close(file)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_BAD_ADJUSTMENT)


def _prepare(modules: str) -> str | None:
    """Import modules, separated by commas; return why this process must not fork then, or None.

    An entry ``module:function`` is called with a function that imports those after it, and says why or None.
    """
    gc.disable()
    signal.alarm(_IMPORT_S)  # ends a process whose import hangs
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # CUDA must not be met before a fork
    why = _import([name for name in modules.split(",") if name])
    signal.alarm(0)
    gc.collect()
    gc.freeze()  # collections in forks would copy all pages that hold objects
    if why := why or _unfit():
        print(f"no forks: {why}", flush=True)
    return why


def _import(names: Sequence[str]) -> str | None:
    """Import modules; those that are not there are left to the worker to miss."""
    for number, name in enumerate(names):
        module, _, function = name.partition(":")
        try:
            found = importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - the worker will see it where it imports this itself
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        if function:
            why: str | None = getattr(found, function)(lambda rest=names[number + 1 :]: _import(rest))
            return why
    return None


def _unfit() -> str | None:
    """Return why this process must not fork: it would leave threads, or a GPU's context, behind."""
    if threading.active_count() > 1:
        return f"threads {[thread.name for thread in threading.enumerate()]}"
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text()
        if "/dev/kfd" in maps or ("/libcuda.so" in maps and _uses_cuda()):
            return "a library has met a GPU"
    return None


def _uses_cuda() -> bool:
    """Tell whether CUDA is initialised in this process, which has loaded its driver; asking does not initialise it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True  # nobody can tell
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)


def _same(env: Mapping[str, str], mine: Mapping[str, str]) -> bool:
    """Tell whether libraries that were imported with ``mine`` are as if they were imported with ``env``."""

    def read(given: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in given.items() if not setup_worker.may_differ(name)}

    if differ := {name for name, _ in read(env).items() ^ read(mine).items()}:
        print(f"no fork: the environment differs in {', '.join(sorted(differ))}", flush=True)
    return not differ


def _answer(link: socket.socket, reply: bytes, expected: bytes = b"") -> bool:
    """Send an answer; tell whether the expected one came back."""
    try:
        link.sendall(reply)
        return not expected or link.recv(len(expected)) == expected
    except OSError:
        return False


def _become(folder: str, request: Request, files: list[int]) -> Request:
    """Take over what a process has from its parent; return the request, with the numbers of further files."""
    os.setsid()
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    _close(files[:3])
    setup_worker.born = folder, request
    request = request._replace(argv=[*request.argv, *map(str, files[3:])])
    os.environ.clear()
    os.environ.update(request.env)
    os.umask(request.umask)
    for number, limit in request.limits:
        with contextlib.suppress(OSError, ValueError):  # what a user may not raise
            resource.setrlimit(number, limit)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, request.cores)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, request.niceness)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(request.env.get("RAY_worker_oom_score_adjustment", _BAD_ADJUSTMENT))
    with contextlib.suppress(OSError):
        os.chdir(request.cwd)
    sys.argv = list(request.argv)
    gc.enable()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # as in a process of its own; Python's generator does so by itself
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    return request


def _close(files: list[int]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)


if __name__ == "__main__":
    if (worker := main(sys.argv[1:])) is not None:
        import runpy

        runpy.run_path(worker.argv[0], run_name="__main__")  # ends as a script does
