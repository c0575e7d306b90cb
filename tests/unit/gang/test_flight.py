"""Which rank a hanging gang waits for, from what torch's flight recorders say."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tunelight.gang.flight import Collective, find_missing, latest


def entry(number: int, name: str = "all_reduce", at: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "process_group": ("0", "default_pg"), "collective_seq_id": number, "is_p2p": False, "time_created_ns": at,
        "profiling_name": f"nccl:{name}", "input_sizes": [[3, 2]], "state": "started", "retired": False, "frames": [],
    } | more  # fmt: skip


def last(
    number: int, name: str = "all_reduce", group: str = "0", *, waits: bool = True, sizes: str = "(7,)"
) -> Collective:
    return Collective(group, group == "0", number, name, sizes, "train.py:3 (step)", waits)


def test_the_last_collective_of_each_group_counts_and_only_of_this_trial() -> None:
    frames = [
        {"filename": "/env/torch/distributed/distributed_c10d.py", "line": 3000, "name": "all_reduce"},
        {"filename": "/home/me/train.py", "line": 12, "name": "training_step"},
    ]
    entries = [
        entry(1, at=1),
        entry(2, "broadcast", frames=frames),
        entry(9, is_p2p=True),
        entry(4, process_group=("1", "mine"), state="completed", retired=True),
        entry(8, process_group=("2", "old"), at=1),
    ]
    first, second = latest(entries, 2)
    assert first == Collective("0", True, 2, "broadcast", "(3, 2)", "/home/me/train.py:12 (training_step)", True)
    assert (second.group, second.all_ranks, second.number, second.waits) == ("1", False, 4, False)


def test_the_rank_that_is_behind_is_named_and_where_the_others_wait() -> None:
    found = find_missing({0: [last(4)], 1: [last(3, "broadcast", waits=False)], 2: [last(4)]})
    assert found is not None
    assert found.rank == 1
    assert found.text == (
        "ranks 0, 2 wait in all_reduce of (7,) at train.py:3 (step), which rank 1 has not joined, whose last "
        "collective was broadcast of (7,) at train.py:3 (step)"
    )


def test_a_rank_that_has_begun_no_collective_is_behind_in_the_group_of_all() -> None:
    found = find_missing({0: [last(1)], 1: []})
    assert found is not None
    assert (found.rank, found.text) == (
        1,
        "rank 0 waits in all_reduce of (7,) at train.py:3 (step), which rank 1 has not joined",
    )
    assert find_missing({0: [last(1, group="mine")], 1: []}) is None  # which need not belong to that group


def test_collectives_that_do_not_fit_together_are_named() -> None:
    found = find_missing({0: [last(2)], 1: [last(2, "broadcast")]})
    assert found is not None
    assert found.rank == 1
    assert "do not fit together: rank 0 in all_reduce of (7,)" in found.text


@pytest.mark.parametrize(
    "lasts", [{}, {0: [], 1: []}, {0: [last(2)], 1: [last(2)]}, {0: [last(2, waits=False)], 1: [last(1, waits=False)]}]
)
def test_nothing_is_said_where_the_records_do_not_tell(lasts: Any) -> None:
    assert find_missing(lasts) is None


def test_torch_records_what_a_process_waits_in() -> None:
    """In a process of its own, for the group and the recorder are the process's."""
    code = """
import time
import torch, torch.distributed as dist
from tunelight.compat.torch import flight_records
from tunelight.gang.flight import latest
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
dist.all_reduce(torch.ones(3))
since = time.time_ns()
dist.broadcast(torch.ones(5, 2), 0)
time.sleep(1)  # the recorder notes the end a little later
print([(one.name, one.sizes, one.number, one.waits) for one in latest(flight_records(), since)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "[('broadcast', '(5, 2)', 2, False)]" in done.stdout, done.stderr
