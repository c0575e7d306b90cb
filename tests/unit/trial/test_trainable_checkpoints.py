"""Which checkpoints a trial keeps, when Tune gets them, and which one a start continues from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.tune.result import RESULT_DUPLICATE, SHOULD_CHECKPOINT

from tests.kit.heads import Heads
from tests.unit.trial.test_trainable import RETRY, Make, background, folder, heads, make, saving, three
from tunelight.checkpoints import files as checkpoints
from tunelight.messages import RESULT_KEY

__all__ = ["folder", "heads", "make"]


def test_a_checkpoint_that_is_finished_after_its_report_comes_with_the_next_result(make: Make, folder: Path) -> None:
    one = make(background, real_checkpoints=False, metric="loss")
    numbers = []
    for _ in range(3):
        numbers += [info["number"] for info in Heads.train(one)[RESULT_KEY]["checkpoints"]]
    assert one.step() == {RESULT_DUPLICATE: True, "done": True}
    one.cleanup()
    assert numbers in ([1, 2], [1])  # the last is on disk, and stands in no result
    assert [info.number for info in checkpoints.find(folder)] == [2, 3]


def test_the_best_checkpoint_is_kept_beside_the_last_two_whenever_it_was_finished(make: Make, folder: Path) -> None:
    one = make(background, real_checkpoints=False, metric="loss", mode="max")  # the first is the best
    for _ in range(4):
        one.step()
    assert [info.number for info in checkpoints.find(folder)] == [1, 2, 3]


def rereading(config: dict[str, Any]) -> None:
    """Fail once; then report whether the checkpoint that training continues from still exists."""
    from pathlib import Path

    import tunelight as tl

    path = tl.get_checkpoint_path()
    while tl.get_context().number < 6:
        there = path is not None and Path(path).exists()
        tl.report({"loss": 1.0, "there": there}, checkpoint=lambda to: Path(to).write_text("weights"))
        if path is None:
            raise ValueError("once")


def test_the_checkpoint_that_a_start_continues_from_stays_while_a_rank_may_read_it(make: Make, folder: Path) -> None:
    one = make(rereading, failures=RETRY, real_checkpoints=False)
    assert [Heads.train(one)["there"] for _ in range(6)] == [False, True, True, True, True, True]
    assert one.step()["done"]
    one.cleanup()
    assert [info.number for info in checkpoints.find(folder)] == [5, 6]


def test_a_stop_waits_for_the_checkpoint_that_is_being_written(make: Make, heads: Heads, folder: Path) -> None:
    one = make(background, real_checkpoints=False)
    for _ in range(3):
        one.step()
    heads.reset(one, {})
    assert [info.number for info in checkpoints.find(folder)] == [2, 3]


def test_plain_tune_gets_the_real_file_also_of_one_that_is_being_written(make: Make, folder: Path) -> None:
    one = make(background)
    for _ in range(3):
        one.step()
    target = folder / "tune"
    target.mkdir()
    one.save_checkpoint(str(target))
    assert (target / "report-000003.ckpt").read_text() == "weights"


def test_tune_saves_each_report_that_has_a_checkpoint(make: Make) -> None:
    assert SHOULD_CHECKPOINT not in make(three).step()
    one = make(background)
    assert [one.step().get(SHOULD_CHECKPOINT) for _ in range(3)] == [True] * 3


def test_the_end_of_a_trial_gives_tune_no_checkpoint_twice(make: Make) -> None:
    one = make(background)
    saved = []
    for _ in range(4):
        Heads.train(one)
        saved.append(one.save().checkpoint)
    assert [made is None for made in saved] == [False, False, False, True]


def test_plain_tune_keeps_the_checkpoints_and_the_gang_its_last_two(make: Make, folder: Path) -> None:
    one = make(background, metric="loss", mode="max")  # the first is the best
    for number in range(1, 5):
        Heads.train(one)
        copy = folder / f"checkpoint_{number:06}"
        copy.mkdir()
        one.save_checkpoint(str(copy))
    assert [info.number for info in checkpoints.find(folder)] == [2, 3]


def test_a_checkpoint_that_tune_asked_for_is_the_newest_of_an_ended_trial(make: Make, folder: Path) -> None:
    one = make(saving, real_checkpoints=False)
    pointers = [folder / "before", folder / "after"]
    for pointer in pointers:
        pointer.mkdir()
    for _ in range(3):
        one.step()
    one.save_checkpoint(str(pointers[0]))
    assert one.step()["done"]
    one.save_checkpoint(str(pointers[1]))
    assert [info and info.number for info in map(checkpoints.read_pointer, pointers)] == [3, 3]
