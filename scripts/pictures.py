"""Draw the documentation's pictures of a sweep.

    python scripts/pictures.py tunelight_runs/digits --share 0.8
    python scripts/pictures.py --page 'http://127.0.0.1:8642/sweep/digits?token=...'

``docs/images/live.svg`` is the live table at a moment of that sweep, drawn from its record. ``docs/images/report.png``
is the beginning of its report; it needs playwright, and a browser in ``TUNELIGHT_BROWSER``. With
``--page`` and the address that a sweep with ``--web`` prints, ``docs/images/live-page.png`` is its live page.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
from pathlib import Path

from rich.console import Console

from tunelight.record import SweepState, apply
from tunelight.reporting import report
from tunelight.reporting.screen import SweepView
from tunelight.reporting.table import rows_of
from tunelight.results import SweepResults

IMAGES = Path(__file__).parents[1] / "docs" / "images"
COLUMNS, ROWS, EVENTS = 110, 12, 3


def live(folder: Path, share: float) -> None:
    """Draw the live table when ``share`` of the record was written."""
    lines = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    state = SweepState()
    for line in lines[: int(share * len(lines))]:
        apply(state, line)
    console = Console(record=True, width=COLUMNS, force_terminal=True, file=io.StringIO())
    total = state.sweep.get("num_samples")
    console.print(SweepView(state, rows_of(state, ROWS), state.updated or 0.0, total, events=EVENTS))
    console.save_svg(str(IMAGES / "live.svg"), title="python sweep.py")


def first_screen(folder: Path, browser: str) -> None:
    """Draw the first screens of a sweep's report."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page(
            viewport={"width": 1100, "height": 1500}
        )
        page.goto(report(SweepResults.load(folder), Path(made, "report.html")).as_uri())
        page.wait_for_selector(".plot[data-figure=learning_curves][data-drawn]")
        page.screenshot(path=IMAGES / "report.png")


def live_page(address: str, browser: str) -> None:
    """Draw the first screens of a sweep's live page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page(
            viewport={"width": 1100, "height": 1150}
        )
        page.goto(address)
        page.wait_for_selector("#list tbody tr:nth-child(4)")
        page.wait_for_timeout(1000)
        page.screenshot(path=IMAGES / "live-page.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--page", metavar="ADDRESS", help="of a sweep's live page, as it is printed")
    given = parser.parse_args()
    browser = os.environ.get("TUNELIGHT_BROWSER")
    if given.folder is not None:
        live(given.folder, given.share)
    if given.folder is not None and browser:
        first_screen(given.folder, browser)
    if given.page and browser:
        live_page(given.page, browser)
