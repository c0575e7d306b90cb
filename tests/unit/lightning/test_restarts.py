"""Trials that start again from a checkpoint, in one process: which fit goes on, from where, and what is reported."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import tunelight as tl
from tests.kit import tasks
from tests.kit.training import QUIET, TwoLayers
from tunelight.checkpoints import files as checkpoints
from tunelight.checkpoints.policy import Checkpoints
from tunelight.compat.lightning import pl
from tunelight.errors import CheckpointError, TrialStopped
from tunelight.lightning.recipe import Recipe
from tunelight.messages import CheckpointInfo, Report, Stop
from tunelight.session import session
from tunelight.session.mailbox import Mailbox
from tunelight.session.session import get_session

pytestmark = pytest.mark.usefixtures("every_checkpoint")

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
ROWS = TensorDataset(X, X.sum(1, keepdim=True))


class Net(TwoLayers):
    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)


class Gathering(Net):
    """Gathers what an epoch's steps return, as Lightning's guide on upgrades from 1.9 says."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: Any, index: int) -> Any:
        loss = self.loss(batch)
        self.losses.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("train_loss", torch.stack(self.losses).mean(), sync_dist=True)
        self.losses.clear()


def loader() -> Any:
    return DataLoader(ROWS, 4)


def trainer(epochs: int = 3, report: Any = None, callbacks: Any = (), **given: Any) -> pl.Trainer:
    options: dict[str, Any] = {"max_epochs": epochs, "num_sanity_val_steps": 0, **QUIET}
    report = tl.TuneReportCheckpointCallback() if report is None else report
    options["strategy"] = tl.RayStrategy()
    return pl.Trainer(callbacks=[*callbacks, report], **options | given)


class Start:
    """A start of a trial that has ended: its reports, and its error if it ``fails``."""

    def __init__(
        self, folder: Path, train: Callable[[], object], after: CheckpointInfo | None = None, stop: int | None = None,
        fails: bool = False, **task: Any,
    ) -> None:  # fmt: skip
        events: list[Any] = []
        mailbox = Mailbox(stop)
        if stop is not None:
            mailbox.put(Stop())
        task = {"checkpoints": Checkpoints(share=1.0), "until": stop, "resume": after, **task}
        here = tasks.session_of(folder, hear=events.append, mailbox=mailbox, **task)
        session.set_current(here)
        torch.manual_seed(0)
        self.error: BaseException | None = None
        try:
            train()
            here.check_finished()
        except BaseException as error:
            self.error = error
            if not fails:
                raise
        finally:
            here.writing.settle()
            session.set_current(None)
        self.reports = [event for event in events if isinstance(event, Report)]
        self.numbers = [report.number for report in self.reports]
        self.checkpoints = {info.number: info for info in checkpoints.find(folder)}

    def values(self, name: str) -> list[float]:
        return [round(report.metrics[name], 6) for report in self.reports]


Trial = Callable[..., Start]


@pytest.fixture
def trial(tmp_path: Path, alone: None) -> Trial:
    """Return a function that starts a trial, from scratch or after a report's checkpoint of an earlier start."""
    return partial(Start, tmp_path / "trial")


def twice(trial: Trial, train: Callable[[], object], report: int) -> tuple[Start, Start]:
    """Start a trial from scratch, and from the checkpoint of a report."""
    whole = trial(train)
    return whole, trial(train, whole.checkpoints[report])


@pytest.mark.parametrize("on", ["validation_end", "train_epoch_end"])
def test_metrics_of_the_module_s_on_train_epoch_end_are_those_of_the_same_epoch(trial: Trial, on: str) -> None:
    seen: list[float] = []

    class Watched(Gathering):
        def on_train_epoch_end(self) -> None:
            seen.append(round(float(torch.stack(self.losses).mean()), 6))
            super().on_train_epoch_end()

    run = trial(lambda: trainer(report=tl.TuneReportCallback("train_loss", on=on)).fit(Watched(), loader(), loader()))
    assert run.values("train_loss") == seen
    assert [report.epoch for report in run.reports] == [0, 1, 2]


