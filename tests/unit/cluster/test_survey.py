"""The doctor's look at a cluster, without one: what it makes of what probes answer, or do not."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import ray
from ray.exceptions import GetTimeoutError, RayError

from tests.unit.cli.test_command import call
from tunelight.cli.app import FAILED
from tunelight.cluster.nodes import Here
from tunelight.cluster.survey import Node, Survey, _Rounds
from tunelight.machine.versions import MUST_AGREE

SAME = dict.fromkeys(MUST_AGREE, "1.0")


class Probe:
    """Answers as told: a value, an error, or nothing at all (None)."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            "look": Here("host", "eth0", {"eth0": ("10.0.0.1",)}, SAME, "/python", None), "clock": time.time,
            "listen": 4711, "reach": {}, "host": 4712, "all_reduce": 0.5,
        } | answers  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        class Method:
            @staticmethod
            def remote(**arguments: Any) -> Any:
                return self.answers[name]

        return Method


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Any:
    def get(answer: Any, timeout: float) -> Any:
        if answer is None:
            raise GetTimeoutError
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    monkeypatch.setattr(ray, "wait", lambda calls, **_: (calls, []))
    monkeypatch.setattr(ray, "get", get)

    def run(*probes: Probe) -> Survey:
        nodes = [Node(str(n) * 6, "host", f"10.0.0.{n}", {"CPU": 4.0}, {"CPU": 2.0}) for n in range(len(probes))]
        found = Survey("10.0.0.1:6379", nodes)
        _Rounds(found, {node.id: probe for node, probe in zip(nodes, probes, strict=True)}).all()
        return found

    return run


def wrong(found: Survey) -> list[str]:
    return [f"{one.name}: {one.found}" for one in found.findings if one.verdict == "wrong" and one.advice]


def test_a_sound_cluster_is_fit_and_its_all_reduce_is_that_of_the_slowest(rounds):
    found = rounds(Probe(), Probe(all_reduce=0.8))
    assert not wrong(found)
    assert (found.all_reduce_s, found.all_reduce_mib) == (0.8, 16)
    assert "16 MiB over 2 nodes by gloo: 800 ms, 20 MiB/s" in [one.found for one in found.findings]


def test_a_node_that_does_not_answer_is_named_and_left_out(rounds):
    found = rounds(Probe(), Probe(look=None), Probe())
    assert wrong(found) == ["look on host#111111 (10.0.0.1): no answer within 60 s"]
    assert "2 of 3 answer" in [one.found for one in found.findings]
    assert found.all_reduce_s is not None


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (RayError("Traceback\n  ...\nModuleNotFoundError: No module named 'x'\n"), "Error: No module named 'x'"),
        (
            Here("host", "eth0", {}, SAME | {"torch": "0.9"}, "/python", None),
            "torch is not the same on all nodes: 1.0 on host#000000 (10.0.0.0); 0.9 on host#111111",
        ),
        (
            Here("host", None, {"eth0": ("172.17.0.2",)}, SAME, "/python", None),
            "10.0.0.1, which no interface there has (eth0: 172.17.0.2)",
        ),
    ],
)
def test_a_node_without_tunelight_its_versions_or_its_address_is_wrong(rounds, look, message):
    (said,) = wrong(rounds(Probe(), Probe(look=look)))
    assert message in said


def test_a_blocked_port_names_both_ends_and_spares_the_all_reduce(rounds):
    found = rounds(Probe(reach={"host#111111 (10.0.0.1)": "no answer"}), Probe())
    (said,) = wrong(found)
    assert said == "reach: host#000000 (10.0.0.0) cannot reach host#111111 (10.0.0.1) at port 4711: no answer"
    assert found.all_reduce_s is None


def test_a_clock_that_is_ahead_is_a_note(rounds):
    found = rounds(Probe(), Probe(clock=lambda: time.time() + 90))
    (note,) = [one for one in found.findings if one.verdict == "note"]
    assert (note.name, note.found) == ("clock of host#111111 (10.0.0.1)", "90.0 s ahead of this machine's")
    assert not wrong(found)


@pytest.mark.parametrize(("answer", "code"), [({}, 0), ({"reach": {"host#000000 (10.0.0.0)": "no answer"}}, FAILED)])
def test_the_command_prints_a_row_for_each_node_and_fails_where_something_is_wrong(rounds, monkeypatch, answer, code):
    found = rounds(Probe(), Probe(**answer))
    monkeypatch.setattr("tunelight.cluster.survey.survey", lambda address: found)
    printed = call("doctor", "--cluster", code=code).output
    assert "host#000000" in printed
    assert "10.0.0.1 eth0" in printed
    assert "2 of 4" in printed
    told = json.loads(call("doctor", "--cluster", "--json", code=code).stdout)
    assert told["fit"] is (code == 0)
    assert told["nodes"][1]["here"]["versions"]["torch"] == "1.0"
    assert told["nodes"][1]["unreachable"] == answer.get("reach", {})
