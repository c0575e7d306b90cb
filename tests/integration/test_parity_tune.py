"""ray_lightning's themes about Tune: function trainables whose Trainer starts workers on the trial's resources."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunelight as tl
from tests.integration.parity import BACKENDS, KINDS, Boring, lines, loader, note, same, trainer, weights
from tests.integration.test_parity_stop import free_cpus
from tunelight import errors
from tunelight.compat.lightning import pl
from tunelight.compat.ray import session_folder

EPOCHS = 3


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")


def training_with(**strategies: Any) -> Callable[[dict[str, Any]], None]:
    """Return a train function whose strategies and callback were made on the driver: they go along with it."""
    report = tl.TuneReportCheckpointCallback({"loss": "val_loss"}, filename="model.ckpt", on="validation_end")

    def train_with(config: dict[str, Any]) -> None:
        one = trainer(strategies[config["backend"]], max_epochs=config["epochs"], callbacks=[report])
        finish(config, one)
        (tested,) = one.test(Boring(), loader(), verbose=False)
        assert tested["test_loss"] > 0

    return train_with


class Ends(pl.Callback):
    """Notes how a run ends, in the trial's own process and on its workers."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        note(self.folder, "ends", type(exception).__name__)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        note(self.folder, "ends", "on_train_end")


def train(config: dict[str, Any]) -> None:
    """Train in a trial: the Trainer's gang takes the trial's bundles."""
    report = tl.TuneReportCheckpointCallback({"loss": "val_loss"}, filename="model.ckpt", on="validation_end")
    ours = KINDS[config["backend"]](config.get("workers", 2))
    finish(config, trainer(ours, max_epochs=config["epochs"], callbacks=[report, Ends(config["folder"])]))


def finish(config: dict[str, Any], one: pl.Trainer) -> None:
    """Fit, and leave the loss and the weights for the test."""
    model = Boring(lr=config["lr"])
    one.fit(model, loader(), loader())
    if "folder" in config:
        note(Path(config["folder"]), config["backend"], float(one.callback_metrics["val_loss"]))
        torch.save(model.state_dict(), Path(config["folder"], f"{config['backend']}.pt"))


def sweep(config: dict[str, Any], storage: Path, resources: Any = None, trainable: Any = train, **settings: Any) -> Any:
    """Run trials under plain Ray Tune: one, but for a grid."""
    return tune.run(
        trainable,
        config={"lr": 0.1, "epochs": EPOCHS, **config},
        num_samples=1,
        metric="loss",
        mode="min",
        resources_per_trial=resources or tl.get_tune_resources(num_workers=2),
        storage_path=str(storage),
        name="parity",
        verbose=0,
        **settings,
    )


