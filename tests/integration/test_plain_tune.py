"""gang_trainable and get_tune_resources for people who run Ray Tune themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunelight as tl
from tests.kit.training import plain


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")


def tuner(trainable: Any, tmp_path: Path, space: Any = None, config: Any = None, **run: Any) -> Any:
    settings: dict[str, Any] = {"metric": "loss", "mode": "min", "num_samples": 2, "reuse_actors": True}
    return tune.Tuner(
        trainable,
        param_space=space or {"lr": tune.loguniform(1e-3, 1e-1)},
        tune_config=tune.TuneConfig(**(settings | (config or {}))),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="plain", verbose=0, **run),
    ).fit()


def test_a_tuner_with_rays_own_asha_runs_to_its_end(ray4: Any, tmp_path: Path) -> None:
    asha = ASHAScheduler(max_t=3, grace_period=1, reduction_factor=2)
    grid = tuner(tl.gang_trainable(plain, workers=2), tmp_path, config={"num_samples": 6, "scheduler": asha})
    assert not grid.errors
    assert len(grid) == 6
    assert grid.get_best_result().metrics["training_iteration"] == 3


def adding(config: dict[str, Any], extra: list[int]) -> None:
    tl.report({"loss": float(sum(extra))})


def test_parameters_of_tune_reach_every_rank_bound_inside_or_outside(ray4: Any, tmp_path: Path) -> None:
    inside = tl.gang_trainable(tune.with_parameters(adding, extra=[1, 2]), workers=2)
    outside = tune.with_parameters(tl.gang_trainable(adding, workers=2), extra=[3, 4])
    for trainable, loss in ((inside, 3), (outside, 7)):
        (result,) = tuner(trainable, tmp_path / str(loss), config={"num_samples": 1})
        assert result.error is None
        assert result.metrics["loss"] == loss


def counts(config: dict[str, Any]) -> None:
    """Make four reports, each with a checkpoint; fail after the third for as long as the file of the fault exists."""
    path = tl.get_checkpoint_path()
    start = int(Path(path).read_text()) if path else 0
    for done in range(start + 1, 5):
        saved = Path(tl.get_context().trial_dir, f"saved-{done}")
        saved.write_text(str(done))
        tl.report({"loss": 1 / done}, checkpoint=saved)
        if done == 3 and Path(config["fault"]).exists():
            raise ValueError("boom")


def test_a_failed_trial_keeps_its_checkpoints_and_is_restored_from_the_last(ray4: Any, tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    fault.touch()
    keep = tune.CheckpointConfig(num_to_keep=2)
    made = {"config": {"num_samples": 1}, "space": {"fault": str(fault)}, "checkpoint_config": keep}
    (failed,) = tuner(tl.gang_trainable(counts, workers=1, failures=0), tmp_path, **made)
    assert "boom" in str(failed.error)
    kept = [next(Path(one.path).glob("report-*.ckpt")).read_text() for one, _ in failed.best_checkpoints]
    assert sorted(kept) == ["2", "3"]
    fault.unlink()
    again: Any = tl.gang_trainable(counts, workers=1, failures=0)  # as a new process makes it
    restored: Any = tune.Tuner.restore(str(tmp_path / "plain"), trainable=again, resume_errored=True).fit()
    assert not restored.errors
    assert [metrics["loss"] for _, metrics in restored[0].best_checkpoints] == [1 / 3, 1 / 4]
    assert list(restored[0].metrics_dataframe["training_iteration"]) == [1, 2, 3, 4]