def test_within_an_epoch_a_validation_reports_at_once_and_the_last_one_at_the_epoch_s_end(trial: Trial) -> None:
    order: list[str] = []

    class Noting(Gathering):
        def on_train_batch_start(self, batch: Any, index: int) -> None:
            order.append(f"batch {index} after {tl.get_context().number}")

        def on_train_epoch_end(self) -> None:
            super().on_train_epoch_end()
            order.append(f"end after {tl.get_context().number}")

    run = trial(lambda: trainer(1, val_check_interval=2, num_sanity_val_steps=1).fit(Noting(), loader(), loader()))
    assert order == [f"batch {index} after {number}" for index, number in enumerate((0, 0, 1, 1))] + ["end after 1"]
    assert run.numbers == [1, 2]


def test_a_trial_that_is_stopped_has_ended_its_epoch(trial: Trial) -> None:
    net = Gathering()
    run = trial(lambda: trainer().fit(net, loader(), loader()), stop=1, fails=True)
    assert isinstance(run.error, TrialStopped)
    assert net.losses == []
    saved = torch.load(run.checkpoints[1].path, weights_only=False)
    assert (saved["epoch"], saved["global_step"]) == (0, 4)  # as one of ModelCheckpoint at the epoch's end


def fits(nets: list[Net], stages: tuple[int, ...] = (0, 1), **given: Any) -> None:
    for stage in stages:
        nets.append(Net(stage))
        trainer(2).fit(nets[-1], loader(), loader(), **given)


def test_fits_before_the_one_that_goes_on_are_repeated_without_reports(trial: Trial) -> None:
    nets: list[Net] = []
    whole, again = twice(trial, lambda: fits(nets), 3)
    assert [net.epochs for net in nets] == [[0, 1], [0, 1], [0, 1], [1]]
    assert again.numbers == [4]
    assert again.values("val_loss") == whole.values("val_loss")[3:]
    assert again.checkpoints.keys() == {1, 2, 3, 4}


def test_what_is_reported_before_the_first_fit_is_not_reported_again(trial: Trial) -> None:
    def train() -> None:
        tl.report({"val_loss": 9.0})
        trainer(2).fit(Net(), loader(), loader())

    _, again = twice(trial, train, 2)
    assert again.numbers == [3]


def test_a_fit_is_known_where_training_code_leaves_out_those_before_it(trial: Trial) -> None:
    nets: list[Net] = []

    def train() -> None:
        path = tl.get_checkpoint_path()
        fits(nets, (1,) if path else (0, 1), ckpt_path=path)

    _, again = twice(trial, train, 3)
    assert nets[-1].epochs == [1]
    assert again.numbers == [4]


def test_equal_fits_are_known_by_their_order_or_by_the_checkpoint_that_is_passed_to_them(trial: Trial) -> None:
    nets: list[Net] = []
    whole, again = twice(trial, lambda: fits(nets, (0, 0)), 3)
    assert [net.epochs for net in nets[2:]] == [[0, 1], [1]]
    passed = trial(lambda: fits(nets, (0,), ckpt_path=tl.get_checkpoint_path()), whole.checkpoints[3])
    assert nets[-1].epochs == [1]
    assert again.numbers == passed.numbers == [4]


def test_a_train_function_that_never_comes_to_the_fit_that_goes_on_is_an_error(trial: Trial) -> None:
    whole = trial(lambda: fits([], (0, 0)))
    again = trial(lambda: fits([], (0,)), whole.checkpoints[3], fails=True)
    assert isinstance(again.error, CheckpointError)
    assert "fit number 2" in str(again.error)
    assert "ckpt_path=tunelight.get_checkpoint_path()" in str(again.error)


