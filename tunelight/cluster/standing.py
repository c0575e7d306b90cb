"""The Ray that `tunelight up` keeps on this machine, for one program after another.

A process of its own, this module, holds it, with a fork server that has imported torch and Lightning; it ends by
`tunelight down`, or after an hour without use. Programs find it by a file in a folder that is this user's alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from tunelight.cluster import local
from tunelight.compat.lightning import FABRIC, flavour
from tunelight.compat.ray import own_versions, use_token
from tunelight.errors import ResourceError
from tunelight.machine.forkserver.setup_worker import may_differ, own

if TYPE_CHECKING:
    from tunelight.machine.forkserver.ready import ForkServer

IDLE_S: Final = 3600.0
"""How long it stays without use."""
_LOOK_S: Final = 2.0
_START_S: Final = 90.0
_END_S: Final = 30.0
_LONGEST: Final = 40
_FILE, _USED, _LOCK, _LOG = "ray.json", "used", "lock", "log"


def place() -> Path:
    """Return where the folder of this user is, or would be: in TMPDIR, if paths of sockets are not too long there."""
    parent = tempfile.gettempdir()
    return Path(parent if len(parent) <= _LONGEST else "/tmp", f"tunelight-{os.geteuid()}")  # noqa: S108 - it is refused unless it is this user's alone


def folder() -> Path:
    """Return the folder of this user, which is made if it is not there; ResourceError if it is somebody else's."""
    path = place()
    if not own(str(path)):
        raise ResourceError(
            f"{path} is not a folder that is this user's alone, so nothing in it is used. Remove it, or set TMPDIR."
        )
    return path


@dataclass(frozen=True)
class Standing:
    """A Ray that is kept, and the process that keeps it.

    Attributes:
        pid, created: the process, and when it began (seconds since the epoch): its id may be another's by now.
        address: of the Ray, host:port.
        versions: of Ray and of Python. python: the interpreter. prefix: the folder of its environment.
        token: whether it asks for Ray's token, which Ray keeps in the home folder.
    """

    pid: int
    created: float
    address: str
    versions: tuple[str, str]
    python: str
    prefix: str = ""
    token: bool = False

    @property
    def lives(self) -> bool:
        """Whether the process still runs."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.created) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    @property
    def misfit(self) -> str:
        """Why this process cannot use it; empty if it can."""
        if self.versions != own_versions():
            return f"it has Ray {self.versions[0]} and Python {self.versions[1]}"
        return f"it runs with {self.python}" if self.prefix != _prefix() else ""

    def admit(self) -> None:
        """Let this process show Ray's token where it is asked for. Call it before Ray connects."""
        if self.token:
            use_token()

    def job(self, runtime_env: Mapping[str, Any] | None, threads: int) -> dict[str, Any]:
        """Return the ``runtime_env`` of a job whose workers have this process's environment, forked if possible."""
        env = dict(runtime_env or {})
        variables = {**self._added(), **(env.get("env_vars") or {})}
        if variables:
            env["env_vars"] = variables
        if (server := server_for(runtime_env, variables, threads)) is not None:
            env["py_executable"] = server.py_executable
        return env

    def _added(self) -> dict[str, str]:
        """Return the variables of this process that the kept one has not, or not so.

        Ray puts variables where a value has a dollar sign, so such ones stay behind.
        """
        try:
            theirs = psutil.Process(self.pid).environ()
        except psutil.Error:
            theirs = {}
        return {
            name: value
            for name, value in os.environ.items()
            if theirs.get(name) != value and "$" not in value and (name == "PATH" or not may_differ(name))
        }

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Note that it is in use, before and after."""
        mark = folder() / _USED
        mark.touch()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                mark.touch()


def _prefix() -> str:
    """Return the folder of this process's environment: its Python may have several names there."""
    return os.path.realpath(sys.prefix)


def server_for(runtime_env: Mapping[str, Any] | None, variables: Mapping[str, str], threads: int) -> ForkServer | None:
    """Return the fork server for jobs with these environment variables beside those of the kept process."""
    modules = (flavour(), FABRIC[flavour()])
    read = sorted((name, value) for name, value in variables.items() if not may_differ(name))
    key = hashlib.sha256(repr((modules, threads, _prefix(), read)).encode("utf-8", "surrogateescape"))
    place = str(folder() / f"fork-{key.hexdigest()[:12]}")
    return local.fork_server(runtime_env, threads, folder=place, idle_s=IDLE_S)


def find() -> Standing | None:
    """Return the Ray that is kept for this user on this machine, if there is one."""
    path = place() / _FILE
    if not path.exists():
        return None
    folder()  # that it is nobody else's
    try:
        told = json.loads(path.read_text())
        found = Standing(**{**told, "versions": tuple(told["versions"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if found.lives else None


def up() -> tuple[Standing, bool]:
    """Start it, unless it is there; return it, and whether it was started. Raises: ResourceError if that fails."""
    if (there := find()) is not None:
        return there, False
    home = folder()
    with (home / _LOG).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - this very module
            [sys.executable, "-m", __name__],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
        )  # fmt: skip
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        if (there := find()) is not None and there.pid == process.pid:
            return there, True
        time.sleep(0.05)
    if (there := find()) is not None:  # another `up` was faster
        return there, False
    process.kill()
    said = (home / _LOG).read_text(errors="replace").strip()[-2000:]
    raise ResourceError(f"No Ray was ready within {_START_S:g} s. What it said, in {home / _LOG}:\n{said}")


def down() -> bool:
    """End it; tell whether there was one. Raises: ResourceError where it does not end."""
    there = find()
    if there is None:
        return False
    os.kill(there.pid, signal.SIGTERM)
    end = time.monotonic() + _END_S
    while there.lives:
        if time.monotonic() > end:
            raise ResourceError(f"Process {there.pid} did not end within {_END_S:g} s. End it by: kill -9 {there.pid}")
        time.sleep(0.05)
    return True


def main(idle_s: float = IDLE_S) -> None:
    """Keep a Ray until SIGTERM, or for ``idle_s`` seconds without use."""
    home = folder()
    ended: list[int] = []
    with (home / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # another one keeps it
        server = server_for(None, {}, 1)
        try:
            mine = local.start(None, 0, stays=True, server=server)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda number, _: ended.append(number))
            _tell(home)
            while mine.lives and not ended and time.time() - _last_used(home) < idle_s:
                time.sleep(_LOOK_S if not ended else 0)
        finally:
            (home / _FILE).unlink(missing_ok=True)
            local.shutdown()


def _tell(home: Path) -> None:
    import ray

    (home / _USED).touch()
    created = psutil.Process().create_time()
    address = ray.get_runtime_context().gcs_address
    token = os.environ.get("RAY_AUTH_MODE") == "token"  # Ray has set it, if the user has not
    there = Standing(os.getpid(), created, address, own_versions(), sys.executable, _prefix(), token)
    part = home / f"{_FILE}.part"
    part.write_text(json.dumps(asdict(there)))
    part.replace(home / _FILE)


def _last_used(home: Path) -> float:
    if local.in_use():
        (home / _USED).touch()
    return (home / _USED).stat().st_mtime


if __name__ == "__main__":
    main()
