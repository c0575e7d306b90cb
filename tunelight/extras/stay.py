"""A driver that stays for the next command: its Ray and what it has imported are ready then.

A command that runs a sweep is carried out by a child of the process that a shell has started. That one, the client,
passes signals on, and ends with the exit code that the driver sends. The driver keeps its Ray for a while
(:mod:`tunelight.cluster.local`), takes the next command from a client of the same user, environment and packages, and
ends with its Ray.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tunelight.errors import SettingsError
from tunelight.extras.forks import setup_worker
from tunelight.extras.forks.setup_worker import Request
from tunelight.machine.processes import memory_is_short, write
from tunelight.messages import Text

VARIABLE: Final = "TUNELIGHT_KEEP"
_SOCKET: Final = "driver"
_FREE: Final = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "LINES", "COLUMNS"})
"""Variables in which the next command's environment may differ."""
_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_ANSWER_S: Final = 5.0
"""How long a driver may take to accept a command."""
_END_S: Final = 60.0
"""How long it may take to end with its Ray."""
_LOOK_S: Final = 1.0
_LONGEST: Final = 90
"""How long the folder's name may be, for a socket's path is short."""
_STAYS: Final = "Ray stays ready for {minutes:.0f} minutes, for the next command; `tunelight down` ends it.\n"


