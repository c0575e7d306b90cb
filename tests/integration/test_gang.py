"""The real gang: the same contract as its twin, and what only real processes can show."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

from tests.conftest import share_holdings
from tests.kit import tasks
from tests.kit.contract import GangContract
from tunelight.gang.gang import Gang
from tunelight.gang.spec import GangSpec
from tunelight.messages import Report
from tunelight.resources import Reservation
from tunelight.session.task import Home


def spec(workers: int = 2) -> GangSpec:
    return GangSpec(Reservation(workers), home=Home.here())


@pytest.fixture(scope="module")
def warm(ray4: Any) -> Iterator[list[Gang]]:
    """One gang for the tests of this module, formed anew when a test made it unfit."""
    held: list[Gang] = []
    yield held
    for one in held:
        one.close()


def take(warm: list[Gang]) -> Gang:
    if not warm or warm[0].closed:
        for old in warm:
            old.close()
        warm[:] = [Gang.form(spec(), None)]
    warm[0].heal()
    share_holdings()  # also of workers that the last test replaced
    return warm[0]


class TestRealGang(GangContract):
    @pytest.fixture
    def gang(self, warm: list[Gang]) -> Iterator[Gang]:
        yield take(warm)
        share_holdings()  # a worker may have been replaced


def run(gang: Gang, tmp_path: Path, train: Any, **config: Any) -> tuple[list[Report], Any, float]:
    """Train once, unasked; return the reports, the cause if it failed, and the seconds."""
    gang.heal()
    began = time.monotonic()
    reports, cause = tasks.run(gang, *tasks.here(tmp_path, cloudpickle.dumps(train), config=config))
    return reports, cause, time.monotonic() - began


def collective(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    import tunelight as tl

    total = torch.tensor([float(tl.get_context().rank + 1)])
    dist.all_reduce(total)
    tl.report({"loss": 0.0, "sum": total})


def fails_inside(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    import tunelight as tl

    if tl.get_context().rank == config["rank"]:
        raise KeyError("the cause")
    dist.all_reduce(torch.ones(1))


def by_hand(config: dict[str, Any]) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")


def fabric_of_three(config: dict[str, Any]) -> None:
    from lightning_fabric import Fabric

    Fabric(accelerator="cpu", strategy="ddp", devices=3).launch()


@pytest.mark.parametrize(
    ("train", "advice"),
    [
        (by_hand, "only if torch.distributed.is_initialized() is False"),
        (fabric_of_three, "Fabric as many devices and nodes as the gang has"),
    ],
)
def test_code_that_would_start_a_gang_of_its_own_fails_with_advice(warm, tmp_path, train, advice):
    _, cause, _ = run(take(warm), tmp_path, train)
    assert cause.type_name == "ValueError"
    assert advice in cause.traceback


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failing_rank_frees_its_peers_and_is_the_cause(warm: list[Gang], tmp_path: Path, rank: int) -> None:
    gang = take(warm)
    pids = [location.pid for location in gang.locations]
    _, cause, seconds = run(gang, tmp_path, fails_inside, rank=rank)
    assert (cause.rank, cause.type_name, cause.secondary) == (rank, "KeyError", False)
    assert "fails_inside" in cause.traceback
    assert seconds < 5
    reports, cause, _ = run(gang, tmp_path, collective)
    assert cause is None
    assert reports[0].metrics["sum"] == 3.0
    assert [location.pid for location in gang.locations] == pids


def test_nothing_of_the_gang_listens_beyond_its_interface(warm: list[Gang], tmp_path: Path) -> None:
    gang = take(warm)
    run(gang, tmp_path, collective)
    listening = [
        connection.laddr.ip
        for location in gang.locations
        for connection in psutil.Process(location.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    beyond = [address for address in listening if address not in ("127.0.0.1", "::1")]
    assert len(listening) > len(beyond)  # the gang's own store and pairs are seen
    assert len(beyond) <= len(gang.locations)  # each of Ray's worker processes has one server of Ray's
