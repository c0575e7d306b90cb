"""The live page's server: one process for a storage folder, in the foreground or beside sweeps."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import importlib.util
import ipaddress
import json
import logging
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from tunelight import stores
from tunelight.errors import ReportError, SettingsError, StorageError
from tunelight.extras.web.drawing import module_command
from tunelight.machine.processes import is_running, write
from tunelight.messages import Text
from tunelight.record import list_sweeps
from tunelight.stores.atomic import replacing

if TYPE_CHECKING:
    import uvicorn

    from tunelight.extras.web.app import Page
    from tunelight.extras.web.watch import SweepList

PORT: Final = 8642
"""Where the page is unless another port is given, or another program has this one."""
LOCAL: Final = "127.0.0.1"
_LOG: Final = ".tunelight_web.log"
_START_S: Final = 30.0
_IDLE_S: Final = 60.0
"""How long a server that was started beside a sweep stays once no sweep runs and no page is open."""
_LOOK_S: Final = 2.0


@dataclass(frozen=True)
class Serving:
    """A server of a storage folder: where it listens, the token that it asks for, and its process."""

    host: str
    port: int
    token: str
    pid: int = 0
    machine: str = ""
    read_only: bool = False

    @property
    def address(self) -> str:
        """Return what to open in a browser: it holds the token."""
        return f"{self.place}/?token={self.token}"

    @property
    def place(self) -> str:
        """Return the address without the token."""
        host = socket.gethostname() if _is_any(self.host) else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def answers(self) -> bool:
        """Whether a server answers there now, and takes the token."""
        if self.machine != socket.gethostname() or not is_running(self.pid):
            return False
        connection = http.client.HTTPConnection(LOCAL if _is_any(self.host) else self.host, self.port, timeout=3)
        try:
            connection.request("GET", "/", headers={"Authorization": f"Bearer {self.token}"})
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def check_installed(*, web: bool = False) -> None:
    """Raise ReportError, or SettingsError for a sweep with ``web=True``, where packages of the extra are missing."""
    missing = " and ".join(name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None)
    if missing and web:
        raise SettingsError(f"web=True needs {missing}: pip install 'tunelight[web]', or leave web= out.")
    if missing:
        raise ReportError(f"The live page needs {missing}: pip install 'tunelight[web]'.")


def serve(
    storage: str | os.PathLike[str],
    *,
    host: str = LOCAL,
    port: int | None = None,
    read_only: bool = False,
    lasting: bool = True,
    say: Callable[[Serving], None] = lambda _: None,
) -> None:
    """Serve the page of a storage folder until the process is told to end.

    Args:
        storage: the folder of sweeps, or its URL.
        host: the address to listen on. Others than this machine's own let everybody in who has the token.
        port: None takes 8642, or another one where that is taken.
        read_only: take no commands.
        lasting: stay also while no sweep runs and no page is open.
        say: called with the server once it listens.

    Raises: ReportError where packages are missing; StorageError where there is no such folder; SettingsError where the
    address cannot be listened on.
    """
    check_installed()
    working = stores.working(storage)
    if not stores.store_of(working) and not working.is_dir():
        raise StorageError(f"There is no folder {working}. Give the folder of sweeps (storage= of the sweep).")
    with contextlib.closing(_listen(host, port)) as listener, _quiet_end():
        serving = Serving(
            host, listener.getsockname()[1], _token(working), os.getpid(), socket.gethostname(), read_only=read_only
        )
        asyncio.run(_run(working, serving, listener, lasting=lasting, say=say))


@contextlib.contextmanager
def _quiet_end() -> Iterator[None]:
    """Let the server clean up also when SIGTERM or SIGHUP ends it.

    uvicorn does not handle SIGHUP, which acts as SIGTERM here, and raises a signal again when it has shut down.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, signal.default_int_handler),
        signal.SIGHUP: signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM)),
    }
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _run(
    working: Path, serving: Serving, listener: socket.socket, *, lasting: bool, say: Callable[[Serving], None]
) -> None:
    import uvicorn

    from tunelight.extras.web.app import Guard, Page
    from tunelight.extras.web.watch import SweepList

    servers: list[uvicorn.Server] = []
    sweeps = SweepList(lambda: list_sweeps(working), 10.0 if stores.store_of(working) else 2.0)
    page = Page(
        sweeps,
        str(stores.shown(working)),
        read_only=serving.read_only,
        over=lambda: servers[0].should_exit,
    )
    names = frozenset() if _is_any(serving.host) else frozenset({serving.host.lower()})
    config = uvicorn.Config(
        Guard(page.app, serving.token, names),
        http="h11",
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=1 << 15,
    )
    servers.append(uvicorn.Server(config))
    logging.getLogger("uvicorn.error").addFilter(_not_cancelled)
    written = _tell(working, serving)
    say(serving)
    beside = [asyncio.create_task(_read_ahead(sweeps))]
    if not lasting:
        beside.append(asyncio.create_task(_leave_when_idle(servers[0], page, sweeps, working)))
    try:
        with contextlib.suppress(KeyboardInterrupt):
            await servers[0].serve(sockets=[listener])
    finally:
        for task in beside:
            task.cancel()
        page.close()
        found = _told(working) if written else None
        if found is not None and found.pid == serving.pid:  # says that the server has ended; the token stays
            _tell(working, Serving(serving.host, serving.port, serving.token, 0, serving.machine))


