"""torch's process group of a gang, with a gang of one rank in this process."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from tunelight.gang.meeting import torch_group
from tunelight.gang.meeting.group import Meeting
from tunelight.gang.meeting.torch_group import TorchGroup
from tunelight.messages import Place


@pytest.fixture
def group() -> Iterator[TorchGroup]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = TorchGroup()
    made.join(Meeting("127.0.0.1", store.port, "gloo", (1,)), Place(0, 1, 0, 1, 0, "127.0.0.1"), store)
    yield made
    made.leave()
    made.close()


def test_a_group_that_the_trial_destroys_is_freed_at_the_trial_s_end_and_not_by_its_model(group: TorchGroup) -> None:
    """The reducer of a DDP model would free it with the GIL held, for which gloo's threads may wait."""
    world = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    assert world() is not None
    assert not group.tidy()
    assert world() is None


def test_a_group_is_kept_from_trial_to_trial(group: TorchGroup) -> None:
    world = weakref.ref(dist.group.WORLD)
    assert group.tidy()
    assert world() is dist.group.WORLD


def test_a_group_that_a_failed_trial_left_is_freed(group: TorchGroup) -> None:
    world = weakref.ref(dist.group.WORLD)
    group.leave()
    assert world() is not None
    group.tidy()
    assert world() is None


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_a_group_of_nccl_s_is_left_without_its_peers_and_without_waiting(
    group: TorchGroup, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """NCCL's abort, which this stands for, may wait for the other ranks of its node, or for a GPU."""
    asked, end = threading.Event(), threading.Event()

    def abort() -> None:
        asked.set()
        end.wait(60)
        dist.destroy_process_group()

    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    monkeypatch.setattr(torch_group, "abort_process_group", abort)
    monkeypatch.setattr(torch_group, "_ABORT_LIMIT_S", 60)
    assert group.settle()
    began = time.monotonic()
    group.leave()
    assert time.monotonic() - began < 10  # an abort that is waited for takes until the limit
    assert asked.wait(10)
    monkeypatch.setattr(torch_group, "_ABORT_LIMIT_S", 0.05)
    assert not group.settle()
    end.set()
    monkeypatch.setattr(torch_group, "_ABORT_LIMIT_S", 60)
    assert group.settle()


def test_a_process_whose_group_cannot_be_ended_meets_no_other(
    group: TorchGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise RuntimeError("NCCL error")

    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(torch_group, "abort_process_group", fails)
    group.leave()
    assert not group.settle()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[enforce fail at gloo/transport/tcp/pair.cc] Connection reset by peer"), True),
        (dist.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp, remote process exited"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo"), False),
    ],
)
def test_a_lost_peer_is_told_from_errors_of_this_rank(group: TorchGroup, error: Exception, lost: bool) -> None:
    assert group.lost_peer(error) is lost
