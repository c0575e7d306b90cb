"""What docs/versions.md promises: which names are public and stable, and which versions are supported."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

import tunelight as tl
from tests import docs
from tests.doors import modules

reference = runpy.run_path(str(docs.ROOT / "scripts" / "reference.py"))
NOW: dict[str, dict[str, Any]] = reference["names"]()
LISTED: dict[str, dict[str, Any]] = json.loads(reference["NAMES"].read_text())
BREAKS = "That breaks programs. Say in CHANGELOG.md what to do instead, then run: make reference"
TELL = "Write it into CHANGELOG.md, then run: make reference"


# --- the list of public names -----------------------------------------------------------------------------


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each public name that has changed, and what to do about it."""
    said = []
    for name in sorted(before.keys() | now.keys()):
        for what, breaks in _changes(before.get(name), now.get(name)):
            stable = before.get(name, {}).get("stability") == "stable"
            said.append(f"{name} {what}. {BREAKS if breaks and stable else TELL}")
    return said


def _changes(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[tuple[str, bool]]:
    """Yield what has changed of a name, and whether that breaks programs."""
    if old is None or new is None:
        yield ("is new", False) if old is None else ("is gone", True)
        return
    if old["kind"] != new["kind"]:
        yield f"is no {old['kind']} any more but a {new['kind']}", True
    if old["stability"] != new["stability"]:
        yield f"is {new['stability']} now", True
    had, has = (dict(word.partition("=")[::2] for word in each["has"]) for each in (old, new))
    called = new["kind"] in ("class", "function")
    for word in had:
        if word not in has:
            yield f"has no {word} any more", True
        elif had[word] != has[word]:
            yield f"has {word}={has[word] or '(required)'} in place of {had[word] or '(required)'}", not has[word]
    for word in has.keys() - had.keys():
        yield f"has {word}, which is new", called and not has[word] and "*" not in word
    positions = _positional(old["has"])
    if called and had.keys() <= has.keys() and _positional(new["has"])[: len(positions)] != positions:
        yield f"takes {', '.join(positions)} by other positions", True


def _positional(parameters: Sequence[str]) -> list[str]:
    names = [word.partition("=")[0] for word in parameters]
    return names[: next((index for index, name in enumerate(names) if name.startswith("*")), None)]


def test_public_names_are_those_of_the_list():
    said = differences(LISTED, NOW)
    assert not said, "\n".join(said)


def name(*has: str, kind: str = "function", stability: str = "stable") -> dict[str, Any]:
    return {"kind": kind, "stability": stability, "has": list(has)}


@pytest.mark.parametrize(
    ("old", "new", "sentence", "todo"),
    [
        (name("a"), None, "tl.f is gone.", BREAKS),
        (name("a", stability="experimental"), None, "tl.f is gone.", TELL),
        (None, name("a"), "tl.f is new.", TELL),
        (name("a"), name("a", kind="class"), "tl.f is no function any more but a class.", BREAKS),
        (name("a"), name("a", stability="experimental"), "tl.f is experimental now.", BREAKS),
        (name("a", stability="experimental"), name("a"), "tl.f is stable now.", TELL),
        (name("a", "b=1"), name("a"), "tl.f has no b any more.", BREAKS),
        (name("a", "b=1"), name("a", "b=2"), "tl.f has b=2 in place of 1.", TELL),
        (name("a", "b=1"), name("a", "b"), "tl.f has b=(required) in place of 1.", BREAKS),
        (name("a"), name("a", "b=1"), "tl.f has b, which is new.", TELL),
        (name("a"), name("a", "b"), "tl.f has b, which is new.", BREAKS),
        (name("a", "b=1"), name("a", "c=1", "b=1"), "tl.f takes a, b by other positions.", BREAKS),
        (name("a", "b=1"), name("a", "*", "b=1"), "tl.f takes a, b by other positions.", BREAKS),
        (name("--a", kind="command"), name("--b", "--a", kind="command"), "tl.f has --b, which is new.", TELL),
        (name("default=1", kind="setting"), name("default=2", kind="setting"), "default=2 in place of 1.", TELL),
        (name("x", "y", kind="JSON"), name("y", kind="JSON"), "tl.f has no x any more.", BREAKS),
    ],
)
def test_a_change_is_named_with_what_to_do(old, new, sentence, todo):
    before, now = ({} if each is None else {"tl.f": each} for each in (old, new))
    said = differences(before, now)
    assert any(sentence in each and each.endswith(todo) for each in said), said


def test_what_is_public_is_on_the_list_once_with_its_stability():
    assert {f"tunelight.{each}" for each in tl.__all__} <= NOW.keys()
    assert NOW["tunelight.run"]["stability"] == NOW["tunelight run"]["stability"] == "stable"
    assert NOW["tunelight.tune_up"]["stability"] == NOW["tunelight tune-up"]["stability"] == "experimental"
    assert NOW["tunelight.sweep.attach.AttachedSweep.branch"]["stability"] == "experimental"
    assert NOW["tunelight.sweep.attach.AttachedSweep.stop"]["stability"] == "stable"
    assert NOW["setting proxy"]["stability"] == "experimental"


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
