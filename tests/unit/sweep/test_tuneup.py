"""tune_up: the search for the fastest setting, what it says, and what it writes into a search space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import tunelight as tl
from tunelight.cli import app
from tunelight.errors import SettingsError
from tunelight.extras.tuneup.search import Choices, Figures, Search, Setting, UnmeasuredError, bottleneck
from tunelight.extras.tuneup.tune_up import Foretold, TuneUp
from tunelight.settings import Settings
from tunelight.space.check import check_settings

MODEL = "tunelight.digits:DigitsClassifier"
CHOICES = Choices(
    gangs=[(2, 1), (1, 1), (1, 2)],
    loader_workers=[0, 1, 2, 4],
    pieces=[1, 2],
    reduction=[(None, None), (25, True), (5, False), (5, True)],
    batch=128,
)


def figures(step_s: float, data_s: float = 0.0, wait_s: float = 0.0, **more: Any) -> Figures:
    known = {"gap_s": 0.0, "batches": 10, "start_s": 0.1, "samples": 128, **more}
    return Figures((step_s,) * 5, data_s=data_s, wait_s=wait_s, **known)


@dataclass
class Modelled:
    """Measures by a model of the machine: ``of`` returns a setting's figures, and takes its seconds."""

    of: Callable[[Setting], Figures]
    start_s: float = 0.0
    now: float = 0.0
    measured: list[Setting] = field(default_factory=list)

    def measure(self, setting: Setting, seconds: float, gangs: int = 1, *, validate: bool = False) -> Figures:
        self.now += seconds
        if not self.measured or self.measured[-1].gang != setting.gang:
            self.now += self.start_s
        self.measured.append(setting)
        return self.of(setting)

    def search(self, choices: Choices = CHOICES, budget_s: float = 120.0) -> Search:
        search = Search(self, choices, budget_s, clock=lambda: self.now)
        search.run()
        return search


def slow_loader(setting: Setting) -> Figures:
    """Return figures of a loader that needs 40 ms a batch, and of 10 ms of training a step on one worker."""
    compute = 0.01 * setting.pieces**0.2 / setting.workers**0.5
    load = 0.04 / setting.workers / max(1, setting.loader_workers or 0)
    waits = load if not setting.loader_workers else max(0.0, load - compute)
    shared = 0.004 if setting.workers > 1 and not setting.view else 0.0
    return figures(compute + waits + shared, waits, shared)


def test_the_search_finds_the_fastest_of_48_settings_and_measures_a_few():
    bench = Modelled(slow_loader)
    search = bench.search()
    truth = {setting: slow_loader(setting).rate for setting in CHOICES.all()}
    assert len(truth) == 48
    assert truth[search.fastest] >= 0.95 * max(truth.values())
    assert len(search.measured) <= 24
    assert search.spared == 48 - len(search.measured)


def test_what_no_step_waits_for_is_not_varied():
    bench = Modelled(lambda setting: figures(0.01 * setting.pieces))
    bench.search()
    assert {setting.loader_workers for setting in bench.measured} == {0}
    assert {setting.view for setting in bench.measured} == {None}


def test_a_gang_that_cannot_win_is_measured_once():
    bench = Modelled(lambda setting: figures(0.01 if setting.workers == 1 else 0.05))
    bench.search()
    assert len([setting for setting in bench.measured if setting.workers == 2]) == 1


def test_a_gang_that_waits_for_data_is_varied_although_it_is_slow_now():
    def of(setting: Setting) -> Figures:
        if setting.gang == (1, 2):
            return figures(0.05, 0.045) if not setting.loader_workers else figures(0.005)
        return figures(0.01)

    assert Modelled(of).search().fastest.gang == (1, 2)


def test_the_budget_ends_the_search_after_the_first_setting_at_the_earliest():
    bench = Modelled(slow_loader)
    search = bench.search(budget_s=0.1)
    assert bench.measured == [CHOICES.start((2, 1))]
    assert search.out_of_time
    assert search.fastest == CHOICES.start((2, 1))


@pytest.mark.parametrize("budget_s", [4, 8, 12, 20])
def test_the_search_ends_within_its_budget_where_gangs_take_long_to_start(budget_s: float):
    bench = Modelled(slow_loader, start_s=2.0)
    search = bench.search(budget_s=budget_s)
    assert search.out_of_time
    assert 0.5 * budget_s <= bench.now <= budget_s