def through_driver(command: Callable[[], None]) -> None:
    """Carry out a command in the driver that stays, or in a child of this process, which becomes it.

    Ends this process with the command's exit code. Where no driver may or can stay, or another command is carried out
    now, it is carried out here.
    """
    if not _may_stay() or not setup_worker.own(folder := _folder()):
        return command()
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(Path(folder, "lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another command's, until it ends
            return command()
        request, pid = setup_worker.request_of(sys.argv), 0
        if (found := _handed_over(folder, request)) is None:
            listener, (link, theirs) = setup_worker.listen(folder, _SOCKET), socket.socketpair()
            if (pid := os.fork()) == 0:
                stack.close()
                link.close()
                _Driver(listener, request, command).serve(theirs)
                sys.exit(0)
            listener.close()
            theirs.close()
            found = link, pid
        sys.exit(_follow(*found, child=bool(pid)))


def down() -> bool:
    """End the driver that stays, with its Ray; tell whether there was one.

    Raises: SettingsError while a command is carried out there; TimeoutError.
    """
    if not setup_worker.own(folder := _folder()):
        return False
    with Path(folder, "lock").open("w") as lock, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SettingsError("A sweep runs on the Ray that is kept. To end it: tunelight stop last") from None
        link.settimeout(_END_S)
        try:
            link.connect(f"{folder}/{_SOCKET}")
        except OSError:
            return False
        setup_worker.send(link, setup_worker.request_of([]), [])
        while link.recv(4):  # until it closes, with the driver's end
            pass
    return True


def _may_stay() -> bool:
    given = os.environ.get(VARIABLE, "0" if os.environ.get("CI") else "1")
    alone = threading.active_count() == 1 and sys.gettrace() is None and sys.getprofile() is None
    return sys.platform == "linux" and given != "0" and alone and len(_folder()) < _LONGEST


def _folder() -> str:
    return f"{tempfile.gettempdir()}/tunelight-{os.geteuid()}-driver"


# --- The client ------------------------------------------------------------------------------------


def _handed_over(folder: str, request: Request) -> tuple[socket.socket, int] | None:
    """Hand a command over to the driver that stays; return the connection and the driver's process, if it took it."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(_ANSWER_S)
    with contextlib.suppress(OSError):
        link.connect(f"{folder}/{_SOCKET}")
        setup_worker.send(link, request, [0, 1, 2])
        if pid := int.from_bytes(link.recv(4), "little"):
            link.settimeout(None)
            return link, pid
    link.close()
    return None


def _follow(link: socket.socket, pid: int, *, child: bool) -> int:
    """Pass signals on to the driver until it has carried the command out; return the exit code."""

    def suspend(*_: object) -> None:
        os.kill(pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # until somebody continues this process
        os.kill(pid, signal.SIGCONT)

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    signal.signal(signal.SIGTSTP, suspend)
    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup, and a shell's background jobs, have it
            signal.signal(number, pass_on)
    with contextlib.suppress(ConnectionError):
        if code := link.recv(1):
            return code[0]
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if child else 1
    if ended < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    if not child:
        sys.stderr.write(f"Error: The driver (process {pid}) has ended before the command did.\n")
    return ended


# --- The driver ------------------------------------------------------------------------------------


class _Driver:
    """What this process is from its first command on: it carries out one after another.

    ``command`` is the function that reads ``sys.argv``.
    """

    def __init__(self, listener: socket.socket, request: Request, command: Callable[[], None]) -> None:
        self._listener, self._first, self._command = listener, request, command
        self._began = time.time()

    def serve(self, link: socket.socket) -> None:
        """Carry out the first command, whose client waits at ``link``, and those that follow."""
        os.setsid()  # signals of the terminal come by the client
        request: Request | None = self._first
        while request is not None:
            code = self._carry_out(request, link)
            with contextlib.suppress(OSError):
                link.sendall(bytes([code]))
            link.close()
            if _kept() is None:
                return
            null = os.open(os.devnull, os.O_RDWR)
            for file in range(3):
                os.dup2(null, file)
            os.close(null)
            request, link = self._next()
        sys.modules["tunelight.cluster.local"].shutdown()

    def _carry_out(self, request: Request, link: socket.socket) -> int:
        """Return the exit code of a command. It is stopped by SIGTERM where its client is gone."""
        over = threading.Event()

        def watch() -> None:
            with contextlib.suppress(OSError):
                link.recv(1)
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, name="tunelight-client", daemon=True).start()
        before = set(sys.modules)
        sys.argv = request.argv
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
        code: Any = 0
        try:
            self._command()
        except SystemExit as ended:
            code = ended.code
        except BaseException:  # noqa: BLE001 - as Python ends
            traceback.print_exc()
            code = 1
        if (kept := _kept()) is not None and not {"-q", "--quiet"} & set(request.argv):
            write(Text(_STAYS.format(minutes=kept.KEEP_S / 60), True))
        for error in (False, True):
            write(Text("", error))
        over.set()
        for name in _own_code(sys.modules.keys() - before):
            del sys.modules[name]  # imported anew by the next command, for it may have been changed
        return code if isinstance(code, int) else int(code is not None)

    def _next(self) -> tuple[Request | None, Any]:
        """Return the next command and the connection to its client; None once this process has to end."""
        others = _raylets()
        while _kept() is not None and not memory_is_short() and _raylets() <= others:
            if not select.select([self._listener], [], [], _LOOK_S)[0]:
                continue
            link, _ = self._listener.accept()
            link.settimeout(_ANSWER_S)
            try:
                request, files = setup_worker.receive(link, 3)
            except (OSError, EOFError, ValueError):
                link.close()
                continue
            if not request.argv or not self._takes(request):
                self._listener.close()
                link.sendall(bytes(4))
                return None, link  # which closes as this process ends
            for file, number in enumerate(files):
                os.dup2(number, file)
                os.close(number)
            if request.cwd != (before := str(Path.cwd())):
                sys.path[:] = [path for path in sys.path if path != before]
                os.chdir(request.cwd)
                os.environ["PWD"] = request.cwd
            link.sendall(os.getpid().to_bytes(4, "little"))
            link.settimeout(None)
            return request, link
        return None, None

    def _takes(self, request: Request) -> bool:
        """Tell whether a new process of this request would be as this one: in its environment, and what it imports."""
        given, first = ((each.env, each._replace(argv=[], env={}, cwd="")) for each in (request, self._first))
        differ = {name for name, _ in given[0].items() ^ first[0].items()}
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        packages = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix)) and Path(path).is_dir()]
        try:
            changed = any(Path(file).stat().st_ctime >= self._began for file in (*files, *packages) if file)
        except OSError:  # a package that was removed
            changed = True
        return given[1] == first[1] and differ <= _FREE and not changed


def _kept() -> Any:
    """Return the module of the Ray that this process keeps, if it keeps one."""
    local: Any = sys.modules.get("tunelight.cluster.local")
    return local if local is not None and local.kept() is not None else None


def _own_code(names: set[str]) -> Iterator[str]:
    """Yield which of these modules are neither Python's nor from an installed package."""
    for name in names:
        module = sys.modules[name]
        origin = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
        if origin and name.partition(".")[0] != "tunelight" and not origin.startswith((sys.prefix, sys.base_prefix)):
            yield name


def _raylets() -> set[int]:
    """Return the processes of this user's Ray nodes on this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "comm").read_text() == "raylet\n" and path.stat().st_uid == os.geteuid():
                found.add(int(path.name))
    return found
