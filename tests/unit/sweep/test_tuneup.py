"""tune_up: the search for the fastest setting, what it says, and what it writes into a search space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import yaml

import tunelight as tl
from tunelight.errors import SettingsError
from tunelight.extras.tuneup.search import Choices, Figures, Search, Setting, UnmeasuredError, bottleneck
from tunelight.extras.tuneup.tune_up import TuneUp
from tunelight.settings import Settings
from tunelight.space.check import check_settings

MODEL = "tunelight.extras.digits:DigitsClassifier"
CHOICES = Choices(gangs=[(2, 1), (1, 1), (1, 2)], loader_workers=[0, 1, 2, 4])


def figures(step_s: float, data_s: float = 0.0, **more: Any) -> Figures:
    return Figures((step_s,) * 5, data_s=data_s, **{"gap_s": 0.0, "batches": 10, "samples": 128, **more})


@dataclass
class Modelled:
    """Measures by a model of the machine: ``of`` returns a setting's figures, and takes its seconds."""

    of: Callable[[Setting], Figures]
    start_s: float = 0.0
    now: float = 0.0
    measured: list[Setting] = field(default_factory=list)

    def measure(self, setting: Setting, seconds: float) -> Figures:
        self.now += seconds
        if not self.measured or self.measured[-1].gang != setting.gang:
            self.now += self.start_s
        self.measured.append(setting)
        return self.of(setting)

    def search(self, choices: Choices = CHOICES, budget_s: float = 120.0) -> Search:
        search = Search(self.measure, choices, budget_s, clock=lambda: self.now)
        search.run()
        return search


def slow_loader(setting: Setting) -> Figures:
    """Return figures of a loader that needs 40 ms a batch, and of 10 ms of training a step on one worker."""
    compute = 0.01 / setting.workers**0.5
    load = 0.04 / setting.workers / max(1, setting.loader_workers or 0)
    waits = load if not setting.loader_workers else max(0.0, load - compute)
    return figures(compute + waits, waits)


def test_the_search_finds_the_fastest_of_12_settings():
    search = Modelled(slow_loader).search()
    truth = {setting: slow_loader(setting).rates[1] for setting in CHOICES.all()}
    assert len(truth) == 12
    assert truth[search.fastest] >= 0.95 * max(truth.values())
    assert search.spared == 12 - len(search.measured)


def test_what_no_step_waits_for_is_not_varied_and_a_gang_that_cannot_win_is_measured_once():
    bench = Modelled(lambda setting: figures(0.01 if setting.workers == 1 else 0.05))
    bench.search()
    assert {setting.loader_workers for setting in bench.measured} == {0}
    assert [setting.workers for setting in bench.measured].count(2) == 1


@pytest.mark.parametrize("budget_s", [0.1, 4, 8, 12])
def test_the_search_ends_within_its_budget_and_after_the_first_setting_at_the_earliest(budget_s: float):
    bench = Modelled(slow_loader, start_s=2.0 if budget_s > 1 else 0.0)
    search = bench.search(budget_s=budget_s)
    assert search.out_of_time
    if budget_s > 1:
        assert 0.5 * budget_s <= bench.now <= budget_s
    else:
        assert bench.measured == [CHOICES.start((2, 1))]
        assert search.fastest == CHOICES.start((2, 1))


def test_a_setting_that_fails_is_left_out_with_its_reason():
    def of(setting: Setting) -> Figures:
        if setting.loader_workers == 4:
            raise UnmeasuredError("OSError: no shared memory")
        return slow_loader(setting)

    search = Modelled(of).search()
    assert set(search.failed.values()) == {"OSError: no shared memory"}
    assert search.fastest.loader_workers == 2


def test_with_batch_norm_only_what_keeps_a_forward_s_samples_is_measured():
    bench = Modelled(lambda setting: figures(0.01 * setting.workers, batch_norm=True))
    bench.search()
    assert {setting.workers for setting in bench.measured} == {2}


