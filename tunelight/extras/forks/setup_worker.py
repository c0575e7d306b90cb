"""Starts a Ray worker as a fork of a server that has imported its libraries; where that fails, as Ray would.

Ray runs this script in Python's place (``py_executable`` of a ``runtime_env``), without site-packages, for it must be
fast:

    python -I -S setup_worker.py FOLDER THREADS MODULES LATER default_worker.py ARGUMENTS...

A Ray of tunelight's own runs it even before, in the place of Ray's script of this name, by which the raylet knows it.
That one imports a part of Ray to read a few words of JSON, which takes longer than all else of a fork's start:

    python setup_worker.py default_worker.py ARGUMENTS... --language=PYTHON --serialized-runtime-env-context=JSON

FOLDER is this user's own, and holds the sockets of the servers. The first launcher of a node starts the server
(server.py beside this), which imports MODULES; launchers wait for it meanwhile. What a process has from its parent
(arguments, environment, folder, open files, niceness) is sent to the server, whose fork takes it over. The fork begins
once both sides have said so: a launcher that gave up has started the worker itself.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import json
import marshal
import os
import resource
import shlex
import socket
import stat
import sys
import time
from typing import NamedTuple

TAKE_S = 40.0
"""How long all may take until a worker is forked, while a server imports: Ray gives a worker up after 60 s."""
LISTEN_S = 10.0
"""How long a server that has been started may take until it listens."""
_LOOK_S = 0.01
PYTHON_OPTIONS = ["-I", "-S"]
"""With which Python runs this script."""
BASE = "server"
"""The name of the first server's socket."""
NO_ROOM = 3
"""The exit status of a server that finds too little memory to start."""
FORKED, REFUSED, ELSEWHERE, GO = b"1", b"0", b"2", b"3"
"""What a server answers, and what the launcher says to a fork."""
CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="
_READ = frozenset({"py_executable", "env_vars"})
"""Fields of Ray's context that are read here; of the others all have to be empty."""
_FREE = frozenset(
    {
        *("PYTHONPATH", "PATH", "PWD", "OLDPWD", "SHLVL", "_", "LINES", "COLUMNS", "SPT_NOENV"),
        *("PS1", "PS2", "PS4"),  # virtual environments export PS1, and bash, by which Ray starts workers, drops it
        "PL_DISABLE_FORK",  # Tune sets it for its trials; Lightning reads it when it launches processes
        # Lightning, torch and scikit-learn set these when a driver imports them, and so in a worker that does:
        *("PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"),
    }
)
_FREE_PREFIXES = ("RAY_", "TUNE_", "TUNELIGHT_")
_FREE_ENDS = "_VISIBLE_DEVICES"


def may_differ(name: str) -> bool:
    """Tell whether no library of MODULES reads a variable when it is imported: forks may have another value of it."""
    return name in _FREE or name.startswith(_FREE_PREFIXES) or name.endswith(_FREE_ENDS)


class Request(NamedTuple):
    """What a process has from its parent."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    umask: int
    niceness: int
    limits: list[tuple[int, tuple[int, int]]]
    """Resource limits, soft and hard, by their numbers: Ray raises that of open files."""
    cores: list[int]
    job: str
    """The name of the socket of the server that has met this Ray job."""
    template: str = ""
    """The name of the socket of a server that has imported ``modules`` as well; empty where none is needed."""
    modules: tuple[str, ...] = ()


born: tuple[str, Request] | None = None
"""In a process that a server has forked: the server's folder, and what the process was told to become."""


def job_of(env: dict[str, str]) -> str:
    """Return the name of a job's server: Ray's libraries read its variables when they are imported, and only then."""
    read = sorted((name, value) for name, value in env.items() if name.startswith("RAY_") or name == "PYTHONPATH")
    return f"job-{hashlib.sha256(repr(read).encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"


