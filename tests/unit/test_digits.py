"""The digits: data, models and the error without scikit-learn."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.kit.training import train_by_hand
from tunelight.digits import SIZES, DigitsClassifier, DigitsCNN, DigitsData, DigitsMissingError, load_digits
from tunelight.errors import TunelightError


def test_images_are_scaled_and_split_without_a_remainder() -> None:
    parts = load_digits(0)
    assert tuple(len(part) for part in parts) == SIZES
    assert sum(SIZES) == 1797
    x, y = parts[0].tensors
    assert x.shape == (SIZES[0], 1, 8, 8)
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert (x.min().item(), x.max().item()) == (0.0, 1.0)
    assert sorted(y.unique().tolist()) == list(range(10))


def test_split_depends_on_the_seed_alone() -> None:
    once = load_digits(3)[1].tensors[1].clone()
    load_digits.cache_clear()
    assert torch.equal(once, load_digits(3)[1].tensors[1])
    assert not torch.equal(once, load_digits(4)[1].tensors[1])


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


@pytest.mark.parametrize("model", [DigitsClassifier(hidden=8), DigitsCNN(channels=2, dropout=0.1)])
def test_models_map_a_batch_to_ten_logits(model: DigitsClassifier | DigitsCNN) -> None:
    x = load_digits(0)[0].tensors[0][:5]
    assert model(x).shape == (5, 10)
    digits = model.predict_step((x, torch.zeros(5, dtype=torch.int64)), 0)
    assert digits.shape == (5,)
    assert set(digits.tolist()) <= set(range(10))


def test_hyperparameters_are_saved_and_reach_the_optimizer() -> None:
    model = DigitsClassifier(lr=0.02, hidden=8, dropout=0.3)
    assert dict(model.hparams) == {"lr": 0.02, "hidden": 8, "dropout": 0.3}
    assert model.configure_optimizers().param_groups[0]["lr"] == 0.02


def test_forty_steps_of_adam_halve_the_loss() -> None:
    torch.manual_seed(0)
    model = DigitsClassifier(lr=1e-2, hidden=16)
    x, y = (tensor[:128] for tensor in load_digits(0)[0].tensors)
    losses = train_by_hand(model, x, y)
    assert losses[-1] < 0.5 * losses[0]
