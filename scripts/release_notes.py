"""Print the release notes of a wheel in Markdown: its version's section of CHANGELOG.md, and what it brings.

    python scripts/release_notes.py dist/*.whl

The wheel is installed into a temporary environment, where its dependencies are counted and its import is timed.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from install import ensure_uv, install
from readme import absolute

ROOT = Path(__file__).parents[1]
IMPORTS = 7
"""How many new processes import the package."""
COUNT = """
import importlib.metadata as metadata, json
direct = [one for one in metadata.requires("tunelight") if "extra ==" not in one]
installed = {one.metadata["Name"] for one in metadata.distributions()} - {"tunelight"}
print(json.dumps({"direct": len(direct), "installed": len(installed), "torch": metadata.version("torch")}))
"""
IMPORT = "import time; began = time.perf_counter(); import tunelight; print(time.perf_counter() - began)"


def section(changelog: str, version: str) -> str:
    """Return what a changelog says of a version, without its heading. Raises: ValueError if it has no such section."""
    sections = dict(re.findall(r"^## \[([^\]]+)\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL))
    if version not in sections:
        raise ValueError(f"CHANGELOG.md has no section {version!r}; it has: {', '.join(sections)}")
    return str(sections[version]).strip()


def describe(wheel: Path) -> str:
    """Return what a wheel brings, by a temporary environment. Raises: RuntimeError if it cannot be installed there."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        if not ensure_uv() or install(python, ["--quiet", "--no-compile-bytecode", str(wheel)]) != 0:
            raise RuntimeError(f"{wheel} could not be installed into {folder}")

        def ask(code: str) -> str:
            return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout

        ask(IMPORT)  # the first import writes bytecode
        seconds = statistics.median(float(ask(IMPORT)) for _ in range(IMPORTS))
        found = json.loads(ask(COUNT))
    return (
        f"The wheel has {wheel.stat().st_size / 1e6:.1f} MB and {found['direct']} direct dependencies; "
        f"{found['installed']} packages are installed with it in all (with torch {found['torch']}). `import tunelight` "
        f"takes {seconds:.2f} s, the median of {IMPORTS} new processes of Python {platform.python_version()}."
    )


def main() -> None:
    """Print the notes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="dist/tunelight-1.2.3-py3-none-any.whl")
    args = parser.parse_args()
    name, version, *_ = [*args.wheel.name.split("-"), "", ""]
    if name != "tunelight":
        parser.error(f"{args.wheel} is no wheel of tunelight")
    try:
        notes = section((ROOT / "CHANGELOG.md").read_text(), version)
    except ValueError as error:
        parser.error(str(error))
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    if repository := urls.get("Repository"):
        notes = absolute(notes, repository)
    print(f"{notes}\n\n### The wheel\n\n{describe(args.wheel)}")


if __name__ == "__main__":
    main()
