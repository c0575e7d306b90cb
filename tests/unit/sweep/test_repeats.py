"""A killed sweep goes on with its repetitions; scheduler and searcher never learn of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

import tunelight as tl
from tests.kit.recording import Sweep, Writer
from tests.unit.sweep.test_reproduce import StoppedBeforeRayError, stop_before_ray
from tunelight.errors import SettingsError
from tunelight.extras.reproduce import reproduce
from tunelight.record import read_lines, write_sweep_file
from tunelight.resources import reserve
from tunelight.schedulers import ASHA
from tunelight.searchers import Repetitions
from tunelight.settings import Settings
from tunelight.settings.repeats import Repeats
from tunelight.space import SearchSpace
from tunelight.sweep import run as sweeps
from tunelight.sweep.control import SweepControl
from tunelight.sweep.past import open_saved_sweep, sweep_file_of
from tunelight.sweep.replay import replay_scheduler

SPACE = SearchSpace({"x": tl.uniform(0, 1)})


def train(config: dict[str, Any]) -> None:
    """Never run."""


def recorded(storage: Path, *, repetitions: int, cut: bool = False, **told: Any) -> Settings:
    """Record two trials, and repetitions of them in turn, the last of which may be cut off."""
    settings = Settings(
        train=train, metric="loss", num_samples=2, name="s", storage=storage, seed=1, searcher="tpe", **told
    )
    (storage / "s").mkdir()
    marks: dict[str, tuple[str, int]] = {}
    sweep = Sweep(storage / "s", repetition_of=marks.get, **settings.recorded)
    for number in range(2 + repetitions):
        if number >= 2:
            marks[f"{number:05d}"] = (f"{number % 2:05d}", number // 2)
        trial = sweep.add(x=0.25 * (1 + number % 2))
        sweep.start(trial)
        sweep.report(trial, 1, 0.1 + 0.01 * number)
        if not (cut and number == 1 + repetitions):
            sweep.end_by_itself(trial)
    sweep.callback.record.close()
    reservation = reserve(1)
    write_sweep_file(storage / "s", sweep_file_of(SPACE, settings, reservation, reservation))
    return replace(settings, resume=True)


def reopened(settings: Settings) -> Any:
    with open_saved_sweep(settings) as past:
        return sweeps._prepare(SPACE, settings, past, SweepControl())


def test_a_repetition_that_was_cut_off_stays_so_where_none_are_wanted_any_more(tmp_path: Path) -> None:
    settings = recorded(tmp_path, repetitions=2, cut=True, repeats=3)
    sweep = reopened(replace(settings, repeats=None, num_samples=3))
    assert sweep.start.resumed == ()
    assert sweep.start.searched == 2


@pytest.mark.parametrize(
    ("made", "cut", "to_do", "following"),
    [
        (0, False, True, ("00000", 1)),
        (1, False, True, ("00001", 1)),
        (2, False, True, ("00000", 2)),
        (2, True, True, None),
        (4, False, False, None),
    ],
)
def test_a_resumed_sweep_knows_what_is_left(
    tmp_path: Path, made: int, cut: bool, to_do: bool, following: tuple[str, int] | None
) -> None:
    sweep = reopened(recorded(tmp_path, repetitions=made, cut=cut, repeats=3))
    assert (sweep.start.created, sweep.start.searched) == (2 + made, 2)
    assert sweep.to_do == to_do
    assert [trial.trial_id for trial in sweep.start.resumed] == ([f"{1 + made:05d}"] if cut else [])
    repetitions = sweep.repetitions
    assert isinstance(repetitions, Repetitions)
    assert repetitions.next() == following
    assert len(sweep.searcher.study.trials) == 2
    assert not ray.is_initialized()


def test_a_driver_that_died_between_a_stop_and_the_trial_s_end_left_a_trial_that_can_be_repeated(
    tmp_path: Path,
) -> None:
    (tmp_path / "s").mkdir()
    sweep = Sweep(tmp_path / "s")
    trial = sweep.add(x=0.5)
    sweep.start(trial)
    sweep.report(trial, 1, 1.0, done=True)
    sweep.callback.record.close()
    given = Settings(
        train=train, metric="loss", num_samples=1, name="s", storage=tmp_path, resume=True, seed=1, repeats=Repeats(2)
    )
    assert reopened(given).repetitions.next() == ("00000", 1)


def test_a_resumed_sweep_that_had_no_repeats_gets_them_and_one_may_have_more(tmp_path: Path) -> None:
    plain = recorded(tmp_path, repetitions=0)
    assert not reopened(plain).to_do
    assert reopened(replace(plain, repeats=Repeats(2))).repetitions.next() == ("00000", 1)


def test_the_number_of_folds_cannot_change(tmp_path: Path) -> None:
    folded = recorded(tmp_path, repetitions=0, repeats=tl.Folds(3))
    assert reopened(folded).to_do
    with pytest.raises(SettingsError, match="the number of folds was 3 and is 5"):
        reopened(replace(folded, repeats=Repeats(5, folds=True)))
    with pytest.raises(SettingsError, match="the number of folds was 3 and is none"):
        reopened(replace(folded, repeats=None))


def test_a_replayed_scheduler_never_hears_of_repetitions(tmp_path: Path) -> None:
    recorded(tmp_path, repetitions=2, repeats=2)
    lines = read_lines(tmp_path / "s")
    asha = ASHA(metric="loss", mode="min", max_t=9)
    replay_scheduler(lines, asha)
    first = ASHA(metric="loss", mode="min", max_t=9)
    replay_scheduler([line for line in lines if line.get("trial") not in ("00002", "00003")], first)
    assert [[rung.state() for rung in rungs] for rungs in asha._brackets] == [
        [rung.state() for rung in rungs] for rungs in first._brackets
    ]
    assert sum(len(rung.filed) for rungs in asha._brackets for rung in rungs) == 2


def test_baselines_that_are_only_repeated_count_once(tmp_path: Path) -> None:
    settings = recorded(tmp_path, repetitions=2, repeats=2)
    with open_saved_sweep(settings) as past:
        assert past is not None
        again = replace(settings, baselines=[{"x": 0.25}, {"x": 0.25}], num_samples=3)
        assert past.untried(SPACE, again) == [{"x": 0.25}]


def test_a_repetition_is_reproduced_on_its_fold_for_as_long_as_it_trained_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = stop_before_ray(monkeypatch)
    written = Writer(tmp_path, train=f"{__name__}:train", seed=7, num_samples=1, repeats={"folds": 3, "top": 1},
                     space={"lr": {"uniform": [0, 1]}})  # fmt: skip
    written.trial(0.5, 0.4)
    written.trial(0.5, 0.3, repeats="00000", repetition=2, state="STOPPED")
    with pytest.raises(StoppedBeforeRayError):
        reproduce(written.load(), 1, progress=False)
    (made,) = seen
    assert [trial.trial_id for trial in made.start.resumed] == ["00001"]
    assert made.repetitions.of("00001") == ("00000", 2)
    assert made.repetitions.ends_at("00001") is None  # the scheduler of the reproduction stops it
    assert made.repetitions.next() is None
    assert made.settings.folds == 3
