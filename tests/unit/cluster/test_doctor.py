"""doctor: what it looks at that costs no import, and that one look that fails leaves the others."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from typing import Any

import pytest

from tests.unit.cli.test_command import call
from tunelight.cli.app import FAILED
from tunelight.cluster import doctor
from tunelight.cluster.doctor import Finding

Usage = namedtuple("Usage", "total used free")


def by_name(findings: Any) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_installed_packages_are_held_against_what_tunelight_wants(monkeypatch):
    wanted = ["numpy>=1", "typer>=99", "no-such-thing>=2", "other; extra == 'dev'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: wanted)
    found = by_name(doctor._packages())
    assert {name: finding.verdict for name, finding in found.items()} == {
        "numpy": "ok", "typer": "wrong", "no-such-thing": "wrong",
    }  # fmt: skip
    assert found["no-such-thing"].advice == "pip install 'no-such-thing>=2'"


@pytest.mark.parametrize(
    ("system", "verdict", "says"), [("Linux", "ok", ""), ("Darwin", "note", "macOS"), ("Windows", "wrong", "container")]
)
def test_a_mac_is_worth_a_note_and_windows_is_wrong(monkeypatch, system, verdict, says):
    monkeypatch.setattr("platform.system", lambda: system)
    found = by_name(doctor._machine())["system"]
    assert found.verdict == verdict
    assert says in found.advice


def test_a_full_disk_is_wrong(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 << 30, 99 << 30, 1 << 30))
    found = by_name(doctor._disks())
    assert (found["sweeps"].verdict, found["Ray's files"].verdict) == ("wrong", "wrong")
    assert "RAY_TMPDIR" in found["Ray's files"].advice


def test_a_ray_that_was_not_tested_is_a_note_and_one_that_lacks_a_name_is_wrong(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.__version__", "2.61.0")
    found = by_name(doctor._ray())["ray"]
    assert (found.verdict, found.found) == ("note", "not tested with Ray 2.61; tested: 2.43 to 2.60")
    assert "pip install 'ray[client,tune]==2.60.*'" in found.advice
    monkeypatch.setattr(doctor, "missing_internals", lambda *parts: [f"ray.gone of {part}" for part in parts])
    found = by_name(doctor._ray())["ray"]
    assert (found.verdict, found.found) == ("wrong", "lacks ray.gone of core, ray.gone of tune")


def test_a_look_that_fails_leaves_the_others(monkeypatch):
    def broken() -> Any:
        raise OSError("gone")

    for name in ("_gpus", "_horovod", "_machine"):
        monkeypatch.setattr(doctor, name, broken)
    findings = doctor.examine()
    assert sum("OSError: gone" in finding.found for finding in findings) == 3
    assert len(findings) > 3


@pytest.mark.parametrize(("verdict", "code"), [("note", 0), ("wrong", FAILED)])
def test_the_command_prints_what_to_do_and_fails_where_something_is_wrong(monkeypatch, verdict, code):
    found = Finding("horovod", verdict, "0.28.1, without gloo", "Build it again.")
    monkeypatch.setattr(doctor, "examine", lambda: [found])
    assert "Build it again." in call("doctor", code=code).output
    told = json.loads(call("doctor", "--json", code=code).stdout)
    assert told["fit"] is (code == 0)
    assert told["findings"][0]["name"] == "horovod"
