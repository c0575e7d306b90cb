"""The live page's answers: its pages, what has changed as server-sent events, and commands that it passes on."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import json
import secrets
import shlex
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cache, partial
from importlib import resources
from pathlib import Path
from shlex import quote as shell_quote
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from tunelight import stores
from tunelight.errors import CommandError, SettingsError, TunelightError
from tunelight.extras.attach import ask
from tunelight.extras.report.page import (
    LINKS,
    LOG,
    PARTS,
    SCRIPTS,
    STYLE,
    Block,
    asset,
    best_config,
    colours,
    frame,
    trial_blocks,
)
from tunelight.extras.web.drawing import Drawing
from tunelight.extras.web.watch import SweepList, SweepWatch, encode
from tunelight.record import TERMINAL, TrialState
from tunelight.results import SweepResults
from tunelight.stores.masking import masked

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


MOST_STREAMS: Final = 32
"""Pages that hear of changes at the same time."""
_MOST_ACTS: Final = 4
_TICK_S: Final = 0.3
_LIST_TICK_S: Final = 1.0
_ALIVE_S: Final = 15.0
_WRONG_S: Final = 5.0
_WHOLE_S: Final = 0.9
"""How often a page hears of the sweep as a whole, and of curves; of trials it hears at once."""
_READING_S: Final = 3.0
"""How long a page waits at its beginning for a record to be read, before it shows what was read so far."""
_CATCH_UP_S: Final = 60.0
_MOST_MESSAGE: Final = 1000
"""Rows of one message."""
_DOES: Final = {
    "stop": (),
    "enqueue": ("config",),
    "branch": ("config",),
    "set": ("max_concurrent", "num_samples"),
}
"""What can be done, and with which arguments."""


class Page:
    """The application: answers requests that :class:`tunelight.extras.web.app.Guard` let through.

    Args:
        sweeps: the sweeps to show.
        place: the storage folder, as people write it.
        read_only: take no commands.
        over: tells whether the server is ending, so that streams end too.
    """

    def __init__(
        self, sweeps: SweepList, place: str, *, read_only: bool = False, over: Callable[[], bool] = lambda: False
    ) -> None:
        self.streams = 0
        """How many pages are open and hear of changes."""
        self._sweeps, self._place, self._read_only, self._over = sweeps, place, read_only, over
        self._acts = asyncio.Semaphore(_MOST_ACTS)
        self._folder = tempfile.TemporaryDirectory(prefix="tunelight-web-")
        self._drawing = Drawing(Path(self._folder.name))
        self.app = Starlette(
            routes=[
                Route("/", self._list),
                Route("/sweep/{name}", self._sweep),
                Route("/sweep/{name}/trial/{index:int}", self._trial),
                Route("/static/{version}/{name}", self._static),
                Route("/api/sweeps", self._list_events),
                Route("/api/sweep/{name}/events", self._sweep_events),
                Route("/api/sweep/{name}/part/{part}", self._part),
                Route("/api/sweep/{name}/trial/{index:int}", self._trial_details),
                Route("/api/sweep/{name}/trial/{index:int}/log", self._log),
                Route("/api/act", self._act, methods=["POST"]),
            ],
            exception_handlers={TunelightError: _wrong},
        )

    def close(self) -> None:
        """Remove what was drawn."""
        self._drawing.close()
        self._folder.cleanup()

    # -- pages

    async def _list(self, request: Request) -> Response:
        return HTMLResponse(_page("sweeps", "Sweeps", {}, place=self._place))

    async def _sweep(self, request: Request) -> Response:
        name = (await self._watch(request.path_params["name"])).folder.name
        links = {"/": "All sweeps", **LINKS}
        return HTMLResponse(_page("sweep", name, links, sweep=name, readOnly=self._read_only, parts=PARTS))

    async def _trial(self, request: Request) -> Response:
        name, index = (await self._watch(request.path_params["name"])).folder.name, request.path_params["index"]
        links = {"/": "All sweeps", f"/sweep/{quote(name, safe='')}": name, "#log": "Log"}
        facts = {"sweep": name, "trial": index, "readOnly": self._read_only}
        return HTMLResponse(_page("trial", f"{name}: trial {index}", links, **facts))

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404, "There is no such file.")
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        headers = {"cache-control": "private, max-age=31536000, immutable"}
        return Response(await run_in_threadpool(static, name), media_type=kind, headers=headers)

    # -- what the pages ask for

    async def _watch(self, name: str) -> SweepWatch:
        """Return the watch of a sweep. Raises: HTTPException."""
        found = await run_in_threadpool(self._sweeps.watch, name)
        if found is None:
            raise HTTPException(404, f"There is no sweep {name[:200]!r} in {self._place}.")
        return found

    async def _trial_of(self, request: Request) -> tuple[SweepWatch, TrialState]:
        watch = await self._read(request.path_params["name"])
        return watch, _trial(watch, request.path_params["index"])

    async def _read(self, name: str) -> SweepWatch:
        """Return the watch of a sweep, read to its record's end or to where it is damaged. Raises: HTTPException."""
        watch = await self._watch(name)
        with contextlib.suppress(TunelightError):
            await run_in_threadpool(watch.catch_up, _CATCH_UP_S, self._over)
        return watch

    async def _part(self, request: Request) -> Response:
        watch, name = await self._watch(request.path_params["name"]), request.path_params["part"]
        if name not in PARTS:
            raise HTTPException(404, f"There is no section {name[:100]!r}.")
        made, current = await self._drawing.part(watch, name)
        return Response(made, media_type="application/json", headers={"x-current": "yes" if current else "no"})

    async def _trial_details(self, request: Request) -> Response:
        watch, trial = await self._trial_of(request)
        return JSONResponse(await run_in_threadpool(trial_details, watch, trial))

    async def _log(self, request: Request) -> Response:
        watch, trial = await self._trial_of(request)
        begin = request.query_params.get("from", "")
        if begin and not (begin.isdecimal() and len(begin) < 20):
            raise HTTPException(400, "from must be a number of bytes.")
        return JSONResponse(await run_in_threadpool(log_part, watch.folder, trial, int(begin) if begin else None))

    # -- what has changed

    async def _list_events(self, request: Request) -> Response:
        return self._stream(self._list_messages())

    async def _list_messages(self) -> AsyncIterator[str]:
        sent: dict[str, str] = {}
        while True:
            found, left = await run_in_threadpool(self._sweeps.summaries)
            rows = {row["name"]: encode(row) for row in found}
            changed = [text for name, text in rows.items() if sent.get(name) != text]
            gone = [name for name in sent if name not in rows]
            order = list(rows)
            if changed or gone or list(sent) != order:
                head = encode({"gone": gone, "order": order, "left": left, "error": self._sweeps.error})
                yield f'{head[:-1]},"rows":[{",".join(changed)}]}}'
                sent = rows
            else:
                yield ""
            await asyncio.sleep(0.05 if left else _LIST_TICK_S)

    async def _sweep_events(self, request: Request) -> Response:
        watch = await self._watch(request.path_params["name"])
        only = request.query_params.get("trial", "")
        return self._stream(self._sweep_messages(watch, int(only) if only.isdecimal() and len(only) < 10 else None))

    async def _sweep_messages(self, watch: SweepWatch, only: int | None) -> AsyncIterator[str]:
        generation, seen, sent_version, curves = -1, 0, 0, dict[int, int]()
        sent_at = time.monotonic()
        while True:
            wrong = None
            try:
                await run_in_threadpool(watch.look)
            except TunelightError as error:
                wrong = error
            if generation != watch.generation:
                yield encode({"anew": True})  # the page may have rows of an earlier connection
                generation, seen, sent_version, curves = watch.generation, 0, 0, {}
            version, now = watch.version, time.monotonic()
            due = sent_version < version and now - sent_at >= _WHOLE_S
            reading = not seen and not watch.whole and wrong is None and now - sent_at < _READING_S
            if reading or (seen == version and not due):  # all at once is sooner than bit by bit
                yield ""
            else:
                rows = watch.rows(seen) if only is None else watch.row(only, seen)
                if only is not None and watch.whole and watch.one(only) is None:
                    yield encode({"error": f"{watch.folder.name} has no trial {only}."})
                for begin in range(0, max(1, len(rows)), _MOST_MESSAGE):
                    message = {"rows": rows[begin : begin + _MOST_MESSAGE], "now": time.time()}
                    if not begin and (due or not sent_version):
                        message |= {"head": watch.head(), **(watch.curves(curves) if only is None else {})}
                        sent_version, sent_at = version, now
                    yield encode(message)
                seen = version
            if wrong is not None:
                raise wrong
            await asyncio.sleep(_TICK_S if watch.whole else 0)

    def _stream(self, messages: AsyncIterator[str]) -> Response:
        if self.streams >= MOST_STREAMS:
            raise HTTPException(503, f"{MOST_STREAMS} pages are open already. Close some.")
        return StreamingResponse(self._events(messages), media_type="text/event-stream")

    async def _events(self, messages: AsyncIterator[str]) -> AsyncIterator[str]:
        """Yield messages as server-sent events; an empty one only shows, now and then, that the server lives."""
        sent_at = time.monotonic()
        self.streams += 1
        try:
            yield "retry: 2000\n\n"
            async for message in messages:
                now = time.monotonic()
                if self._over():
                    return
                if message or now - sent_at > _ALIVE_S:
                    sent_at = now
                    yield f"data: {message}\n\n" if message else ": alive\n\n"
        except Exception as error:  # noqa: BLE001 - the page says what is wrong, and looks again
            yield f"data: {encode({'error': str(error) or type(error).__name__})}\n\n"
            await asyncio.sleep(_WRONG_S)
        finally:
            self.streams -= 1

    # -- commands

    async def _act(self, request: Request) -> Response:
        if self._read_only:
            raise HTTPException(403, "This server only shows: it was started with --read-only.")
        body = await request.body()
        if len(body) > MOST_BODY:
            raise HTTPException(413, f"An action may have {MOST_BODY} bytes.")
        name, do, trial, arguments = _command(body)
        watch = await self._read(name)
        known = None if trial is None else _trial(watch, trial).id
        if self._acts.locked():
            raise HTTPException(429, f"{_MOST_ACTS} commands wait for their answers already. Try again.")
        async with self._acts:
            act = partial(ask, watch, do, known, over=self._over, **arguments)
            try:
                return JSONResponse({"ok": True, "said": await run_in_threadpool(act)})
            except CommandError as error:
                return JSONResponse({"ok": False, "said": str(error)})


