"""Install packages into the environment of the Python that runs this, by uv where it can be had and else by pip.

    python scripts/install.py ARGUMENTS OF pip install...

uv resolves and unpacks in parallel, in a tenth of pip's time, but does not read pip's configuration, and a CPU build of
torch, a mirror or a certificate is named there. So that is read, from its files and from its variables, and handed on.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"

OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
    "constraint": "--constraints",
}
"""Settings of pip, each a list, beside uv's options of the same meaning."""
PIP = (sys.executable, "-m", "pip")


def read_config(text: str) -> dict[str, str]:
    """Return pip's settings for an install from what `pip config list` printed: variables win over files."""
    settings: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in text.splitlines():
        source, _, rest = line.partition(".")
        name, _, value = rest.partition("=")
        if source in settings:
            settings[source][name] = str(ast.literal_eval(value))
    return settings["global"] | settings["install"] | settings[":env:"]


def uv_options(config: dict[str, str]) -> list[str]:
    """Return uv's options for pip's settings."""
    options = []
    for name, option in OPTIONS.items():
        for value in config.get(name, "").split():
            options += [option, value]
    if "extra-index-url" in config:
        options += ["--index-strategy", "unsafe-best-match"]  # as pip: the best of all indexes, not of the first
    if config.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
        options.append("--no-index")
    return options


def uv_environment(config: dict[str, str]) -> dict[str, str]:
    """Return this process's environment with what uv reads there and pip in its settings."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    names = {"cert": "SSL_CERT_FILE", "default-timeout": "UV_HTTP_TIMEOUT", "timeout": "UV_HTTP_TIMEOUT"}
    return {name: config[setting] for setting, name in names.items() if setting in config} | environment


def install(python: str | Path, arguments: Sequence[str]) -> int:
    """Install by uv into the environment of a Python what pip's arguments say, and return the exit status.

    uv must be in the environment of the Python that runs this; pip's configuration is that one's too.
    """
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
    config = read_config(listed)
    # Bytecode as pip makes it, whatever the environment says: without any, Ray's agents take too long to start.
    uv = [sys.executable, "-m", "uv", "pip", "install", "--compile-bytecode", "--python", str(python)]
    command = [*uv, *uv_options(config), *arguments]
    return subprocess.run(command, env=uv_environment(config), check=False).returncode


def ensure_uv() -> bool:
    """Install uv for the Python that runs this where it is missing; return whether it is there."""
    if importlib.util.find_spec("uv") is not None:
        return True
    bootstrap = [*PIP, "install", "--quiet", "-c", str(CONSTRAINTS), "uv"]
    return subprocess.run(bootstrap, check=False).returncode == 0


def main(arguments: Sequence[str]) -> int:
    """Install what pip's arguments say and return the exit status."""
    if ensure_uv():
        return install(sys.executable, arguments)
    print("install: no uv here, so pip installs, which takes some minutes", file=sys.stderr)
    return subprocess.run([*PIP, "install", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