def _not_cancelled(record: logging.LogRecord) -> bool:
    """Tell whether to print a log record: answers are cancelled as the server ends, which is worth no traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


async def _read_ahead(sweeps: SweepList) -> None:
    """Read the sweeps once, the last written first, while their reader opens a browser."""
    left = 1
    while left:
        _, left = await asyncio.to_thread(sweeps.summaries)
        await asyncio.sleep(0)


async def _leave_when_idle(server: uvicorn.Server, page: Page, sweeps: SweepList, working: Path) -> None:
    """End the server once no sweep runs, and no page has been open for a while."""
    used = time.monotonic()
    while not server.should_exit:
        await asyncio.sleep(_LOOK_S)
        await asyncio.to_thread(sweeps.names)
        if page.streams or await asyncio.to_thread(sweeps.any_driven):
            used = time.monotonic()
        if time.monotonic() - used > _IDLE_S or not (stores.store_of(working) or working.is_dir()):
            server.should_exit = True


def start(storage: str | os.PathLike[str]) -> str:
    """Return the address of the page of a storage folder, whose server is started if none answers.

    The server is a process of its own: it ends a minute after no sweep of the folder runs and no page is open.

    Raises: ReportError where packages are missing, or the server does not come up.
    """
    check_installed()
    working = stores.working(storage).absolute()
    found = running(working)
    if found is not None:
        return found.address
    command, environment = module_command("tunelight.extras.web.server", str(storage), str(working))
    with (working / _LOG).open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own module, and no shell
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdout is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_START_S)  # it goes on as nobody's child, see main()
    ready, _, _ = select.select([process.stdout], [], [], _START_S)
    address = process.stdout.readline().decode().strip() if ready else ""
    process.stdout.close()
    if not address:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        lines = (working / _LOG).read_text(errors="replace").strip().splitlines() if ready else []
        why = lines[-1][:400] if lines else f"no answer within {_START_S:.0f} s"
        raise ReportError(f"The live page could not be started: {why}. {working / _LOG} may say more.")
    return address


class LivePage:
    """Starts the server of a sweep's storage folder, or finds the one that runs, while the sweep goes on.

    A page that cannot be started does not end the sweep. Runs on: driver.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._said = ""
        self._thread = threading.Thread(target=self._start, name="live page", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        try:
            place, token = start(self._folder.parent).split("/?", 1)
            self._said = f"Live page: {place}/sweep/{quote(self._folder.name, safe='')}?{token}"
        except (ReportError, OSError) as error:
            self._said = f"The live page could not be started, and the sweep goes on without: {error}"

    def say(self) -> None:
        """Print the address, once the server answers."""
        self._thread.join(_START_S + 5)
        message = self._said or "The live page has not come up yet: tunelight serve shows it."
        write(Text(f"{message}\n", error=True))


def running(working: Path) -> Serving | None:
    """Return the server of a storage folder that answers now; None if there is none."""
    found = _told(working)
    return found if found is not None and found.answers else None


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens. Raises: SettingsError."""
    try:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        raise SettingsError(
            f"The host {host!r} is not known here: {error}. Give an address of this machine."
        ) from error
    wanted = [PORT, 0] if port is None else [port]
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # :: takes connections by IPv4, too
    for number in wanted:
        try:
            return socket.create_server((host, number), family=family, backlog=64, dualstack_ipv6=both)
        except OSError as error:
            if number == wanted[-1]:
                why = os.strerror(error.errno) if error.errno else error
                raise SettingsError(
                    f"The page cannot listen on {host}, port {number}: {why}. Give another --port, or none."
                ) from error
    raise AssertionError


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


# -- what is known of a folder's server, in a file that only its user can read


def _file(working: Path) -> Path:
    """Return the file: a folder may be shared by users, and by machines."""
    return working / f".tunelight_web.{socket.gethostname()}.{os.getuid()}.json"


def _told(working: Path) -> Serving | None:
    """Return what the file says; None where it is not this user's alone, in a folder that others can write to."""
    try:
        with os.fdopen(os.open(_file(working), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="utf-8") as file:
            about = os.fstat(file.fileno())
            if about.st_uid != os.getuid() or about.st_mode & 0o077:
                return None
            return Serving(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def _token(working: Path) -> str:
    """Return the token of a folder: the one it had, so that open pages and bookmarks go on to work, or a new one."""
    found = _told(working)
    if found is not None and isinstance(found.token, str) and len(found.token) >= 32:
        return found.token
    return secrets.token_urlsafe(24)


def _tell(working: Path, serving: Serving) -> bool:
    """Write where the server is, unless another one of this folder answers; tell whether it was written."""
    before = _told(working)
    if before is not None and before.pid != serving.pid and before.answers:
        return False
    for_its_user = functools.partial(os.open, mode=0o600)
    try:
        working.mkdir(parents=True, exist_ok=True)
        with replacing(_file(working)) as draft, open(draft, "x", encoding="utf-8", opener=for_its_user) as stream:
            json.dump(asdict(serving), stream)
    except OSError:  # a folder that can only be read
        return False
    return True


def main(storage: str, working: str) -> None:
    """Serve beside a sweep. Run as a process of its own by :func:`start`; prints the address once it listens.

    It leaves whoever started it, whom it outlives, and who need not wait for its end.
    """
    if os.fork():
        os._exit(0)
    Path(working).mkdir(parents=True, exist_ok=True)
    before = _told(Path(working))
    port = before.port if before is not None else None

    def say(serving: Serving) -> None:
        sys.stdout.write(f"{serving.address}\n")
        sys.stdout.flush()
        sys.stdout.close()

    try:
        serve(storage, port=port, lasting=False, say=say)
    except SettingsError:  # the port of its last server is taken meanwhile
        serve(storage, lasting=False, say=say)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
