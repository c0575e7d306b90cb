"""What torch.compile has made in a worker, from trial to trial: torch itself, with graphs that run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tunelight.compat.torch import compiled_graphs, forget_compiled
from tunelight.gang.worker import Compiled


def of_width(width: int) -> Callable[[], object]:
    """Return training code that uses a net in both of its modes, which are two graphs."""

    def train() -> None:
        net: Any = torch.compile(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()), backend="eager")
        net(torch.ones(2, width)).sum().backward()
        net.eval()
        with torch.no_grad():
            net(torch.ones(2, width))

    return train


@pytest.fixture
def worker() -> Iterator[Callable[..., tuple[int, str]]]:
    """Return a function that trains a trial in a thread of its own, and returns its graphs and its log."""
    import torch._dynamo

    torch._dynamo.reset()
    graphs = Compiled()

    def run(train: Callable[[], object]) -> tuple[int, str]:
        graphs.begin()
        before = compiled_graphs()
        train()
        return compiled_graphs() - before, graphs.end()

    def trial(train: Callable[[], object]) -> tuple[int, str]:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(run, train).result(60)

    yield trial
    torch._dynamo.reset()


@pytest.mark.timeout(120)
def test_a_trial_that_used_up_its_room_leaves_the_next_all_of_it(worker):
    def train() -> None:
        for width in range(4, 16):  # more versions than torch makes
            of_width(width)()

    count, said = worker(train)
    assert 0 < count < 24
    assert said.endswith("all are dropped after this trial")
    assert worker(of_width(30))[0] == 2


@pytest.mark.timeout(120)
def test_many_graphs_are_dropped(worker, monkeypatch):
    monkeypatch.setattr("tunelight.gang.worker.KEPT", 3)
    assert worker(of_width(4)) == (2, "torch.compile made 2 graphs")
    assert worker(of_width(4)) == (0, ""), "known ones stay"
    assert (
        worker(of_width(5))[1]
        == "torch.compile made 2 graphs, beside 2 of earlier trials; all are dropped after this trial"
    )
    assert worker(of_width(4)) == (2, "torch.compile made 2 graphs")


def test_a_process_that_compiles_nothing_has_nothing_to_say(monkeypatch):
    monkeypatch.setattr("sys.modules", {})
    graphs = Compiled()
    graphs.begin()
    assert not graphs.end()
    forget_compiled()


def test_graphs_of_cuda_are_shared_by_the_trials_threads(worker: Callable[..., tuple[int, str]]) -> None:
    pytest.importorskip("torch._inductor.cudagraph_trees")
    found: list[Any] = []

    def train() -> None:
        from torch._inductor import cudagraph_trees as trees

        found.append(trees.get_obj(trees.local, "tree_manager_containers"))
        assert torch._C._is_key_in_tls("tree_manager_locks")  # and so in autograd's threads
        assert trees.get_obj(trees.local, "tree_manager_locks") is torch._C._get_obj_in_tls("tree_manager_locks")

    for _ in range(3):
        worker(train)
    assert len(found) == 3
    assert found[0] is found[1] is found[2]
