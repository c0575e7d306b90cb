"""Draw the documentation's pictures of a sweep: in a terminal, on its live page and in its report.

    TUNELIGHT_BROWSER="$(scripts/chromium.sh)" python scripts/pictures.py           # runs a sweep of some minutes
    TUNELIGHT_BROWSER="$(scripts/chromium.sh)" python scripts/pictures.py runs/mlp  # of a sweep that has ended

The sweep tunes scikit-learn's multilayer perceptron on digits. Pictures go to ``docs/images``: ``live.svg`` is the live
table at a moment of the sweep, ``live-page*.png`` its live page and ``report*.png`` its report, wide and on a phone,
light and dark, with a value under the pointer and with a selection in the parallel coordinates.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

import tunelight as tl
from tunelight.record import SweepState, apply
from tunelight.reporting import report
from tunelight.reporting.screen import SweepView
from tunelight.reporting.table import rows_of
from tunelight.results import SweepResults

IMAGES = Path(__file__).parents[1] / "docs" / "images"
COLUMNS, ROWS, EVENTS = 110, 12, 3
SHARE = 0.8
SIZES = {"": (1300, 1150), "-phone": (390, 844)}
EPOCHS, TRIALS = 27, 40


def train(config: dict[str, Any]) -> None:
    """Train a perceptron on digits, and report its loss and accuracy on a quarter of them."""
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.metrics import log_loss
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    warnings.simplefilter("ignore")
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x / 16, y, random_state=0)
    model = MLPClassifier(
        (config["hidden"],) * config["layers"],
        solver=config["optimizer"],
        learning_rate_init=config["lr"],
        alpha=config["weight_decay"],
        batch_size=config["batch_size"],
        random_state=1,
    )
    for epoch in range(EPOCHS):
        model.partial_fit(x_train, y_train, classes=np.arange(10))
        sure = np.clip(model.predict_proba(x_test), 1e-7, 1)
        metrics = {"val_loss": log_loss(y_test, sure), "val_acc": model.score(x_test, y_test)}
        tl.report({**metrics, "train_loss": model.loss_, "epoch": epoch})
        time.sleep(0.05)


def sweep(storage: str) -> None:
    """Run the sweep, with its live page."""
    space = {
        "lr": tl.loguniform(1e-4, 1e-1),
        "hidden": tl.choice([16, 32, 64, 128]),
        "layers": tl.choice([1, 2, 3]),
        "optimizer": tl.choice(["adam", "sgd"]),
        "weight_decay": tl.loguniform(1e-6, 1e-1),
        "batch_size": tl.choice([32, 64, 128]),
    }
    tl.run(
        space, train=train, metric="val_loss", num_samples=TRIALS, max_epochs=EPOCHS, workers=2, cpus_per_worker=0.25,
        max_concurrent=3, storage=storage, name="mlp", seed=2, web=True, progress=False,
    )  # fmt: skip


def terminal(folder: Path) -> None:
    """Draw the live table when most of the record was written."""
    lines = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    state = SweepState()
    for line in lines[: int(SHARE * len(lines))]:
        apply(state, line)
    console = Console(record=True, width=COLUMNS, force_terminal=True, file=io.StringIO())
    total = state.sweep.get("num_samples")
    console.print(SweepView(state, rows_of(state, ROWS), state.updated or 0.0, total, events=EVENTS))
    console.save_svg(str(IMAGES / "live.svg"), title="python sweep.py")


def keep(page: Any, name: str) -> None:
    """Keep a picture of a page, in as many colours as a palette has."""
    from PIL import Image

    picture = Image.open(io.BytesIO(page.screenshot()))
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


def look(browser: Any, address: str, name: str) -> None:
    """Draw a page of a sweep, wide and on a phone, light and dark."""
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            page.goto(address)
            page.wait_for_selector("#canvas[data-drawn]")
            page.wait_for_selector("#about summary")
            page.wait_for_timeout(2500)
            keep(page, f"{name}{size}{'' if scheme == 'light' else '-dark'}")
            context.close()


def touch(browser: Any, address: str) -> None:
    """Draw a report with a value under the pointer, and with a selection in its parallel coordinates."""
    page = browser.new_page(viewport={"width": 1300, "height": 1150})
    page.goto(address)
    page.wait_for_selector("#canvas[data-drawn]")
    box = page.locator("#canvas .nsewdrag").bounding_box()
    for step in range(200):  # from the middle down, until there is a point
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * step / 200)
        if page.locator("#canvas.leads .hovertext").count():
            break
    keep(page, "report-hover")
    page.locator("#parallel").scroll_into_view_if_needed()
    page.wait_for_selector("#parallel .plot[data-drawn]")
    axis = page.locator("#parallel .axis-brush").last.bounding_box()
    across = axis["x"] + axis["width"] / 2
    page.mouse.move(across, axis["y"] + 0.97 * axis["height"])
    page.mouse.down()
    page.mouse.move(across, axis["y"] + 0.8 * axis["height"], steps=10)
    page.mouse.up()
    page.locator("#trials").evaluate("(part) => window.scrollTo(0, part.offsetTop - 60)")
    page.locator("#parallel").evaluate("(part) => part.parentNode.parentNode.insertBefore(part, part.parentNode)")
    page.locator(".wide").first.evaluate("(table) => { table.style.maxHeight = '18rem'; }")
    page.wait_for_timeout(1000)
    keep(page, "report-brushed")
    page.close()


@contextlib.contextmanager
def running(storage: str) -> Iterator[str]:
    """Run the sweep in a process of its own; give the address of its live page."""
    process = subprocess.Popen([sys.executable, __file__, "--sweep", storage], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    address = next(found[1] for line in process.stderr if (found := re.search(r"Live page: (http://\S+)", line)))
    yield address
    process.communicate()


def main() -> None:
    """Run the sweep, or take one that has ended, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="a sweep that has ended; the live page is not drawn")
    parser.add_argument("--sweep", metavar="STORAGE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.sweep:
        sweep(given.sweep)
        return
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        args = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        browser = playwright.chromium.launch(executable_path=os.environ["TUNELIGHT_BROWSER"], args=args)
        folder = given.folder
        if folder is None:
            folder = Path(made, "runs", "mlp")
            with running(str(folder.parent)) as address:
                page = browser.new_page()
                page.goto(address)
                page.wait_for_selector(f"#list tbody tr:nth-child({TRIALS // 2})", timeout=600_000)
                page.close()
                look(browser, address, "live-page")
        terminal(folder)
        address = report(SweepResults.load(folder), Path(made)).as_uri()
        look(browser, address, "report")
        touch(browser, address)
        browser.close()


if __name__ == "__main__":
    main()
