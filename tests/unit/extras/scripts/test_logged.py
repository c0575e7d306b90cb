"""What a script logs or prints, as reports."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tunelight.errors import StrategyError
from tunelight.extras.scripts.logged import LoggedReports, Reader, _Children, _metrics, _Printed, _Summary
from tunelight.extras.scripts.style import reports_itself, texts_of
from tunelight.extras.scripts.trainer import joined_group, taken_in, transformers_taken_in


class Session:
    """A session of a gang of one, as far as reports know it."""

    def __init__(self, metric: str) -> None:
        self.context = self
        self.metric, self.rank, self.world_size = metric, 0, 1
        self.made: list[dict[str, Any]] = []

    def note(self, text: str) -> None:
        pass

    def report(self, metrics: Mapping[str, Any]) -> None:
        self.made.append(dict(metrics))


@pytest.fixture
def session() -> Any:
    return Session("loss")


def test_a_report_is_made_of_each_step_that_has_the_metric() -> None:
    session: Any = Session("val/loss")
    reports = LoggedReports(session)
    reports.log({"train": 1.0, "epoch": 0, "picture": object(), "text": "a"})
    reports.log({"val": {"loss": 3}})  # W&B's nested metrics have dots
    reports.log({"val/loss": torch.tensor(0.5), "ok": True})
    reports.log({"train": 2.0})
    reports.log({"val/loss": 0.25})
    reports.agree()
    assert session.made == [
        {"train": 1.0, "epoch": 0, "val.loss": 3, "val/loss": torch.tensor(0.5)},
        {"train": 2.0, "val/loss": 0.25},
    ]
    reports.ends = True
    reports.log({"val/loss": 0.1})
    assert len(session.made) == 2


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_is_logged_of_a_step_one_by_one_is_one_report_in_any_order(world_size: int) -> None:
    session: Any = Session("val/loss")
    session.world_size, session.boundary = world_size, session
    session.agree = lambda _, words, **__: words
    reports = LoggedReports(session)
    for step in range(3):
        reports.agree()  # an optimizer's step
        for name in ("lr", "val/loss", "val/acc", "lr"):
            reports.log({name: step})
    assert session.made == [{"lr": step, "val/loss": step, "val/acc": step} for step in range(2)]
    reports.end()
    assert session.made[2:] == [{"lr": 2, "val/loss": 2, "val/acc": 2}]


LINES: list[tuple[str, str, float | None]] = [
    ("val_loss", "epoch 3: val_loss 0.25", 0.25),
    ("val_loss", "val_loss: 1e-3, acc: 0.9", 0.001),
    ("val_loss", "{'val_loss': 0.25}", 0.25),
    ("val_loss", "VAL_LOSS = -inf", float("-inf")),
    ("loss", "val_loss 0.3", None),
    ("loss", "loss 0.3.1", None),
    ("loss", "loss lower", None),
    ("* Acc@1", " *   Acc@1 12.500 Acc@5 50.0", 12.5),
    ("Eval Loss", "[RANK0] Epoch 1 | Iter 0 | Eval Loss 4.5", 4.5),
    ("loss", "loss 3 loss 2", 2.0),
    ("val_loss", "epoch 3 done, val_loss: 0.43.", 0.43),
    ("val_loss", "val_loss 0.43 (0.39)", 0.43),
    ("val_loss", "val_loss: 50.0%", 50.0),
    ("val_loss", "val_loss: 15,000.5", 15000.5),
    ("val_loss", "val_loss: 15,000, acc: 0,9", 15000.0),
    ("val_loss", "val_loss: 0,4321, acc: 0,9", 0.4321),
    ("val_loss", "val_loss: -0,432", -0.432),
    ("val_loss", "val_loss: 0.432,0.9", 0.432),
    ("val_loss", "val_loss: 12,5", None),  # a decimal, or two numbers
    ("val_loss", "val_loss: 0,1,2", None),
    ("val_loss", "| val_loss" + " " * 3000 + "|\t 0.43 |", 0.43),
    ("val_loss", "val_loss: 3ms", None),
    ("val_loss", "val_loss tensor(0.43)", 0.43),
    ("val_loss", "val_loss: tensor([0.4300], device='cuda:0', grad_fn=<X>)", 0.43),
    ("val_loss", "{'epoch': 0, 'val_loss': np.float64(0.5)}", 0.5),
    ("val_loss", "val_loss <tf.Tensor: shape=(), dtype=float32, numpy=0.43>", 0.43),
    ("val_loss", "\x1b[32mval_loss\x1b[0m \u2502 \x1b[1m0.5\x1b[0m", 0.5),
    ("val_loss", "**val_loss (mse)** is `0.5`", 0.5),
    ("Accuracy", "Test set: Average loss: 0.03, Accuracy: 9903/10000 (99%)", 9903.0),
    ("val loss", "step 250/1000: train loss 2.4, val loss 2.5", 2.5),
    ("val_loss", "2026-11-29 00:12:03,123 INFO train.py:31 Epoch 1/3 val_loss 0.43", 0.43),
    ("val_loss", "epoch 3: val_loss 0.43 (best val_loss 0.39)", 0.43),
    ("val_loss", "Epoch 5 | Best epoch 3 | val_loss: 0.43", 0.43),
    ("val_loss", "best so far 0.39, val_loss 0.43", 0.43),
    ("val_loss", "best val_loss: 0.39", None),
    ("val_loss", "val_loss (best): 0.39", None),
    ("val_loss", "Best model: epoch 3, val_loss 0.39", None),
    ("val_loss", "Epoch 3: val_loss improved from 0.43 to 0.39", None),
    ("Best Acc", "Best Acc: 0.9", 0.9),
]


@pytest.mark.parametrize(("metric", "line", "value"), LINES)
def test_a_printed_metric_is_found_in_its_line(metric: str, line: str, value: float | None) -> None:
    session: Any = Session(metric)
    stream = io.StringIO()
    printed: Any = _Printed(stream, metric, LoggedReports(session))
    print(first := f"{metric}: 7", file=printed)
    half = len(line) // 2
    print(line[:half], end="", file=printed)
    print(line[half:], file=printed)
    assert stream.getvalue() == f"{first}\n{line}\n"
    assert session.made == [{metric: 7.0}, *([] if value is None else [{metric: value}])]


@pytest.mark.timeout(5)
@pytest.mark.parametrize("much", [" ", "\t ", "*", ".", "-", "=", "#", "1", "a", "[", "'"])
def test_a_line_of_much_the_same_is_read_at_once(much: str) -> None:
    rule = (much * 4000)[:3900]
    assert read("loss", [f"| loss{rule}|", f"{rule} loss x", f"best {rule}x loss", f"loss {rule}x"])[0] == []


def read(metric: str, lines: Iterable[str]) -> tuple[list[float], list[float]]:
    """Return what is reported while these lines are printed, and what is by the end."""
    made: list[float] = []
    reader = Reader(metric, made.append)
    for line in lines:
        reader.take(line)
    at_once = list(made)
    reader.end()
    return at_once, made


BATCHES = [
    [f"{what}\t[{batch}/5]\tAcc@1  9.9 ( {10 * epoch + batch})" for batch in range(5)]
    for epoch in range(3)
    for what in (f"Epoch: [{epoch}]", "Test:")
]
VALIDATIONS = [
    f"{kind}: [{at}/1] loss: {3 * epoch + number}"
    for epoch in range(3)
    for number, kind in enumerate(("Test", "Test (EMA)"), start=1)
    for at in (0, 1)
]


@pytest.mark.parametrize(
    ("metric", "lines", "at_once", "reported"),
    [
        # Values of training count where none of a validation follows.
        (
            "accuracy",
            ["Epoch[1] - Train metrics:", "\tAccuracy: 0.9", "Epoch[1] - Test metrics:", "\tAccuracy: 0.5"] * 2,
            *([0.5, 0.5], [0.5, 0.5]),
        ),
        ("accuracy", ["Train accuracy: 0.9", "Val accuracy: 0.5"] * 2, [0.5, 0.5], [0.5, 0.5]),
        ("accuracy", ["Train accuracy: 0.9", "accuracy: 0.5", "Train accuracy: 0.8"], [0.5], [0.5]),
        ("accuracy", ["Train accuracy: 0.7", "Train accuracy: 0.9"], [0.7], [0.7, 0.9]),
        ("accuracy", ["Train/val accuracy: 0.7"], [0.7], [0.7]),
        # A line that sums a validation up counts; without one, the last batch of each by its mean, behind its own.
        (
            "Acc@1",
            [line for part in BATCHES for line in (*part, *([" * Acc@1 50.5"] if "Test" in part[0] else []))],
            *([50.5] * 3, [50.5] * 3),
        ),
        ("Acc@1", [line for part in BATCHES for line in part], [4.0, 14.0], [4.0, 14.0, 24.0]),
        # Of two counters without a word the second is of batches; of two validations the first one counts to the end.
        (
            "Loss_G",
            [f"[{epoch}/3][{batch}/4] Loss_G: {epoch}.{batch}" for epoch in range(3) for batch in range(4)],
            *([0.3, 1.3], [0.3, 1.3, 2.3]),
        ),
        ("loss", VALIDATIONS, [1.0, 4.0, 7.0], [1.0, 4.0, 7.0]),
        # Of lines that repeat their epoch the last counts, of epochs that do not each at once but for the first.
        (
            "loss",
            [f"epoch {epoch} loss {epoch}.{batch}" for epoch in (1, 2, 3) for batch in range(3)],
            *([1.2, 2.2], [1.2, 2.2, 3.2]),
        ),
        ("loss", ["epoch 1 loss 1"], [], [1.0]),
        ("loss", ["epoch 1 loss 1", "epoch 2 loss 2"], [1.0, 2.0], [1.0, 2.0]),
        ("loss", ["new best loss: 3", "new best loss: 2"], [], [3.0, 2.0]),
    ],
)
def test_which_of_the_printed_values_are_an_epoch_s_and_when_they_are_told(metric, lines, at_once, reported):
    assert read(metric, lines) == (at_once, reported)


def test_a_progress_bar_is_as_its_last_state(session: Any) -> None:
    reports = LoggedReports(session)
    printed: Any = _Printed(io.StringIO(), "loss", reports)
    for epoch in range(3):
        for batch in range(1, 11):
            print(f"\r{10 * batch}%|###| {batch}/10 [00:01, 8it/s, loss={epoch}.{batch}]", end="", file=printed)
        print(file=printed)
    printed._reader.end()
    assert [one["loss"] for one in session.made] == [0.10, 1.10, 2.10]


def test_what_is_printed_and_logged_counts_once(session: Any) -> None:
    reports = LoggedReports(session)
    reader = Reader("loss", reports.read)
    for epoch in range(3):
        for stream in ("stdout", "stderr"):
            reader.take(f"epoch {epoch} loss {epoch}", stream)
    assert len(session.made) == 3


def test_what_children_write_to_the_log_is_read(session: Any, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("loss 5\n")  # of an earlier start
    children = _Children(log, Reader("loss", LoggedReports(session).read))
    with log.open("a") as file:
        file.write("[0] loss 4\nloss 3\nloss 2")
    children.look(False)
    children.look(True)
    assert [one["loss"] for one in session.made] == [3.0, 2.0]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # torch may have threads
def test_a_fork_makes_no_reports_and_what_it_prints_is_read_from_the_log(session: Any, tmp_path: Path) -> None:
    several: Any = Session("loss")
    several.world_size = 2
    reports, of_several = LoggedReports(session, written=True), LoggedReports(several)
    stream, log = io.StringIO(), tmp_path / "log.txt"
    printed: Any = _Printed(stream, "loss", reports)
    print("loss 1", end="", file=printed)  # and the line goes on
    with log.open("w") as file:
        before = os.dup(1)
        os.dup2(file.fileno(), 1)
        children = _Children(log, Reader("loss", reports.read))
        if not (child := os.fork()):
            try:
                print("loss 3", file=printed)
                reports.log({"loss": 1})
                of_several.agree()  # which would wait for the others
                print(f"trainer {reports.left_to_trainer(['loss'])}, made {session.made}", file=printed)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.dup2(before, 1)
        os.close(before)
    assert log.read_text() == "loss 3\ntrainer False, made []\n"
    children.look(True)
    print(".5", file=printed)
    assert stream.getvalue() == "loss 1.5\n"
    assert [one["loss"] for one in session.made] == [3.0, 1.5]


def test_a_call_s_arguments_may_be_named() -> None:
    assert _metrics("", ("key", "value"), "a", value=1, step=3) == {"a": 1}
    assert _metrics("Run", ("data",), data={"a": 1}) == {"a": 1}
    assert isinstance(_metrics("SummaryDict", ("d",), {"a": 1}), _Summary)


@pytest.mark.parametrize("written", [False, True])
def test_a_trainer_without_the_metric_leaves_it_to_a_script_that_names_it(written: bool) -> None:
    session: Any = Session("cv_loss")
    reports = LoggedReports(session, written=written)
    reports.held = True
    assert reports.left_to_trainer(["val_loss"]) is not written, "the trainer's report is the error"
    reports.read(0.5)
    assert not session.made
    reports.end()
    assert session.made == ([{"cv_loss": 0.5}] if written else [])
    assert "val_loss" in reports.names


def test_what_is_printed_counts_until_a_library_has_logged_the_metric(session: Any) -> None:
    reports = LoggedReports(session, libraries=True)
    reports.read(0.5)
    assert not session.made  # a library may log the same
    reports.agree()
    assert session.made == [{"loss": 0.5}]
    reports.read(0.25)
    reports.log({"loss": 0.125})
    reports.read(0.0)
    reports.end()
    assert session.made == [{"loss": 0.5}, {"loss": 0.125}]


def test_a_summary_counts_where_the_metric_is_never_logged(session: Any) -> None:
    for logged, made in (([], [{"loss": 0.5}]), ([{"loss": 1.0}], [{"loss": 1.0}])):
        session.made.clear()
        reports = LoggedReports(session, libraries=True)
        for metrics in logged:
            reports.log(metrics)
        reports.log(_Summary({"loss": 0.75}))
        reports.log(_Summary({"loss": 0.5}))  # the last one
        reports.end()
        assert session.made == made


def test_processes_of_its_own_are_refused_in_a_gang_of_several(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(torch.multiprocessing, "spawn", started.append)
    for session.world_size in (1, 2):
        with joined_group(session):
            if session.world_size == 1:
                torch.multiprocessing.spawn("work")
            else:
                with pytest.raises(StrategyError, match=r"each of the trial's 2 workers.*workers=1"):
                    torch.multiprocessing.spawn("work")
    assert started == ["work"]


def test_a_script_s_error_does_not_name_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    session: Any = Session("loss")
    with pytest.raises(KeyError) as failed, transformers_taken_in(session, None):
        raise KeyError
    assert failed.value.__context__ is None


def test_a_gang_of_one_draws_its_data_as_one_process_does(session: Any, tmp_path: Path) -> None:
    session.wanted, session.backend, session.gpu, session.trial_dir = 1, "ddp", None, str(tmp_path)
    of_cli = {"strategy": "auto", "use_distributed_sampler": True}  # LightningCLI gives all of a Trainer's defaults
    for given in ({}, of_cli):
        assert taken_in(given, session, None, checkpoints=False)["use_distributed_sampler"] is False
    asked = taken_in({**of_cli, "strategy": "ddp"}, session, None, checkpoints=False)
    assert asked["use_distributed_sampler"] is True


@pytest.mark.parametrize(
    ("code", "own"),
    [
        ("import tunelight as tl\ntl.report({})", True),
        ("def f():\n    from tunelight import report\n    report({})", True),
        ("import tunelight\ntunelight.get_context().report({})", True),
        ("import tunelight\ntunelight.RayStrategy()", False),
        ("from sklearn.metrics import report\nreport({})", False),
    ],
)
def test_a_script_that_reports_itself_is_known_by_its_code(tmp_path: Path, code: str, own: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(code + "\nprint(f'cv_loss: {1}')")
    assert reports_itself(str(file)) is own
    assert "cv_loss: " in set(texts_of(str(file)))
