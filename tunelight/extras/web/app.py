"""The live page's answers: its pages, what has changed as server-sent events, and commands that it passes on."""

from __future__ import annotations

import asyncio
import json
import shlex
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tunelight.errors import CommandError, SettingsError, TunelightError
from tunelight.extras.report.sections import PARTS
from tunelight.extras.web import pages
from tunelight.extras.web.drawing import Drawing
from tunelight.extras.web.log import log_part
from tunelight.extras.web.safety import MOST_BODY
from tunelight.extras.web.watch import SweepList, SweepWatch, encode
from tunelight.record import ask

if TYPE_CHECKING:
    from starlette.requests import Request

    from tunelight.record import TrialState

MOST_STREAMS: Final = 32
"""Pages that hear of changes at the same time."""
_MOST_ACTS: Final = 4
_MOST_COMPARED: Final = 8
_TICK_S: Final = 0.3
_LIST_TICK_S: Final = 1.0
_ALIVE_S: Final = 15.0
_WRONG_S: Final = 5.0
_WHOLE_S: Final = 0.9
"""How often a page hears of the sweep as a whole, and of curves; of trials it hears at once."""
_READING_S: Final = 3.0
"""How long a page waits at its beginning for a record to be read, before it shows what was read so far."""
_MOST_MESSAGE: Final = 1000
"""Rows of one message."""
_DOES: Final = {
    "stop": (),
    "pause": (),
    "resume": (),
    "enqueue": ("config",),
    "branch": ("config", "keep"),
    "set": ("max_concurrent", "max_workers", "num_samples"),
    "resize": ("workers",),
}
"""What can be done, and with which arguments."""