def _command(body: bytes) -> tuple[str, str, int | None, dict[str, Any]]:
    """Read a command: the sweep's name, what to do, the trial's number and the arguments. Raises: HTTPException."""
    try:
        action = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "An action must be JSON.") from error
    action = action if isinstance(action, dict) else {}
    name, do, trial, arguments = (action.get(key) for key in ("sweep", "do", "trial", "arguments"))
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str) or not isinstance(do, str) or do not in _DOES or not isinstance(arguments, dict):
        raise HTTPException(400, f"An action has a sweep and one of {', '.join(_DOES)} to do.")
    if trial is not None and (isinstance(trial, bool) or not isinstance(trial, int)):
        raise HTTPException(400, "A trial is named by its number.")
    if do in ("enqueue", "branch") and isinstance(arguments.get("config"), str):
        arguments |= {"config": _configuration(arguments["config"], empty=do == "branch")}
    if unknown := arguments.keys() - set(_DOES[do]):
        raise HTTPException(400, f"{do} takes no {', '.join(map(repr, sorted(unknown)))[:200]}.")
    return name, do, trial, arguments


def _configuration(text: str, *, empty: bool = False) -> dict[str, Any]:
    """Read a configuration as the command line takes it: ``lr=0.01 "name=two words" sizes=[1,2]``."""
    from tunelight.cli.overrides import read_sets

    try:
        words = shlex.split(text)
        if not (words or empty):
            raise ValueError("give keys and values, as lr=0.01 hidden=64")
        return read_sets(words, "")
    except (ValueError, SettingsError) as error:
        raise HTTPException(400, f"That is no configuration: {str(error).rstrip('.')}.") from error


