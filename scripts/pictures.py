"""Draw the documentation's pictures: of a sweep in a terminal, on its live page and in its report, and of the examples.

    TUNELIGHT_BROWSER="$(scripts/chromium.sh)" python -m scripts.pictures
    TUNELIGHT_BROWSER="$(scripts/chromium.sh)" python -m scripts.pictures examples    # some minutes: it runs them

The sweep is recorded as Tune's callbacks would, without Ray: perceptrons of scikit-learn learn digits here, three at a
time, and the worse two thirds stop at each rung. Pictures go to ``docs/images``: ``live.svg`` is the live table at a
moment of the sweep, ``live-page*.png`` its live page and ``report*.png`` its report, wide and on a phone, light and
dark, with a value under the pointer and with a selection in the parallel coordinates. An example runs as it is;
``example-*.png`` is a figure of its sweep.
"""

from __future__ import annotations

import io
import math
import os
import platform
import random
import shlex
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.kit.recording import Sweep
from tests.unit.extras.web.serving import serving
from tunelight.record import SweepState, leased, write_sweep_file
from tunelight.reporting import report
from tunelight.reporting.display import SweepView, rows_of
from tunelight.results import SweepResults

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
COLUMNS, ROWS, EVENTS = 110, 12, 3
SIZES = {"": (1300, 1150), "-phone": (390, 1200)}
EPOCHS, TRIALS, LIVE, SLOTS = 27, 60, 44, 3
RUNGS = (3, 9)
EXAMPLES = {
    "digits_asha": ("learning_curves", ["{python} {examples}/digits_asha.py"]),
    "digits_horovod": ("history", ["{python} {examples}/digits_horovod.py --num-samples 16"]),
    "vit_cifar10": ("learning_curves", ["{python} {examples}/vit_cifar10.py --size tiny --steps 4"]),
}
"""By name: the figure of its sweep, and the commands that run the example."""
PLOT = {"width": 640, "height": 400}


def curve(config: dict[str, Any]) -> Iterator[tuple[float, float]]:
    """Train a perceptron on digits; yield its loss and accuracy on a quarter of them after each epoch."""
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
    for _ in range(EPOCHS):
        model.partial_fit(x_train, y_train, classes=np.arange(10))
        sure = np.clip(model.predict_proba(x_test), 1e-7, 1)
        yield float(log_loss(y_test, sure)), float(model.score(x_test, y_test))


