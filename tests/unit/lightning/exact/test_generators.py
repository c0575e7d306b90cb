"""Random generators that are kept, and those of several ranks in one process."""

from __future__ import annotations

import io
import random

import numpy as np
import torch
from torch.utils.data import SubsetRandomSampler

from tunelight.compat.lightning import DistributedSamplerWrapper
from tunelight.lightning.exact.generators import Generators, capture, draw_alike, restore, same


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002 - what code uses


def test_generators_go_on_from_a_state_that_was_written() -> None:
    state = capture()
    numbers = draw()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    restore(torch.load(file, weights_only=True))
    assert draw() == numbers
    restore(state)
    assert same(capture(), state)


def test_parts_draw_what_ranks_of_their_own_would_draw() -> None:
    cpu = torch.device("cpu")

    def steps(parts: list[int]) -> dict[int, list[list[float]]]:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
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
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
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
