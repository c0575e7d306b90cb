"""gang_trainable: what it is told is checked where it is called, before a Tuner runs."""

from __future__ import annotations

from typing import Any

import pytest

from tunelight.errors import SettingsError
from tunelight.trial.plain_tune import gang_trainable


def train(config: dict[str, Any]) -> None:
    """Train nothing."""


@pytest.mark.parametrize("told", [{"metric": ["loss", "latency"]}, {"metric": "loss", "mode": ["min"]}])
def test_checkpoints_are_judged_by_one_metric(told: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="one metric"):
        gang_trainable(train, **told)
