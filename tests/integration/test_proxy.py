"""Sweeps in two stages: narrow trials, and the best of them wide; cut off, killed, resumed and exported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tunelight as tl
from tests import flavours
from tests.integration.test_resume import Cut
from tests.kit.training import LineData
from tunelight.compat.lightning import pl
from tunelight.errors import SettingsError, StorageError

ROOT = Path(__file__).parents[2]
CONTEXTS = "tests.integration.test_proxy"


class Net(pl.LightningModule):
    """A network whose layers follow a width."""

    def __init__(self, lr: float = 0.01, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.lr = lr
        hidden = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)]
        self.net: Any = nn.Sequential(nn.Linear(4, width), nn.Tanh(), *hidden, nn.Linear(width, 1))

    def out(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.out(batch[0]), batch[1])

    def on_validation_epoch_start(self) -> None:
        time.sleep(float(os.environ.get("TEST_SLOW_S", "0")))

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self.out(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Raw(Net):
    """Its output is a parameter of no layer."""

    def __init__(self, lr: float = 0.01, width: int = 32) -> None:
        super().__init__(lr, width)
        self.net[-1] = nn.Identity()
        self.last = nn.Parameter(torch.randn(width, 1) * width**-0.5)

    def out(self, x: torch.Tensor) -> Any:
        return self.net(x) @ self.last


def sweep(folder: Path, **more: Any) -> tl.SweepResults:
    settings: dict[str, Any] = {
        "model": Net, "data": LineData, "metric": "val_loss", "num_samples": 4, "max_epochs": 3, "workers": 2,
        "cpus_per_worker": 0.5, "seed": 2, "storage": folder, "name": "s", "progress": False, "max_concurrent": 1,
        "trainer_args": {"accelerator": "cpu"}, "proxy": {"model.width": 8, "top": 2, "workers": 1},
        "scheduler": {"name": "asha", "grace_period": 1, "reduction_factor": 2},
    }  # fmt: skip
    return tl.run({"model.lr": tl.loguniform(1e-3, 3e-2)}, **(settings | more))


def told(results: tl.SweepResults) -> list[Any]:
    """Return configurations, ends and losses."""
    return [
        (trial.config, trial.state, [report["val_loss"] for report in trial.history]) for trial in results.every_trial
    ]


@pytest.fixture(scope="module")
def whole(ray4: Any, tmp_path_factory: pytest.TempPathFactory) -> tl.SweepResults:
    return sweep(tmp_path_factory.mktemp("whole"))


def test_the_best_narrow_configurations_are_trained_wide(whole: tl.SweepResults) -> None:
    narrow = whole.proxy
    assert narrow is not None
    assert narrow.name == "s-proxy"
    assert [trial.config["model.width"] for trial in narrow.trials] == [8] * 4
    assert {len(gang["nodes"]) for trial in narrow.trials for gang in narrow.record.trials[trial.id].gangs} == {1}
    assert [trial.config for trial in whole.trials] == [
        {"model.lr": trial.config["model.lr"]} for trial in narrow.top(2)
    ]
    assert {len(gang["nodes"]) for trial in whole.trials for gang in whole.record.trials[trial.id].gangs} == {2}
    assert narrow.proxy is None
    assert any(note.startswith("Stage 1 of 2: trials with model.width=8") for _, note in narrow.record.notes)
    assert "Stage 2 of 2: the best configurations of s-proxy (model.width=8) in full" in whole.summary()


def test_the_winner_is_exported_and_trained_by_lightning_cli_bit_by_bit(
    whole: tl.SweepResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m", "tunelight", "best", str(whole.folder), "--export", str(tmp_path / "best.yaml")]
    elsewhere = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert elsewhere.returncode == 0, elsewhere.stderr  # the model's class cannot be imported there
    exported = whole.export_best(tmp_path / "again.yaml")
    assert exported.read_text().replace("again.yaml", "best.yaml") == (tmp_path / "best.yaml").read_text()
    monkeypatch.setattr(sys, "argv", ["train.py"])
    done = flavours.module("cli").LightningCLI(
        Net, LineData, args=["fit", f"--config={exported}", f"--trainer.default_root_dir={tmp_path}"]
    )
    assert whole.best.checkpoint is not None
    trained = torch.load(whole.best.checkpoint, weights_only=True)["state_dict"]
    for seeded in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):  # by seed_everything in the file
        os.environ.pop(seeded, None)
    assert all(torch.equal(value, trained[name]) for name, value in done.model.state_dict().items())
    plain = Net(whole.best.config["model.lr"])
    assert whole.best.load_model(Net).net[0].weight.shape == plain.net[0].weight.shape
    found = tl.reproduce(whole, "best", progress=False)
    assert found.same, str(found)


@pytest.mark.parametrize("reports", [3, 10])
def test_a_sweep_that_is_cut_off_in_either_stage_ends_as_one_in_one_go(
    whole: tl.SweepResults, tmp_path: Path, reports: int
) -> None:
    cut = sweep(tmp_path, callbacks=[Cut(reports)])
    assert cut.ended == "interrupted"
    first = whole.proxy
    assert first is not None
    assert cut.name == ("s-proxy" if reports <= sum(len(trial.history) for trial in first.trials) else "s")
    again = sweep(tmp_path, resume=True)
    assert told(again) == told(whole)
    assert again.proxy is not None
    assert told(again.proxy) == told(first)


@pytest.mark.slow
@pytest.mark.timeout(300)  # each driver starts a Ray of its own, since one that is killed leaves it behind
@pytest.mark.parametrize("stage", ["s-proxy", "s"])
def test_a_killed_driver_is_taken_over_by_the_command_in_either_stage(
    whole: tl.SweepResults, tmp_path: Path, stage: str
) -> None:
    command = [sys.executable, "-c", f"from {CONTEXTS} import *; sweep(Path({str(tmp_path)!r}), address='local')"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TEST_SLOW_S": "0.3"})
    deadline = time.monotonic() + 90
    try:
        while time.monotonic() < deadline and _reports(tmp_path / stage) < 2:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    finally:
        process.wait(10)
    done = subprocess.run(
        [sys.executable, "-m", "tunelight", "resume", str(tmp_path / stage), "--quiet", "--address", "local"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = tl.SweepResults.load(tmp_path / "s")
    assert results.proxy is not None
    assert whole.proxy is not None
    assert told(results.proxy) == told(whole.proxy)
    assert told(results) == told(whole)


def _reports(folder: Path) -> int:
    record = folder / "record.jsonl"
    return record.read_text().count('"kind":"report"') if record.exists() else 0


def test_more_narrow_trials_and_a_larger_top_train_only_what_is_new(ray4: Any, tmp_path: Path) -> None:
    first = sweep(tmp_path, max_epochs=1)
    more = sweep(tmp_path, max_epochs=1, num_samples=6, resume=True, proxy={"model.width": 8, "top": 4, "workers": 1})
    assert more.proxy is not None
    assert len(more.proxy) == 6
    assert told(more)[:2] == told(first)
    assert len({trial.config["model.lr"] for trial in more.trials}) == len(more) >= 4
    assert {trial.config["model.lr"] for trial in more.proxy.top(4)} <= {
        trial.config["model.lr"] for trial in more.trials
    }
    with pytest.raises(StorageError, match="exists already"):
        sweep(tmp_path)
    assert sweep(tmp_path, max_epochs=1, num_samples=6, resume=True).ended == "finished"


def test_a_proxy_of_depth_is_a_cheaper_trial_and_scales_nothing(ray4: Any, tmp_path: Path) -> None:
    results = sweep(
        tmp_path, proxy={"model.layers": 1, "top": 1}, max_epochs=1, num_samples=2, repeats={"top": 1, "repeats": 2},
        trainer_args={"accelerator": "cpu", "enable_progress_bar": False}, workers=1,
    )  # fmt: skip
    assert results.proxy is not None


def test_every_backend_scales_alike(ray4: Any, tmp_path: Path) -> None:
    """A batch of each rank, a third of the epochs after a checkpoint: the losses are those of DDP."""
    found = {}
    for backend in ("ddp", "horovod", "sharded"):
        results = sweep(
            tmp_path, backend=backend, name=backend, proxy=None, base_width={"model.width": 8}, num_samples=1,
        )  # fmt: skip
        assert results.trials[0].error is None
        found[backend] = [report["val_loss"] for report in results.trials[0].history]
    assert found["horovod"] == pytest.approx(found["ddp"], rel=1e-4)
    assert found["sharded"] == pytest.approx(found["ddp"], rel=1e-4)
    plain = sweep(tmp_path, name="plain", proxy=None, num_samples=1)
    assert [report["val_loss"] for report in plain.trials[0].history] != pytest.approx(found["ddp"], rel=1e-2)


def test_a_model_that_cannot_be_scaled_is_refused_before_its_sweep(ray4: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"The outputs of .* change more in a training step the wider"):
        sweep(tmp_path, model=Raw, proxy={"model.width": 8})
    assert not [*tmp_path.iterdir()]
