"""How a trial's end on its gang reaches Tune: a move to other nodes, a slow checkpoint, a worker that is replaced."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError

from tests.unit.trial.test_trainable import Make, heads, make
from tunelight.gang.drain import Reason
from tunelight.trial import trainable

__all__ = ["heads", "make"]


def leaving(config: dict[str, Any]) -> None:
    """Report 20 times; between reports 3 and 4, wait until the ranks are told to leave."""
    import tunelight as tl
    from tunelight.session.session import get_session

    context, session = tl.get_context(), get_session()
    session.boundary.writer = lambda path: Path(path).write_text("weights")
    while context.number < 20:
        if context.number == 3:
            Drained.between.append(context.number)
            deadline = time.monotonic() + 10
            while not session.boundary._mailbox._queue and time.monotonic() < deadline:
                time.sleep(0.005)
        tl.report({"loss": 1.0 / (context.number + 1)})


class Drained:
    """Says that the node is drained from when training is between reports 3 and 4."""

    between: list[int]

    def __call__(self) -> Reason | None:
        deadline = time.monotonic() + 0.3
        while not self.between and time.monotonic() < deadline:
            time.sleep(0.005)
        return Reason("Ray drains host#abcdef") if self.between else None


def test_a_save_while_the_ranks_leave_a_drained_node_does_not_end_the_trial(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Drained.between = []
    monkeypatch.setattr(trainable, "reason_to_leave", lambda gang, ordered: Drained())
    one = make(leaving)
    numbers = [one.step()["training_iteration"] for _ in range(4)]
    (target := tmp_path / "checkpoint_000000").mkdir()
    one.save_checkpoint(str(target))  # plain Tune does, every so often
    assert numbers == [1, 2, 3, 4]
    assert (target / "report-000004.ckpt").read_text() == "weights"
    with pytest.raises(RayActorError) as caught:  # Tune starts it anew elsewhere
        one.step()
    assert caught.value.preempted
