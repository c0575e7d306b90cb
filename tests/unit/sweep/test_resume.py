"""What tl.run(resume=...) and tl.resume do before Ray starts, or without it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tunelight as tl
from tests.kit.recording import Sweep, Writer, queued
from tests.unit.sweep.test_reproduce import about_to_run
from tunelight.compat.ray import stub_trial
from tunelight.errors import ImportPathError, SettingsError, SpaceError, StorageError
from tunelight.gang.orders import Orders
from tunelight.record import Record, read_sweep_file, write_sweep_file
from tunelight.resources import reserve
from tunelight.settings import Settings, fingerprint, import_path
from tunelight.settings.values import Repeats
from tunelight.space import SearchSpace
from tunelight.sweep import run as sweeps
from tunelight.sweep.past import open_saved_sweep, sweep_file_of
from tunelight.sweep.run import claimed
from tunelight.sweep.steering import SweepControl


def train(config: dict[str, Any]) -> None:
    """Never run."""


SPACE = SearchSpace({"x": tl.uniform(0, 1)})


def folder_of(tmp_path: Path, **told: Any) -> Path:
    """Return the folder of a sweep with one unfinished trial."""
    sweep = Sweep(tmp_path / "s")
    sweep.run(x=0.5)
    sweep.callback.record.close()
    plain = {"space": {"x": {"uniform": [0, 1]}}, "metric": "loss", "mode": "min", "seed": 1, "num_samples": 1}
    write_sweep_file(sweep.folder, plain | told)
    return sweep.folder


def ended(tmp_path: Path, *losses: float, recorded_end: bool = True) -> Sweep:
    """Record a sweep with one trial, which has come to its end."""
    sweep = Sweep(tmp_path / "s")
    trial = sweep.run(*losses[: len(losses) if recorded_end else -1], x=0.5)
    if not recorded_end:
        sweep.report(trial, len(losses), losses[-1], done=True)
    else:
        sweep.end_by_itself(trial)
        sweep.end()
    sweep.callback.record.close()
    return sweep


def asked(storage: Path, **settings: Any) -> Settings:
    return Settings(**{"train": train, "metric": "loss", "name": "s", "storage": storage, "num_samples": 1, **settings})


def run(tmp_path: Path, **settings: Any) -> Any:
    given: dict[str, Any] = {"metric": "loss", "storage": tmp_path, "name": "s", "resume": True}
    return tl.run(SPACE, train, **(given | settings))


def test_what_is_no_sweep_to_go_on_with_is_told(tmp_path):
    with pytest.raises(SettingsError, match="without name="):
        run(tmp_path, name=None)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.tex").touch()
    with pytest.raises(StorageError, match="is no sweep that could go on"):
        run(tmp_path)
    with pytest.raises(StorageError, match=r"is no sweep: it holds no record.jsonl"):
        tl.resume(tmp_path / "s")
    folder_of(tmp_path / "above")
    with pytest.raises(StorageError, match="Sweeps in it: s"):
        tl.resume(tmp_path / "above")
    with pytest.raises(SettingsError, match="Did you mean 'num_samples'"):
        tl.resume(tmp_path / "above" / "s", num_sample=3)


def test_a_later_format(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "record.jsonl").unlink()
    later = Record.open(folder)
    later.append("sweep", sweep={"format": 9})
    later.close()
    with pytest.raises(StorageError, match=r"format 9.*Upgrade"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("told", "error", "says"),
    [
        ({"train": "__main__:train"}, ImportPathError, "which only the script or notebook"),
        ({"train": "a:b.<locals>.train"}, ImportPathError, "run.*resume=True"),
        ({"train": "tests.no_such:train"}, ImportPathError, "does not import"),
        (
            {"scheduler": {"object": "my:Scheduler"}},
            SettingsError,
            r"holds only the name of scheduler.*scheduler=\.\.\.",
        ),
        ({"space": {"x": {"sample_from": "__main__:draw"}}}, SpaceError, "cannot be read back"),
        ({"space_objects": {"x": [["a", None]]}}, SpaceError, "x: the record has the choice 'a' as text"),
    ],
)
def test_what_cannot_be_read_back_is_named(tmp_path, told, error, says):
    folder = folder_of(tmp_path, **({"train": "tests.unit.sweep.test_resume:train"} | told))
    with pytest.raises(error, match=says):
        tl.resume(folder)


def test_what_differs_is_refused_and_nothing_changed_by_that(tmp_path):
    folder = folder_of(tmp_path, train=import_path(train), code={"train": "0" * 16}, evaluation="exact")
    before = (folder / "record.jsonl").read_bytes(), (folder / "sweep.yaml").read_bytes()
    assert fingerprint(train) != "0" * 16
    for changed, says in (
        ({"evaluation": "ddp"}, "evaluation was 'exact' and is 'ddp'"),
        ({"seed": 2}, "asked for now: seed was 1 and is 2"),
        ({}, r"asked for now: the code of train \(.*:train\) has changed.*resume='force'"),
    ):
        with pytest.raises(SettingsError, match=says):
            run(tmp_path, **changed)
        assert ((folder / "record.jsonl").read_bytes(), (folder / "sweep.yaml").read_bytes()) == before
    assert json.loads((folder / "record.jsonl").read_bytes().splitlines()[0])["sweep"]["format"] == 1
    folder_of(tmp_path / "other")
    pauses = {"name": "pbt", "metric": "loss", "mode": "min", "hyperparam_mutations": {"x": [1]}}
    with pytest.raises(SettingsError, match="cannot be resumed: it pauses"):
        run(tmp_path / "other", scheduler=pauses)


def test_a_damaged_record_is_refused_and_force_keeps_what_is_whole(tmp_path):
    sweep = ended(tmp_path, 1.0, 0.5, 0.3)
    record = sweep.folder / "record.jsonl"
    record.write_bytes(record.read_bytes().replace(b'"training_iteration":2', b'"training_iteration":9', 1))
    with pytest.raises(StorageError, match=r"line \d+: corrupt .*resume='force'"):
        run(tmp_path, num_samples=1)
    with pytest.warns(UserWarning, match=r"1 of \d+ lines of record.jsonl are damaged .*record.jsonl.bad-1"):
        results = run(tmp_path, num_samples=1, resume="force")  # nothing is left to do
    assert [report["training_iteration"] for report in results.trials[0].history] == [1, 3]


def test_a_driver_that_died_between_the_last_stop_and_its_end_left_nothing_to_do_but_repetitions(tmp_path):
    ended(tmp_path, 1.0, recorded_end=False)  # the scheduler's word; the end itself is not recorded
    assert reopened(asked(tmp_path, resume=True, seed=1, repeats=Repeats(2))).to_repeat[0] == ("00000", 1)
    results = run(tmp_path, num_samples=1)
    assert [trial.state for trial in results.trials] == ["STOPPED"]


@pytest.mark.parametrize(
    "settings",
    [
        {"resources_per_trial": {"cpu": 1, "extra_cpu": 4}},
        {"scheduler": {"name": "asha", "grace_period": 2}, "max_epochs": 4, "time_budget": "2h", "checkpoints": None},
        {"baselines": [{"x": 0.5}], "runtime_env": {"env_vars": {"A": "1"}}},
    ],
)
def test_a_finished_sweep_is_read_back_and_returns_at_once(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("A", "1")  # its value is not recorded
    space = tl.SearchSpace({"x": tl.choice([0.5, 1.5])})
    given = asked(tmp_path, seed=3, **settings)
    reservation = reserve(given.workers, 1, 0, given.resources_per_trial)
    ended(tmp_path, 1.0)
    write_sweep_file(tmp_path / "s", sweep_file_of(space, given, reservation, reservation))
    results = tl.resume(tmp_path / "s")
    assert [trial.state for trial in results.trials] == ["FINISHED"]


def driven(storage: Path, trials: int | None = None, **settings: Any) -> list[float]:
    """Return x of the trials that a run puts into its record up to Ray's start; it is cut off after ``trials``."""
    given, control = asked(storage, seed=1, **settings), SweepControl()
    with contextlib.ExitStack() as stack:
        past = stack.enter_context(open_saved_sweep(given)) if given.resume else None
        sweep = stack.enter_context(claimed(sweeps._prepare(SPACE, given, past, control), past))
        with sweeps._parts(sweep, control, None, None, orders=Orders("sweep")) as (search, *_):  # type: ignore[arg-type]
            search._max_concurrent = None
            search._make = stub_trial  # type: ignore[method-assign]
            made: list[Any] = []
            for _ in sweep.start.again:
                search.next_trial()
            while (trials is None or len(made) < trials) and (trial := search.next_trial()) is not None:
                made.append(trial)
    return [trial.config["x"] for trial in made]


