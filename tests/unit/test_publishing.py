"""What is published: the package's description, and the files that a host of repositories reads."""

from __future__ import annotations

import re
import runpy
import tomllib
from types import SimpleNamespace

import pytest
import yaml

import tunelight as tl
from tests import docs

readme = SimpleNamespace(**runpy.run_path(str(docs.ROOT / "scripts" / "readme.py")))
PROJECT = tomllib.loads((docs.ROOT / "pyproject.toml").read_text())["project"]
CHANGELOG = docs.read("CHANGELOG.md")
GITHUB = sorted(path.relative_to(docs.ROOT).as_posix() for path in (docs.ROOT / ".github").rglob("*.yml"))


def test_links_of_the_description_are_absolute():
    text = readme.absolute(docs.read("README.md"), "https://example.org/us/tunelight/")
    targets = [match[1] for match in re.finditer(r"\]\(([^)\s]+)\)", docs.without_blocks(text))]
    assert len(targets) > 20
    assert all(target.startswith("https://") for target in targets)
    assert "(https://example.org/us/tunelight/raw/HEAD/docs/images/live.svg)" in text
    assert "(https://example.org/us/tunelight/blob/HEAD/docs/migration.md#optuna)" in text


def test_links_that_are_absolute_or_within_the_page_stay():
    text = "[a](https://example.org/a) [b](#b) ![c](http://example.org/c.png)"
    assert readme.absolute(text, "https://example.org") == text


def test_the_citation_names_this_version():
    citation = yaml.safe_load((docs.ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == PROJECT["version"] == tl.__version__
    assert citation["license"] == PROJECT["license"]


# --- release notes ----------------------------------------------------------------------------------------


@pytest.fixture
def section(monkeypatch):
    monkeypatch.syspath_prepend(docs.ROOT / "scripts")
    return runpy.run_path(str(docs.ROOT / "scripts" / "release_notes.py"))["section"]


def test_the_notes_of_this_version_are_its_section_of_the_changelog(section):
    notes = section(CHANGELOG, PROJECT["version"])
    assert notes.startswith("### ")
    assert "\n## " not in notes


def test_notes_end_where_the_next_version_begins(section):
    text = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-11-23\n\n- a [b]\n\n## [0.1.0]\n\n- c\n"
    assert [section(text, version) for version in ("Unreleased", "0.2.0", "0.1.0")] == ["", "- a [b]", "- c"]


def test_a_version_that_the_changelog_does_not_have_has_no_notes(section):
    with pytest.raises(ValueError, match=r"no section '9\.9\.9'; it has: Unreleased, 0\.2\.0"):
        section(CHANGELOG, "9.9.9")


@pytest.mark.parametrize("path", GITHUB)
def test_yaml_for_the_host_is_valid(path):
    assert isinstance(yaml.safe_load((docs.ROOT / path).read_text()), dict)


@pytest.mark.parametrize("path", [path for path in GITHUB if "ISSUE" in path and "config" not in path])
def test_a_form_for_issues_has_what_it_needs(path):
    form = yaml.safe_load((docs.ROOT / path).read_text())
    assert {"name", "description", "body"} <= form.keys()
    assert all(field["attributes"]["label"] for field in form["body"])


def test_the_workflow_runs_make_test_on_every_supported_python():
    workflow = yaml.safe_load((docs.ROOT / ".github/workflows/test.yml").read_text())
    (job,) = workflow["jobs"].values()
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == declared
    assert any(step.get("run", "").startswith("make test") for step in job["steps"])
    assert {"push", "pull_request"} <= workflow[True].keys()  # YAML 1.1 reads the key `on` as true
