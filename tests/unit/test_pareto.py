"""results.pareto(): the trials that no other beats in every metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tunelight as tl
from tests.unit.recording import Sweep
from tunelight.errors import SettingsError
from tunelight.pareto import front
from tunelight.storage import write_sweep_file

POINTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12)


@given(POINTS, st.tuples(*[st.sampled_from(["min", "max"])] * 3))
def test_the_front_is_what_no_other_point_dominates(points: list[tuple[int, int, int]], modes: Any) -> None:
    signs = [-1 if mode == "max" else 1 for mode in modes]

    def dominates(one: Any, other: Any) -> bool:
        pairs = [(sign * a, sign * b) for sign, a, b in zip(signs, one, other, strict=True)]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    expected = [i for i, one in enumerate(points) if not any(dominates(other, one) for other in points)]
    assert front(points, modes) == expected


@pytest.fixture
def results(tmp_path: Path) -> tl.SweepResults:
    write_sweep_file(tmp_path, {"metric": ["loss", "acc"], "mode": ["min", "max"]})
    sweep = Sweep(tmp_path)
    reports: list[list[tuple[Any, Any]]] = [
        [(1.0, 0.9)], [(0.5, 0.5), (0.75, 1.0)], [(0.75, 0.4)], [(0.25, None)], [(float("nan"), 1.0)], [], [(0.1, 0.1)],
    ]  # fmt: skip
    for curve in reports:
        trial = sweep.add(x=1)
        sweep.start(trial)
        for number, (loss, acc) in enumerate(curve, start=1):
            sweep.report(trial, number, loss, **({} if acc is None else {"acc": acc}))
        sweep.end_by_itself(trial)
    sweep.end()
    return tl.SweepResults.load(tmp_path)


def test_trials_count_with_their_best_report_by_the_first_metric(results):
    assert results.objectives == (("loss", "min"), ("acc", "max"))
    assert [trial.id for trial in results.pareto()] == ["00000", "00001", "00006"]
    assert [trial.id for trial in results.pareto("acc")] == ["00000"]
    assert (results.metric, results.mode, results.best.id) == ("loss", "min", "00006")


def test_a_metric_that_is_none_of_the_sweeps_is_named(results):
    with pytest.raises(
        SettingsError, match=r"'acd' is no metric of this sweep\. Did you mean 'acc'\? It has loss, acc"
    ):
        results.pareto("acd")


def test_a_sweep_with_one_metric_has_a_front_of_the_best(tmp_path):
    sweep = Sweep(tmp_path)
    for loss in (0.5, 0.25):
        trial = sweep.add(x=1)
        sweep.start(trial)
        sweep.report(trial, 1, loss)
    sweep.end()
    assert [trial.id for trial in tl.SweepResults.load(tmp_path).pareto()] == ["00001"]
    assert tl.SweepResults.load(tmp_path).pareto("loss")