def test_a_baseline_that_is_new_when_a_sweep_goes_on_is_tried_next(tmp_path: Path) -> None:
    suggested, resumed = driven(tmp_path / "straight", num_samples=4), tmp_path / "resumed"
    assert driven(resumed, 3, num_samples=5, baselines=[{"x": 0.5}]) == [0.5, *suggested[:2]]
    assert driven(resumed, 2, num_samples=7, resume=True, baselines=[{"x": 0.5}, {"x": 0.25}]) == [0.25, suggested[2]]
    told = read_sweep_file(resumed / "s")
    assert told["baselines"] == [{"x": 0.5}, {"x": 0.25}]
    assert driven(resumed, num_samples=7, resume=True, baselines=[{"x": 0.75}]) == [0.75, suggested[3]]


def test_a_baseline_that_was_cut_off_before_its_turn_is_tried_when_the_sweep_goes_on_and_a_new_one_needs_room(tmp_path):
    baselines = [{"x": 0.5}, {"x": 0.5}, {"x": 0.25}]
    assert driven(tmp_path, 1, num_samples=3, baselines=baselines) == [0.5]
    assert driven(tmp_path, num_samples=3, resume=True, baselines=baselines) == [0.5, 0.25]
    with pytest.raises(SettingsError, match=r"all but 0 of its num_samples=3 trials are made. Give num_samples=4"):
        driven(tmp_path, num_samples=3, resume=True, baselines=[*baselines, {"x": 0.75}])