class Recorded:
    """A sweep that is recorded while its trials train here, one epoch after another."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        told = {"num_samples": TRIALS, "max_epochs": EPOCHS, "workers": 2}
        write_sweep_file(folder, {"scheduler": "asha", "searcher": "random", "seed": 2, "backend": "gloo", **told})
        self.sweep = Sweep(folder, now=time.time() - 600, rungs={"by": "training_iteration", "at": RUNGS}, **told)
        self._chance = random.Random(2)  # noqa: S311 - pictures need no secrets
        self._live: list[Any] = []
        self._reached: dict[int, list[float]] = {rung: [] for rung in RUNGS}

    def run(self, trials: int) -> None:
        """Train until so many trials have begun, or to the end where those are all."""
        while len(self.sweep.trials) < trials or (self._live and trials == TRIALS):
            while len(self._live) < SLOTS and len(self.sweep.trials) < trials:
                self._begin()
            for trial in list(self._live):
                self._epoch(trial)
        if trials == TRIALS:
            self.sweep.end()

    def _begin(self) -> None:
        draw = self._chance
        trial = self.sweep.add(
            lr=10 ** draw.uniform(-4, -1.3),
            hidden=draw.choice([16, 32, 64, 128]),
            layers=draw.choice([1, 2, 3]),
            optimizer=draw.choice(["adam", "adam", "sgd"]),
            weight_decay=10 ** draw.uniform(-6, 0),
            batch_size=draw.choice([32, 64, 128]),
        )
        self.sweep.step()
        self.sweep.start(trial)
        slots = {live.slot for live in self._live}
        trial.slot = next(slot for slot in range(SLOTS) if slot not in slots)
        trial.curve, trial.number, trial.begin = curve(trial.config), 0, self.sweep.clock.now
        self._live.append(trial)

    def _epoch(self, trial: Any) -> None:
        loss, accuracy = next(trial.curve)
        now = self.sweep.clock.now = self.sweep.clock.now + self._chance.uniform(0.6, 1.4)
        trial.number += 1
        nodes, warm = [f"node{trial.slot}#a1b2c3"] * 2, len(self.sweep.trials) > SLOTS
        gang = {
            "gang": f"g{trial.slot}",
            "nodes": nodes,
            "warm": warm,
            "began": trial.begin,
            "ready": trial.begin + 0.4,
        }
        own = {"gang": gang if trial.number == 1 else None}
        self.sweep.report(trial, trial.number, loss, own=own, accuracy=accuracy, timestamp=now)
        reached = self._reached.get(trial.number, [])
        reached.append(loss)
        if loss > sorted(reached)[math.ceil(len(reached) / 3) - 1] or trial.number == EPOCHS:
            self._live.remove(trial)
            if trial.number == EPOCHS:
                self.sweep.end_by_itself(trial)
            else:
                trial.last_result["done"], trial.status = False, "PAUSED"  # ended by the scheduler
                self.sweep.complete(trial)


def terminal(state: SweepState) -> None:
    """Draw the live table."""
    console = Console(record=True, width=COLUMNS, force_terminal=True, file=io.StringIO())
    console.print(SweepView(state, rows_of(state, ROWS), state.updated or 0.0, TRIALS, events=EVENTS))
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
            page.set_default_timeout(120_000)
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
    page.locator(".wide").first.evaluate("(table) => { table.style.maxHeight = '20rem'; }")  # both fit a screen
    page.locator("#parallel").scroll_into_view_if_needed()
    page.wait_for_selector("#parallel .plot[data-drawn]")
    axis = page.locator("#parallel .axis-brush").last.bounding_box()
    across = axis["x"] + axis["width"] / 2
    page.mouse.move(across, axis["y"] + 0.97 * axis["height"])
    page.mouse.down()
    page.mouse.move(across, axis["y"] + 0.8 * axis["height"], steps=10)
    page.mouse.up()
    page.evaluate("window.scrollTo(0, document.querySelector('#trials').offsetTop - 50)")
    page.wait_for_timeout(1000)
    keep(page, "report-brushed")
    page.close()


def gallery(browser: Any, made: Path, names: list[str]) -> None:
    """Run the examples of these names (none: all), and draw the figure of each one's sweep."""
    for name in names or EXAMPLES:
        figure, commands = EXAMPLES[name]
        here = made / name
        here.mkdir()
        for command in commands:
            line = [word.format(python=sys.executable, examples=ROOT / "examples") for word in shlex.split(command)]
            subprocess.run(line, cwd=here, check=False)  # one kills itself
        (sweep,) = here.glob("runs/**/sweep.yaml")
        drawn = SweepResults.load(sweep.parent).plot(figure)
        drawn.update_layout(**PLOT)
        page = browser.new_page(viewport=PLOT)
        html = drawn.to_html(config={"displayModeBar": False})
        page.set_content(html.replace(f"{platform.node()}#", "node#"))  # whatever this machine's name is
        page.wait_for_selector(".main-svg")
        page.wait_for_timeout(1000)
        page.add_style_tag(content="body { margin: 0; }")
        keep(page, f"example-{name}")
        page.close()


def main() -> None:
    """Record the sweep, and draw it; or run and draw the examples."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        args = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        browser = playwright.chromium.launch(executable_path=os.environ["TUNELIGHT_BROWSER"], args=args)
        if sys.argv[1:2] == ["examples"]:
            gallery(browser, Path(made), sys.argv[2:])
            return
        folder = Path(made, "runs", "digits-mlp")
        recorded = Recorded(folder)
        with leased(folder), serving(folder.parent) as served:
            recorded.run(LIVE)
            terminal(recorded.sweep.state)
            look(browser, served.address.replace("/?", f"/sweep/{folder.name}?"), "live-page")
        recorded.run(TRIALS)
        address = report(SweepResults.load(folder), Path(made)).as_uri()
        look(browser, address, "report")
        touch(browser, address)
        browser.close()


if __name__ == "__main__":
    main()
