"""A sweep whose first trials all fail alike ends with their error; what happened to each is told as Tune tells it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.recording import Sweep
from tunelight.errors import SweepFailedError, WorkerFailedError
from tunelight.messages import WorkerError
from tunelight.policies import FirstTrials, signature
from tunelight.record import read_record
from tunelight.sweep.past import SavedSweep
from tunelight.sweep.run import FailFast
from tunelight.sweep.steering import SweepControl

TRACE = 'Traceback (most recent call last):\n  File "/x/train.py", line {line}, in train\n    boom\nKeyError: 3'


def failure(message: str = "boom", *, line: int = 7, **more: Any) -> WorkerError:
    told = {"type_name": "KeyError", "message": message, "traceback": TRACE.format(line=line), **more}
    return WorkerError(**{"rank": 0, "node": "n", **told})


class Watched(Sweep):
    """A recorded sweep that ends when its first trials fail alike."""

    def __init__(self, folder: Path) -> None:
        self.control = SweepControl()
        super().__init__(folder, ended_by=lambda: self.control.ends)
        self.watch()

    def watch(self, limit: int = 3, metrics: Any = ("loss",), total: int = 10) -> None:
        self.others = [FailFast(limit, metrics, total, self.callback, self.control)]

    def begin(self, count: int) -> list[Any]:
        return [self.run(x=number) for number in range(count)]

    def raises(self, trial: Any, error: WorkerError | None = None) -> None:
        self.fail(trial, **(error or failure()).asdict())


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.callback.close()


def test_numbers_and_addresses_do_not_make_another_error() -> None:
    said = signature(failure("tensor at 0x1 of 2 GB"))
    assert said == signature(failure("tensor at 0x9b1c of 1e-3 GB", rank=1, node="m"))
    others: list[dict[str, Any]] = [{"line": 8}, {"type_name": "ValueError"}, {"message": "no such optimizer"}]
    for other in others:
        assert said != signature(failure(**{"message": "tensor at 0x7f3a of 3.5 GB", **other}))


def ended(first: FirstTrials, *ends: tuple[str, WorkerError]) -> WorkerError | None:
    """Let trials fail, and return the verdict."""
    for trial, error in ends:
        first.begin(trial)
        first.fail(trial, error)
    return first.verdict


def test_the_first_trials_count_in_their_order_without_lost_workers_but_a_slow_one_is_not_waited_for() -> None:
    first = FirstTrials(2)
    first.begin("a")
    assert ended(first, ("b", failure()), ("c", failure())) is None  # the first still runs, and may report
    assert ended(first, ("a", failure("quite another"))) is None
    first = FirstTrials(2)
    first.begin("slow")
    assert ended(first, *((trial, failure()) for trial in "abcde")) is None
    assert ended(first, ("f", failure())) == failure()
    first, out = FirstTrials(2), failure("out of memory", type_name="OutOfMemoryError")
    assert ended(first, ("a", failure(cause="died")), ("b", out), ("c", failure())) is None
    assert ended(first, ("d", failure())) == failure()


def test_three_trials_that_fail_alike_end_the_sweep(sweep: Watched) -> None:
    trials = sweep.begin(4)
    for trial in trials[:2]:
        sweep.raises(trial)
    sweep.step()
    sweep.raises(trials[2])
    with pytest.raises(SweepFailedError) as caught:
        sweep.step()
    text = str(caught.value)
    assert text.startswith(
        "The first 3 trials to end all failed with the same error before anything was reported: rank 0 on n"
    )
    assert "line 7, in train" in text
    assert "with 6 of 10 trials not tried" in text
    assert f"name={sweep.folder.name!r} and resume=True goes on" in text
    assert "give_up_after=0" in text
    assert isinstance(caught.value, WorkerFailedError)
    assert caught.value.error.type_name == "KeyError"
    assert str(pickle.loads(pickle.dumps(caught.value))) == text
    sweep.end()  # as Tune does on its way out
    assert read_record(sweep.folder).ended == "gave up"


def test_an_error_that_says_all_itself_is_told_without_its_traceback_and_that_of_a_head_is_no_failure_of_the_code(
    sweep: Watched,
) -> None:
    trials = sweep.begin(4)
    sweep.call("on_trial_error", trial=trials[0])
    for trial in trials[1:]:
        sweep.step()
        sweep.raises(trial, failure("'loss' was to be reported, but ...", type_name="MetricError"))
    with pytest.raises(SweepFailedError) as caught:
        sweep.step()
    assert "MetricError: 'loss' was to be reported, but ..." in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert "Traceback" in caught.value.error.traceback


@pytest.mark.parametrize("why", ["one has reported", "they differ", "it is off"])
def test_failures_end_nothing_where_one_trial_has_reported_or_they_differ_or_with_0(sweep: Watched, why: str) -> None:
    trials = sweep.begin(4)
    if why == "one has reported":
        sweep.report(trials[3], 1, 0.5, own={"metrics": {"loss": 0.5}})
    if why == "it is off":
        sweep.watch(0)
    for number, trial in enumerate(trials[:3]):
        sweep.raises(trial, failure(line=number % 2 if why == "they differ" else 7))
    sweep.step()


def test_1_ends_a_sweep_at_its_first_failure(sweep: Watched) -> None:
    sweep.watch(1)
    sweep.raises(*sweep.begin(1))
    with pytest.raises(SweepFailedError, match="The first trial failed before anything was reported"):
        sweep.step()


@pytest.mark.parametrize("further", ["latncy", "val/acc"])
def test_a_further_metric_that_nobody_reports_ends_the_sweep_and_a_nested_one_counts(sweep, further) -> None:
    sweep.watch(metrics=("loss", further))
    for trial in sweep.begin(3):
        sweep.report(trial, 1, 0.5, own={"metrics": {"loss": 0.5, "latency": 3, "val": {"acc": 3}}})
        sweep.end_by_itself(trial)
    if further == "val/acc":
        sweep.step()
    else:
        said = r"judged by metric 'latncy', and none of the 3.*Did you mean 'latency'.*resume='force'"
        with pytest.raises(SweepFailedError, match=said) as caught:
            sweep.step()
        assert "tries the failed trials again" not in str(caught.value)


def test_what_trials_reported_before_the_sweep_went_on_counts(sweep: Watched) -> None:
    trials = sweep.begin(3)
    for trial in trials:
        sweep.report(trial, 1, 0.5, own={"metrics": {"loss": 0.5}})
    sweep.watch(total=3)  # by the driver that goes on
    for trial in trials:  # each had nothing left to train
        sweep.end_by_itself(trial)
    sweep.step()


@pytest.mark.parametrize(("ended", "again"), [("gave up", 4), (None, 1)])
def test_the_trials_of_a_run_that_gave_up_go_on_and_a_failed_one_of_another_stays(sweep, ended, again) -> None:
    trials = sweep.begin(4)
    for trial in trials[:3]:
        sweep.raises(trial)
    sweep.callback.close(ended) if ended else sweep.callback.close()
    past = SavedSweep(sweep.folder, {}, read_record(sweep.folder))
    assert [trial.id for trial in past.again(None)] == ["00000", "00001", "00002", "00003"][-again:]


def test_what_was_wrong_may_be_mended_in_a_sweep_that_gave_up(sweep: Watched) -> None:
    for trial in sweep.begin(3):
        sweep.raises(trial)
    told = {"metric": "lss", "mode": "min", "train": "a:train", "code": {"train": "1"}, "require": []}
    now = {**told, "metric": "loss", "code": {"train": "2"}}
    sweep.callback.close("gave up")
    state = read_record(sweep.folder)
    assert SavedSweep(sweep.folder, told, state)._differences(now) == []
    state.ended = "interrupted"
    assert len(SavedSweep(sweep.folder, told, state)._differences(now)) == 2
