"""What schedulers do with real gangs: stops, pauses, reservations that grow, weights from gang to gang, good models."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

import tunelight as tl
from tests.integration.test_gang import spec
from tests.kit.recording import read_lines
from tests.kit.sweeps import run
from tests.kit.training import Line, LineData, note, notes, trainer
from tests.kit.waiting import until
from tunelight.cluster.connect import waits_for
from tunelight.compat.lightning import Callback
from tunelight.extras.digits import DigitsClassifier, DigitsData
from tunelight.gang.gang import Gang
from tunelight.messages import Continue
from tunelight.record import read_record
from tunelight.resources import Reservation
from tunelight.schedulers.base import GangScheduler
from tunelight.session.session import get_session


class StopAtTwo(FIFOScheduler):
    """Stops every trial at its second report."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return str(TrialScheduler.STOP if result["training_iteration"] >= 2 else TrialScheduler.CONTINUE)


def watched(config: dict[str, Any]) -> None:
    """Train with min_epochs, and write down what happens on each rank."""
    from tunelight.compat.lightning import CSVLogger

    def say(word: str) -> None:
        note("said", word=word)

    class Watch(Callback):
        def on_train_epoch_start(self, *_: Any) -> None:
            say("epoch")

        def on_train_end(self, *_: Any) -> None:
            say("train end")

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            say(f"exception {type(exception).__name__}")

        def teardown(self, *_: Any, **__: Any) -> None:
            say("teardown")

    class Logger(CSVLogger):
        def finalize(self, status: str) -> None:
            say(f"logger {status}")
            super().finalize(status)

    report, logger = tl.TuneReportCallback({"loss": "val_loss"}), Logger(tl.get_context().trial_dir)
    try:
        trainer(9, report, [Watch()], min_epochs=5, logger=logger).fit(Line(), datamodule=LineData(num_workers=1))
    except Exception:  # noqa: BLE001 - as careless training code does; a stop passes through it
        say("swallowed")
    say("after fit")


def test_a_stop_passes_all_that_lightning_would_go_on_for(ray4: Any, tmp_path: Path) -> None:
    scheduler: Any = StopAtTwo
    results = run({"x": tl.uniform(0, 1)}, watched, tmp_path, 1, scheduler=scheduler())
    (trial,) = results.trials
    assert trial.state == "STOPPED"
    assert len(trial.history) == 2
    for rank in notes(trial, "said"):
        said = [line["word"] for line in rank]
        assert said.count("epoch") == 2  # min_epochs=5 did not keep any rank going
        assert "exception TrialStopped" not in said  # a stop is no failure
        assert said.index("train end") < said.index("teardown")
        assert "after fit" not in said
        assert "swallowed" not in said
        assert [line for line in said if line.startswith("logger")] == ["logger success"]


class PauseAtTen(GangScheduler):
    """Pauses each trial at its tenth report, though the trial need not wait at any."""

    pauses = True

    def initial_decision(self) -> Continue:
        return Continue(until=None)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return str(TrialScheduler.PAUSE if result["training_iteration"] == 10 else TrialScheduler.CONTINUE)


def brisk(config: dict[str, Any]) -> None:
    """Report 30 times within half a second or so, with checkpoints."""
    context = tl.get_context()
    tl.get_checkpoint_path()  # its state is the number of its report
    get_session().boundary.writer = lambda path: context.rank or Path(path).write_text("weights")
    while context.number < 30:
        time.sleep(0.01)
        tl.report({"loss": 1.0 / (context.number + 1)})


def test_a_pause_among_reports_that_came_together_loses_none_and_repeats_none(ray4: Any, tmp_path: Path) -> None:
    results = run({"x": tl.uniform(0, 1)}, brisk, tmp_path, 1, scheduler=PauseAtTen())
    (trial,) = results.trials
    assert trial.state == "FINISHED"
    assert "PAUSED" in {line.get("state") for line in read_lines(results.folder)}
    assert [report["training_iteration"] for report in trial.history] == list(range(1, 31))