def test_figures_count_the_pause_between_epochs_and_pool_slices():
    first = Figures((0.010, 0.012, 0.014), 0.001, gap_s=0.1, batches=10, samples=8)
    assert first.step_s == pytest.approx(0.022)
    low, rate, high = first.rates
    assert low == pytest.approx(1 / 0.023)
    assert rate == pytest.approx(1 / 0.022)
    assert high == pytest.approx(1 / 0.021)
    both = first + replace(first, steps=(0.02,), data_s=0.005, gap_s=0.2)
    assert len(both.steps) == 4
    assert both.data_s == pytest.approx(0.002)
    assert both.gap_s == 0.1


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (figures(0.01, 0.007), "loader-bound: 70% of a step waits for data. Try a cheaper transform"),
        (
            figures(0.01, gap_s=0.07, batches=1),
            "loader-bound: 88% of a step waits for data, 88% of it for the",
        ),
        (figures(0.01, 0.001), "compute-bound: 90% of a step computes"),
    ],
)
def test_what_limits_training_is_said_with_its_figure(measured, said):
    assert bottleneck(measured, adjustable=True).startswith(said)


SPACE = """\
# A space of a person's.
space:
  model.lr: {loguniform: [1e-4, 1e-1]}   # the rate
  data.num_workers: {choice: [0]}        # of the loader

model: tunelight.extras.digits:DigitsClassifier
data: tunelight.extras.digits:DigitsData
metric: val_loss
max_epochs: 2
workers: 1  # for now
trainer_args:
  gradient_clip_val: 1.0  # a comment
  # and another
num_samples: 2
"""


def made(**more: Any) -> TuneUp:
    now, best = Setting(1, 1, 0), Setting(2, 1, 2)
    known = {
        "now": now, "fastest": best, "failed": {}, "together": {now: (4, 100.0), best: (2, 120.0)}, "search_s": 1.0,
        "measured": {best: figures(0.01), now: figures(0.02)}, "limit": "compute-bound.",
        "names": {"batch_size": "data.batch_size", "num_workers": "data.num_workers"},
    }  # fmt: skip
    return TuneUp(**{**known, **more})


def test_the_result_is_written_into_the_space_and_comments_stay(write, tmp_path):
    path = write(SPACE)
    made().write(path)
    text = path.read_text()
    for comment in ("# A space of a person's.", "# the rate", "# of the loader", "# for now", "# a comment", "# and a"):
        assert comment in text
    space = tl.SearchSpace.load(path)
    assert space.settings["workers"] == 2
    assert yaml.safe_load(text)["trainer_args"] == {"gradient_clip_val": 1.0}
    assert yaml.safe_load(text)["space"]["data.num_workers"] == 2
    assert yaml.safe_load(text)["space"]["data.batch_size"] == 64
    check_settings(space, Settings(**space.settings))
    assert "data.batch_size" not in made(fixed=False).settings()["space"]  # it is searched
    path.write_text(before := SPACE.replace("DigitsData", "Missing"))  # it would not read afterwards
    with pytest.raises(SettingsError, match="cannot be edited"):
        made().write(path)
    assert path.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == ["space.yaml"]


def test_the_text_names_both_recommendations():
    result = made(together={Setting(1, 1, 0): (4, 200.0)}, notes=["a note"])
    text = str(result)
    assert "Fastest for one trial: 2 workers x 1 CPU, num_workers=2:" in text
    assert "2.00 times now's" in text
    assert "Best for this sweep: 1 worker x 1 CPU" in text
    assert [row["the sweep"] for row in result.table()] == ["", "200 samples/s, 4 at once"]
    assert "- a note" in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train": print}, "tune_up needs model="),
        ({"model": MODEL, "datasets": {"train": {"parquet": "x"}}}, "does not measure sweeps with datasets="),
        ({"model": MODEL, "resources_per_trial": {"extra_cpu": 2}}, "resources_per_trial=. Give workers="),
        ({"model": MODEL, "try_workers": 2}, "try_workers must be a list of numbers"),
        ({"model": MODEL, "try_workers": [0]}, "try_workers must be a whole number of 1 or more, not 0"),
        ({"model": MODEL, "try_loader_workers": [-1]}, "try_loader_workers must be a whole number of 0 or more"),
        ({"model": MODEL, "budget": "soon"}, "must be seconds"),
        ({"model": MODEL, "worker": 2}, "There is no setting 'worker'"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_ray_starts(given, said):
    with pytest.raises(SettingsError, match=said):
        tl.tune_up({"model.lr": tl.uniform(0, 1)}, metric="val_loss", **given)
