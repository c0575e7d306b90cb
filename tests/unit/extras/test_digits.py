"""The digits: data, models and the error without scikit-learn."""

from __future__ import annotations

import sys

import pytest
import torch

from tunelight.errors import TunelightError
from tunelight.extras.digits import SIZES, DigitsData, DigitsMissingError, load_digits


def test_images_are_scaled_and_split_without_a_remainder() -> None:
    parts = load_digits(0)
    assert tuple(len(part) for part in parts) == SIZES
    assert sum(SIZES) == 1797
    x, y = parts[0].tensors
    assert x.shape == (SIZES[0], 1, 8, 8)
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert (x.min().item(), x.max().item()) == (0.0, 1.0)
    assert sorted(y.unique().tolist()) == list(range(10))


def test_one_process_loads_a_split_once() -> None:
    first, second = DigitsData(seed=1), DigitsData(batch_size=8, seed=1)
    first.setup()
    second.setup("fit")
    assert first.train is second.train


def test_missing_scikit_learn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DigitsMissingError, match=r"pip install 'tunelight\[demo\]'") as caught:
        load_digits.__wrapped__(0)
    assert isinstance(caught.value, TunelightError)
    assert isinstance(caught.value, ImportError)
