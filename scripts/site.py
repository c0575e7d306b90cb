"""Lay the site out as the repository is: each page and file has its own path there (hooks of mkdocs).

So one relative link is right in both, and none is rewritten. The home page is docs/index.md; the README, which says the
same to those who look at the repository, is left out.
"""

from __future__ import annotations

import os
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

HOME = "docs/index.md"
BESIDE_DOCS = (
    *("*.md", "LICENSE", "cluster/*", "searchspaces/*", "benchmarks/README.md"),
    *("examples/*", "examples/*/*.py", "examples/*/*/*.py"),
)
"""What the site holds beside docs/."""
LEFT_OUT = frozenset({"README.md"})


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Offer the other versions where mike builds."""
    if "MIKE_DOCS_VERSION" in os.environ:  # elsewhere there is no list of versions that could be fetched
        config.extra["version"] = {"provider": "mike", "alias": True}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the theme's files, and the repository's under their paths in it."""
    root = Path(config.config_file_path).parent
    ours = [file for file in files if file.src_dir == config.docs_dir]
    paths = [Path(file.abs_src_path or "") for file in ours]
    for pattern in BESIDE_DOCS:
        paths += sorted(path for path in root.glob(pattern) if path.is_file())
    theirs = [file for file in files if file not in ours]
    made = [File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path)) for path in paths]
    for file in made:
        if file.src_uri == HOME:
            file.dest_uri = "index.html"
    return Files([*theirs, *(file for file in made if file.src_uri not in LEFT_OUT)])


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt to the site's root, with links to the site's pages."""
    text = Path(config.config_file_path).with_name("llms.txt").read_text()
    text = text.replace("](docs/index.md)", "](index.html)").replace("README.md)", "index.html)")
    Path(config.site_dir, "llms.txt").write_text(text.replace(".md)", ".html)"))
