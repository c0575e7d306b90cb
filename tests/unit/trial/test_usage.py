"""What a trial's workers use, as it goes to Tune: with the results that have something new to say of it."""

from __future__ import annotations

from typing import Any

from tests.unit.trial.test_trainable import Make, heads, make
from tunelight.messages import RESULT_KEY, Usage

__all__ = ["heads", "make"]


def reporting(config: dict[str, Any]) -> None:
    import tunelight as tl

    for loss in (0.5, 0.4, 0.3):
        tl.report({"loss": loss})
    if config.get("fails"):
        raise ValueError("no")


def test_the_first_report_of_a_short_trial_says_what_it_uses_and_the_next_ones_have_no_news(make: Make) -> None:
    one = make(reporting)
    first, second = one.step()[RESULT_KEY]["usage"], one.step()[RESULT_KEY]["usage"]
    assert [(used["rank"], used["samples"]) for used in first] == [(0, 1)]
    assert second is None


def test_what_came_after_the_last_report_goes_with_a_failure(make: Make) -> None:
    one: Any = make(reporting, {"fails": True}, soft_errors=True)
    for _ in range(3):
        one.step()
    one._gang.usage.hear(0, [Usage(1.0, 64_000_000_000)])
    failed = one.step()[RESULT_KEY]
    assert failed["error"]["type_name"] == "ValueError"
    assert [used["last"]["memory"] for used in failed["usage"]] == [64_000_000_000]
