"""GangPBT's turns: a population larger than the cluster shares it, and nobody is put to rest who cannot say why."""

from __future__ import annotations

import copy
import random

from ray.tune.experiment import Trial

from tests.unit.schedulers.test_pbt import CONTINUE, PAUSE, Population
from tunelight.messages import Continue

NONE = {"_tunelight/adopted": "none"}


def test_a_population_that_fits_never_pauses() -> None:
    population = Population(4, cpus=8)
    population.trials[3].status = Trial.PENDING  # its gang is starting
    assert population.round(2, [0.1, 0.2, 0.3, 0.4])[:3] == [CONTINUE] * 3


def test_a_larger_one_takes_turns_and_who_had_less_comes_first() -> None:
    population = Population(4, cpus=4)
    population.trials[2].status = population.trials[3].status = Trial.PENDING
    assert population.report(0, 1, 0.1) == CONTINUE
    assert population.report(0, 2, 0.1) == PAUSE
    told = population.trials[0].temporary_state.ray_actor.told
    assert Continue(until=4) not in told  # it is not to run ahead while it is put to rest
    population.trials[0].status = Trial.PAUSED
    assert population.chosen() is population.trials[2]
    population.trials[2].status = population.trials[3].status = Trial.RUNNING
    assert population.chosen() is population.trials[0]
    population.trials[0].status = Trial.RUNNING
    assert population.chosen() is None


def crowded(interval: int = 2) -> Population:
    """Return two members that share one gang; the second has it, and adopts as its turn ends."""
    population = Population(2, cpus=2, perturbation_interval=interval)
    population.trials[1].status = Trial.PENDING
    assert population.report(0, 2, 0.1) == PAUSE
    population.trials[0].status, population.trials[1].status = Trial.PAUSED, Trial.RUNNING
    return population


def test_who_adopts_as_its_turn_ends_says_first_what_came_of_it_and_pauses_at_its_next_report() -> None:
    population = crowded()
    assert population.report(1, 2, 0.9) == CONTINUE
    (adopt,) = population.adopted(1)
    assert adopt.until == 3
    assert population.report(1, 3, 0.2, **{"_tunelight/adopted": "memory"}) == PAUSE
    assert population.trials[1].config == adopt.config
    assert [change[3] for change in population.changes] == ["00000"]


def test_a_change_that_fails_as_a_turn_ends_is_taken_back_before_the_pause() -> None:
    population = crowded()
    before = copy.deepcopy(population.trials[1].config)
    population.report(1, 2, 0.9)
    assert population.trials[1].config != before
    assert population.report(1, 3, 0.8, **NONE) == PAUSE
    assert population.trials[1].config == before
    assert population.changes[-1] == ("00001", 2, before, None, None)


def test_who_need_not_rest_any_more_is_told_how_far_it_may_run() -> None:
    population = crowded()
    population.report(1, 2, 0.9)
    population.pbt.on_trial_error(population.controller, population.trials[0])
    population.trials[0].status = Trial.ERROR
    assert population.report(1, 3, 0.8) == CONTINUE
    assert population.trials[1].temporary_state.ray_actor.told[-1] == Continue(until=4)


def test_who_could_adopt_at_each_report_gives_way_all_the_same() -> None:
    population = crowded(interval=1)
    assert [population.report(1, number, 0.9) for number in (2, 3)] == [CONTINUE, PAUSE]
    assert len(population.adopted(1)) == 1


def test_a_member_far_behind_does_not_give_way_to_one_ahead() -> None:
    population = Population(2, cpus=2)
    population.report(1, 8, 0.1)
    population.trials[1].status = Trial.PAUSED
    assert population.report(0, 2, 0.1) == CONTINUE


def test_nobody_runs_far_ahead_of_who_has_not_begun_also_where_there_is_room() -> None:
    population = Population(2, cpus=100)
    assert [population.report(0, number, 0.1) for number in range(1, 7)] == [CONTINUE] * 5 + [PAUSE]
    population.trials[0].status = Trial.PAUSED
    assert population.chosen() is None
    population.report(1, 2, 0.1)
    assert population.chosen() is population.trials[0]


def test_who_waits_for_one_that_ended_waits_no_more() -> None:
    population = Population(2, cpus=100)
    population.report(0, 6, 0.1)
    population.trials[0].status = Trial.PAUSED
    population.pbt.on_trial_error(population.controller, population.trials[1])
    assert population.chosen() is population.trials[0]


def test_turns_are_fair_over_a_whole_sweep() -> None:
    population = Population(5, cpus=4)
    at = dict.fromkeys(range(5), 0)
    running: list[int] = []
    for trial in population.trials:
        trial.status = Trial.PENDING
    for _ in range(400):
        while len(running) < 2 and (chosen := population.chosen()) is not None:
            chosen.status = Trial.RUNNING
            running.append(population.trials.index(chosen))
        index = running.pop(0)
        at[index] += 1
        if population.report(index, at[index], random.Random(at[index]).random()) == PAUSE:
            population.trials[index].status = Trial.PAUSED
        else:
            running.append(index)
        assert max(at.values()) - min(at.values()) <= 2 * 2
