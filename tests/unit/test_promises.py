"""What docs/versions.md promises: which names are public and stable, and which versions are supported."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from typing import Any

import pytest

import tunelight as tl
from tests import docs
from tests.doors import modules

reference = runpy.run_path(str(docs.ROOT / "scripts" / "reference.py"))
NOW: dict[str, dict[str, Any]] = reference["names"]()
LISTED: dict[str, dict[str, Any]] = json.loads(reference["NAMES"].read_text())


def test_public_names_are_those_of_the_list():
    changed = [name for name in sorted(LISTED.keys() | NOW.keys()) if LISTED.get(name) != NOW.get(name)]
    assert not changed, f"say in CHANGELOG.md what to do instead of what is gone, then run: make reference; {changed}"


def test_what_is_public_is_on_the_list_once_with_its_stability():
    assert {f"tunelight.{each}" for each in tl.__all__} <= NOW.keys()
    assert NOW["tunelight.run"]["stability"] == NOW["tunelight run"]["stability"] == "stable"
    assert NOW["tunelight.tune_up"]["stability"] == NOW["tunelight tune-up"]["stability"] == "experimental"
    assert NOW["tunelight.extras.attach.AttachedSweep.branch"]["stability"] == "experimental"
    assert NOW["tunelight.extras.attach.AttachedSweep.stop"]["stability"] == "stable"


def test_tables_of_the_reference_say_what_is_experimental():
    rows = re.findall(r"^\| `(tunelight\.[\w.]+)` \| (.*) \|$", docs.read("docs/reference.md"), re.MULTILINE)
    assert rows
    for path, text in rows:
        assert (NOW[path]["stability"] == "experimental") == ("experimental" in text), path


def test_every_error_is_in_the_reference():
    errors = {
        each
        for each, value in vars(tl.errors).items()
        if isinstance(value, type) and value.__module__ == "tunelight.errors"
    }
    assert {each.rpartition(".")[2] for each in NOW if each.startswith("tunelight.errors.")} == errors


@pytest.mark.parametrize("page", [each for each in docs.pages() if not re.search(r"^[A-Z]|^bench|decisions", each)])
def test_pages_name_nothing_internal(page):
    rooms = {module.partition(".")[0] for module in modules()}
    for code in docs.inline(page):
        for path in re.findall(r"\btunelight\.(?:\w+\.?)+\b", code):
            brought = path.startswith("tunelight.extras.transformers.")  # it imports what its users bring
            if path.split(".")[1] in rooms and not brought:
                assert any(f"{each}.".startswith(f"{path}.") for each in NOW), f"{page}: {path}"


@pytest.mark.parametrize("name", ["Python", "Ray", "Lightning", "torch", "torchmetrics", "Optuna"])
def test_the_oldest_versions_on_the_page_are_those_of_the_package(name):
    project = tomllib.loads(docs.read("pyproject.toml"))["project"]
    wanted = {"Python": "python", "Lightning": "pytorch-lightning"}.get(name, name.lower())
    declared = [*project["dependencies"], f"python{project['requires-python']}"]
    oldest = next(found[1] for line in declared if (found := re.match(rf"{wanted}(?:\[.*\])?>=([\d.]+)", line)))
    row = re.search(rf"^\| {name} \| ([\d.]+) \|", docs.read("docs/versions.md"), re.MULTILINE)
    assert row is not None
    assert row[1] == oldest
