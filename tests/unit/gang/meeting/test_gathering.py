"""Ranks that look for one another before their backend does."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

from tunelight.errors import GangError
from tunelight.gang.meeting.gathering import gather, try_pairs
from tunelight.messages import Place

HERE = "127.0.0.1"
NOWHERE = "127.0.0.2"


@pytest.fixture
def store() -> dist.Store:
    return dist.HashStore()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def places(layout: tuple[int, ...]) -> list[Place]:
    return [
        Place(
            rank=sum(layout[:node]) + local, world_size=sum(layout), local_rank=local, local_world_size=ranks,
            node_rank=node, interface=HERE,
        )
        for node, ranks in enumerate(layout)
        for local in range(ranks)
    ]  # fmt: skip


def errors(threads: ThreadPoolExecutor, of: Callable[[Place], Any], layout: tuple[int, ...]) -> list[str]:
    """Return what every rank raises; nothing where all is well."""
    found = [threads.submit(of, place) for place in places(layout)]
    return [str(error) for one in found if (error := one.exception(timeout=30)) is not None]


def test_ranks_wait_for_one_another_and_learn_where_each_is(store, threads):
    found = [threads.submit(gather, store, place) for place in places((2, 1))]
    assert [[peer.address for peer in one.result(30)] for one in found] == [[HERE] * 3] * 3


def test_who_does_not_come_is_named(store):
    first, *_ = places((1, 2))
    with pytest.raises(GangError, match=r"Waited 0 s for ranks 1, 2 of 3"):
        gather(store, first, 0.2)


def test_nodes_that_reach_one_another_pass(store, threads):
    assert errors(threads, lambda place: try_pairs(store, place, 2, HERE), (2, 1)) == []


def test_who_cannot_reach_whom_is_said_on_both_sides(store, threads, monkeypatch):
    connect = socket.create_connection

    def blocked(place: tuple[str, int], timeout: float) -> socket.socket:
        if place[0] == NOWHERE:
            raise TimeoutError("timed out")
        return connect(place, timeout=timeout)

    monkeypatch.setattr(socket, "create_connection", blocked)
    told = errors(threads, lambda place: try_pairs(store, place, 2, NOWHERE if place.rank else HERE), (1, 1))
    assert len(told) == 2  # both know, and neither waits for the other
    (apart,) = set(told)
    assert "Rank 0" in apart
    assert f"at {NOWHERE}" in apart
    assert "firewall" in apart
