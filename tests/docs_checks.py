"""Hold a command line of the documentation against what it calls: nothing is started."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator

import typer
import typer.core

from tests.docs import ROOT
from tunelight.cli import app

ELSEWHERE = {"cd", "docker", "helm", "kubectl", "ray", "sbatch", "scancel", "source", "tail"}
"""Commands that are not tunelight's to know: the shell's, Ray's own, and those of clusters."""
OTHERS = (["sweep.py"], ["train.py"], ["-m", "pytest"], ["-m", "venv"])
"""What Python runs that is not tunelight's: scripts of a reader's folder, and modules."""


def check_command(line: str) -> None:
    """Raise an exception that says what is wrong with a shell line of the documentation."""
    for words in _split(line):
        name = words[0].rpartition("/")[2]
        if name in ELSEWHERE:
            if "tunelight" in words:  # which they run on a cluster
                parse(words[words.index("tunelight") + 1 :])
            continue
        if name in _CHECKS:
            _CHECKS[name](words[1:])
        elif not importlib.metadata.entry_points(group="console_scripts", name=name):
            raise ValueError(f"nothing here knows the command {name!r}: {line}")


def _split(line: str) -> Iterator[list[str]]:
    """Return the words of each command of a line, without its comment and variables that it sets."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("&|;"):
            if words:
                yield words
            words = []
        elif words or not re.match(r"[A-Z_]+=", word):
            words.append(word)


def parse(words: list[str]) -> None:
    """Parse arguments as tunelight's command line does, and carry nothing out. Raises: click's UsageError."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    context = typer.Context(group, info_name="tunelight")
    if words and words[0].startswith("-"):  # carried out as it is parsed: --install-completion, --version
        if not any(words[0] in option.opts for option in group.get_params(context)):
            raise ValueError(f"tunelight has no option {words[0]}")
        return
    name, command, rest = group.resolve_command(context, list(words))
    if command is not None and "--help" not in rest:
        command.make_context(name, rest, parent=context)


def _make(words: list[str]) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    unknown = {word for word in words if "=" not in word and word != "…"} - targets
    if unknown:
        raise ValueError(f"the Makefile has no {', '.join(unknown)}")


def _pip(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        named = re.fullmatch(r"(?:tunelight|\.)\[([\w,]+)\]", word)
        unknown = set(named[1].split(",")) - extras.keys() if named else ()
        if unknown:
            raise ValueError(f"pyproject.toml has no extra {', '.join(unknown)}")


def _python(words: list[str]) -> None:
    if words[0] == "-c":
        ast.parse(words[1])
    elif words[:2] == ["-m", "tunelight"]:
        parse(words[2:])
    elif words[: 1 + (words[0] == "-m")] not in OTHERS:
        script = ROOT / words[0]
        source = script.read_text() + "".join(path.read_text() for path in script.parent.glob("measure.py"))
        for option in [word.partition("=")[0] for word in words[1:] if word.startswith("--")]:
            if not re.search(rf'"{option}"|\b{option[2:]}=', source):  # the second: benchmarks' own
                raise ValueError(f"{words[0]} has no option {option}")


_CHECKS: dict[str, Callable[[list[str]], None]] = {
    "make": _make, "pip": _pip, "python": _python, "python3": _python, "tunelight": parse,
}  # fmt: skip