def _trial(watch: SweepWatch, index: int) -> TrialState:
    """Return a trial by its number. Raises: HTTPException."""
    if (found := watch.one(index)) is None:
        raise HTTPException(404, f"{watch.folder.name} has no trial {index}.")
    return found


async def _wrong(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 409)


# --- Who may talk to the live page: a token, the address that was asked for, and where a request comes from ---


MOST_BODY: Final = 1 << 16
"""Bytes of a request's body."""
# plotly writes functions of its own where it draws parallel coordinates: that is what unsafe-eval lets it.
POLICY: Final = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_DAY: Final = 86400


class Guard:
    """Lets only requests through that carry the token, ask for this machine, and come from its own pages.

    A browser gets the token with the address that is printed, and keeps it as a cookie; a program sends it as
    ``Authorization: Bearer TOKEN``. Runs on: server, around the application.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str] = frozenset()) -> None:
        self._app, self._token = app, token
        self.cookie = f"tunelight_{hashlib.sha256(token.encode()).hexdigest()[:12]}"
        """The cookie's name: browsers keep cookies by host alone, and several servers may be behind one."""
        self._hosts = hosts | {"localhost", socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        headers, query = Headers(scope=scope), QueryParams(scope["query_string"])
        answer = self._refusal(scope, headers, query)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    added[name] = value
                if "cache-control" not in added:
                    added["cache-control"] = "no-store"
            await send(message)

        if answer is None and "token" in query:
            answer = self._welcome(scope, query)
        await (self._app if answer is None else answer)(scope, receive, guarded)

    def _refusal(self, scope: Scope, headers: Headers, query: QueryParams) -> Response | None:
        """Return why a request is refused; None where it is not."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            return _no(421, f"This server does not answer for the host {host[:100]!r}.")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _no(405, "Only GET and POST are answered.")
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        given = bearer or query.get("token", "") or HTTPConnection(scope).cookies.get(self.cookie, "")
        if not secrets.compare_digest(given.encode(), self._token.encode()):
            return _no(401, "This page needs the whole address that tunelight printed, with its token.")
        if scope["method"] == "POST":
            return self._refused_action(headers, host, trusted=bool(bearer))
        return None

    def _refused_action(self, headers: Headers, host: str, *, trusted: bool) -> Response | None:
        origin = headers.get("origin")
        if origin is None and not trusted:
            return _no(403, "An action must come from a page of this server: its Origin is missing.")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return _no(403, f"An action must come from a page of this server, and not of {origin[:100]}.")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _no(403, "An action must come from a page of this server.")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _no(415, "An action must be application/json.")
        length = headers.get("content-length", "")
        if not length.isdecimal():
            return _no(411, "An action must say its length.")
        if int(length) > MOST_BODY:
            return _no(413, f"An action may have {MOST_BODY} bytes, and not {length[:20]}.")
        return None

    def _is_ours(self, host: str) -> bool:
        """Tell whether a Host header names this machine; a name of somebody else's may point here by DNS."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _welcome(self, scope: Scope, query: QueryParams) -> Response:
        """Keep the token as a cookie, and go to the same page without it."""
        rest = urlencode([(key, value) for key, value in query.multi_items() if key != "token"])
        path = "/" + quote(scope["path"].lstrip("/"))  # not //elsewhere
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        answer.set_cookie(self.cookie, self._token, 30 * _DAY, httponly=True, samesite="lax")
        return answer


def _no(status: int, why: str) -> Response:
    return PlainTextResponse(f"{why}\n", status)


# --- The live page as HTML, four frames that the page's script fills, and the details of a trial ---

PLOTLY: Final = "plotly.js"
STATIC: Final = (*SCRIPTS, STYLE, PLOTLY)
"""The files that a page asks for."""
_NO_SCRIPT: Final = (
    "<noscript><p>This page needs JavaScript. In a terminal, <code>tunelight show --follow</code> and "
    "<code>tunelight show</code> show a sweep.</p></noscript>"
)


@cache
def static(name: str) -> bytes:
    """Return one of the files that a page asks for."""
    if name == PLOTLY:
        return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    return asset(name).encode()


@cache
def address(name: str) -> str:
    """Return where a file is, which changes with its content, so that browsers may keep it."""
    return f"/static/{hashlib.sha256(static(name)).hexdigest()[:12]}/{name}"


def _page(kind: str, title: str, links: Mapping[str, str], **facts: Any) -> str:
    """Return a page; ``facts`` are what its script reads."""
    return frame(
        kind,
        title,
        links,
        {**facts, "plotly": address(PLOTLY), "colours": colours()},
        head=[f'<link rel="stylesheet" href="{address(STYLE)}">', '<link rel="icon" href="data:,">'],
        body=[_NO_SCRIPT, asset(f"{kind}.html")],
        scripts=[f'<script src="{address(name)}"></script>' for name in SCRIPTS],
    )


def trial_details(watch: SweepWatch, state: TrialState) -> list[Block]:
    """Return all that is known of a trial but its log. Raises: StorageError."""
    results = SweepResults.load(watch.folder)
    trial = results.trial(state.id)
    sweep = shell_quote(stores.shown(watch.folder))
    commands = [
        f"tunelight show {sweep} {trial.index}",
        f"tunelight reproduce {sweep} {trial.index}",
        f"tunelight best {sweep} {trial.index} --export trial-{trial.index}.yaml",
    ]
    blocks = trial_blocks(results, trial, best_config(results))
    return [*blocks, {"title": "Commands", "pre": "\n".join(commands)}]


# --- A trial's log, part by part, as it is written ------------------------------------------------

_MOST_BYTES: Final = 1 << 16
_BEFORE: Final = 4096
"""Bytes before a part that are read too, so that a secret that begins there is masked."""


def log_part(folder: Path, trial: TrialState, begin: int | None) -> dict[str, Any]:
    """Return what a trial's log has from byte ``begin`` on, of whole lines, 64 kB at most; None: its last 64 kB.

    The last line of a trial that has ended need not be whole.

    Of more than that, the middle is left out: ``from`` says where the text begins. Passwords in addresses are masked.
    """
    path = folder / trial.folder / LOG
    if not path.resolve().is_relative_to(folder.resolve()):
        return {"text": "", "from": 0, "to": 0, "size": 0, "note": "Its folder lies outside of the sweep's."}
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            first = max(0, size - _MOST_BYTES, begin or 0)
            begin = first if begin is None or begin > size else max(begin, first)
            file.seek(max(0, begin - _BEFORE))
            before = file.read(begin - max(0, begin - _BEFORE))
            text = file.read(_MOST_BYTES)
    except OSError:
        note = "It has no log yet."
        if stores.store_of(folder):
            note = "Its log is in the store; nothing but the record is fetched from there."
        return {"text": "", "from": 0, "to": 0, "size": 0, "note": note}
    end = text.rfind(b"\n") + 1
    whole = text[:end] if end and not (trial.state in TERMINAL and len(text) < _MOST_BYTES) else text
    if not end and len(text) < _MOST_BYTES and trial.state not in TERMINAL:
        whole = b""  # a line that is being written
    shown = masked((before + whole).decode("utf-8", errors="replace"))
    kept = shown if not before else shown[len(masked(before.decode("utf-8", errors="replace"))) :]
    return {"text": kept, "from": begin, "to": begin + len(whole), "size": size, "note": ""}
