"""GangTrainable against a fake gang: what Tune is told, and when."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from ray.tune.result import RESULT_DUPLICATE

from tests.fakes import FakeGang
from tunelight import checkpoints, trainable
from tunelight.errors import CheckpointError, TrialError
from tunelight.messages import RESULT_KEY, Continue, Stop
from tunelight.policies import FailurePolicy
from tunelight.resources import reserve
from tunelight.trainable import GangTrainable, make_trainable
from tunelight.trial import TrialSpec, trial_seed

Make = Callable[..., GangTrainable]


def three(config: dict[str, Any]) -> None:
    import tunelight as tl

    for number in (1, 2, 3):
        tl.report({"loss": 1.0 / number})


def failing(config: dict[str, Any]) -> None:
    import tunelight as tl

    tl.report({"loss": 1.0})
    raise ValueError("no more")


def saving(config: dict[str, Any]) -> None:
    from pathlib import Path

    import tunelight as tl

    context = tl.get_context()
    context.writer = lambda path: Path(path).write_text("weights")
    while context.number < 3:
        tl.report({"loss": 1.0 / (context.number + 1), "resumed": tl.get_checkpoint_path() or ""})


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[GangTrainable] = []
    monkeypatch.setattr(trainable, "Gang", FakeGang)
    monkeypatch.setattr("ray.util.get_current_placement_group", lambda: None)
    monkeypatch.setattr(GangTrainable, "_trial_dir", lambda self: tmp_path)
    monkeypatch.setattr(GangTrainable, "trial_id", "00000")

    def build(train: Callable[..., Any], **spec: Any) -> GangTrainable:
        cls = make_trainable(TrialSpec(cloudpickle.dumps(train), reserve(workers=1), **spec))
        one: GangTrainable = cls.__new__(cls)
        one.__dict__.update(_iteration=0, _storage=None)
        one.setup({"lr": 0.1})
        made.append(one)
        return one

    yield build
    for one in made:
        one.cleanup()


def test_each_step_is_one_report_and_the_last_is_the_end(make: Make) -> None:
    one = make(three)
    results = [one.step() for _ in range(4)]
    assert [r["training_iteration"] for r in results[:3]] == [1, 2, 3]
    assert results[2]["loss"] == pytest.approx(1 / 3)
    assert results[3] == {RESULT_DUPLICATE: True, "done": True}


def test_no_gang_starts_before_the_first_step(make: Make) -> None:
    before = FakeGang.formed
    one = make(three)
    assert FakeGang.formed == before
    one.step()
    assert FakeGang.formed == before + 1


def test_the_next_trial_finds_the_gang_warm_also_after_a_stop(make: Make) -> None:
    one = make(three)
    before = FakeGang.formed
    first = one.step()
    assert one.reset_config({"lr": 0.2}) is True
    second = one.step()
    assert FakeGang.formed == before + 1
    assert (first[RESULT_KEY]["warm"], second[RESULT_KEY]["warm"]) == (False, True)
    assert second["training_iteration"] == 1


def test_a_worker_that_is_replaced_is_told_and_the_gang_stays_warm(make: Make) -> None:
    one = make(three)
    one.step()
    one.reset_config({})
    gang: Any = one._gang
    gang.unfit = "rank 0 left a thread"
    result = one.step()
    assert result[RESULT_KEY]["log"] == ["a worker is replaced: rank 0 left a thread"]
    assert result[RESULT_KEY]["warm"] is True


def test_a_failure_raises_for_plain_tune(make: Make) -> None:
    one = make(failing)
    one.step()
    with pytest.raises(TrialError, match="ValueError: no more"):
        one.step()


def test_a_soft_failure_is_a_result_without_metrics(make: Make) -> None:
    one = make(failing, soft_errors=True)
    one.step()
    last = one.step()
    assert last["done"] is True
    assert "loss" not in last
    assert last[RESULT_KEY]["error"]["type_name"] == "ValueError"
    one.reset_config({})
    assert one.step()["training_iteration"] == 1


def test_a_failed_trial_is_tried_again_as_often_as_the_policy_says(make: Make) -> None:
    one = make(failing, soft_errors=True, failures=FailurePolicy(2, retry_exceptions=True, backoff_s=0))
    results = [one.step() for _ in range(2)]
    assert [bool(r[RESULT_KEY]["error"]) for r in results] == [False, True]
    assert [text.count("going on from the beginning") for text in results[1][RESULT_KEY]["log"]] == [1, 1]


def test_continue_until_lets_the_trial_run_ahead(make: Make) -> None:
    one = make(three, first=Continue(until=None))
    one.step()
    time.sleep(0.2)
    assert one._gang is not None
    assert [one.step()["training_iteration"] for _ in range(2)] == [2, 3]


def test_a_stop_through_the_door_ends_the_trial_before_tune_says_so(make: Make) -> None:
    one = make(three)
    one.step()
    one.decide(Stop("asha"))
    assert one.step() == {RESULT_DUPLICATE: True, "done": True}


def test_a_pause_writes_a_checkpoint_and_a_resume_finds_it(make: Make, tmp_path: Path) -> None:
    one = make(saving, real_checkpoints=False)
    one.step()
    pointer = tmp_path / "checkpoint_000000"
    pointer.mkdir()
    one.save_checkpoint(str(pointer))
    assert json.loads((pointer / checkpoints.POINTER).read_text())["number"] == 1
    one.reset_config({})
    one._iteration = 1
    one.load_checkpoint(str(pointer))
    result = one.step()
    assert result["training_iteration"] == 2
    assert result["resumed"].endswith("report-000001.ckpt")


def test_a_pause_without_a_way_to_write_a_checkpoint_is_an_error_on_resume(make: Make, tmp_path: Path) -> None:
    one = make(three)
    one.step()
    one.save_checkpoint(str(tmp_path))
    one.reset_config({})
    one._iteration = 1
    with pytest.raises(CheckpointError, match="TuneReportCheckpointCallback"):
        one.load_checkpoint(str(tmp_path))


def test_plain_tune_gets_the_real_file(make: Make, tmp_path: Path) -> None:
    one = make(saving)
    one.step()
    target = tmp_path / "tune"
    target.mkdir()
    one.save_checkpoint(str(target))
    assert (target / "report-000001.ckpt").read_text() == "weights"


def test_a_trial_seed_depends_on_the_sweep_and_the_index_alone() -> None:
    assert trial_seed(7, "00003") == trial_seed(7, "abcde_00003")
    assert trial_seed(7, "00003") != trial_seed(7, "00004")
    assert trial_seed(7, "00003") != trial_seed(8, "00003")
    assert 0 <= trial_seed(1, "deadbeef") < 2**32