@pytest.mark.parametrize("own", [False, True])
def test_a_checkpoint_of_another_sweep_brings_its_values_as_lightning_lets_it(trial: Trial, own: bool) -> None:
    nets: list[Net] = []

    def train(lr: float, **given: Any) -> None:
        tl.get_context().config["lr"] = lr
        nets.append(Net(lr=lr))
        one = trainer(2)
        one.fit(nets[-1], loader(), loader(), **given)
        rates.append(one.optimizers[0].param_groups[0]["lr"])

    rates: list[float] = []
    first = trial(lambda: train(0.05)).checkpoints[1]
    given = {} if own else {"ckpt_path": first.path}
    trial(lambda: train(0.01, **given), first if own else None)
    assert rates == [0.05, 0.01 if own else 0.05]
    assert nets[1].lr == 0.01


class Noisy(Net):
    """Draws at the start of each epoch what it adds to its batches."""

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.noise = torch.rand(4)

    def training_step(self, batch: Any, index: int) -> Any:
        return self.loss((batch[0] + self.noise + torch.rand(4), batch[1]))


@pytest.mark.parametrize("reload", [0, 1])
def test_what_hooks_draw_at_an_epoch_s_start_is_drawn_again(trial: Trial, reload: int) -> None:
    nets: list[Noisy] = []

    def train() -> None:
        nets.append(Noisy())
        one = trainer(4, reload_dataloaders_every_n_epochs=reload)
        one.fit(nets[-1], DataLoader(ROWS, 4, shuffle=True), loader())

    twice(trial, train, 2)
    assert nets[1].epochs == [2, 3]
    assert torch.equal(nets[0].head.weight, nets[1].head.weight)


@pytest.mark.parametrize("how", ["fit", "find a rate"])
def test_a_trainer_inside_a_fit_is_no_fit_of_the_trial(trial: Trial, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "1")  # as in a worker
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    draws: list[list[float]] = []

    class Probing(Net):
        def on_train_epoch_start(self) -> None:
            super().on_train_epoch_start()
            inner, probe = trainer(2, pl.Callback(), limit_val_batches=1), Net(stage=7)
            if how == "fit":
                inner.fit(probe, loader(), loader())
            else:
                import_module(f"{pl.__name__}.tuner").Tuner(inner).lr_find(probe, loader(), loader(), num_training=5)

        def on_train_epoch_end(self) -> None:
            draws[-1].append(random.random())

    def train() -> None:
        draws.append([])
        trainer(4).fit(Probing(), loader(), loader())

    whole, again = twice(trial, train, 2)
    assert again.numbers == [3, 4]
    assert again.values("val_loss") == whole.values("val_loss")[2:]
    assert draws[1] == draws[0][2:]
    assert len(set(draws[0])) == 4, "the outer fit draws on"


def test_what_a_trainer_inside_a_fit_reports_has_no_checkpoint(trial: Trial) -> None:
    class Probing(Net):
        def on_train_epoch_start(self) -> None:
            trainer(1).fit(Net(stage=7), loader(), loader())

    whole = trial(lambda: trainer(2).fit(Probing(), loader(), loader()))
    assert whole.numbers == [1, 2, 3, 4]
    assert whole.checkpoints.keys() == {2, 4}
    assert any("Give the outer Trainer" in note for report in whole.reports for note in report.notes)


def test_what_is_frozen_is_so_after_a_restart(trial: Trial) -> None:
    class FreezesItself(Net):
        def on_train_epoch_start(self) -> None:
            super().on_train_epoch_start()
            if self.current_epoch == 1:
                self.backbone.requires_grad_(False)

    nets: list[Net] = []

    def train() -> None:
        nets.append(FreezesItself())
        trainer(4, strategy=tl.RayStrategy(find_unused_parameters=True)).fit(nets[-1], loader(), loader())

    whole, again = twice(trial, train, 3)
    assert not nets[1].backbone.weight.requires_grad
    assert torch.equal(nets[0].backbone.weight, nets[1].backbone.weight)
    assert again.values("val_loss") == whole.values("val_loss")[3:]


class WithTest(Net):
    def test_step(self, batch: Any, index: int) -> None:
        self.log("test_loss", 0.5, sync_dist=True)


