"""Every scheduler by its name, on the digits, with two ranks a trial: it finds a good model and leaves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.integration.test_growth import groups
from tunelight.extras.digits import DigitsClassifier, DigitsData
from tunelight.record import read_lines

EPOCHS = 9
SPACE = {"model.lr": tl.loguniform(1e-3, 3e-2), "model.hidden": tl.choice([64, 128])}
PAUSE = {"elastic_asha", "gang_pbt", "hyperband", "medianstopping"}
"""Those that pause trials and go on with them."""
SCHEDULERS: dict[str, dict[str, Any]] = {
    "fifo": {},
    "asha": {"grace_period": 1},
    "elastic_asha": {"grace_period": 1},
    "gang_pbt": {"perturbation_interval": 2, "max_lead": 2},
    "async_hyperband": {"max_t": EPOCHS, "grace_period": 1},
    "hyperband": {"max_t": EPOCHS},
    "medianstopping": {"grace_period": 2, "min_samples_required": 2},
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_sweep_finds_a_good_model_and_leaves_nothing(ray4: Any, tmp_path: Path, name: str) -> None:
    count = 14 if name == "elastic_asha" else 6  # a late promotion needs enough others in its rung
    results = tl.run(
        SPACE, model=DigitsClassifier, data=DigitsData, metric="val_acc", mode="max", num_samples=count,
        max_epochs=EPOCHS, workers=2, scheduler={"name": name, **SCHEDULERS[name]}, storage=tmp_path, name="s", seed=3,
        progress=False,
    )  # fmt: skip
    assert not results.errors
    assert {trial.state for trial in results.trials} <= {"FINISHED", "STOPPED"}
    for trial in results.trials:
        assert [report["training_iteration"] for report in trial.history] == list(range(1, len(trial.history) + 1))
        assert [report["epoch"] for report in trial.history] == list(range(len(trial.history)))
    assert results.best.value is not None
    assert results.best.value >= 0.95
    moves = [line for line in read_lines(results.folder) if line["kind"] == "state"]
    walks = {one.id: [line["state"] for line in moves if line["trial"] == one.id] for one in results.trials}
    resumed = [walk for walk in walks.values() if "PAUSED" in walk[: len(walk) - 1 - walk[::-1].index("RUNNING")]]
    assert bool(resumed) is (name in PAUSE), walks
    assert not [group for group in groups(ray4) if group.startswith("tunelight")]
