"""What a trial's fits keep: errors of hooks are told from those of the storage, and what is best or last is written."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.unit.lightning.test_restarts import Net, Trial, loader, trainer, trial
from tunelight.compat.lightning import pl
from tunelight.session.session import get_session

__all__ = ["trial"]

pytestmark = pytest.mark.usefixtures("every_checkpoint")


@pytest.mark.filterwarnings("ignore:It is recommended to use")  # the tests' process group is none of this Trainer's
@pytest.mark.parametrize("strategy", ["ray", "auto"])
def test_an_error_of_the_user_s_hook_is_no_failure_of_the_storage(trial: Trial, strategy: str) -> None:
    class Reads(Net):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", None if strategy == "ray" else "/elsewhere")

    def train() -> None:
        given: dict[str, Any] = {} if strategy == "ray" else {"strategy": strategy}
        trainer(2, **given).fit(Reads(), loader(), loader())

    assert isinstance(trial(train).error, OSError)


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
def test_the_best_and_the_last_report_are_written_whatever_that_costs(
    trial: Trial, losses: list[float], given: dict[str, Any], every_n: int, kept: list[int]
) -> None:
    def train() -> None:
        report = tl.TuneReportCheckpointCallback(every_n=every_n)
        trainer(len(losses), report, **given).fit(Costly(losses), loader(), loader())

    ended = trial(train, metric="loss")
    assert ended.error is None
    assert list(ended.checkpoints) == kept


@pytest.mark.filterwarnings("ignore:It is recommended to use")  # as above
def test_a_trainer_of_one_process_goes_on_from_the_trial_s_checkpoint(trial: Trial) -> None:
    nets: list[Net] = []

    def train() -> None:
        nets.append(Net())
        trainer(4, strategy="auto", devices=1).fit(nets[-1], loader(), loader())

    whole = trial(train)
    assert whole.error is None
    again = trial(train, whole.checkpoints[2])
    assert again.error is None
    assert [net.epochs for net in nets] == [[0, 1, 2, 3], [2, 3]]
    assert again.numbers == [3, 4]
    assert again.values("val_loss") == whole.values("val_loss")[2:]


def test_training_that_does_not_load_the_trial_s_checkpoint_fails(trial: Trial, tmp_path: Path) -> None:
    def train(*, loads: bool) -> None:
        begin = 0
        if loads and (path := tl.get_checkpoint_path()) is not None:
            begin = int(Path(path).read_text())
        for step in range(begin, 3):
            (tmp_path / "mine").write_text(str(step + 1))
            tl.report({"step": step}, checkpoint=tmp_path / "mine")

    whole = trial(partial(train, loads=True))
    assert trial(partial(train, loads=True), whole.checkpoints[2]).values("step") == [2]
    again = trial(partial(train, loads=False), whole.checkpoints[2])
    assert again.numbers == []
    assert "without having loaded the checkpoint" in str(again.error)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_branch_of_a_trial_that_was_stopped_early_trains_on_and_knows_the_best_so_far(
    trial: Trial, tmp_path: Path
) -> None:
    """Patience counts from its beginning; its best file is its own, and that of its parent stays."""
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

    parent = trial(train)
    assert parent.error is None
    assert trial(train, parent.checkpoints[4]).error is None  # itself, which has ended
    assert trial(train, parent.checkpoints[4], trial_id="00001").error is None
    losses[4] = 2.0
    assert trial(train, parent.checkpoints[4], trial_id="00002").error is None
    assert begun == [[0, 1, 2, 3], [], [4, 5], [4, 5, 6]]
    assert [float(one.best_model_score) for one in kept] == [4, 4, 4, 2]
    assert all(Path(one.best_model_path).parent == Path(one.dirpath) for one in kept)
    assert len({one.best_model_path for one in kept}) == 3
    assert all(Path(one.best_model_path).exists() for one in kept)