@pytest.fixture(scope="module")
def trials(ray4: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a finished sweep of a DDP and a Horovod trial, which ran at the same time, by their names.

    For ``log_to_file=True`` an object that can only write stands for standard output in them.
    """
    folder = tmp_path_factory.mktemp("tune")
    both = {"ddp": tl.RayStrategy(num_workers=2), "horovod": tl.HorovodRayStrategy(num_slots=2, use_gpu=False)}
    reserved = [tl.get_tune_resources(num_workers=one.num_workers, use_gpu=one.use_gpu) for one in both.values()]
    assert reserved[0] == reserved[1]
    config = {"backend": tune.grid_search(list(both)), "folder": str(folder)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AIR_NEW_OUTPUT", "0")
        analysis = sweep(config, folder / "storage", reserved[0], training_with(**both), log_to_file=True)
    return {
        trial.config["backend"]: SimpleNamespace(analysis=analysis, folder=folder, trial=trial)
        for trial in analysis.trials
    }


@BACKENDS
def test_tune_iterations(trials: Any, backend: str) -> None:
    done = trials[backend]
    assert done.trial.status == "TERMINATED"
    assert done.trial.last_result["training_iteration"] == EPOCHS
    frame = done.analysis.trial_dataframes[done.trial.trial_id]
    assert list(frame["training_iteration"]) == list(range(1, EPOCHS + 1))
    assert frame["loss"].is_monotonic_decreasing


@BACKENDS
def test_tune_checkpoints(trials: Any, backend: str) -> None:
    done = trials[backend]
    checkpoint = done.analysis.get_best_checkpoint(done.trial, "loss", "min")
    with checkpoint.as_directory() as folder:
        file = Path(folder, "model.ckpt")
        loaded = Boring.load_from_checkpoint(file)
        assert torch.load(file, weights_only=True)["epoch"] == EPOCHS - 1
    assert same(weights(loaded), torch.load(done.folder / f"{backend}.pt"), atol=0)
    assert not Path(done.trial.path, "checkpoints").exists()  # Tune would copy it to the storage
    assert not list(Path(session_folder(), "tunelight").iterdir())  # its own copies are all that is left


@BACKENDS
def test_tune_trials_find_metrics_and_weights_in_the_trainable(trials: Any, backend: str) -> None:
    """The trial's own process is the Trainer's driver, whose code after fit runs on."""
    done = trials[backend]
    (value,) = lines(done.folder, backend)
    assert float(value) == pytest.approx(done.trial.last_result["loss"])


def test_tune_trials_leave_nothing_behind(trials: Any) -> None:
    assert free_cpus(4) == 4


@pytest.mark.slow
def test_tune_trial_stopped_by_asha_does_not_hang_and_frees_its_workers(ray4: Any, tmp_path: Path) -> None:
    """Issue 253: ASHA ends the trial at its second report, with 998 epochs to go."""
    began = time.monotonic()
    asha = ASHAScheduler(time_attr="training_iteration", max_t=2, grace_period=1)
    analysis = sweep({"backend": "ddp", "epochs": 1000, "folder": str(tmp_path)}, tmp_path, scheduler=asha)
    assert time.monotonic() - began < 60
    (trial,) = analysis.trials
    assert (trial.status, trial.last_result["training_iteration"]) == ("TERMINATED", 2)
    assert not lines(tmp_path, "ddp")  # it was stopped within fit
    assert lines(tmp_path, "ends") == ["on_train_end"] * 2
    assert free_cpus(4) == 4
    assert not _workers(ray4)


def _workers(ray: Any) -> list[Any]:
    """Return the gangs' workers that Ray still has."""
    from ray._private import state

    end = time.monotonic() + 5
    while time.monotonic() < end:
        left = [one for one in state.actors().values() if one["State"] != "DEAD" and "Worker" in one["ActorClassName"]]
        if not left:
            break
        time.sleep(0.05)
    return left


def misfit(config: dict[str, Any]) -> None:
    """Note the error of each backend, and fail with the last."""
    for backend in KINDS:
        try:
            trainer(KINDS[backend](2)).fit(Boring(), loader())
        except errors.ResourceError as error:
            note(Path(config["folder"]), "misfit", f"{backend}: {error}")
            if backend == list(KINDS)[-1]:
                raise


@pytest.mark.slow
def test_tune_wrong_trial_resources_are_an_error_at_once(ray4: Any, tmp_path: Path) -> None:
    """Issues 32, 131, 133 and 216: two workers, and a trial that reserved one bundle."""
    began = time.monotonic()
    wrong = tl.get_tune_resources(num_workers=1)
    (trial,) = sweep({"folder": str(tmp_path)}, tmp_path, wrong, misfit, raise_on_failed_trial=False).trials
    assert time.monotonic() - began < 60
    assert trial.status == "ERROR"
    assert "ResourceError" in Path(trial.error_file).read_text()
    said = lines(tmp_path, "misfit")
    assert [line.split(":")[0] for line in said] == list(KINDS)
    assert all("get_tune_resources(num_workers=2" in line for line in said)
    assert free_cpus(4) == 4


# --- without a trial --------------------------------------------------------------------------------------


def test_tune_resources() -> None:
    def bundles(*args: Any, **settings: Any) -> Any:
        return tl.get_tune_resources(*args, **settings)._bundles

    assert bundles(2) == [{"CPU": 1}, {"CPU": 1}]
    assert bundles(num_workers=2, num_cpus_per_worker=3, use_gpu=True) == [{"CPU": 3, "GPU": 1}] * 2
    assert bundles(1, resources_per_worker={"CPU": 0.5, "GPU": 0.25, "custom": 2}) == [
        {"CPU": 0.5, "GPU": 0.25, "custom": 2}
    ]
    assert bundles(2, num_cpus_head=1) == [{"CPU": 1}] * 3


def test_tune_resources_in_the_words_of_old() -> None:
    from tunelight.resources import reserve

    old = reserve(cpus_per_worker=2, gpus_per_worker=1, resources_per_trial={"cpu": 1, "extra_cpu": 4, "extra_gpu": 2})
    assert (old.workers, old.head_cpus) == (2, 1)
    assert old.factory._bundles == [{"CPU": 1}, {"CPU": 2, "GPU": 1}, {"CPU": 2, "GPU": 1}]


def test_tune_callbacks_have_the_arguments_of_old() -> None:
    assert list(inspect.signature(tl.TuneReportCallback).parameters)[:2] == ["metrics", "on"]
    assert list(inspect.signature(tl.TuneReportCheckpointCallback).parameters)[:3] == ["metrics", "filename", "on"]
