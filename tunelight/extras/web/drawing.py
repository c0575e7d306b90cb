"""Sections of the live page, made by a process of their own and kept until the sweep has gone on."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from tunelight.errors import TunelightError
from tunelight.extras.report.page import parts
from tunelight.extras.web.watch import SweepWatch
from tunelight.results import SweepResults

_LIMIT_S: Final = 300.0
_PAUSE_S: Final = 10.0
"""Seconds between two drawings of a sweep, and more where one takes long."""
_SHARE: Final = 5.0
_MOST_KEPT: Final = 16


def module_command(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a module of this tunelight in a process of its own, and its environment.

    The working directory is not searched for modules, where a user's ``json.py`` may lie.
    """
    paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return [sys.executable, "-P", "-m", module, *arguments], {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class Drawing:
    """Makes the sections of sweeps in a folder, one sweep at a time. Runs on: server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._one = asyncio.Lock()
        self._drawn: dict[str, tuple[int, float, float]] = {}
        self._running: asyncio.subprocess.Process | None = None

    async def part(self, watch: SweepWatch, name: str) -> tuple[str, bool]:
        """Return a section of a sweep's page as JSON, and whether it shows all that there is by now.

        It is drawn anew where the sweep has gone on since, unless that was a moment ago.
        """
        size, key = watch.size, watch.folder.name
        target = self._folder / key
        async with self._one:
            last = self._drawn.get(key)
            now = time.monotonic()
            rests = last is not None and now - last[1] < max(_PAUSE_S, _SHARE * last[2])
            if last is None or (last[0] != size and not rests):
                failure = await self._draw(target, watch.folder)
                self._drawn.pop(key, None)
                self._drawn[key] = size, time.monotonic(), time.monotonic() - now
                if failure:
                    return _said(f"It could not be drawn: {failure}"), False
                self._forget()
        try:
            return (target / f"{name}.json").read_text(encoding="utf-8"), self._drawn[key][0] == size
        except OSError:
            return _said("It could not be drawn."), False

    def _forget(self) -> None:
        for key in list(self._drawn)[:-_MOST_KEPT]:
            del self._drawn[key]
            for path in (self._folder / key).glob("*.json"):
                path.unlink()

    async def _draw(self, target: Path, sweep: Path) -> str:
        """Draw into a folder; return what went wrong, empty where nothing did."""
        target.mkdir(exist_ok=True)
        command, environment = module_command("tunelight.extras.web.drawing", str(target), str(sweep))
        self._running = process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, output = await asyncio.wait_for(process.communicate(), _LIMIT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"it took more than {_LIMIT_S:.0f} s."
        finally:
            self._running = None
        if process.returncode:
            return (output.decode(errors="replace").strip().splitlines() or ["the process was ended."])[-1][:400]
        return ""

    def close(self) -> None:
        """End the process that draws, if one does."""
        if self._running is not None:
            self._running.kill()


def _said(text: str) -> str:
    return json.dumps({"title": "", "blocks": [{"text": text}]})


# --- Make the sections of a sweep's page, in a process of its own ---

# Figures need all reports in memory, and optuna; the server needs neither.
#
# python -m tunelight.extras.web.drawing TARGET FOLDER


def draw(target: Path, folder: str) -> None:
    """Write a file of JSON for each section of a sweep."""
    try:
        made: dict[str, Any] = dict(parts(SweepResults.load(folder)))
    except TunelightError as error:
        made = {"about": {"title": "", "blocks": [{"text": str(error)}]}}
    for name, section in made.items():
        (target / f"{name}.json").write_text(json.dumps(section, allow_nan=False), encoding="utf-8")


if __name__ == "__main__":
    os.nice(5)  # the sweep comes first
    draw(Path(sys.argv[1]), sys.argv[2])
