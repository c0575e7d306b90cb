"""What is published, and what docs/versions.md promises: public names that are stable, and supported versions."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import tunelight as tl
from tests import docs
from tests.doors import modules

readme = SimpleNamespace(**runpy.run_path(str(docs.ROOT / "scripts" / "readme.py")))
recipe = SimpleNamespace(**runpy.run_path(str(docs.ROOT / "scripts" / "recipe.py")))
PYPROJECT = tomllib.loads((docs.ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
CHANGELOG = docs.read("CHANGELOG.md")


def test_links_of_the_description_are_absolute():
    text = readme.absolute(docs.read("README.md"), "https://example.org/us/tunelight/")
    targets = [match[1] for match in re.finditer(r"\]\(([^)\s]+)\)", docs.without_blocks(text))]
    assert len(targets) > 20
    assert all(target.startswith("https://") for target in targets)
    assert "(https://example.org/us/tunelight/raw/HEAD/docs/images/live.svg)" in text
    assert "(https://example.org/us/tunelight/blob/HEAD/docs/migration.md#optuna)" in text


def test_the_citation_names_this_version():
    citation = yaml.safe_load((docs.ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == PROJECT["version"] == tl.__version__
    assert citation["license"] == PROJECT["license"]


def test_the_tools_that_build_a_release_are_those_that_tests_build_with():
    pinned = {name.lower().replace("_", "-"): version for name, version in pins("constraints.txt").items()}
    tools = pins(".github/build.txt")
    assert {"build", "hatchling"} <= tools.keys()
    assert not {name: version for name, version in tools.items() if pinned.get(name, version) != version}


def pins(path: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==(\S+)", docs.read(path), re.MULTILINE))


def test_the_notes_of_this_version_are_its_section_of_the_changelog(monkeypatch):
    monkeypatch.syspath_prepend(docs.ROOT / "scripts")
    script = runpy.run_path(str(docs.ROOT / "scripts" / "release_notes.py"))
    notes = script["section"](CHANGELOG, PROJECT["version"])
    heading = re.search(rf"^## \[{re.escape(PROJECT['version'])}\].*\n\n", CHANGELOG, re.MULTILINE)
    assert heading is not None
    assert CHANGELOG[heading.end() :].startswith(f"{notes}\n\n## [")
    assert "### Added\n" in notes
    assert "\n## " not in notes


def test_the_recipe_for_conda_has_the_dependencies_of_pyproject_and_an_sdist_s_checksum(tmp_path):
    assert recipe.RECIPE.read_text() == recipe.recipe(PYPROJECT), "write it anew: make reference"
    run = yaml.safe_load(recipe.RECIPE.read_text())["requirements"]["run"]
    assert "pytorch >=2.4,<2.14" in recipe.packages(["torch>=2.4,<2.14"])
    sdist = tmp_path / "tunelight.tar.gz"
    sdist.write_bytes(b"")
    source = yaml.safe_load(recipe.recipe(PYPROJECT, sdist))["source"]
    assert source["sha256"].startswith("e3b0c44298fc1c149afbf4c8996fb924")
    assert source["url"].endswith("/tunelight/tunelight-${{ version }}.tar.gz")
    assert len(run) >= 2 + len(PROJECT["dependencies"])


WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (docs.ROOT / ".github/workflows").glob("*.yml")}
STEPS = [(name, step) for name, flow in WORKFLOWS.items() for job in flow["jobs"].values() for step in job["steps"]]


def test_what_workflows_run_is_there():
    targets = set(re.findall(r"^([a-z-]+):", docs.read("Makefile"), re.MULTILINE))
    runs = "\n".join(step.get("run", "") for _, step in STEPS)
    made, scripts = set(re.findall(r"\bmake ([a-z-]+)", runs)), set(re.findall(r"\bscripts/\w+\.py", runs))
    assert {"test", "test-full", "matrix", "differential", "audit", "dist", "wheel-test"} <= made
    assert made - targets == set()
    assert [script for script in scripts if not (docs.ROOT / script).exists()] == []


@pytest.mark.parametrize(("name", "command"), [("test.yml", "make test "), ("release.yml", "make wheel-test ")])
def test_every_supported_python_is_tested(name, command):
    job = WORKFLOWS[name]["jobs"]["test"]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == supported
    assert any(step.get("run", "").startswith(command) for step in job["steps"])


def test_a_release_is_published_after_all_else_and_on_the_test_index_first():
    jobs = WORKFLOWS["release.yml"]["jobs"]

    def before(name: str) -> set[str]:
        needs = jobs[name].get("needs", [])
        return {one for need in ([needs] if isinstance(needs, str) else needs) for one in {need, *before(need)}}

    assert before("pypi") == jobs.keys() - {"pypi", "github"}
    assert before("testpypi") == jobs.keys() - {"testpypi", "pypi", "github"}
    assert jobs["pypi"]["environment"] == "pypi"
    assert [name for name, job in jobs.items() if "write" in job["permissions"].values()] == [
        *("attest", "testpypi", "pypi", "github"),
    ]


URLS = "[project.urls]\n" + "".join(
    f'{name} = "https://example.org"\n' for name in ("Repository", "Documentation", "Changelog", "Issues")
)


def test_a_release_whose_files_name_other_versions_or_no_published_package_is_stopped(tmp_path):
    check = runpy.run_path(str(docs.ROOT / "scripts" / "release_check.py"))["main"]
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        (tmp_path / name).write_text(docs.read(name))
    if "urls" not in PROJECT:
        (tmp_path / "pyproject.toml").write_text(f"{docs.read('pyproject.toml')}\n{URLS}")
    (tmp_path / "README.md").write_text("# tunelight\n")
    assert check(f"v{PROJECT['version']}", tmp_path) is None
    assert check("v9.0", tmp_path) == (
        "the tag is v9.0, but " + ", ".join(f"{name} names {PROJECT['version']}" for name in
                                            ("pyproject.toml", "CITATION.cff", "CHANGELOG.md"))
    )  # fmt: skip
    (tmp_path / "CHANGELOG.md").write_text(f"## [Unreleased]\n\n## [{PROJECT['version']}]\n")
    assert check(f"v{PROJECT['version']}", tmp_path).endswith("but CHANGELOG.md names none with a date")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "pyproject.toml").write_text(f"[project]\nversion = '{PROJECT['version']}'\n")
    (tmp_path / "README.md").write_text("It is not on PyPI yet.")
    assert check(f"v{PROJECT['version']}", tmp_path).splitlines() == [
        "README.md says that the package is not on PyPI: take that sentence out",
        "[project.urls] in pyproject.toml lacks Repository, Documentation, Changelog, Issues",
    ]


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
