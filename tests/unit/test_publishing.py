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
recipe = SimpleNamespace(**runpy.run_path(str(docs.ROOT / "scripts" / "recipe.py")))
PYPROJECT = tomllib.loads((docs.ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
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


def test_the_recipe_for_conda_has_the_dependencies_of_pyproject():
    assert recipe.RECIPE.read_text() == recipe.recipe(PYPROJECT), "write it anew: make reference"
    run = yaml.safe_load(recipe.RECIPE.read_text())["requirements"]["run"]
    assert "pytorch >=2.4,<2.14" in recipe.packages(["torch>=2.4,<2.14"])
    assert len(run) >= 2 + len(PROJECT["dependencies"])


def test_an_extra_that_conda_forge_may_have_under_another_name_is_asked_for():
    with pytest.raises(ValueError, match=r"lacks conda-forge's packages for fsspec\[s3\]"):
        recipe.packages(["fsspec[s3]>=2024.6"])


def test_the_recipe_of_an_sdist_has_its_checksum(tmp_path):
    sdist = tmp_path / "tunelight.tar.gz"
    sdist.write_bytes(b"")
    source = yaml.safe_load(recipe.recipe(PYPROJECT, sdist))["source"]
    assert source["sha256"] == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert source["url"].endswith("/tunelight/tunelight-${{ version }}.tar.gz")


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