def test_a_hook_of_tests_reports_tests(trial: Trial) -> None:
    run = trial(lambda: trainer(report=tl.TuneReportCallback(on="test_end")).test(WithTest(), loader(), verbose=False))
    assert run.values("test_loss") == [0.5]


def test_a_checkpoint_is_whole_where_lightning_s_plugin_would_write_it_later(trial: Trial) -> None:
    run = trial(lambda: trainer(2, plugins=[pl.plugins.AsyncCheckpointIO()]).fit(Net(), loader(), loader()))
    assert all(checkpoints.is_valid(info) for info in run.checkpoints.values())
    assert run.checkpoints.keys() == {1, 2}


def test_parts_of_a_sweep_may_have_a_model_checkpoint(trial: Trial, tmp_path: Path) -> None:
    class Data(pl.LightningDataModule):
        train_dataloader = val_dataloader = staticmethod(loader)

    own = pl.callbacks.ModelCheckpoint(tmp_path / "own", monitor="val_loss")
    args = {"callbacks": [own], "enable_progress_bar": False, "logger": False}
    run = trial(lambda: Recipe(Net, Data, args, max_epochs=1)({}))
    assert run.numbers == [1]
    assert list((tmp_path / "own").iterdir())


def test_a_report_at_the_fit_s_end_is_not_made_again_behind_it(trial: Trial) -> None:
    def train(*, behind: bool) -> None:
        kinds = tl.TuneReportCheckpointCallback, tl.TuneReportCallback
        one = trainer(1, kinds[behind]("val_loss", on="fit_end" if behind else "train_end"))
        one.fit(Net(), loader(), loader())
        if behind:
            tl.report({"score": 1.0}, checkpoint=one.save_checkpoint)

    for behind, numbers in ((False, [1]), (True, [1, 2])):
        whole, again = twice(trial, partial(train, behind=behind), numbers[-1])
        assert (whole.numbers, again.numbers) == (numbers, [])


def test_random_numbers_and_metrics_of_a_fit_are_there_after_a_restart_from_behind_a_test(trial: Trial) -> None:
    metrics: list[dict[str, float]] = []
    drawn: list[float] = []

    def train() -> None:
        net, one = WithTest(), trainer(1)
        one.validate(net, loader(), verbose=False)
        one.fit(net, loader(), loader())
        metrics.append({name: value.item() for name, value in one.callback_metrics.items()})
        one.test(net, loader(), verbose=False)
        drawn.append(torch.rand(()).item())
        tl.report({"score": 1.0}, checkpoint=one.save_checkpoint)

    whole, again = twice(trial, train, 2)
    assert (whole.numbers, again.numbers) == ([1, 2], []), "only fits report"
    assert metrics[0] == metrics[1] != {}
    assert drawn[0] == drawn[1]


@pytest.mark.filterwarnings("ignore:It is recommended to use")  # the tests' process group is none of this Trainer's
@pytest.mark.parametrize("strategy", ["ray", "auto"])
def test_an_error_of_the_user_s_hook_is_no_failure_of_the_storage(trial: Trial, strategy: str) -> None:
    class Reads(Net):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", None if strategy == "ray" else "/elsewhere")

    def train() -> None:
        given: dict[str, Any] = {} if strategy == "ray" else {"strategy": strategy}
        trainer(2, **given).fit(Reads(), loader(), loader())

    assert isinstance(trial(train, fails=True).error, OSError)