class Page:
    """The application: answers requests that :class:`tunelight.extras.web.safety.Guard` let through.

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
                Route("/compare", self._compare),
                Route("/sweep/{name}", self._sweep),
                Route("/sweep/{name}/trial/{index:int}", self._trial),
                Route("/static/{version}/{name}", self._static),
                Route("/api/sweeps", self._list_events),
                Route("/api/compare", self._comparison),
                Route("/api/sweep/{name}/events", self._sweep_events),
                Route("/api/sweep/{name}/part/{part}", self._part),
                Route("/api/sweep/{name}/trial/{index:int}", self._trial_details),
                Route("/api/sweep/{name}/trial/{index:int}/log", self._log),
                Route("/api/act", self._act, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _said, TunelightError: _wrong},
        )

    def close(self) -> None:
        """Remove what was drawn."""
        self._drawing.close()
        self._folder.cleanup()

    # -- pages

    async def _list(self, request: Request) -> Response:
        return HTMLResponse(pages.sweeps_page(self._place))

    async def _sweep(self, request: Request) -> Response:
        name = (await self._watch(request)).folder.name
        return HTMLResponse(pages.sweep_page(name, read_only=self._read_only))

    async def _trial(self, request: Request) -> Response:
        name = (await self._watch(request)).folder.name
        return HTMLResponse(pages.trial_page(name, request.path_params["index"], read_only=self._read_only))

    async def _compare(self, request: Request) -> Response:
        return HTMLResponse(pages.compare_page(await self._chosen(request)))

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in pages.STATIC:
            raise HTTPException(404, "There is no such file.")
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        headers = {"cache-control": "private, max-age=31536000, immutable"}
        return Response(await run_in_threadpool(pages.static, name), media_type=kind, headers=headers)

    # -- what the pages ask for

    async def _watch(self, request: Request) -> SweepWatch:
        """Return the watch of the sweep that a request names. Raises: HTTPException."""
        name = request.path_params["name"]
        found = await run_in_threadpool(self._sweeps.watch, name)
        if found is None:
            raise HTTPException(404, f"There is no sweep {name[:200]!r} in {self._place}.")
        return found

    async def _trial_of(self, request: Request) -> tuple[SweepWatch, TrialState]:
        watch = await self._watch(request)
        await run_in_threadpool(_catch_up, watch, self._over)
        found = watch.one(request.path_params["index"])
        if found is None:
            raise HTTPException(404, f"{watch.folder.name} has no trial {request.path_params['index']}.")
        return watch, found

    async def _chosen(self, request: Request) -> list[str]:
        """Return the names of the sweeps to compare. Raises: HTTPException."""
        names = list(dict.fromkeys(request.query_params.getlist("sweep")))
        if not 2 <= len(names) <= _MOST_COMPARED:
            raise HTTPException(400, f"Choose 2 to {_MOST_COMPARED} sweeps to compare, and not {len(names)}.")
        for name in names:
            if await run_in_threadpool(self._sweeps.folder, name) is None:
                raise HTTPException(404, f"There is no sweep {name[:200]!r} in {self._place}.")
        return names

    async def _comparison(self, request: Request) -> Response:
        names = await self._chosen(request)
        folders = [await run_in_threadpool(self._sweeps.folder, name) for name in names]
        made = await self._drawing.comparison([folder for folder in folders if folder is not None])
        return Response(made, media_type="application/json")

    async def _part(self, request: Request) -> Response:
        watch, name = await self._watch(request), request.path_params["part"]
        if name not in PARTS:
            raise HTTPException(404, f"There is no section {name[:100]!r}.")
        made, current = await self._drawing.part(watch, name)
        return Response(made, media_type="application/json", headers={"x-current": "yes" if current else "no"})

    async def _trial_details(self, request: Request) -> Response:
        watch, trial = await self._trial_of(request)
        return JSONResponse(await run_in_threadpool(pages.trial_details, watch, trial))

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
        watch = await self._watch(request)
        only = request.query_params.get("trial", "")
        return self._stream(self._sweep_messages(watch, int(only) if only.isdecimal() and len(only) < 10 else None))

    async def _sweep_messages(self, watch: SweepWatch, only: int | None) -> AsyncIterator[str]:
        generation, seen, told, curves = -1, 0, 0, dict[int, int]()
        said = time.monotonic()
        while True:
            wrong = await run_in_threadpool(_looked, watch)
            if generation != watch.generation:
                yield encode({"anew": True})  # the page may have rows of an earlier connection
                generation, seen, told, curves = watch.generation, 0, 0, {}
            version, now = watch.version, time.monotonic()
            due = told < version and now - said >= _WHOLE_S
            reading = not seen and not watch.whole and wrong is None and now - said < _READING_S
            if reading or (seen == version and not due):  # all at once is sooner than bit by bit
                yield ""
            else:
                rows = watch.rows(seen) if only is None else watch.row(only, seen)
                if only is not None and watch.whole and watch.one(only) is None:
                    yield encode({"error": f"{watch.folder.name} has no trial {only}."})
                for begin in range(0, max(1, len(rows)), _MOST_MESSAGE):
                    message = {"rows": rows[begin : begin + _MOST_MESSAGE], "now": time.time()}
                    if not begin and (due or not told):
                        message |= {"head": watch.head(), **(watch.curves(curves) if only is None else {})}
                        told, said = version, now
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
        said = time.monotonic()
        self.streams += 1
        try:
            yield "retry: 2000\n\n"
            async for message in messages:
                now = time.monotonic()
                if self._over():
                    return
                if message or now - said > _ALIVE_S:
                    said = now
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
        watch = await run_in_threadpool(self._sweeps.watch, name)
        if watch is None:
            raise HTTPException(404, f"There is no sweep {name[:200]!r} in {self._place}.")
        await run_in_threadpool(_catch_up, watch, self._over)
        known = None if trial is None else watch.one(trial)
        if trial is not None and known is None:
            raise HTTPException(404, f"{name} has no trial {trial}.")
        if self._acts.locked():
            raise HTTPException(429, f"{_MOST_ACTS} commands wait for their answers already. Try again.")
        async with self._acts:
            act = partial(ask, watch, do, None if known is None else known.id, over=self._over, **arguments)
            try:
                return JSONResponse({"ok": True, "said": await run_in_threadpool(act)})
            except CommandError as error:
                return JSONResponse({"ok": False, "said": str(error)})


def _command(body: bytes) -> tuple[str, str, int | None, dict[str, Any]]:
    """Read a command: the sweep's name, what to do, the trial's number and the arguments. Raises: HTTPException."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "An action must be JSON.") from error
    told = told if isinstance(told, dict) else {}
    name, do, trial, arguments = (told.get(key) for key in ("sweep", "do", "trial", "arguments"))
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
    from tunelight.space.files import read_value  # pydantic is of no use before
    from tunelight.space.text import read_pairs

    try:
        words = shlex.split(text)
        if not (words or empty):
            raise ValueError("give keys and values, as lr=0.01 hidden=64")
        return read_pairs(words, read_value, SettingsError, "give keys and values, as lr=0.01 hidden=64")
    except (ValueError, SettingsError) as error:
        raise HTTPException(400, f"That is no configuration: {str(error).rstrip('.')}.") from error


def _catch_up(watch: SweepWatch, over: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Read a record up to its end, or to where it is damaged."""
    end = time.monotonic() + limit_s
    while _looked(watch) is None and not watch.whole and time.monotonic() < end and not over():
        pass


def _looked(watch: SweepWatch) -> TunelightError | None:
    """Read what is new of a record; return what is wrong with it."""
    try:
        watch.look()
    except TunelightError as error:
        return error
    return None


async def _said(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code)


async def _wrong(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 409)
