"""Which configurations take as much memory as another one."""

from __future__ import annotations

import numpy as np

from tunelight.trial.fitting import without_floats


def test_configurations_are_alike_that_differ_in_floats_only() -> None:
    one = {"lr": 0.1, "width": 64, "net": {"dropout": 0.5, "kind": "gru"}, "bias": True, "sizes": [8, 0.5]}
    other = {"net": {"kind": "gru", "dropout": 0.1}, "width": 64, "lr": 1e-4, "sizes": [8, 0.1], "bias": True}
    assert without_floats(one) == without_floats(other)
    for change in ({"width": 128}, {"bias": False}, {"net": {"kind": "lstm", "dropout": 0.5}}):
        assert without_floats({**one, **change}) != without_floats(one)


def test_the_same_configuration_is_alike_in_other_processes_and_from_the_record() -> None:
    live = {"width": np.int64(64), "lr": np.float32(0.1), "sizes": (8, 4), "act": Act(), "on": True, "none": None}
    read = {"width": 64, "sizes": [8, 4], "act": Act(), "on": True, "none": None}
    assert without_floats(live) == without_floats(read)


class Act:
    """An object whose repr holds its address."""
