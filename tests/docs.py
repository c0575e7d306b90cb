"""Read the documentation: its pages, links, anchors and code blocks, and how each block is to be tried.

A comment right above a block says what the page leaves out, and readers do not see it:

- ``<!-- prelude: NAME -->``: the names of `tests.preludes`, before the block is run;
- ``<!-- with: num_samples=2, max_epochs=3 -->``: these keywords of the block's calls of `tl.run`, to make it short;
- ``<!-- run -->``: a console block that is carried out in a shell, not only parsed;
- ``<!-- as: lightning-cli -->``: what a YAML block is, if it is no search space;
- ``<!-- file: sweep.yaml -->``: the block is a file of that name, in the folder where the page's code runs;
- ``<!-- not run: why -->``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNTRIED = frozenset({"markdown", "text"})
"""Languages of blocks that show something; all others are tried."""
NOTES = ("prelude", "with", "run", "as", "file", "not run")

_NOT_OURS = {"build", "dist", "node_modules", "runs", "tunelight_runs"}
_FENCE = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```\s*$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!-- (not run|\w+)(?:: (.*))? -->")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A code block: where it stands, its language, its lines, and what comments above it say."""

    page: str
    line: int
    language: str
    text: str
    notes: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return the paths of all pages in the repository."""
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.md"))
    return sorted(
        path.as_posix() for path in found if not any(part in _NOT_OURS or part[0] == "." for part in path.parts)
    )


def read(page: str) -> str:
    """Return a page's text."""
    return (ROOT / page).read_text()


def blocks(page: str) -> list[Block]:
    """Return a page's code blocks, in order. Raises: ValueError for a comment that is none of the notes."""
    text = read(page)
    return [
        Block(page, text.count("\n", 0, match.start()) + 2, match[2], match[3], _notes(page, text, match.start()))
        for match in _FENCE.finditer(text)
    ]


def indented(page: str) -> list[int]:
    """Return the lines of a page that make an indented block: deep, after an empty one, and in no list."""
    lines, found, listed = without_blocks(read(page)).splitlines(), [], False
    for number, line in enumerate(lines, 1):
        if re.match(r"(-|\*|\d+\.) ", line):
            listed = True
        elif line and not line.startswith(" "):
            listed = False
        if line.startswith("    ") and not listed and number > 1 and not lines[number - 2].strip():
            found.append(number)
    return found


def links(page: str) -> list[str]:
    """Return the targets of a page's links and pictures."""
    text = _CODE.sub(lambda match: "`" * len(match[0]), without_blocks(read(page)))
    return [match[1] for match in _LINK.finditer(text)]


def anchors(page: str) -> set[str]:
    """Return what a page's headings are called in addresses: lower case, without punctuation, with hyphens."""
    seen: Counter[str] = Counter()
    found = set()
    for match in _HEADING.finditer(without_blocks(read(page))):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def inline(page: str) -> list[str]:
    """Return the pieces of code within a page's sentences, each on one line."""
    return [" ".join(match[2].split()) for match in _CODE.finditer(without_blocks(read(page)))]


def commands(block: Block) -> Iterator[str]:
    """Return a console block's commands, with lines that go on put together."""
    for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
        if line.strip():
            yield line.strip()


def without_blocks(text: str) -> str:
    """Return a page's text with empty lines in place of its fenced blocks."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)


def _notes(page: str, text: str, start: int) -> dict[str, str]:
    """Return what the comments right above a block say."""
    notes: dict[str, str] = {}
    for line in reversed(text[:start].splitlines()):
        match = _COMMENT.fullmatch(line.strip())
        if match is None:
            break
        if match[1] not in NOTES:
            raise ValueError(f"{page}: there is no note {match[1]!r}; there are: {', '.join(NOTES)}")
        notes[match[1]] = match[2] or ""
    return notes
