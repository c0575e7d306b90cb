"""The table of outcomes: what it says is consistent, and whoever decides how a trial ended decides for a row of it."""

from __future__ import annotations

import pytest

from tunelight import record
from tunelight.messages import WorkerError
from tunelight.policies import classify
from tunelight.record import FAILED, INFEASIBLE, OUTCOMES, STATES, TERMINAL, VERBS


def test_what_the_states_of_a_record_mean() -> None:
    states = ("PENDING", "RUNNING", "PAUSED", "FINISHED", "STOPPED", "DIVERGED", "OOM", "ERROR", "INTERRUPTED")
    assert [name for name in STATES if name in states] == list(states)
    assert all(getattr(record, name) == name for name in states)
    assert TERMINAL.intersection(states) == set(states[3:]) == VERBS.keys() & set(states)
    assert FAILED.intersection(states) == {"DIVERGED", "OOM", "ERROR"}
    assert INFEASIBLE.intersection(states) == {"DIVERGED", "OOM"}


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
def test_a_row_does_not_contradict_itself(outcome: record.Outcome) -> None:
    assert outcome.terminal or not (outcome.failed or outcome.raised)
    assert outcome.failed or not outcome.blames_config
    assert outcome.colour.startswith("#")


@pytest.mark.parametrize(
    ("type_name", "message"),
    [
        ("OutOfMemoryError", ""),
        ("RuntimeError", "CUDA out of memory"),
        ("FloatingPointError", ""),
        ("ValueError", "no"),
    ],
)
def test_an_error_is_classified_as_a_failure_of_the_table(type_name: str, message: str) -> None:
    assert classify(WorkerError(0, "here", type_name, message, "")) in FAILED
