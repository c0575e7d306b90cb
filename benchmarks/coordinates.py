"""Draw the coordinate check: how far the outputs of layers move in the first steps of training, by width.

    python benchmarks/coordinates.py                # an MLP and a transformer, as pictures for docs/
    python benchmarks/coordinates.py --short        # two widths, one seed, no picture: does it still run?

With a learning rate that is scaled to the width, layers move as far at every width: their lines are level.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from drawing import Chart
from figures import headline

from tests.integration.compared_widths import Trained
from tests.integration.test_widths import SENTENCES, VECTORS, mlp, transformer
from tunelight.extras.widths.check import FACTORS, Layer, measure

BASE = 32
MODELS = {"mlp": (mlp, VECTORS, "An MLP"), "transformer": (transformer, SENTENCES, "A transformer")}
IMAGES = Path(__file__).parents[1] / "docs" / "images"


def draw(name: str, title: str, layers: list[Layer], most: float) -> None:
    """Draw each layer's movement relative to that of the narrow model."""
    chart = Chart(title, "width", "movement, narrow = 1", (BASE, BASE * FACTORS[-1]), (0.0, most), log_x=True)
    for layer in layers:
        if layer.changes:
            chart.line(layer.name, [(width, moved / layer.changes[BASE]) for width, moved in layer.changes.items()])
    chart.save(IMAGES / f"coordinates-{name}.png")


def main() -> None:
    """Measure, print powers, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="only tell whether it runs")
    short = parser.parse_args().short
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for name, (build, data, title) in list(MODELS.items())[: 1 if short else None]:
        found = {}
        for scaled in (True, False):
            found[scaled] = measure(
                lambda width, build=build: Trained(build(width), 0.01, "Adam"),  # type: ignore[misc]
                data, BASE, scaled=scaled, seeds=range(1 if short else 3), factors=FACTORS[:2] if short else FACTORS,
            )  # fmt: skip
            powers = ", ".join(f"{layer.name} {layer.power:+.2f}" for layer in found[scaled])
            print(f"{name}, {'scaled' if scaled else 'as it is'}: {powers}", flush=True)
        widest = BASE * (FACTORS[1] if short else FACTORS[-1])
        for scaled, layers in found.items():
            moved = [layer.changes[widest] / layer.changes[BASE] for layer in layers if layer.changes]
            how = "learning rates and initial values scaled" if scaled else "as it is"
            what = f"{title}, {how}: a layer's movement at {widest // BASE} times the width, at most"
            headline(what, max(moved), of=f"{len(moved)} layers, {min(moved):.2f} to {max(moved):.2f}")
        most = max(moved / layer.changes[BASE] for layer in found[False] for moved in layer.changes.values())
        if not short:
            for scaled, layers in found.items():
                how = "learning rates and initial values scaled" if scaled else "as it is"
                draw(f"{name}-{'scaled' if scaled else 'plain'}", f"{title}, {how}", layers, most * 1.05)


if __name__ == "__main__":
    main()