def test_a_time_budget_ends_the_sweep_and_keeps_what_was_reported(ray4: Any, tmp_path: Path) -> None:
    def slow(config: dict[str, Any]) -> None:
        import time

        for number in range(1000):
            time.sleep(0.1)
            tl.report({"loss": 1 / (number + 1)})

    results = run({"x": tl.uniform(0, 1)}, slow, tmp_path, 2, workers=1, time_budget=6)
    assert results.counts["INTERRUPTED"] == 2
    assert results.best.history


def groups(ray: Any) -> dict[str, int]:
    """Return the reservations there are: the name of each, and how many bundles it holds."""
    there = ray.util.placement_group_table().items()
    return {f"{group['name']} {key}": len(group["bundles"]) for key, group in there if group["state"] != "REMOVED"}


def sizes(ray: Any) -> list[int]:
    return sorted(groups(ray).values())


def test_a_gang_of_a_given_size_holds_no_more_than_that_in_one_reservation_for_each_doubling(ray4, monkeypatch):
    with Gang.form(replace(spec(), reservation=Reservation(1, least=1, most=4)), None) as gang:
        gang.heal(1)
        assert (gang.ready(), sizes(ray4)) == (0, [])
        gang.want(4, busy=True)
        until(lambda: gang.ready() == 3, 60)
        assert sizes(ray4) == [1, 2]
        gang.want(2, busy=True)  # growth that is withdrawn is given back while the trial runs on
        until(lambda: sizes(ray4) == [1], 60)
        assert (gang.size, gang.met, gang.ready()) == (1, True, 1)
        gang.want(4)
        until(lambda: gang.ready() == 3, 60)
        gang.heal(4)
        gang.heal(3)  # between two doublings the reservation is kept, and the worker ends
        assert (gang.size, sizes(ray4), gang.ready()) == (3, [1, 2], 0)
        gang.want(4)
        until(lambda: gang.ready() == 1, 60)
        gang.heal(4)
        pids = [location.pid for location in gang.locations]
        gang.want(2, busy=True)  # ranks keep their seats while a trial runs, and lose them after it
        assert (gang.size, sizes(ray4), gang.met) == (4, [1, 2], True)
        there: list[int] = []
        leave = gang._leave

        def left() -> None:
            there.append(sum(map(bool, gang.workers)))
            leave()

        monkeypatch.setattr(gang, "_leave", left)
        gang.want(2)
        assert (gang.met, there) == (False, [4]), "all leave before any is ended"
        until(lambda: sizes(ray4) == [1], 60)
        gang.heal(2)
        assert [location.pid for location in gang.locations] == pids[:2]


def test_what_a_gang_was_given_stays_warm_when_it_shrinks(ray4: Any) -> None:
    with Gang.form(replace(spec(), reservation=Reservation(2, least=1)), None) as gang:
        pids = {location.pid for location in gang.locations}
        for size in (1, 2):
            gang.heal(size)
            assert gang.size == size
        assert {location.pid for location in gang.locations} == pids


def test_a_trial_whose_resources_others_hold_says_so(ray4: Any) -> None:
    from ray.util.placement_group import placement_group, remove_placement_group

    reservation = Reservation(2)
    assert not waits_for(reservation)
    groups = [placement_group([{"CPU": 3}])]
    try:
        assert groups[0].wait(30)
        groups.append(placement_group(reservation.bundles))
        says = "it needs 2 CPUs, and 1 of 4 are free. Others hold the rest."
        until(lambda: says in waits_for(reservation), 20)  # Ray counts a while what an earlier gang had
    finally:
        for group in groups:
            remove_placement_group(group)


EPOCHS = 9
SPACE = {"model.lr": tl.loguniform(1e-3, 3e-2), "model.hidden": tl.choice([64, 128])}
PAUSE = {"elastic_asha", "gang_pbt", "hyperband", "medianstopping"}
"""Schedulers that pause trials and resume them."""
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
    first = [{"model.lr": lr, "model.hidden": 128} for lr in (0.01, 0.001, 0.0011)]  # the best waits for the others
    results = run(
        SPACE, None, tmp_path, 8, model=DigitsClassifier, data=DigitsData, metric="val_acc", mode="max",
        max_epochs=EPOCHS, scheduler={"name": name, **SCHEDULERS[name]}, seed=3, baselines=first,
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
