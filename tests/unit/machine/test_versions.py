"""Whether processes that train together run the same software."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tunelight.errors import GangError
from tunelight.gang.membership import Membership
from tunelight.gang.placement import Location
from tunelight.gang.seat import Seat
from tunelight.gang.spec import GangSpec
from tunelight.machine.versions import LIGHTNING, MUST_AGREE, alike, differences, installed, node_name
from tunelight.resources import Reservation


def test_what_is_installed_is_known_without_importing_it():
    found = installed()
    assert tuple(found) == MUST_AGREE
    assert all(version for name, version in found.items() if name not in LIGHTNING)
    assert any(found[name] for name in LIGHTNING)


@pytest.mark.parametrize(
    ("name", "one", "other", "same"),
    [
        ("python", "3.11.7", "3.11.9", True), ("python", "3.11.7", "3.12.0", False),
        ("torch", "2.13.0+cpu", "2.13.0+cu128", True), ("torch", "2.13.0", "2.13.1", False),
        ("torch", "2.13.0", None, False),
    ],
)  # fmt: skip
def test_a_build_or_a_patch_of_python_may_differ(name, one, other, same):
    assert (alike(name, one) == alike(name, other)) is same


def test_a_difference_names_versions_and_nodes():
    same = dict.fromkeys(MUST_AGREE, "1.0")
    nodes = {f"node{number}": same for number in range(8)}
    assert differences(nodes, "pytorch_lightning") == []
    torch, ray = differences(nodes | {"node8": same | {"torch": "2.9.0", "ray": "2.43.0"}}, "pytorch_lightning")
    assert torch == (
        "torch is not the same on all nodes: 1.0 on node0, node1, node2, node3, node4 and 3 more; 2.9.0 on node8."
    )
    assert ray.startswith("ray is not the same")


@pytest.mark.parametrize(
    ("lightning", "used", "other"),
    [("pytorch_lightning", "pytorch-lightning", "lightning"), ("lightning.pytorch", "lightning", "pytorch-lightning")],
)
def test_only_the_package_of_lightning_in_use_must_agree(lightning, used, other):
    same: dict[str, str | None] = dict.fromkeys(MUST_AGREE, "1.0")
    assert differences({"one": same, "two": same | {other: None}}, lightning) == []
    assert differences({"one": same, "two": same | {used: None}}, lightning) == [
        f"{used} is not the same on all nodes: 1.0 on one; none on two."
    ]


def test_a_gang_of_unlike_workers_never_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        @staticmethod
        def get_node_id() -> str:
            return "a" * 8

    monkeypatch.setattr("ray.get_runtime_context", Context)
    spec = GangSpec(Reservation(2), versions={})
    membership: Any = Membership(spec, None)
    here = Location("a" * 8, "10.0.0.1", 1, "one", versions={"torch": "2.13.0"})
    there = replace(here, node_id="b" * 8, address="10.0.0.2", hostname="two", versions={"torch": "2.9.0"})
    seats = [Seat(spec, location=here), Seat(spec, location=there)]
    with pytest.raises(GangError, match=r"torch .*: 2.13.0 on one#aaaaaa \(10.0.0.1\); 2.9.0 on two#bbbbbb") as caught:
        membership._meet(seats)
    assert caught.value.cause == "exception"  # trying again is of no use
    alike_but_not_the_driver: Any = Membership(GangSpec(Reservation(2), versions={"torch": "2.13.0"}), None)
    with pytest.raises(GangError, match=r"torch .*: 2.13.0 on the driver; 2.9.0 on two#bbbbbb \(10.0.0.2\)\."):
        alike_but_not_the_driver._meet([Seat(spec, location=there), Seat(spec, location=there)])


def test_nodes_of_one_host_have_names_of_their_own():
    assert node_name("host", "abcdef0123", "10.0.0.1") == "host#abcdef (10.0.0.1)"
