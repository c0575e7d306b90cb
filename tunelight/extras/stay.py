"""A driver that stays for the next command: its Ray and what it has imported are ready then.

A command that runs a sweep is carried out by a child of the process that a shell has started. That one, the client,
passes signals on, and ends with the exit code that the driver sends. The driver keeps its Ray for a while
(:mod:`tunelight.cluster.local`), takes the next command from a client of the same user, environment and packages, and
ends with its Ray.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import io
import logging
import os
import select
import signal
import socket
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tunelight.compat import replaced
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
_BAD_INPUT: Final = 2
_SET_SIGNAL: Final = 10
"""Linux's F_SETSIG: which signal says that something has come over a connection, or that it has closed."""
_BY_LIBRARIES: Final = frozenset({"CUDA_MODULE_LOADING", "CRC32C_SW_MODE", "PWD"})
"""Variables that libraries set as they are imported, beside those of ``may_differ``."""
_END_S: Final = 60.0
"""How long it may take to end with its Ray."""
_LOOK_S: Final = 1.0
_LONGEST: Final = 90
"""How long the folder's name may be, for a socket's path is short."""
_INSTALLED: Final = tuple(f"{sysconfig.get_path(kind)}/" for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
_STAYS: Final = "Ray stays ready for {:.0f} minutes, for the next command; `tunelight down` ends it.\n"


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
        request, pid = _request(), 0
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
    passes = None not in (sys.stdin, sys.stdout, sys.stderr) and not any("/dev/fd/" in word for word in sys.argv)
    possible = sys.platform == "linux" and len(_folder()) < _LONGEST
    return possible and given.lower() not in ("0", "", "false") and alone and passes


def _request() -> Request:
    """Return what this command would need of another process: also this Python, with its options."""
    start = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    return setup_worker.request_of(sys.argv)._replace(template=sys.executable, modules=tuple(start))


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
        self._paths, self._handlers = list(sys.path), list(logging.root.handlers)
        self._files: list[int] = []  # those of the first client's beside its streams; Python's own are not inherited
        for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers
            with contextlib.suppress(OSError):  # of this look
                if number > 2 and os.get_inheritable(number):
                    self._files.append(number)
        self._folder = request.cwd

    def serve(self, link: socket.socket) -> None:
        """Carry out the first command, for the client at ``link``, and then the next ones."""
        os.setsid()  # signals of the terminal come by the client
        request: Request | None = self._first
        while request is not None:
            timer, code = getattr(_kept(), "timer", None), self._carry_out(request, link)
            stays = self._stays(request, code)
            if stays and _kept().timer is not timer and not {"-q", "--quiet"} & set(request.argv):
                write(Text(_STAYS.format(sys.modules["tunelight.cluster.local"].KEEP_S / 60), True))
            if not stays and request is self._first:
                sys.exit(code)  # its client is the parent
            with contextlib.suppress(OSError):
                link.sendall(bytes([code & 0xFF]))
            link.close()
            if not stays:
                return
            null = os.open(os.devnull, os.O_RDWR)
            for file in range(3):
                os.dup2(null, file)
            for file in (null, *self._files):  # the first client's, such as a lock
                with contextlib.suppress(OSError):
                    os.close(file)
            self._files = []
            request, link = self._next()
        sys.modules["tunelight.cluster.local"].shutdown()

    def _stays(self, request: Request, code: int) -> bool:
        """Tell whether this process is as fit for the next command as a new one."""
        threads = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
        differ = {name for name, _ in os.environ.items() ^ request.env.items() if not setup_worker.may_differ(name)}
        again = code == _BAD_INPUT and request is not self._first  # a module that can be imported only once, say
        kept = _kept()
        return kept is not None and not threads and not again and differ <= _BY_LIBRARIES | kept.added

    def _carry_out(self, request: Request, link: socket.socket) -> int:
        """Return the exit code of a command. It is stopped by SIGTERM where its client is gone."""
        over = threading.Event()

        def watch() -> None:
            with contextlib.suppress(OSError):
                link.recv(1)
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

        fcntl.fcntl(link, fcntl.F_SETOWN, os.getpid())  # a client that is gone wakes this process, if it was suspended
        fcntl.fcntl(link, _SET_SIGNAL, signal.SIGCONT)
        fcntl.fcntl(link, fcntl.F_SETFL, fcntl.fcntl(link, fcntl.F_GETFL) | os.O_ASYNC)
        for number in _PASSED_ON:  # the client passes on none that it ignores
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        threading.Thread(target=watch, name="tunelight-client", daemon=True).start()
        before = set(sys.modules)
        sys.argv = request.argv
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
        with _at_its_end():
            code = _code_of(self._command)
        for error in (False, True):
            write(Text("", error))
        over.set()
        logging.root.handlers[:] = self._handlers
        for name in filter(_is_own, sys.modules.keys() - before):
            del sys.modules[name]  # imported anew by the next command, for it may have been changed
        return code

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
                taken = bool(request.argv) and self._takes(request)
                link.sendall((os.getpid() if taken else 0).to_bytes(4, "little"))
            except (OSError, EOFError, ValueError):  # it has gone
                link.close()
                continue
            if not taken:
                self._listener.close()
                return None, link  # which closes as this process ends
            for file, number in enumerate(files):
                os.dup2(number, file)
                os.close(number)
            if request.cwd != self._folder:
                packages = sysconfig.get_path("purelib")
                sys.path[:] = [path for path in sys.path if path in self._paths or path.startswith(packages)]
                os.chdir(request.cwd)
                os.environ["PWD"] = self._folder = request.cwd
            link.settimeout(None)
            return request, link
        return None, None

    def _takes(self, request: Request) -> bool:
        """Tell whether a new process of this request would be as this one: in its environment, and what it imports."""
        given, first = (each._replace(argv=[], env={}, cwd="") for each in (request, self._first))
        differ = {name for name, _ in request.env.items() ^ self._first.env.items()}
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        packages = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix)) and Path(path).is_dir()]
        try:
            changed = any(Path(file).stat().st_mtime >= self._began for file in (*files, *packages) if file)
        except OSError:  # a package that was removed
            return False
        return given == first and differ <= _FREE and not changed and Path(request.cwd).is_dir()