class Costly(Net):
    """Reports these losses, and takes long to gather, as the head sees it."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.losses = losses

    def on_validation_end(self) -> None:
        get_session().writing._policy.blocked_s = 1e9

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("loss", self.losses[self.current_epoch], sync_dist=True)


@pytest.mark.parametrize(
    ("losses", "given", "every_n", "kept"),
    [
        ([5, 4, 3], {}, 1, [1, 2, 3]),
        ([5, 2, 3, 4], {}, 1, [1, 2, 4]),
        ([5, 6, 2, 3, 4], {"callbacks": [pl.callbacks.EarlyStopping("loss", patience=2)]}, 1, [1, 3, 5]),
        ([5, 6, 7, 8], {"max_steps": 12}, 1, [1, 3]),
        ([5, 6, 7, 8, 9], {}, 2, [1, 2]),
        ([5, 6, 7, 8, 9], {"check_val_every_n_epoch": 2}, 1, [1, 2]),
        ([5, float("nan"), 7], {}, 1, [1, 3]),
    ],
)
def test_the_best_and_the_last_report_are_written_whatever_that_costs(trial, losses, given, every_n, kept) -> None:
    def train() -> None:
        report = tl.TuneReportCheckpointCallback(every_n=every_n)
        trainer(len(losses), report, **given).fit(Costly(losses), loader(), loader())

    assert list(trial(train, metric="loss").checkpoints) == kept


def test_training_that_does_not_load_the_trial_s_checkpoint_fails(trial: Trial, tmp_path: Path) -> None:
    def train(*, loads: bool) -> None:
        begin = 0
        if loads and (path := tl.get_checkpoint_path()) is not None:
            begin = int(Path(path).read_text())
        for step in range(begin, 3):
            (tmp_path / "mine").write_text(str(step + 1))
            tl.report({"step": step}, checkpoint=tmp_path / "mine")

    whole, loaded = twice(trial, partial(train, loads=True), 2)
    assert loaded.values("step") == [2]
    again = trial(partial(train, loads=False), whole.checkpoints[2], fails=True)
    assert again.numbers == []
    assert "without having loaded the checkpoint" in str(again.error)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_branch_of_a_trial_that_was_stopped_early_trains_on_and_has_a_best_of_its_own(trial, tmp_path) -> None:
    """Patience counts from its beginning, and its best file too; that of its parent stays."""
    losses: list[float] = [5, 4, 6, 6, 7, 7, 3, 9]
    kept: list[Any] = []
    begun: list[list[int]] = []

    def train() -> None:
        net = Costly(losses)
        stops = pl.callbacks.EarlyStopping("loss", patience=2)
        kept.append(pl.callbacks.ModelCheckpoint(tmp_path / "trial" / tl.get_context().trial_id, monitor="loss"))
        options: dict[str, Any] = {"enable_checkpointing": True, "max_time": {"hours": 1}}
        trainer(8, callbacks=[stops, kept[-1]], **options).fit(net, loader(), loader())
        begun.append(net.epochs)

    parent, _ = twice(trial, train, 4)  # itself, which has ended
    trial(train, parent.checkpoints[4], trial_id="00001")
    losses[4] = 2.0
    trial(train, parent.checkpoints[4], trial_id="00002")
    assert begun == [[0, 1, 2, 3], [], [4, 5], [4, 5, 6]]
    assert [float(one.best_model_score) for one in kept] == [4, 4, 7, 2]
    assert all(Path(one.best_model_path).parent == Path(one.dirpath) for one in kept)
    assert len({one.best_model_path for one in kept}) == 3
    assert all(Path(one.best_model_path).exists() for one in kept)


def test_a_branch_trains_on_with_its_own_rate_and_one_of_another_model_says_which_value_makes_it_so(trial) -> None:
    rates: list[float] = []

    def train() -> None:
        config = tl.get_context().config
        net = Net(lr=config["lr"])
        net.head = torch.nn.Linear(4, config["out"])
        made = trainer(2)
        made.fit(net, loader(), loader())
        rates.append(made.optimizers[0].param_groups[0]["lr"])

    config = {"lr": 0.1, "out": 1}
    parent = trial(train, config=config)
    assert trial(train, parent.checkpoints[1], trial_id="00001", config=config | {"lr": 0.01}).numbers == [2]
    assert rates == [0.1, 0.01]
    misfit = trial(train, parent.checkpoints[1], trial_id="00002", config=config | {"out": 2}, fails=True)
    assert "out=2, not 1, makes another model, which the weights that it was to begin with" in str(misfit.error)
