"""The frame of a report and its small parts, as HTML: all text that others wrote is escaped here."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Final

from tunelight.record import Note
from tunelight.reporting.words import compact

CELL: Final = 160
"""Characters of a cell."""
_NOTE: Final = "<br><sup>"
"""Begins the smaller line of a figure's title."""
_TITLE_HEIGHT: Final = 50
"""Pixels of a figure's title and its smaller line, which the page shows as its own text."""
_PHONE: Final = 350
"""Pixels that a figure has on the narrowest screen."""


def document(title: str, headings: Mapping[str, str], sections: Iterable[str]) -> str:
    """Return a page that needs no other file: plotly.js, the report's own script and style, and the sections.

    Args:
        title: of the page, not escaped.
        headings: links at the top, by the id that each leads to.
        sections: HTML, in order.
    """
    from plotly.offline import get_plotlyjs  # plotly costs most of a second

    scripts = [get_plotlyjs(), asset("page.js")]
    # A page that shows what others wrote: only these two scripts run in it, and nothing is fetched. plotly's WebGL
    # part writes functions of its own, which is what unsafe-eval lets it.
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<style>{asset('page.css')}</style>",
    ]
    body = [
        "<noscript><p>The figures need JavaScript; the tables and the trials do not.</p></noscript>",
        *sections,
    ]
    links = {f"#{key}": name for key, name in headings.items()}
    return frame(title, links, head=head, body=body, scripts=[f"<script>{script}</script>" for script in scripts])


def frame(
    title: str,
    links: Mapping[str, str],
    *,
    head: Iterable[str],
    body: Iterable[str],
    scripts: Iterable[str],
    attributes: str = "",
) -> str:
    """Return a page: its head, a header with the title and links, the body and the scripts.

    Args:
        title: of the page, not escaped.
        links: names of links at the top, by their addresses.
        head: HTML of the head, in order.
        body: HTML of the body, in order.
        scripts: HTML of script elements, at the end of the body.
        attributes: of the body element.
    """
    shown = "".join(f'<a href="{safe(where)}">{safe(name)}</a>' for where, name in links.items())
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{safe(title)}: tunelight</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        *head,
        f"</head><body{attributes}>",
        f'<header><h1>{safe(title)}</h1><button id="theme" type="button">light / dark</button>',
        f"<nav>{shown}</nav></header><main>",
        *body,
        f"</main><footer>tunelight, {moment(time.time())}</footer>",
        *scripts,
        "</body></html>\n",
    ]
    return "\n".join(parts)


def asset(name: str) -> str:
    """Return a script or a style sheet of the pages."""
    return resources.files("tunelight.reporting").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def plot(name: str, figure: Any, width: int = 0) -> str:
    """Return a section with a figure: its title as a heading, a place to draw in, and its data.

    Plotly does not break a title into lines, so that a narrow screen would cut it; and of a figure without data, there
    is only the text that says why. The data is text that ends no script element.

    Args:
        name: the section's id.
        figure: of plotly.
        width: pixels below which the figure is scrolled sideways rather than drawn narrower.
    """
    title, _, note = str(figure.layout.title.text or "").partition(_NOTE)
    if not figure.data:
        said = " ".join(str(one.text) for one in figure.layout.annotations)
        return f'<section id="{name}"><h2>{_shown(title)}</h2><p>{_shown(said)}</p></section>'
    drawn = json.loads(figure.to_json())
    layout = drawn["layout"]
    layout.pop("title", None)
    layout["margin"] = {**layout.get("margin", {}), "t": max(30, int(figure.layout.margin.t or 80) - _TITLE_HEIGHT)}
    layout["height"] = height = int(figure.layout.height or 460) - _TITLE_HEIGHT
    data = json.dumps(drawn).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    below = f'<p class="note">{_shown(note.removesuffix("</sup>"))}</p>' if note else ""
    least = f";min-width:{width}px" if width else ""
    below += '<p class="note sideways">It can be scrolled sideways.</p>' if width > _PHONE else ""
    return (
        f'<section id="{name}"><h2>{_shown(title)}</h2>{below}'
        f'<div class="scroll"><div class="plot" data-figure="{name}" style="height:{height}px{least}"></div></div>'
        f'<script type="application/json" id="data-{name}">{data}</script></section>'
    )


def _shown(text: str) -> str:
    """Return text that was escaped for plotly as text that is escaped for the page."""
    return html.escape(html.unescape(text))


def card(name: str, value: str, colour: str = "var(--line)") -> str:
    """Return a number with its name, beside a bar of a colour."""
    return f'<div class="card" style="border-color:{colour}"><dt>{safe(name)}</dt><dd>{safe(value)}</dd></div>'


def pairs(title: str, rows: Iterable[tuple[Any, Any]], limit: int = CELL) -> str:
    """Return a table of keys and values, each of at most ``limit`` characters; nothing without rows."""
    body = "".join(f"<tr><th>{safe(key)}</th><td>{safe(cell(value, limit))}</td></tr>" for key, value in rows)
    return f'<table class="pairs"><caption>{safe(title)}</caption>{body}</table>' if body else ""


def table(names: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table whose cells are HTML already; it scrolls in a box of its own."""
    head = "".join(f"<th>{safe(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="rows"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def td(value: Any) -> str:
    """Return a value as a cell; a number's cell carries the value to sort by."""
    if value is None:
        return "<td></td>"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{safe(cell(value))}</td>"
    if isinstance(value, float) and math.isnan(value):
        return '<td class="n">nan</td>'
    return f'<td class="n" data-n="{number(value)}">{safe(compact(value))}</td>'


def cell(value: Any, limit: int = CELL) -> str:
    """Return a value as text of at most ``limit`` characters, not escaped."""
    if isinstance(value, float):
        return compact(value)
    text = json.dumps(value, default=str) if isinstance(value, Mapping | list) else str(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def safe(value: Any) -> str:
    """Return a value as text that is no markup."""
    return html.escape(str(value))


def number(value: float) -> str:
    """Return a number as JavaScript reads it."""
    return repr(value).replace("inf", "Infinity")


def remarks(tags: Sequence[str], notes: Iterable[Note]) -> str:
    """Return the tags and notes that people gave to a sweep or a trial; empty without any."""
    rows = [f"<li>{moment(note.time)}: {safe(note.text)}</li>" for note in notes]
    tagged = f"<p>Tags: {safe(', '.join(tags))}</p>" if tags else ""
    return f"{tagged}<h4>Notes</h4><ul>{''.join(rows)}</ul>" if rows else tagged


def moment(seconds: float) -> str:
    """Return a time in seconds since the epoch as date and time of day."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
