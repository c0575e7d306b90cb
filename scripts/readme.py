"""Make the README of the published package from README.md: a package index knows no relative links (a hook of hatchling).

They become absolute, below the address in ``[project.urls] Repository`` of pyproject.toml, the only place that names it.
Without that key they stay as they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[(?:[^\[\]]|\[[^\]]*\])*\])\((?!https?://|#)([^)\s]+)\)")


def absolute(text: str, repository: str) -> str:
    """Return Markdown with relative links below a repository's address: files as pages, pictures as they are."""
    root = repository.rstrip("/")
    return _LINK.sub(lambda match: f"{match[1]}{match[2]}({root}/{'raw' if match[1] else 'blob'}/HEAD/{match[3]})", text)


class ReadmeHook(MetadataHookInterface):
    """Gives the package its long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme`` in a project's metadata."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        text = absolute(text, repository) if repository else text
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