def test_more_epochs_train_those_on_that_finished_and_fewer_are_refused(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "s", max_epochs=2)
    sweep.end_by_itself(sweep.run(0.5, 0.4, x=0.5))
    sweep.complete(sweep.run(0.9, x=0.6))  # stopped early
    sweep.end()
    sweep.callback.record.close()
    settings = asked(tmp_path)
    with open_saved_sweep(settings) as past:
        assert past is not None
        assert [trial.id for trial in past.again(3)] == ["00000"]
        assert past.again(2) == []
        with pytest.raises(SettingsError, match="max_epochs=1 is less than the 2 that trials of"):
            past.check(SPACE, replace(settings, max_epochs=1), {})


def recorded(storage: Path, *, repetitions: int, cut: bool = False, **told: Any) -> Settings:
    """Record two trials, and repetitions of them in turn, the last of which may be cut off."""
    settings = asked(storage, num_samples=2, seed=1, searcher="tpe", **told)
    sweep = Sweep(storage / "s", **settings.recorded)
    for number in range(2 + repetitions):
        kind = {"repeats": f"{number % 2:05d}", "repetition": number // 2} if number >= 2 else None
        trial = sweep.run(0.1 + 0.01 * number, kind=kind, x=0.25 * (1 + number % 2))
        if not (cut and number == 1 + repetitions):
            sweep.end_by_itself(trial)
    sweep.callback.record.close()
    reservation = reserve(1)
    write_sweep_file(storage / "s", sweep_file_of(SPACE, settings, reservation, reservation))
    return replace(settings, resume=True)


def reopened(settings: Settings) -> Any:
    with open_saved_sweep(settings) as past:
        return sweeps._prepare(SPACE, settings, past, SweepControl())


def test_a_repetition_that_was_cut_off_stays_so_where_none_are_wanted_and_repeated_baselines_count_once(tmp_path):
    settings = recorded(tmp_path, repetitions=2, cut=True, repeats=3)
    sweep = reopened(replace(settings, repeats=None, num_samples=3))
    assert sweep.start.again == {}
    assert sweep.state.suggested == 2
    with open_saved_sweep(settings) as past:
        assert past is not None
        again = replace(settings, baselines=[{"x": 0.25}, {"x": 0.25}], num_samples=3)
        assert past.untried(SPACE, again) == [{"x": 0.25}]


@pytest.mark.parametrize(
    ("made", "cut", "to_do", "following"),
    [
        (0, False, True, ("00000", 1)),
        (1, False, True, ("00001", 1)),
        (2, False, True, ("00000", 2)),
        (2, True, True, ("00000", 2)),
        (4, False, False, None),
    ],
)
def test_a_resumed_sweep_knows_what_is_left(tmp_path, made, cut, to_do, following) -> None:
    sweep = reopened(recorded(tmp_path, repetitions=made, cut=cut, repeats=3))
    assert (sweep.start.created, sweep.state.suggested) == (2 + made, 2)
    assert sweep.to_do == to_do
    assert list(sweep.start.again) == ([f"{1 + made:05d}"] if cut else [])
    assert next(iter(sweep.to_repeat), None) == following
    assert len(sweep.searcher.study.trials) == 2


def test_a_resumed_sweep_that_had_no_repeats_gets_them_and_the_number_of_folds_cannot_change(tmp_path: Path) -> None:
    plain = recorded(tmp_path / "plain", repetitions=0)
    assert not reopened(plain).to_do
    assert reopened(replace(plain, repeats=Repeats(2))).to_repeat[0] == ("00000", 1)
    folded = recorded(tmp_path / "folded", repetitions=0, repeats=tl.Folds(3))
    assert reopened(folded).to_do
    with pytest.raises(SettingsError, match="the number of folds was 3 and is 5"):
        reopened(replace(folded, repeats=Repeats(5, folds=True)))
    with pytest.raises(SettingsError, match="the number of folds was 3 and is none"):
        reopened(replace(folded, repeats=None))


def test_a_repetition_is_reproduced_on_its_fold_for_as_long_as_it_trained_and_not_repeated(tmp_path, monkeypatch):
    written = Writer(tmp_path, train=f"{__name__}:train", seed=7, num_samples=1, repeats={"folds": 3, "top": 1},
                     space={"lr": {"uniform": [0, 1]}})  # fmt: skip
    written.trial(0.5, 0.4)
    written.trial(0.5, 0.3, repeats="00000", repetition=2, state="STOPPED")
    made = about_to_run(monkeypatch, written.load(), 1)
    assert list(made.start.again) == ["00001"]
    known = made.state.trials["00001"]
    assert (known.repeats, known.repetition) == ("00000", 2)
    search = queued(None, 1, book=SimpleNamespace(state=made.state), repeats=made.settings.repeats)
    assert search.ends_at("00001") is None  # the scheduler of the reproduction stops it
    assert made.to_repeat == []
    assert made.settings.folds == 3
