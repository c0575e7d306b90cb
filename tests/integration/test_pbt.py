"""GangPBT on real gangs: weights go from gang to gang, in place, and training goes on where it was."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

import tunelight as tl
from tests.kit.recording import read_lines
from tests.kit.sweeps import run
from tests.kit.training import note, notes, trainer
from tunelight.compat.lightning import Callback
from tunelight.extras.digits import DigitsClassifier, DigitsData
from tunelight.record import read_record

RATES = (1e-2, 3e-3, 1e-3, 1e-6)
"""The last learns next to nothing, so that it is sure to be the worst."""


class Seen(Callback):
    """Write down what a rank trains on, at the first batch of each epoch."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx:
            return
        digest = hashlib.sha256()
        for tensor in pl_module.state_dict().values():
            digest.update(getattr(tensor, "full_tensor", lambda: tensor)().numpy().tobytes())  # noqa: B023 - at once
        context = tl.get_context()
        note(
            "seen", reports=context.number, epoch=trainer.current_epoch, weights=digest.hexdigest(),
            lr=trainer.optimizers[0].param_groups[0]["lr"], hparam=pl_module.hparams["lr"], config=context.config["lr"],
        )  # fmt: skip


def digits(config: dict[str, Any]) -> None:
    """Train the digits; report, and write a checkpoint, after each epoch."""

    torch.set_num_threads(1)
    report = tl.TuneReportCheckpointCallback({"loss": "val_loss", "acc": "val_acc"})
    made = trainer(config["epochs"], report, num_sanity_val_steps=0, callbacks=[Seen()])
    made.fit(DigitsClassifier(lr=config["lr"]), datamodule=DigitsData())


def sweep(folder: Path, name: str, *, epochs: int = 8, **settings: Any) -> tl.SweepResults:
    rates = settings.pop("rates", RATES)
    settings.setdefault(
        "scheduler", tl.GangPBT(perturbation_interval=2, resample_probability=0.0, max_t=epochs, max_lead=2)
    )
    space = {"lr": tl.loguniform(1e-6, 1e-1), "epochs": tl.choice([epochs])}
    return run(space, digits, folder, [{"lr": rate, "epochs": epochs} for rate in rates], name=name, **settings)


def after(trial: tl.TrialResult, number: int, rank: int = 0) -> dict[str, Any]:
    """Return what a rank trained on after a report."""
    return next(line for line in notes(trial, "seen")[rank] if line["reports"] == number)


def check_changes(results: tl.SweepResults) -> int:
    """Check each change of a sweep on both ranks; return how many there were."""
    by_id, state = {trial.id: trial for trial in results.trials}, read_record(results.folder).trials
    count = 0
    for trial in results.trials:
        for change in trial.changes:
            count += 1
            parent, number = by_id[change["parent"]], change["training_iteration"]
            offered = after(parent, change["parent_iteration"])
            for rank in (0, 1):
                now = after(trial, number, rank)
                assert now["weights"] == offered["weights"]
                assert now["lr"] == now["hparam"] == now["config"] == change["config"]["lr"]
                assert now["epoch"] == number
            ratio = change["config"]["lr"] / state[parent.id].config_at(change["parent_iteration"])["lr"]
            assert ratio == pytest.approx(1.2) or ratio == pytest.approx(0.8)
    return count


def test_the_worst_train_on_with_the_best_ones_weights_and_a_population_of_four_takes_turns(ray4, tmp_path):
    results = sweep(tmp_path, "turns")
    assert [trial.state for trial in results.trials] == ["FINISHED"] * 4
    assert check_changes(results) >= 1
    for trial in results.trials:
        assert [report["training_iteration"] for report in trial.history] == list(range(1, 9))
        assert [report["epoch"] for report in trial.history] == list(range(8))
    assert len({line["pid"] for trial in results.trials for rank in notes(trial, "seen") for line in rank}) == 4
    assert any(line.get("state") == "PAUSED" for line in read_lines(results.folder))
    worst = results.trials[3]
    assert worst.changes[0]["before"]["lr"] == RATES[3]
    assert worst.history[-1]["acc"] > 0.8
    best = results.best
    assert best.config == read_record(results.folder).trials[best.id].config_at(best.metrics["training_iteration"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["ddp", "horovod", "sharded"])
def test_two_gangs_hand_over_in_place_and_keep_their_processes(ray4: Any, tmp_path: Path, backend: Any) -> None:
    results = sweep(tmp_path, backend, rates=(1e-2, 1e-6), backend=backend)
    assert [trial.state for trial in results.trials] == ["FINISHED"] * 2, results.trials[0].error
    assert check_changes(results) >= 1
    said = " ".join(text for _, text in read_record(results.folder).notes)
    assert "starts anew" not in said
    assert "goes on as it was" not in said
