"""The live page of a sweep that begins: its server is started beside it, and its address printed."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tunelight.errors import ReportError, SettingsError
from tunelight.machine.processes import write
from tunelight.messages import Text

_WAIT_S: Final = 35.0


def check_web() -> None:
    """Raise SettingsError where web=True needs what is not installed."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(f"web=True needs {' and '.join(missing)}: pip install 'tunelight[web]', or leave web= out.")


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
        from tunelight.extras.web.server import start

        try:
            place, token = start(self._folder.parent).split("/?", 1)
            self._said = f"Live page: {place}/sweep/{quote(self._folder.name, safe='')}?{token}"
        except (ReportError, OSError) as error:
            self._said = f"The live page could not be started, and the sweep goes on without: {error}"

    def say(self) -> None:
        """Print the address, once the server answers."""
        self._thread.join(_WAIT_S)
        message = self._said or "The live page has not come up yet: tunelight serve shows it."
        write(Text(f"{message}\n", error=True))