def test_a_setting_that_fails_is_left_out_with_its_reason():
    def of(setting: Setting) -> Figures:
        if setting.loader_workers == 4:
            raise UnmeasuredError("OSError: no shared memory")
        return slow_loader(setting)

    search = Modelled(of).search()
    assert set(search.failed.values()) == {"OSError: no shared memory"}
    assert search.fastest.loader_workers == 2


def test_a_batch_that_does_not_fit_the_memory_is_measured_in_pieces():
    def of(setting: Setting) -> Figures:
        if setting.workers * setting.pieces == 1:
            raise UnmeasuredError("OutOfMemoryError: 20 GB")
        return figures(0.01 * setting.workers)

    fastest = Modelled(of).search().fastest
    assert (fastest.workers, fastest.pieces) == (1, 2)


@pytest.mark.parametrize("regroups", [False, True])
def test_with_batch_norm_only_forwards_of_as_many_samples_are_measured_unless_others_are_asked_for(regroups):
    bench = Modelled(lambda setting: figures(0.01 * setting.workers, batch_norm=True))
    bench.search(replace(CHOICES, regroups=regroups))
    parts = {setting.workers * setting.pieces for setting in bench.measured}
    assert parts == ({1, 2} if regroups else {2})


def test_the_sweeps_own_setting_stays_where_nothing_is_clearly_faster():
    bench = Modelled(lambda setting: figures(0.01 if setting.workers == 2 else 0.0099))
    assert bench.search().fastest == CHOICES.start((2, 1))


def test_only_settings_that_divide_the_batch_are_tried():
    choices = replace(CHOICES, gangs=[(1, 1), (2, 1)], pieces=[1, 2, 3], batch=6)
    assert {(one.workers, one.pieces) for one in choices.all()} == {(1, 1), (1, 2), (1, 3), (2, 1), (2, 3)}


def test_an_epoch_of_a_sweep_has_slow_steps_too_and_its_validation():
    alone = Figures((0.010, 0.010, 0.016), 0.0, 0.0, gap_s=0.1, batches=10, start_s=1.0, samples=8)
    assert alone.epoch_s == pytest.approx(0.22)
    assert replace(alone, val_s=0.5).epoch_s == pytest.approx(0.72)


def test_figures_count_the_pause_between_epochs_and_pool_slices():
    first = Figures((0.010, 0.012, 0.014), 0.001, 0.0, gap_s=0.1, batches=10, start_s=1.0, samples=8)
    assert first.step_s == pytest.approx(0.022)
    low, rate, high = first.rates
    assert low == pytest.approx(1 / 0.023)
    assert rate == pytest.approx(1 / 0.022)
    assert high == pytest.approx(1 / 0.021)
    both = first + replace(first, steps=(0.02,), data_s=0.005, gap_s=0.2, val_s=0.5)
    assert len(both.steps) == 4
    assert both.data_s == pytest.approx(0.002)
    assert (both.gap_s, both.val_s) == (0.1, 0.5)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (figures(0.01, 0.007), "loader-bound: 70% of a step waits for data. Try a cheaper transform"),
        (
            figures(0.01, gap_s=0.07, batches=1),
            "loader-bound: 88% of a step waits for data, 88% of it for the loader's start",
        ),
        (figures(0.01, 0.001, 0.006), "communication-bound: 60% of a step waits for other workers"),
        (figures(0.01, 0.001, 0.001), "compute-bound: 80% of a step computes"),
    ],
)
def test_what_limits_training_is_said_with_its_figure(measured, said):
    assert bottleneck(measured, adjustable=True).startswith(said)


SPACE = """\
# A space of a person's.
space:
  model.lr: {loguniform: [1e-4, 1e-1]}   # the rate
  data.num_workers: {choice: [0]}        # of the loader

model: tunelight.digits:DigitsClassifier
data: tunelight.digits:DigitsData
metric: val_loss
max_epochs: 2
workers: 1  # for now
trainer_args:
  gradient_clip_val: 1.0  # a comment
  # and another
num_samples: 2
"""


