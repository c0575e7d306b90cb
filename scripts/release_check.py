"""Check that a tag can be released, before anything is built of it.

    python scripts/release_check.py v1.2.3

All files that name the version have to agree, and the changelog's newest section has to have a date. What cannot be
changed once it is published, the package's description and its links, has to be that of a published package.
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


def unpublished(root: Path) -> list[str]:
    """Return what the package's description and links still lack."""
    lacks = []
    if "not on PyPI" in (root / "README.md").read_text():
        lacks.append("README.md says that the package is not on PyPI: take that sentence out")
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"].get("urls", {})
    if missing := [name for name in ("Repository", "Documentation", "Changelog", "Issues") if name not in urls]:
        lacks.append(f"[project.urls] in pyproject.toml lacks {', '.join(missing)}")
    return lacks


def main(tag: str, root: Path = ROOT) -> str | None:
    """Return what is wrong, one thing a line, or None."""
    wrong = {file: version for file, version in named_versions(root).items() if f"v{version}" != tag}
    differs = f"the tag is {tag}, but " + ", ".join(f"{a} names {b}" for a, b in wrong.items())
    return "\n".join([differs] * bool(wrong) + unpublished(root)) or None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
