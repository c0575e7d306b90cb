"""gang_trainable: what it is told is checked where it is called, before a Tuner runs."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tunelight.errors import SettingsError
from tunelight.trial.plain_tune import gang_trainable


def train(config: dict[str, Any]) -> None:
    """Train nothing."""


def test_a_report_is_asked_for_one_metric() -> None:
    with pytest.raises(SettingsError, match="one metric"):
        gang_trainable(train, metric=["loss", "latency"])  # type: ignore[arg-type]


@pytest.mark.parametrize("made", [train, functools.partial(train)])
def test_a_trainable_is_named_after_its_train_function_as_tuner_restore_asks(made: Any) -> None:
    assert [gang_trainable(made).__name__ for _ in range(2)] == ["train", "train"]
