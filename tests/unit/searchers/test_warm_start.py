"""warm_start=: which earlier sweeps it stands for, what their keys are called, and what is said of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.kit.recording import Sweep
from tunelight.cli.overrides import load_space_and_settings
from tunelight.errors import SettingsError
from tunelight.record import read_sweep_file, trained_alike, write_sweep_file
from tunelight.record.upkeep import started_from
from tunelight.searchers.choose import build_searcher, offer_warm_start
from tunelight.searchers.earlier import read_earlier
from tunelight.settings import Settings
from tunelight.settings.checks import plain_setting
from tunelight.settings.warm import WarmStart
from tunelight.space import SearchSpace
from tunelight.sweep.past import SavedSweep

SPACE = SearchSpace({"model": {"lr": tl.uniform(0, 1)}})


def train(config: dict[str, Any]) -> None:
    """Never run."""


def other(config: dict[str, Any]) -> None:
    """Never run."""


def told(storage: Path, **more: Any) -> Settings:
    return Settings(**{"train": train, "metric": "loss", "storage": storage, "searcher": "tpe", "seed": 1, **more})


def recorded(storage: Path, name: str, configs: Any = None, count: int = 6, **facts: Any) -> Path:
    """Record a sweep of ``train`` whose trials get better and better."""
    folder = storage / name
    folder.mkdir(parents=True)
    made = Sweep(folder)
    for number in range(count):
        trial = made.add(**(configs(number) if configs else {"model": {"lr": (number + 1) / 10}}))
        made.start(trial)
        made.report(trial, 1, 1.0 - number / 10, done=True)
        made.end_by_itself(trial)
    made.end()
    write_sweep_file(folder, {"train": f"{__name__}:train", "metric": "loss", "mode": "min", **facts})
    return folder


def build(space: SearchSpace, settings: Settings, resumed: Path | None = None) -> Any:
    return build_searcher(space, settings, resumed)


# --- which sweeps -----------------------------------------------------------------------------------------


def test_true_stands_for_the_sweeps_that_trained_the_same_code_for_the_same_metric(tmp_path: Path) -> None:
    first, second = recorded(tmp_path, "first"), recorded(tmp_path, "second", metric=["loss", "speed"])
    recorded(tmp_path, "function", train=f"{__name__}:other")
    recorded(tmp_path, "metric", metric="acc")
    recorded(tmp_path, "mode", mode="max")
    recorded(tmp_path, "again", reproduces={"sweep": "first", "trial": "00000"})
    (recorded(tmp_path, "changed") / "sweep.yaml").write_text("train: [\n")
    (recorded(tmp_path, "binary") / "sweep.yaml").write_bytes(b"\xff\xfe")
    (recorded(tmp_path, "gone") / "sweep.yaml").unlink()
    assert sorted(trained_alike(told(tmp_path))) == [first, second]
    assert list(trained_alike(told(tmp_path), but=first)) == [second]
    searcher = build(SPACE, told(tmp_path, warm_start=True))
    assert sorted(searcher.sweeps) == [first, second]
    assert searcher.notes == ["warm start: 12 of 12 trials of earlier sweeps (2 sweeps) are known to the searcher"]
    assert build(SPACE, told(tmp_path, warm_start=True), first).sweeps == [second]


@pytest.mark.parametrize("searcher", ["tpe", "auto"])
def test_on_the_first_sweep_of_a_project_there_is_nothing_to_learn_from_yet(tmp_path: Path, searcher: str) -> None:
    storage = tmp_path / "none"
    made = build(SPACE, told(storage, warm_start=True, searcher=searcher))
    assert made.sweeps == ()
    assert made.notes == [f"warm start: no earlier sweeps in {storage} trained the same code for the metric"]
    made.suggest("00000")
    recorded(storage, "first", lambda number: {"momentum": number / 10})
    made = build(SPACE, told(storage, warm_start=True, searcher=searcher))
    assert made.sweeps == ()
    assert made.notes == [
        f"warm start: none of the 6 trials of earlier sweeps in {storage} has a key of this search space"
    ]


def test_a_folder_of_sweeps_stands_for_those_that_reported_the_metric(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first, second = recorded(runs, "first"), recorded(runs, "second")
    recorded(runs, "empty", count=0)
    (runs / "broken").mkdir()
    (runs / "broken" / "record.jsonl").write_text("{")
    (runs / "notes").mkdir()
    trials, sweeps = read_earlier([runs], [("loss", "min")])
    assert (sorted(sweeps), len(trials)) == ([first, second], 12)
    assert read_earlier([runs, first], [("loss", "min")], but=second)[1] == [first]
    searcher = build(SPACE, told(tmp_path / "new", warm_start=[runs]))
    assert sorted(searcher.sweeps) == [first, second]
    assert searcher.notes == ["warm start: 12 of 12 trials of earlier sweeps (2 sweeps) are known to the searcher"]
    with pytest.raises(SettingsError, match=r"no sweep in .*runs has a trial that reported this sweep's metric acc"):
        read_earlier([runs], [("acc", "min")])


@pytest.mark.parametrize(
    ("started", "known"), [(["train.py", "--fast"], True), (["/home/me/train.py"], True), (["other.py"], False)]
)
def test_what_a_script_defines_itself_is_only_that_script_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[str], known: bool
) -> None:
    recorded(tmp_path, "first", train="__main__:train", run={"command": ["python", "train.py", "--slow"]})
    monkeypatch.setattr(train, "__module__", "__main__")
    monkeypatch.setattr(sys, "argv", started)
    monkeypatch.setattr(sys, "orig_argv", ["python", *started])
    assert bool(list(trained_alike(told(tmp_path)))) is known


# --- what the record says ---------------------------------------------------------------------------------


class ReadyError(Exception):
    """The sweep is recorded, and Ray would start."""


def started(storage: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Path:
    """Run a sweep up to the start of Ray, with its folder kept; return that."""
    from tunelight.sweep import run as module

    def ready(settings: Any, reservation: Any, path: Path, signals: Any) -> Any:
        found.append(path.parent)
        (path.parent / "record.jsonl").write_text('{"kind":"sweep","time":1.0,"sweep":{"format":2}}\n')
        raise ReadyError

    found: list[Path] = []
    monkeypatch.setattr(module, "connected", ready)
    with pytest.raises(ReadyError):
        tl.run(SPACE, train, metric="loss", storage=storage, searcher="auto", seed=1, progress=False, **more)
    return found[0]


def test_a_resumed_sweep_learns_from_the_sweeps_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = recorded(tmp_path, "first")
    folder = started(tmp_path, monkeypatch, name="second", warm_start=True)
    assert read_sweep_file(folder)["warm_start"] == [str(first)]
    recorded(tmp_path, "third")
    past = SavedSweep(folder, read_sweep_file(folder), (), Sweep(tmp_path).state)
    assert past.steered(told(tmp_path, warm_start=True)).warm_start.sweeps == (first,)
    assert started_from(first) == ["second"]


def test_a_resumed_sweep_that_found_none_goes_on_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = started(tmp_path, monkeypatch, name="first", warm_start=True)
    assert read_sweep_file(folder)["warm_start"] == {"sweeps": []}
    recorded(tmp_path, "second")
    past = SavedSweep(folder, read_sweep_file(folder), (), Sweep(tmp_path).state)
    assert past.steered(told(tmp_path, warm_start=True)).warm_start.sweeps == ()
    cold = SavedSweep(folder, {"warm_start": []}, (), Sweep(tmp_path).state)
    assert cold.steered(told(tmp_path, warm_start=True)).warm_start.sweeps is True  # now it is asked to


def test_the_setting_is_plain_data_that_is_read_back(tmp_path: Path) -> None:
    one = str(tmp_path / "one")
    for given, plain in [
        (True, True),
        (False, []),
        ((), []),
        (one, [one]),
        ([one], [one]),
        ({"sweeps": one}, [one]),
        ({"keys": {"lr": "model.lr"}}, {"sweeps": True, "keys": {"lr": "model.lr"}}),
        ({"sweeps": [one], "keys": {"lr": "model.lr"}}, {"sweeps": [one], "keys": {"lr": "model.lr"}}),
        ({"sweeps": []}, {"sweeps": []}),
    ]:
        read = WarmStart.of("warm_start", given)
        assert plain_setting(read) == plain
        assert WarmStart.of("warm_start", plain) == read


def test_a_file_and_the_command_line_say_it_too(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    lines = "space: {lr: {uniform: [0, 1]}}\nmetric: loss\n"
    file.write_text(f"{lines}warm_start: {{sweeps: true, keys: {{rate: lr}}}}\n")
    assert SearchSpace.load(file).settings["warm_start"] == WarmStart(True, {"rate": "lr"}, True)
    file.write_text(f"{lines}warm_start: true\n")
    assert SearchSpace.load(file).settings["warm_start"].sweeps is True
    _, settings = load_space_and_settings(str(file), ["warm_start=true"], {})
    assert Settings(**settings).warm_start.sweeps is True
    file.write_text(f"{lines}warm_start: {{sweep: true}}\n")
    with pytest.raises(SettingsError, match=r"space\.yaml:3:\d+: .*warm_start has no 'sweep'"):
        SearchSpace.load(file)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sweep": True}, "warm_start has no 'sweep'. Did you mean 'sweeps'"),
        ({"sweeps": {"a": 1}}, "warm_start: sweeps must be true, a folder or a list of folders"),
        ({"keys": ["lr"]}, "warm_start: keys must be a dict"),
        ({"keys": {"lr": 3}}, r"keys must map names of earlier sweeps to those of this one.* hold 'lr': 3"),
        ({"sweeps": 3}, "warm_start: sweeps must be the path of a folder"),
    ],
)
def test_what_is_no_warm_start_is_refused(given: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Settings(warm_start=given)


# --- keys -------------------------------------------------------------------------------------------------


def params(searcher: Any) -> list[dict[str, Any]]:
    return [trial.params for trial in searcher.study.trials]


@pytest.mark.parametrize("write", [lambda lr: {"lr": lr}, lambda lr: {"optim": {"lr": lr}}], ids=["flat", "nested"])
def test_keys_may_have_another_name_now(tmp_path: Path, write: Any) -> None:
    folder = recorded(tmp_path, "first", lambda number: write(number / 10))
    (old,) = [key for key in ("lr", "optim.lr") if (key == "lr") == ("lr" in write(1))]
    for sweeps in (True, folder, [folder]):
        searcher = build(SPACE, told(tmp_path, warm_start={"sweeps": sweeps, "keys": {old: "model.lr"}}))
        assert params(searcher) == [{"model.lr": number / 10} for number in range(6)]
    flat = SearchSpace({"model.lr": tl.uniform(0, 1)})
    assert len(params(build(flat, told(tmp_path, warm_start={"keys": {old: "model.lr"}})))) == 6


def test_names_that_neither_sweep_has_are_refused(tmp_path: Path) -> None:
    folder = recorded(tmp_path, "first", lambda number: {"rate": number / 10})
    with pytest.raises(SettingsError, match=r"the search space has no 'model.rl'. Did you mean 'model.lr'"):
        build(SPACE, told(tmp_path, warm_start={"sweeps": folder, "keys": {"rate": "model.rl"}}))
    with pytest.raises(SettingsError, match=r"no earlier sweep has a key 'rates'. Did you mean 'rate'"):
        build(SPACE, told(tmp_path, warm_start={"sweeps": folder, "keys": {"rates": "model.lr"}}))
    with pytest.raises(SettingsError, match="has no 'x'"):
        build(SPACE, told(tmp_path / "none", warm_start={"keys": {"rate": "x"}}))
    assert build(SPACE, told(tmp_path / "none", warm_start={"keys": {"rate": "model.lr"}})).sweeps == ()


def test_a_key_that_was_fixed_counts_at_its_value(tmp_path: Path) -> None:
    def fixed(number: int) -> dict[str, Any]:
        return SearchSpace({"lr": tl.uniform(0, 1), "width": 64}).written({"lr": number / 10, "width": 64})

    recorded(tmp_path, "first", fixed)
    space = SearchSpace({"lr": tl.uniform(0, 1), "width": tl.choice([32, 64, 128]), "new": tl.uniform(0, 1)})
    known = [{"lr": number / 10, "width": 64} for number in range(6)]
    assert params(build(space, told(tmp_path, warm_start=True))) == known
    with_all = SearchSpace({"lr": tl.uniform(0, 1), "width": tl.choice([32, 64, 128])})
    assert params(build(with_all, told(tmp_path, warm_start=True, searcher="cmaes"))) == known


# --- without warm_start -----------------------------------------------------------------------------------


def offered(settings: Settings) -> list[str]:
    searcher = build(SPACE, settings)
    offer_warm_start(searcher, settings)
    return list(searcher.notes)


@pytest.mark.parametrize("searcher", ["auto", "tpe", {"name": "cmaes"}])
def test_a_sweep_that_could_learn_from_earlier_ones_says_so(tmp_path: Path, searcher: Any) -> None:
    assert offered(told(tmp_path, searcher=searcher)) == []
    recorded(tmp_path, "first")
    recorded(tmp_path, "other", train=f"{__name__}:other")
    recorded(tmp_path, "empty", count=0)
    (note,) = offered(told(tmp_path, searcher=searcher))
    assert note.startswith(
        "6 trials of earlier sweeps (first) trained the same code for this metric; with warm_start=True"
    )


def test_nothing_is_offered_where_it_would_not_help_or_was_asked_for(tmp_path: Path) -> None:
    recorded(tmp_path, "first")
    assert offered(told(tmp_path, searcher="sobol")) == []
    assert len(offered(told(tmp_path, warm_start=True))) == 1
    assert len(offered(told(tmp_path, warm_start=tmp_path))) == 1
    offer_warm_start(build(SPACE, told(tmp_path, searcher="random")), told(tmp_path, searcher="random"))


def test_an_offer_costs_little_and_ends_no_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunelight.record import finding

    for number in range(25):
        recorded(tmp_path, f"s{number:02d}", count=1)
    looked: list[Path] = []
    head = finding._head

    def look(folder: Path) -> Any:
        looked.append(folder)
        return head(folder)

    monkeypatch.setattr(finding, "_head", look)
    assert offered(told(tmp_path))[0].startswith("20 trials of earlier sweeps (")
    assert len(looked) == 20

    def refuse(folder: Path) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(finding, "_head", refuse)
    assert offered(told(tmp_path)) == []


def test_a_store_is_not_asked_for_what_could_be_learned_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tunelight.record import finding

    monkeypatch.setattr(finding, "list_sweeps", lambda storage: pytest.fail("it was asked"))
    settings = told(tmp_path)
    searcher = build(SPACE, settings)
    object.__setattr__(settings, "storage", "s3://bucket/sweeps")
    offer_warm_start(searcher, settings)
    assert not searcher.notes


def test_a_new_sweep_notes_what_it_could_learn_from_and_is_recorded_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunelight.searchers import choose

    asked: list[Any] = []
    monkeypatch.setattr(choose, "offer_warm_start", lambda searcher, settings: asked.append(searcher))
    recorded(tmp_path, "first")
    folder = started(tmp_path, monkeypatch, name="second")
    assert len(asked) == 1
    assert read_sweep_file(folder)["warm_start"] == []
