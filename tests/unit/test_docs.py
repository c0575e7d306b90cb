"""The documentation: its links lead somewhere, its commands parse, its spaces load, and what it names exists."""

from __future__ import annotations

import ast
import re
import runpy

import pytest
import yaml

import tunelight as tl
from tests import docs, preludes
from tests.docs_checks import check_command, parse

PAGES = docs.pages()
BLOCKS = [block for page in PAGES for block in docs.blocks(page)]
TRIED = {"bash", "console", "python", "yaml"}


def of_language(*languages: str) -> list[docs.Block]:
    return [block for block in BLOCKS if block.language in languages]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in docs.links(page):
        if target.startswith(("http://", "https://")):
            continue
        assert not target.startswith("/"), f"{page} links to {target}: write the way from the page"
        path, _, anchor = target.partition("#")
        there = (docs.ROOT / page).parent / path if path else docs.ROOT / page
        assert there.is_file(), f"{page} links to {target}, which is no file"
        if anchor:
            known = docs.anchors(there.resolve().relative_to(docs.ROOT).as_posix())
            assert anchor in known, f"{page} links to {target}; there are: {', '.join(sorted(known))}"


def test_every_decision_is_in_the_list_of_them():
    folder = docs.ROOT / "docs" / "decisions"
    assert {path.name for path in folder.glob("0*.md")} == set(docs.links("docs/decisions/README.md")) - {
        "../how-it-works.md"
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page):
    for block in docs.blocks(page):
        assert block.language in TRIED | docs.UNTRIED, f"{block} is {block.language!r}, which nothing tries"
    assert not docs.indented(page), f"{page}: indented code names no language, fence it: ```python, ```text ..."


@pytest.mark.parametrize("block", of_language("bash", "console"), ids=str)
def test_commands_are_known_with_their_options(block):
    for command in docs.commands(block):
        check_command(command)


@pytest.mark.parametrize("block", of_language("yaml"), ids=str)
def test_a_space_in_yaml_is_one(block, write):
    if "as" in block.notes:
        assert block.notes["as"] in preludes.YAML_KINDS, f"{block}: nothing loads {block.notes['as']!r}"
        assert isinstance(yaml.safe_load(block.text), dict)
        if block.notes["as"] == "wandb":
            assert isinstance(yaml.safe_load(block.text)["parameters"], dict)
        return
    space = tl.SearchSpace.of(write(preludes.YAML.get(block.notes.get("prelude", ""), "") + block.text))
    space.check_constraints()
    assert space.describe()


@pytest.mark.parametrize("page", PAGES)
def test_names_of_tunelight_in_sentences_exist(page):
    for code in docs.inline(page):
        for name in re.findall(r"\btl\.(\w+)", code):
            assert hasattr(tl, name), f"{page} names tl.{name}"


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_commands_in_sentences_parse(page):
    for code in docs.inline(page):
        if re.match(r"tunelight [a-z-]", code) and "…" not in code and "..." not in code:
            parse(code.split()[1:])


def test_the_pages_of_settings_and_commands_are_those_of_the_code():
    wanted = runpy.run_path(str(docs.ROOT / "scripts" / "reference.py"))["pages"]()
    stale = [path.name for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    assert not stale, "write them anew: make reference"


def test_the_reference_has_every_public_name_once():
    text = docs.read("docs/reference.md")
    shown = re.findall(r"^::: tunelight\.(\w+)$", text, re.MULTILINE)
    rays = re.findall(r"^\| `tl\.(\w+)\(", text, re.MULTILINE)
    assert sorted([*shown, *rays]) == sorted(tl.__all__)


@pytest.mark.parametrize("page", ["docs/how-it-works.md", "CONTRIBUTING.md"])
def test_files_that_the_map_names_exist(page):
    named = [text for text in docs.inline(page) if re.fullmatch(r"[\w/]+(\.py|/)", text)]
    places = [docs.ROOT, docs.ROOT / "tunelight", docs.ROOT / "tunelight" / "lightning", docs.ROOT / "tests"]
    missing = [text for text in named if not any((place / text).exists() for place in places)]
    assert len(named) > 5
    assert not missing


@pytest.mark.parametrize("block", of_language("python"), ids=str)
def test_python_is_python(block):
    compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