def made(**more: Any) -> TuneUp:
    now, best = Setting(1, 1, 0), Setting(2, 1, 2, 2, 5, True)
    known = {
        "now": now, "fastest": best, "cheapest": now, "for_sweep": None, "failed": {}, "foretold": (),
        "measured": {now: figures(0.02), best: figures(0.01)}, "global_batch": 128, "limit": "compute-bound.",
        "search_s": 1.0, "seconds": 2.0, "names": {"batch_size": "data.batch_size", "num_workers": "data.num_workers"},
    }  # fmt: skip
    return TuneUp(**{**known, **more})


def test_the_result_is_written_into_the_space_and_comments_stay(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    made().write(path)
    text = path.read_text()
    for comment in (
        "# A space of a person's.",
        "# the rate",
        "# of the loader",
        "# for now",
        "# a comment",
        "# and another",
    ):
        assert comment in text
    space = tl.SearchSpace.load(path)
    assert space.settings["workers"] == 2
    args = yaml.safe_load(text)["trainer_args"]
    assert (args["gradient_clip_val"], args["accumulate_grad_batches"]) == (1.0, 2)
    assert args["strategy"]["init_args"] == {"bucket_cap_mb": 5, "gradient_as_bucket_view": True}
    assert yaml.safe_load(text)["space"]["data.num_workers"] == 2
    assert yaml.safe_load(text)["space"]["data.batch_size"] == 32
    check_settings(space, Settings(**space.settings))


def test_a_file_that_would_not_read_afterwards_stays_as_it_was(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE.replace("DigitsData", "Missing"))
    before = path.read_text()
    with pytest.raises(SettingsError, match="cannot be edited"):
        made().write(path)
    assert path.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == ["space.yaml"]


def test_a_batch_size_that_is_searched_is_not_written():
    assert "data.batch_size" not in made(fixed=False).settings()["space"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("workers: 1  # c\n", "workers: 2  # c\n"),
        ("a: 'x'\n", "a: 'x'\nworkers: 2\n"),
        ("space: {c: 1e-4}\n", "space: {data.num_workers: 2, data.batch_size: 32, c: 1e-4}\nworkers: 2\n"),
        ("space:\n  c: 1\n\nd: 3\n", "space:\n  data.num_workers: 2\n  data.batch_size: 32\n  c: 1\n\nd: 3\n"),
    ],
)
def test_a_value_is_edited_in_its_place(text, written, tmp_path, monkeypatch):
    path = tmp_path / "space.yaml"
    path.write_text(text)
    monkeypatch.setattr(tl.SearchSpace, "load", lambda path: None)
    made().write(path)
    assert path.read_text().startswith(written)


def test_the_text_names_the_three_recommendations():
    best = Setting(2, 1, 2, 2, 5, True)
    result = made(for_sweep=best, foretold=[Foretold(best, 1, 0.5, 40.0)], notes=["a note"])
    text = str(result)
    assert "Fastest for one trial: 2 workers x 1 CPU, num_workers=2, 2 pieces" in text
    assert "2.00 times now's" in text
    assert "Cheapest: 1 worker x 1 CPU" in text
    assert "Best for this sweep: 2 workers x 1 CPU" in text
    assert [row["the sweep"] for row in result.table()] == ["40 s, 1 at once", ""]
    assert "- a note" in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train": print}, "tune_up needs model="),
        ({"model": MODEL, "datasets": {"train": {"parquet": "x"}}}, "does not measure sweeps with datasets="),
        ({"model": MODEL, "resources_per_trial": {"extra_cpu": 2}}, "resources_per_trial=. Give workers="),
        ({"model": MODEL, "try_workers": 2}, "try_workers must be a list of numbers"),
        ({"model": MODEL, "try_pieces": [0]}, "try_pieces must be a whole number of 1 or more, not 0"),
        ({"model": MODEL, "try_loader_workers": [-1]}, "try_loader_workers must be a whole number of 0 or more"),
        ({"model": MODEL, "budget": "soon"}, "must be seconds"),
        ({"model": MODEL, "worker": 2}, "There is no setting 'worker'"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_ray_starts(given, said):
    with pytest.raises(SettingsError, match=said):
        tl.tune_up({"model.lr": tl.uniform(0, 1)}, metric="val_loss", **given)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digits_mlp", "--try-workers", "1;2"], "--try-workers takes whole numbers of 1 or more"),
        (["digits_mlp", "--write"], "--write needs a file of your own"),
    ],
)
def test_the_command_refuses_bad_input(words, said):
    done = CliRunner().invoke(app, ["tune-up", *words])
    assert done.exit_code == 2
    assert said in done.output
