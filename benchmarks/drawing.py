"""Plain charts as PNG, drawn with Pillow, which TensorBoard brings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SIZE = (900, 520)
BOX = (80, 50, 660, 460)
"""Left, top, right and bottom of what lies between the axes."""
COLOURS = (
    "#d1495b", "#1b6ca8", "#3a7d44", "#e09f3e", "#7b5ea7", "#555555", "#00a6a6", "#a65628", "#c51b8a", "#9dc209",
    "#85b7e2", "#f4a6b8", "#000000",
)  # fmt: skip
Range = tuple[float, float]


class Chart:
    """Axes with a title, and a legend on the right."""

    def __init__(self, title: str, x: str, y: str, x_range: Range, y_range: Range, *, log_x: bool = False) -> None:
        self._image = Image.new("RGB", SIZE, "white")
        self._draw = ImageDraw.Draw(self._image)
        self._font, self._small = ImageFont.load_default(15), ImageFont.load_default(12)
        self._x, self._y, self._log = x_range, y_range, log_x
        self._names: list[str] = []
        self._draw.text((BOX[0], 16), title, "black", self._font)
        self._draw.text(((BOX[0] + BOX[2]) / 2 - 4 * len(x), BOX[3] + 28), x, "black", self._font)
        self._draw.text((8, 34), y, "black", self._small)
        self._draw.rectangle(BOX, outline="#999999")
        for tick in self._ticks(x_range, log_x):
            at = self._place(tick, y_range[0])
            self._draw.line((at[0], BOX[3], at[0], BOX[3] + 5), "#999999")
            self._draw.text((at[0] - 12, BOX[3] + 8), f"{tick:g}", "black", self._small)
        for tick in self._ticks(y_range, log=False):
            at = self._place(x_range[0], tick)
            self._draw.line((BOX[0], at[1], BOX[2], at[1]), "#eeeeee")
            self._draw.text((14, at[1] - 7), f"{tick:g}", "black", self._small)

    def line(self, name: str, points: Sequence[tuple[float, float]]) -> None:
        """Draw a line from point to point."""
        self._draw.line([self._place(*point) for point in points], self._colour(name), 2)

    def save(self, path: Path) -> None:
        """Write the PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._image.quantize(64).save(path, optimize=True)

    def _colour(self, name: str) -> str:
        if name not in self._names:
            self._names.append(name)
            row = BOX[1] + 24 * len(self._names)
            colour = COLOURS[(len(self._names) - 1) % len(COLOURS)]
            self._draw.rectangle((BOX[2] + 16, row, BOX[2] + 30, row + 12), colour)
            self._draw.text((BOX[2] + 38, row - 2), name, "black", self._small)
        return COLOURS[self._names.index(name) % len(COLOURS)]

    def _place(self, x: float, y: float) -> tuple[float, float]:
        low, high, x = (math.log(max(one, 1e-9)) if self._log else one for one in (*self._x, x))
        across = min(max((x - low) / (high - low), 0.0), 1.0)
        up = min(max((y - self._y[0]) / (self._y[1] - self._y[0]), 0.0), 1.0)
        return BOX[0] + across * (BOX[2] - BOX[0]), BOX[3] - up * (BOX[3] - BOX[1])

    @staticmethod
    def _ticks(span: Range, log: bool) -> list[float]:
        if log:
            powers = range(math.floor(math.log10(span[0])), math.ceil(math.log10(span[1])) + 1)
            return [n * 10.0**p for p in powers for n in (1, 2, 3, 5, 7) if span[0] <= n * 10.0**p <= span[1]]
        step = 10 ** math.floor(math.log10((span[1] - span[0]) / 3))
        step = next(step * n for n in (1, 2, 5, 10) if (span[1] - span[0]) / (step * n) <= 8)
        first = math.ceil(span[0] / step)
        return [round(n * step, 10) for n in range(first, math.floor(span[1] / step) + 1)]
