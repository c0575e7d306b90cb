"""Make the package's description of README.md (a hook of hatchling).

A package index knows no relative links, so they become absolute, below the address that ``[project.urls] Repository``
gives in pyproject.toml; without that key they stay as they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(!?)(\[(?:[^\[\]]|\[[^\]]*\])*\])\((?!https?://|#)([^)\s]+)\)")


def absolute(text: str, repository: str) -> str:
    """Return Markdown with relative links below a repository's address: pages of files, and pictures themselves."""
    root = repository.rstrip("/")

    def moved(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}({root}/{'raw' if match[1] else 'blob'}/HEAD/{match[3]})"

    return _LINK.sub(moved, text)


def get_metadata_hook() -> type[Any]:
    """Return the class that hatchling calls; only a build has hatchling, so it is imported here."""
    from hatchling.metadata.plugin.interface import MetadataHookInterface

    class ReadmeHook(MetadataHookInterface):
        def update(self, metadata: dict[str, Any]) -> None:
            text = Path(self.root, "README.md").read_text(encoding="utf-8")
            if repository := metadata.get("urls", {}).get("Repository"):
                text = absolute(text, repository)
            metadata["readme"] = {"content-type": "text/markdown", "text": text}

    return ReadmeHook