def _code_of(command: Callable[[], None]) -> int:
    """Return the exit code with which a process of this command would end."""
    try:
        command()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        write(Text(f"{ended.code}\n", True))
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - as Python ends
        traceback.print_exc()
        return 1
    return 0


@contextlib.contextmanager
def _at_its_end() -> Iterator[None]:
    """Call at the end of this context what a user's own code registers with ``atexit`` meanwhile."""
    register, later = atexit.register, contextlib.ExitStack()

    def registered(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_own(getattr(function, "__module__", None) or ""):
            return register(function, *args, **kwargs)
        later.callback(function, *args, **kwargs)
        return function

    with replaced(atexit, register=registered):
        yield
    try:
        later.close()
    except Exception:  # noqa: BLE001 - as Python ends
        traceback.print_exc()


def _kept() -> Any:
    """Return the Ray that this process keeps, if it keeps one."""
    local: Any = sys.modules.get("tunelight.cluster.local")
    return None if local is None else local.kept()


def _is_own(name: str) -> bool:
    """Tell whether a module is a user's: neither Python's nor from an installed package."""
    module = sys.modules.get(name)
    origin = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return bool(origin) and name.partition(".")[0] != "tunelight" and not origin.startswith(_INSTALLED)


def _raylets() -> set[int]:
    """Return the processes of this user's Ray nodes on this machine that have their files beside this one's."""
    found, files = set(), f"{tempfile.gettempdir()}/ray/"
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (path / "cmdline").read_text(errors="replace")
            if line.partition("\0")[0].endswith("/raylet") and files in line and path.stat().st_uid == os.geteuid():
                found.add(int(path.name))
    return found
