"""Places of ranks: GPUs, nodes, and bundles of a reservation."""

from __future__ import annotations

from typing import Any

import pytest

from tunelight.errors import ResourceError
from tunelight.extras.standalone.driver import _first_bundle
from tunelight.gang.gpus import visible_gpus
from tunelight.gang.meeting.group import Meeting
from tunelight.gang.meeting.horovod import environment
from tunelight.gang.placement import Location, arrange, layout
from tunelight.gang.spec import GangSpec
from tunelight.resources import Reservation, check_fits


def located(*nodes: tuple[str, tuple[str, ...]]) -> list[Location]:
    return [Location(node, f"10.0.0.{node}", 1, node, gpus) for node, gpus in nodes]


def test_all_gpus_of_a_node_are_visible_in_pci_order_and_each_rank_has_its_own() -> None:
    placed = arrange(located(("1", ("10",)), ("2", ("0",)), ("1", ("2",))))
    seen = [(place.rank, place.gpus, place.gpu) for _, place in placed]
    assert seen == [(0, ("2", "10"), 0), (1, ("2", "10"), 1), (2, ("0",), 0)]


def test_ranks_of_a_node_are_neighbours_and_counted_from_0_on_each() -> None:
    """Workers of two nodes that came in turns; the first rank is the first of the first node."""
    placed = [place for _, place in arrange(located(("1", ()), ("2", ()), ("1", ()), ("2", ())))]
    seen = [(place.rank, place.node_rank, place.local_rank, place.local_world_size) for place in placed]
    assert seen == [(0, 0, 0, 2), (1, 0, 1, 2), (2, 1, 0, 2), (3, 1, 1, 2)]


def test_gpus_may_be_uuids_or_mig_slices() -> None:
    assert visible_gpus([("GPU-b",), ("GPU-a",), ("MIG-1",)]) == ("GPU-a", "GPU-b", "MIG-1")


def test_two_ranks_may_share_a_gpu() -> None:
    placed = arrange(located(("1", ("0",)), ("1", ("0",))))
    assert [(place.gpus, place.gpu) for _, place in placed] == [(("0",), 0), (("0",), 0)]


@pytest.mark.parametrize(
    ("spec", "collectives"),
    [
        (GangSpec(Reservation(2)), "gloo"),
        (GangSpec(Reservation(2, gpus_per_worker=1)), "nccl"),
        (GangSpec(Reservation(2, gpus_per_worker=0.5)), "gloo"),
        (GangSpec(Reservation(2, gpus_per_worker=1), process_group="gloo"), "gloo"),
        (GangSpec(Reservation(2, gpus_per_worker=1), backend="sharded"), "nccl"),
        (GangSpec(Reservation(2, gpus_per_worker=1), backend="horovod"), "horovod"),
    ],
)
def test_ranks_meet_by_what_they_hold(spec: GangSpec, collectives: str) -> None:
    assert spec.collectives == collectives


def test_horovod_is_told_where_each_rank_is_on_uneven_nodes() -> None:
    placed = [place for _, place in arrange(located(("1", ()), ("1", ()), ("2", ())))]
    assert layout(placed) == (2, 1)
    meeting = Meeting("10.0.0.1", 5, "horovod", layout(placed), 6)
    told = [environment(meeting, place) for place in placed]
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    assert [tuple(int(one[f"HOROVOD_{name}"]) for name in names) for one in told] == [
        (0, 3, 0, 2, 0, 2),
        (1, 3, 1, 2, 0, 1),
        (2, 3, 0, 1, 1, 2),
    ]
    assert {one["HOROVOD_GLOO_RENDEZVOUS_PORT"] for one in told} == {"6"}


@pytest.mark.parametrize(("bundles", "first"), [([{"CPU": 1}] * 2, 0), ([{"CPU": 0.5}, {"CPU": 1}, {"CPU": 1}], 1)])
def test_workers_find_their_bundles_in_a_trial_s_reservation(bundles: Any, first: int) -> None:
    assert _first_bundle(bundles, Reservation(2), "RayStrategy") == first


@pytest.mark.parametrize("bundles", [[{"CPU": 1}], [{"CPU": 1}, {"CPU": 0.5}]])
def test_a_trial_s_reservation_that_is_too_small_is_an_error(bundles: Any) -> None:
    with pytest.raises(ResourceError, match=r"get_tune_resources\(num_workers=2"):
        _first_bundle(bundles, Reservation(2), "RayStrategy")


def test_workers_that_want_a_node_each_do_not_fit_on_one() -> None:
    check_fits(Reservation(2), [{"CPU": 4}])
    with pytest.raises(ResourceError, match="a node for each worker"):
        check_fits(Reservation(2), [{"CPU": 4}], spread=True)
