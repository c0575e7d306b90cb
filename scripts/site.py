"""Lay the site out as the repository is: each page and file has its own path there (a hook of mkdocs).

So one relative link is right in both, and none is rewritten.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

BESIDE_DOCS = (
    *("*.md", "LICENSE", "cluster/*", "searchspaces/*", "benchmarks/README.md"),
    *("examples/*", "examples/*/*.py", "examples/*/*/*.py"),
)
"""What the site holds beside docs/."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the theme's files, and the repository's under their paths in it."""
    root = Path(config.config_file_path).parent
    ours = [file for file in files if file.src_dir == config.docs_dir]
    paths = [Path(file.abs_src_path or "") for file in ours]
    for pattern in BESIDE_DOCS:
        paths += sorted(path for path in root.glob(pattern) if path.is_file())
    theirs = [file for file in files if file not in ours]
    made = [File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path)) for path in paths]
    return Files([*theirs, *made])
