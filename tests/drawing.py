"""The picture of the rooms, drawn from the table that the doors are judged by: ``python -m tests.drawing``."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from html import escape

from tests.doors import EXTRAS, PACKAGE, ROOMS, floors, is_extra

PICTURE = PACKAGE.parent / "docs" / "images" / "rooms.svg"
_WIDTH, _HEIGHT, _GAP, _MARGIN, _COLUMNS = 180, 76, 8, 16, 5
_LETTERS, _LINES = 28, 3
_STYLE = (
    "<style>text{font:11px system-ui,sans-serif;fill:#37474f}.name{font:600 13px ui-monospace,monospace;fill:#00695c}"
    ".floor{font:600 12px system-ui,sans-serif;fill:#90a4ae}</style>"
)


def drawn() -> str:
    """Return the picture as SVG: the ground floor at the bottom, each room on the first floor that it can stand on.

    The second storey comes first.
    """
    by_floor: dict[int, list[str]] = defaultdict(list)
    for room, floor in floors().items():
        if not is_extra(room):
            by_floor[floor].append(room)
    parts = [f'<text class="floor" x="{_MARGIN + 24}" y="{_MARGIN + 12}">extras/: a sweep runs without them</text>']
    top = _MARGIN + 24
    for index, (room, extra) in enumerate(EXTRAS.items()):
        row, column = divmod(index, _COLUMNS)
        left, upper = _MARGIN + 24 + column * (_WIDTH + _GAP), top + row * (_HEIGHT + _GAP)
        parts += _box(room.partition(".")[2], extra.rule, left, upper, dashed=True)
    top += (1 + (len(EXTRAS) - 1) // _COLUMNS) * (_HEIGHT + _GAP) + 2 * _GAP
    for floor in sorted(by_floor, reverse=True):
        rooms = sorted(by_floor[floor])
        parts.append(f'<text class="floor" x="{_MARGIN}" y="{top + _HEIGHT // 2}">{floor}</text>')
        for index, room in enumerate(rooms):
            row, column = divmod(index, _COLUMNS)
            loose = ".py" if room == "" or (PACKAGE / f"{room}.py").exists() else "/"
            name = (room or "__init__") + loose
            parts += _box(name, ROOMS[room].rule, _MARGIN + 24 + column * (_WIDTH + _GAP), top + row * (_HEIGHT + _GAP))
        top += (1 + (len(rooms) - 1) // _COLUMNS) * (_HEIGHT + _GAP)
    width = 2 * _MARGIN + 24 + _COLUMNS * (_WIDTH + _GAP)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + _MARGIN}" role="img">'
    title = "<title>The rooms of tunelight: each imports only rooms on floors below its own</title>"
    back = '<rect width="100%" height="100%" fill="#fafafa"/>'
    return "\n".join([head, title, _STYLE, back, *parts, "</svg>", ""])


def _box(name: str, rule: str, x: int, y: int, *, dashed: bool = False) -> list[str]:
    lines = textwrap.wrap(rule, _LETTERS, max_lines=_LINES, placeholder="...")
    border = ' stroke-dasharray="4 3"' if dashed else ""
    return [
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="#ffffff" stroke="#b0bec5"{border}/>',
        f'<text class="name" x="{x + 8}" y="{y + 18}">{escape(name)}</text>',
        *(f'<text x="{x + 8}" y="{y + 36 + 14 * number}">{escape(line)}</text>' for number, line in enumerate(lines)),
    ]


if __name__ == "__main__":
    PICTURE.write_text(drawn())
