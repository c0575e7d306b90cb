"""What of an epoch goes on in a restart: random generators, also those of several ranks, and what was logged."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch.utils.data import SubsetRandomSampler

from tests import flavours
from tunelight.compat.lightning import DistributedSamplerWrapper
from tunelight.lightning.exact import epoch_metrics
from tunelight.lightning.exact.generators import Generators, capture, draw_alike, same


def seed() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002 - what code uses


def test_parts_draw_what_ranks_of_their_own_would_draw() -> None:
    cpu = torch.device("cpu")

    def steps(parts: list[int]) -> dict[int, list[list[float]]]:
        seed()
        generators, drawn = Generators(), {part: list[list[float]]() for part in parts}
        generators.begin(parts, cpu)
        for _ in range(3):
            draw()  # a loader's seed: every rank draws it
            for part in parts:
                with generators.play(part):
                    drawn[part].append(draw())
        return drawn

    alone = steps([0])[0]
    assert steps([0, 2, 4]) == {0: alone, 2: alone, 4: alone}


def test_a_part_whose_numbers_differ_keeps_its_own() -> None:
    generators = Generators()
    generators.begin([0, 1], torch.device("cpu"))
    with generators.play(1):
        torch.rand(3)
    apart = generators.states()[1]["torch"]
    torch.rand(1)
    states = generators.states()
    assert torch.equal(states[1]["torch"], apart)
    with generators.play(0, keep=False):
        torch.rand(1)
    assert same(generators.states(), states)


def test_ranks_draw_apart_where_they_are_to_and_as_they_did_before_in_a_restart() -> None:
    def first(part: int, *, apart: bool) -> list[float]:
        seed()
        Generators().begin([part], torch.device("cpu"), apart=apart)
        return draw()

    ranks = [first(part, apart=True) for part in range(3)]
    assert all(len(set(numbers)) == 3 for numbers in zip(*ranks, strict=True))
    assert ranks == [first(part, apart=True) for part in range(3)]
    assert [ranks[0]] * 3 == [first(part, apart=False) for part in range(3)]


def test_the_order_of_a_user_s_sampler_is_the_same_on_ranks_that_draw_apart() -> None:
    def share(rank: int) -> list[int]:
        torch.manual_seed(rank)
        sampler = DistributedSamplerWrapper(SubsetRandomSampler(range(8)), num_replicas=2, rank=rank, seed=5)
        draw_alike(sampler)
        before = capture()
        drawn = list(sampler)
        sampler.set_epoch(1)
        assert drawn != list(sampler)
        assert same(capture(), before)
        return drawn

    assert sorted(share(0) + share(1)) == list(range(8))


def test_states_of_a_larger_gang_are_shared_out() -> None:
    generators = Generators()
    generators.begin([1], torch.device("cpu"))
    states = {}
    for part in range(3):
        torch.manual_seed(part)
        states[part] = capture()
    generators.put(states)
    assert torch.initial_seed() == 1
    generators.begin([4], torch.device("cpu"))
    generators.put(states)
    assert torch.initial_seed() == 1


def test_ranks_that_drew_apart_draw_alike_after_the_fit() -> None:
    drawn = []
    for rank in range(2):
        torch.manual_seed(5)
        generators = Generators()
        generators.begin([rank], torch.device("cpu"), apart=True)
        within = torch.rand(3)
        torch.rand(rank)
        generators.end()
        drawn.append((within, torch.rand(3)))
    assert not torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])


# --- what was logged of an epoch, kept and put back on as many ranks as there are -----------------------


def trainer() -> Any:
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(_results=flavours.result_collection()(training=True)))
    strategy = SimpleNamespace(root_device=torch.device("cpu"), reduce=lambda value, **_: value)
    module = torch.nn.Module()
    return SimpleNamespace(
        fit_loop=loop, strategy=strategy, lightning_module=module, _logger_connector=SimpleNamespace()
    )


def results_of(one: Any) -> Any:
    return one.fit_loop.epoch_loop._results


def of_a_loss(value: float, sync: bool) -> Any:
    one = trainer()
    options: Any = {"sync_dist": sync, "sync_dist_fn": one.strategy.reduce}
    results_of(one).log("training_step", "loss", torch.tensor(value), batch_size=4, on_step=True, **options)
    return epoch_metrics.state(results_of(one))


@pytest.mark.parametrize(("sync", "value"), [(True, 16.0), (False, 4.0)])
def test_a_smaller_gang_has_the_shares_of_all_where_they_are_reduced(sync: bool, value: float) -> None:
    one, ranks = trainer(), [of_a_loss(loss, sync) for loss in (1.0, 2.0, 3.0)]
    epoch_metrics.put(one, epoch_metrics.shared_out(ranks, 0, 2), pytest.fail)
    metric = results_of(one)["training_step.loss"]
    assert (float(metric.value), int(metric.cumulated_batch_size)) == (value, 8 if sync else 4)


class Unmergeable(torchmetrics.MeanMetric):
    """Cannot take over what another has gathered."""

    def merge_state(self, incoming_state: Any) -> None:
        raise RuntimeError("not this one")


def of_a_metric(kind: Any) -> Any:
    one = trainer()
    one.lightning_module.accuracy = kind()
    one.lightning_module.accuracy.update(1.0)
    results_of(one).log("training_step", "accuracy", one.lightning_module.accuracy, metric_attribute="accuracy")
    return one


def test_a_metric_takes_over_the_share_of_a_worker_that_is_gone() -> None:
    states = [epoch_metrics.state(results_of(of_a_metric(torchmetrics.MeanMetric))) for _ in range(2)]
    one = of_a_metric(torchmetrics.MeanMetric)
    epoch_metrics.put(one, states, pytest.fail)
    assert float(one.lightning_module.accuracy.weight) == 2


def test_a_share_that_cannot_be_taken_over_is_said() -> None:
    states = [epoch_metrics.state(results_of(of_a_metric(Unmergeable))) for _ in range(2)]
    one, said = of_a_metric(Unmergeable), list[str]()
    epoch_metrics.put(one, states, said.append)
    (line,) = said
    assert line.startswith("The metric 'accuracy' lacks a share of a worker that is gone in this epoch: ")
    assert line.endswith("Unmergeable cannot merge states (RuntimeError: not this one).")
    said.clear()
    epoch_metrics.put(trainer(), states[:1], said.append)
    (line,) = said
    assert line.startswith("The metric 'accuracy' lacks a share from before the restart in this epoch: ")
    assert line.endswith("the model has no 'accuracy' any more.")
