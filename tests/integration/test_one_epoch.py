"""The scheduler one_epoch, live: the best few train to the end, also if the sweep is cut off or its search waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray.tune.search import ConcurrencyLimiter, Searcher

import tunelight as tl
from tests.integration.test_elastic import states
from tests.integration.test_growth import groups
from tests.integration.test_plain_tune import tuner
from tests.integration.test_resume import Cut, told
from tests.integration.training import Line, LineData, saving

EPOCHS = 4


def sweep(tmp_path: Path, name: str, **more: Any) -> tl.SweepResults:
    return tl.run(
        {"model.lr": tl.uniform(0.01, 0.1)}, model=Line, data=LineData, metric="val_loss", num_samples=6, seed=1,
        max_epochs=EPOCHS, workers=2, max_concurrent=2, scheduler={"name": "one_epoch", "keep": 2}, storage=tmp_path,
        name=name, trainer_args={"accelerator": "cpu"}, progress=False, **more,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_best_two_of_six_go_on_and_a_sweep_that_was_cut_off_ends_the_same(ray4: Any, tmp_path: Path) -> None:
    results = sweep(tmp_path, "whole")
    assert not results.errors
    ranked = sorted(results.trials, key=lambda trial: trial.history[0]["val_loss"])
    for place, trial in enumerate(ranked):
        epochs = [report["epoch"] for report in trial.history]
        if place < 2:
            assert (trial.state, epochs, trial.stop_reason) == ("FINISHED", list(range(EPOCHS)), None)
            assert "PAUSED" in states(results, trial.id)
        else:
            assert (trial.state, epochs) == ("STOPPED", [0])
            assert str(trial.stop_reason).startswith("place ")
            assert str(trial.stop_reason).endswith(" at rung 1; the best 2 go on")
    assert not [name for name in groups(ray4) if name.startswith("tunelight")]

    for reports in (3, 8):  # while all train an epoch, and while the best ones go on
        cut = sweep(tmp_path, f"cut-{reports}", callbacks=[Cut(reports)])
        assert {trial.state for trial in cut.trials} & {"INTERRUPTED"}
        assert told(tl.resume(cut.folder, callbacks=[])) == told(results)


class Given(Searcher):  # type: ignore[misc,unused-ignore]
    """Suggests these learning rates, one after the other."""

    def __init__(self, *rates: float) -> None:
        super().__init__()
        self.rates = list(rates)

    def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"lr": self.rates.pop(0)}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        pass


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_in_a_plain_tuner_a_search_that_waits_for_paused_trials_is_not_waited_for(
    ray4: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    scheduler = tl.OneEpoch(max_t=4, keep=1, max_workers=2, cooldown=1)
    config = {"num_samples": 5, "scheduler": scheduler}
    limited = ConcurrencyLimiter(Given(0.01, 0.03, 0.05, 0.02, 0.1), max_concurrent=2)
    trainable = tl.gang_trainable(saving, workers=(1, 2), start=1, metric="loss")
    grid = tuner(trainable, tmp_path, {"epochs": 4}, {**config, "search_alg": limited})
    assert not grid.errors
    losses = [result.metrics_dataframe["loss"].iloc[0] for result in grid]
    reports = [len(result.metrics_dataframe) for result in grid]
    assert reports == [4 if loss == min(losses) else 1 for loss in losses]
