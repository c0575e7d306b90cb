"""Check that a tag and all files that name the version agree, before anything is built of them.

    python scripts/release_check.py v1.2.3

The changelog's newest section must have that version and a date.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def named_versions(root: Path) -> dict[str, str]:
    """Return the version that each file names."""
    citation = re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    newest = re.search(r"^## \[(\d[^]]*)\](.*)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    dated = newest and re.fullmatch(r" - \d{4}-\d{2}-\d{2}", newest[2])
    return {
        "pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"],
        "CITATION.cff": citation[1] if citation else "none",
        "CHANGELOG.md": newest[1] if newest and dated else "none with a date",
    }


def main(tag: str, root: Path = ROOT) -> str | None:
    """Return what differs from the tag, or None."""
    wrong = {file: version for file, version in named_versions(root).items() if f"v{version}" != tag}
    return f"the tag is {tag}, but " + ", ".join(f"{a} names {b}" for a, b in wrong.items()) if wrong else None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
