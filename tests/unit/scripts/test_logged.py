"""What a script logs or prints, as reports."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tunelight.scripts.logged import LoggedReports, _of_summary, _Printed


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


def test_a_report_is_made_of_each_step_that_has_the_metric() -> None:
    session: Any = Session("val/loss")
    reports = LoggedReports(session)
    reports.log({"train": 1.0, "epoch": 0, "picture": object(), "text": "a"})
    reports.log({"val": {"loss": 3}})  # W&B's nested metrics have dots
    reports.log({"val/loss": torch.tensor(0.5), "ok": True})
    reports.log({"train": 2.0})
    reports.log({"val/loss": 0.25})
    assert session.made == [
        {"train": 1.0, "epoch": 0, "val.loss": 3, "val/loss": torch.tensor(0.5)},
        {"train": 2.0, "val/loss": 0.25},
    ]
    assert isinstance(session.made[0]["epoch"], float)  # no count of epochs from 0, as Lightning's is
    reports.stop()
    reports.log({"val/loss": 0.1})
    assert len(session.made) == 2


@pytest.mark.parametrize(
    ("metric", "line", "value"),
    [
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
    ],
)
def test_a_printed_metric_is_found_in_its_line(metric: str, line: str, value: float | None) -> None:
    session: Any = Session(metric)
    stream = io.StringIO()
    printed: Any = _Printed(stream, metric, LoggedReports(session))
    half = len(line) // 2
    print(line[:half], end="", file=printed)
    print(line[half:], file=printed)
    assert stream.getvalue() == f"{line}\n"
    assert session.made == ([] if value is None else [{metric: value}])


def test_what_is_printed_counts_until_a_library_has_logged_the_metric() -> None:
    session: Any = Session("loss")
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


def test_a_summary_counts_where_the_metric_is_never_logged() -> None:
    session: Any = Session("loss")
    for logged, made in (([], [{"loss": 0.5}]), ([{"loss": 1.0}], [{"loss": 1.0}])):
        session.made.clear()
        reports = LoggedReports(session, libraries=True)
        for metrics in logged:
            reports.log(metrics)
        reports.log(_of_summary({"loss": 0.75}))
        reports.log(_of_summary({"loss": 0.5}))  # the last one
        reports.end()
        assert session.made == made
