"""What tl.run refuses before Ray starts, and leaves no folder for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray

import tunelight as tl
from tunelight.errors import DataError, SettingsError, TunelightError


def train(config: dict[str, Any]) -> None:
    """Never run."""


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"scheduler": "ahsa"}, SettingsError, "Did you mean 'asha'"),
        ({"scheduler": {"name": "asha", "grace_perid": 2}}, SettingsError, "Did you mean 'grace_period'"),
        ({"searcher": "rando"}, SettingsError, "Did you mean 'random'"),
        ({"workers": 2, "resources_per_trial": {"extra_cpu": 3}}, SettingsError, "hold 2 together"),
        ({"storage": "s33://bucket/sweeps"}, SettingsError, "Did you mean 's3'"),
        ({"datasets": {"train": "nowhere"}}, DataError, "there is no such file or folder"),
        ({"metric": None}, SettingsError, "No metric|metric"),
    ],
)
def test_it_is_refused_with_a_sentence(
    tmp_path: Path, given: dict[str, Any], error: type[TunelightError], says: str
) -> None:
    settings: dict[str, Any] = {"metric": "loss", "storage": tmp_path, "name": "s", **given}
    with pytest.raises(error, match=says):
        tl.run({"x": tl.uniform(0, 1)}, train, **settings)
    assert not ray.is_initialized()
    assert list(tmp_path.iterdir()) == []
