"""The documentation's code, carried out as it stands there, and the site that is built of it."""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import tunelight as tl
from tests import docs, flavours
from tests.kit.programs import python, run
from tests.preludes import PRELUDES

PYTHON_PAGES = [page for page in docs.pages() if any(block.language == "python" for block in docs.blocks(page))]
SHELL_PAGES = [page for page in docs.pages() if any("run" in block.notes for block in docs.blocks(page))]
YAML_OF_LIGHTNING = [
    block for page in docs.pages() for block in docs.blocks(page) if block.notes.get("as") == "lightning-cli"
]


class _With(ast.NodeTransformer):
    """Give the calls of `tl.run` other keywords, as a comment above their block says."""

    def __init__(self, told: str) -> None:
        call = ast.parse(f"dict({told})", mode="eval").body
        assert isinstance(call, ast.Call)
        self.keywords, self.met = call.keywords, 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) == "tl.run":
            names = {keyword.arg for keyword in self.keywords}
            node.keywords = [one for one in node.keywords if one.arg not in names] + self.keywords
            self.met += 1
        return self.generic_visit(node)


def carry_out(block: docs.Block, names: dict[str, Any]) -> None:
    """Run a block of Python, with what its notes say, in the names that the page has so far."""
    if "prelude" in block.notes:
        names.update(PRELUDES[block.notes["prelude"]]())
    tree = ast.parse("\n" * (block.line - 1) + flavours.written(block.text))
    if told := block.notes.get("with"):
        shortened = _With(told)
        tree = ast.fix_missing_locations(shortened.visit(tree))
        assert shortened.met, f"{block}: there is no tl.run to be given {told}"
    exec(compile(tree, str(docs.ROOT / block.page), "exec"), names)


def python_of(page: str) -> list[docs.Block]:
    """Return a page's Python that is to run, `python -c` of its shell lines included, in order."""
    found = []
    for block in docs.blocks(page):
        if block.language == "python" and "not run" not in block.notes:
            found.append(block)
        elif block.language == "console":
            lines = (shlex.split(line, comments=True) for line in docs.commands(block))
            code = [words[2] for words in lines if words[:2] == ["python", "-c"]]
            found += [docs.Block(page, block.line, "python", text) for text in code]
    return found


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, as a program that was started there, and leave the home folder alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    for module in ("ray.train.constants", "ray.tune.experiment.experiment"):  # plain Ray Tune's, in the home folder
        monkeypatch.setattr(f"{module}.DEFAULT_STORAGE_PATH", str(tmp_path / "ray_results"))
    return tmp_path


def shape(line: str) -> str:
    """Return a line without its numbers, which differ from machine to machine."""
    return re.sub(r"\d[\d.e-]*", "0", line).replace("epochs", "epoch").rstrip()


@pytest.mark.slow
def test_the_ten_lines_of_the_readme_print_what_stands_there(ray4: Any, empty: Path, capsys: Any) -> None:
    blocks = docs.blocks("README.md")
    at = next(index for index, block in enumerate(blocks) if block.language == "python")
    program, shown = blocks[at : at + 2]
    carry_out(program, {"__name__": "__main__"})
    printed = {shape(line) for line in capsys.readouterr().out.splitlines()}
    missing = [
        line
        for line in shown.text.splitlines()
        if shape(line) not in printed and not line.startswith(("Starting", "trial", "Sweep"))
    ]
    assert not missing, f"not printed: {missing}; printed: {sorted(printed)}"
    assert any(line.startswith("trial 0 finished after 0 epoch  val_loss=0") for line in printed), printed
    assert yaml.safe_load(Path("best.yaml").read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_python_of_a_page_runs(page: str, ray4: Any, warm_gangs: Any, empty: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    (empty / "examples").symlink_to(Path(__file__).parents[2] / "examples")  # as in a clone
    for block in docs.blocks(page):
        if name := block.notes.get("file"):
            Path(name).write_text(block.text)
    for block in python_of(page):
        try:
            carry_out(block, names)
        except Exception as error:
            error.add_note(f"in the block at {block}")
            raise


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", SHELL_PAGES)
def test_the_commands_of_a_page_run(page: str, empty: Path) -> None:
    script = "\n".join(block.text for block in docs.blocks(page) if "run" in block.notes)
    run("bash", "-ec", script, cwd=empty, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.parametrize("block", YAML_OF_LIGHTNING, ids=str)
def test_yaml_for_lightning_is_what_its_parser_takes(block: docs.Block, ray4: Any, empty: Path) -> None:
    from tunelight.extras.digits import DigitsClassifier, DigitsData

    Path("config.yaml").write_text(block.text)
    read = flavours.module("cli").LightningCLI(
        DigitsClassifier, DigitsData, seed_everything_default=False, run=False, args=["--config", "config.yaml"]
    )
    assert isinstance(read.trainer.strategy, tl.RayStrategy)


def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    site = ("build", "--strict", "--site-dir", tmp_path)
    done = python("-m", "mkdocs", *site, limit_s=100, NO_MKDOCS_2_WARNING="1")
    assert "WARNING" not in done.stderr
    built = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    pages = set(docs.pages()) - {
        "README.md",  # the home page says the same
        "docs/index.md",  # which is the home page
        "tunelight/cli/starter/README.md",  # a template that `tunelight init` writes
    }
    assert {page.replace("README.md", "index.md").replace(".md", ".html") for page in pages} <= built.keys()
    assert "Is this for me?" in built["index.html"]
    assert "docs/commands.html" in built["index.html"]
    for page, text in built.items():
        fetched = re.findall(
            r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:[^\s\">]*)|<link[^>]*href=\"?(https?:[^\s\">]*)", text
        )
        assert not fetched, f"{page} fetches {fetched}"
    assert "tunelight.errors" in built["docs/reference.html"]
    assert "Search <code>search_space</code>" in built["docs/reference.html"]
