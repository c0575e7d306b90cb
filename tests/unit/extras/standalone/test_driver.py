"""The driver's launcher over a gang that is a thread: what it refuses, and what a run's own checkpoints leave."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tunelight as tl
from tests.kit.fakes import FakeGang
from tunelight.checkpoints import files as checkpoints
from tunelight.compat.lightning import pl
from tunelight.errors import SettingsError
from tunelight.extras.standalone import driver
from tunelight.extras.standalone.tune import TrialReporter
from tunelight.gang.spec import GangSpec
from tunelight.lightning.strategies.base import Workers


def reports(config: dict[str, Any]) -> None:
    """Report with a checkpoint each time, as a Trainer's callback does inside a Tune function trainable."""
    from pathlib import Path

    import tunelight as tl

    context = tl.get_context()
    for number in range(1, 9):
        context.report({"loss": 1.0 / number}, checkpoint=lambda path: Path(path).write_text("weights"))


def saves(config: dict[str, Any]) -> None:
    """Come to boundaries, as a fit on a driver does, and write a checkpoint at each."""
    from pathlib import Path

    from tunelight.session.session import get_session

    session = get_session()
    session.boundary.writer = lambda path: Path(path).write_text("weights")
    for number in range(1, 9):
        session.boundary.reach(epoch=number, step=number)


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> driver.DriverLauncher:
    workers = Workers(idle_timeout_s=1.0)
    one = driver.DriverLauncher(SimpleNamespace(workers=workers), None)  # type: ignore[arg-type]
    held = SimpleNamespace(gang=FakeGang(GangSpec()))
    monkeypatch.setattr(one, "_take", lambda **_: held)
    monkeypatch.setattr(driver, "pool", SimpleNamespace(give_back=lambda *_: None, close=lambda *_: None))
    return one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / checkpoints.FOLDER


def test_a_trainer_in_a_tune_trial_leaves_no_checkpoints_beside_those_of_tune(
    launcher: driver.DriverLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path
) -> None:
    told: list[str] = []
    there: list[int] = []

    def report(metrics: dict[str, Any], checkpoint: Any) -> None:
        """Stand in for Tune, which copies what it is handed before it returns."""
        (file,) = Path(checkpoint.path).iterdir()
        told.append(f"{file.name}: {file.read_text()}")
        there.append(len(list(folder.glob("report-*.ckpt"))))

    monkeypatch.setattr("ray.tune.report", report)
    monkeypatch.setattr(driver, "_reporter", lambda: TrialReporter(str(tmp_path)))
    launcher._run(reports)
    assert told == [f"report-{number:06d}.ckpt: weights" for number in range(1, 9)]
    assert max(there) == checkpoints.SPARES + 1  # and the one that is being passed on
    assert not folder.exists()


def test_a_fit_on_a_driver_keeps_the_last_two_checkpoints_of_its_own_while_it_runs(
    launcher: driver.DriverLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path
) -> None:
    monkeypatch.setattr(driver, "SAFE_EVERY_S", 0.0)
    launcher._run(saves, folder=tmp_path)
    assert sorted(path.name for path in folder.glob("*.ckpt")) == ["report-000007.ckpt", "report-000008.ckpt"]


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"GPU": 2}, r"resources_per_worker\['GPU'\] must be 0, 1 or a part of one, not 2"),
        ({"TPU": 4}, "Workers cannot train on TPU, of which 4"),
    ],
)
def test_what_a_worker_cannot_train_on_is_refused_before_ray_starts(resources: dict[str, float], message: str) -> None:
    strategy = tl.RayStrategy(2, resources_per_worker=resources)
    trainer = pl.Trainer(strategy=strategy, logger=False, enable_checkpointing=False)
    with pytest.raises(SettingsError, match=message):
        trainer.fit(pl.LightningModule(), [0])
