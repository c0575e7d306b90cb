"""torch's process group of a gang, with a gang of one rank in this process."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch.distributed as dist

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