def own(folder: str) -> bool:
    """Make a folder for this user alone, unless it is there; tell whether it is that."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def request_of(argv: list[str]) -> Request:
    """Return a request for a process that has all from this one, with these arguments."""
    env = dict(os.environ)
    umask = os.umask(0)
    os.umask(umask)
    numbers = {number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}
    limits = [(number, resource.getrlimit(number)) for number in sorted(numbers)]
    cores = sorted(os.sched_getaffinity(0))
    return Request(argv, env, os.getcwd(), umask, os.nice(0), limits, cores, job_of(env))


def listen(folder: str, name: str) -> socket.socket:
    """Return a socket of this name that listens, in place of one before it."""
    path = os.path.join(folder, name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(128)
    return listener


def send(link: socket.socket, request: Request, files: list[int]) -> None:
    """Send a request, and copies of open files."""
    data = marshal.dumps(tuple(request))
    rights = array.array("i", files)
    link.sendmsg([len(data).to_bytes(8, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    link.sendall(data)


def receive(link: socket.socket, files: int) -> tuple[Request, list[int]]:
    """Return what ``send`` has sent. Raises: EOFError where the other side has gone."""
    rights = array.array("i")
    head, passed, _, _ = link.recvmsg(8, socket.CMSG_SPACE(files * rights.itemsize))
    for _, _, data in passed:
        rights.frombytes(data[: len(data) - len(data) % rights.itemsize])
    parts, left = [], int.from_bytes(head, "little") if len(head) == 8 else -1
    while left > 0:
        parts.append(link.recv(left))
        if not parts[-1]:
            break
        left -= len(parts[-1])
    if left:
        for file in rights:
            os.close(file)
        raise EOFError
    return Request(*marshal.loads(b"".join(parts))), list(rights)  # noqa: S302 - from this user's own folder


def ask(folder: str, name: str, request: Request, files: list[int], end: float) -> bytes | None:
    """Return what the server at a socket answers to a request, by the time ``end``; None where none listens.

    Where it has forked, the fork is told to go on.
    """
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as link:
        link.settimeout(max(_LOOK_S, end - time.monotonic()))
        try:
            link.connect(os.path.join(folder, name))
        except OSError:
            return None  # it has ended, or is about to begin
        send(link, request, files)
        answer = link.recv(1)
        if answer == FORKED:
            link.sendall(GO)
        return answer


def fork_beside(argv: list[str], files: list[int], template: str = "", modules: tuple[str, ...] = ()) -> bool:
    """Let the server that has forked this process fork another like it; tell whether it did.

    Args:
        argv: a Python file to run, and its arguments. The numbers of further ``files`` are appended.
        files: what the process has as standard input, output and error, and further open files.
        template: the name of the server that forks it once it has imported ``modules``, and then those like it.
    """
    if born is None:
        return False
    folder, mine = born
    request = mine._replace(argv=argv, template=template, modules=modules)
    end = time.monotonic() + TAKE_S
    names = [template, mine.job] if template else [mine.job]
    while time.monotonic() < end:
        for name in names:
            answer = ask(folder, name, request, files, end)
            if answer == FORKED:
                return True
            if answer is not None and answer != ELSEWHERE:  # what it has imported must not be forked
                return bool(template) and fork_beside(argv, files)
            if name == mine.job and answer is None:
                return False
        time.sleep(_LOOK_S)
    return False


def forked(folder: str, server: list[str], argv: list[str]) -> bool:
    """Let a server fork this worker; tell whether it did."""
    if not own(folder):
        return False
    request = request_of(argv)
    began, started = time.monotonic(), 0
    while time.monotonic() < began + LISTEN_S:
        for name in (request.job, BASE):
            answer = ask(folder, name, request, [0, 1, 2], began + TAKE_S)
            if answer not in (None, ELSEWHERE):
                return answer == FORKED
        if not started:
            started = spawn(server)
        elif started > 0 and (ended := os.waitpid(started, os.WNOHANG))[0]:
            if os.waitstatus_to_exitcode(ended[1]) == NO_ROOM:
                return False
            started = -1  # another one serves, or is about to
        time.sleep(_LOOK_S)
    return False


def spawn(server: list[str]) -> int:
    """Start a server in a session of its own, and return its id; it ends by itself where there is one already."""
    if (pid := os.fork()) == 0:
        os.setsid()
        os.execv(server[0], server)
    return pid


def in_python_s_place(argv: list[str]) -> tuple[list[str], dict[str, str]] | None:
    """Return the arguments of this script in Python's place, and variables to set; None if Ray's script has to run."""
    given = [arg for arg in argv if arg.startswith((CONTEXT, LANGUAGE))]
    context = json.loads(next((arg.removeprefix(CONTEXT) for arg in given if arg.startswith(CONTEXT)), "{}"))
    added = context.get("env_vars") or {}
    if (
        f"{LANGUAGE}PYTHON" not in given
        or any(value for name, value in context.items() if name not in _READ)
        or any("$" in value for value in added.values())  # Ray puts variables in
    ):
        return None
    mine = [sys.executable, *PYTHON_OPTIONS, __file__]
    command = shlex.split(context.get("py_executable") or "")
    if command[: len(mine)] != mine:
        return None
    return [*command[len(mine) :], *(arg for arg in argv if arg not in given)], added


def launch(argv: list[str]) -> None:
    """Start the worker, and end; or become it. Without a worker's command start the server alone."""
    folder, command = argv[0], argv[4:]
    server = [sys.executable, os.path.join(os.path.dirname(__file__), "server.py"), *argv[:4]]
    if not command:
        if own(folder):
            spawn(server)
        return
    try:
        if not command[0].startswith("-") and forked(folder, server, command):  # -S or -s, which are Python's own
            return
    except (OSError, EOFError, ValueError):
        pass  # a server that ended meanwhile
    os.execv(sys.executable, [sys.executable, *command])


def main(argv: list[str]) -> None:
    """Let a worker be forked, or become Ray's own script."""
    if not any(arg.startswith(CONTEXT) for arg in argv):
        launch(argv)
        return
    if (replaced := in_python_s_place(argv)) is not None:
        command, added = replaced
        os.environ.update(added)
        launch(command)
        return
    worker = next(arg for arg in argv if arg.endswith(".py"))
    script = os.path.join(os.path.dirname(worker), os.path.basename(__file__))
    os.execv(sys.executable, [sys.executable, script, *argv])


if __name__ == "__main__":
    main(sys.argv[1:])
