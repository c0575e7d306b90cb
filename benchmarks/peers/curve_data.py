"""Data of the tasks in curve_tasks.py: what comes with scikit-learn, and what is generated."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional

MNIST1D = "The task mnist1d-cnn needs the package mnist1d, which generates its data: pip install mnist1d"


@dataclass(frozen=True)
class Rows:
    """A task's data: the first dimension of each tensor counts rows."""

    x: Tensor
    y: Tensor
    val_x: Tensor
    val_y: Tensor


def _split(x: Any, y: Any, train: int, validation: int) -> Rows:
    """Shuffle, and take so many rows for training and so many others for validation."""
    order = torch.randperm(len(x), generator=Generator().manual_seed(0))
    x, y = torch.as_tensor(x)[order], torch.as_tensor(y)[order]
    end = train + validation
    return Rows(x[:train], y[:train], x[train:end], y[train:end])


def _standard(x: Any) -> Tensor:
    values = torch.as_tensor(np.asarray(x), dtype=torch.float32)
    return (values - values.mean(0)) / values.std(0)


def diabetes() -> Rows:
    """Return the progress of diabetes, standardised, from ten measurements."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    return _split(_standard(x), _standard(y)[:, None], 242, 200)


def wine() -> Rows:
    """Return each of 178 wines three times with noise, all copies on the same side of the split."""
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    rows, generator = _split(_standard(x), y, 90, 88), Generator().manual_seed(1)

    def noisy(values: Tensor) -> Tensor:
        values = values.repeat(3, 1)
        return values + torch.randn(values.shape, generator=generator)

    return Rows(noisy(rows.x), rows.y.repeat(3), noisy(rows.val_x), rows.val_y.repeat(3))


def cancer() -> Rows:
    """Return tumours, of which a tenth of the training labels is wrong."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    rows = _split(_standard(x), y, 284, 285)
    wrong = torch.rand(len(rows.y), generator=Generator().manual_seed(1)) < 0.1
    return Rows(rows.x, torch.where(wrong, 1 - rows.y, rows.y), rows.val_x, rows.val_y)


def _digits(train: int, validation: int) -> Rows:
    from sklearn.datasets import load_digits

    data = load_digits()
    return _split(torch.as_tensor(data.data, dtype=torch.float32) / 16, data.target, train, validation)


def digit_images() -> Rows:
    """Return digits as images of one channel."""
    rows = _digits(240, 300)
    return Rows(rows.x.view(-1, 1, 8, 8), rows.y, rows.val_x.view(-1, 1, 8, 8), rows.val_y)


def digits_to_themselves() -> Rows:
    """Return digits that are wanted back."""
    rows = _digits(300, 300)
    return Rows(rows.x, rows.x, rows.val_x, rows.val_x)


def adding() -> Rows:
    """Return sequences of ten numbers of which two are marked; wanted is the sum of those, of variance one."""
    generator, count, length = Generator().manual_seed(0), 440, 10
    numbers = torch.rand(count, length, generator=generator)
    marked = torch.rand(count, length, generator=generator).argsort(1) < 2
    wanted = ((numbers * marked).sum(1, keepdim=True) - 1) * math.sqrt(6)
    return _split(torch.stack((numbers, marked.float()), 2), wanted, 240, 200)


def sorting() -> Rows:
    """Return sequences of five digits below six, and the same sorted."""
    drawn = torch.randint(6, (600, 5), generator=Generator().manual_seed(0))
    return _split(functional.one_hot(drawn, 6).float(), drawn.sort(1).values, 300, 300)


def mnist1d() -> Rows:
    """Return signals of 40 values. Raises: ModuleNotFoundError without the package that generates them."""
    try:
        from mnist1d.data import get_dataset_args, make_dataset
    except ImportError as error:
        raise ModuleNotFoundError(f"{MNIST1D} ({error})") from error
    settings = get_dataset_args()
    settings.num_samples = 1000
    before = random.getstate(), np.random.get_state()  # noqa: NPY002 - the package seeds both
    made = make_dataset(settings)
    random.setstate(before[0])
    np.random.set_state(before[1])  # noqa: NPY002 - as above
    x = torch.as_tensor(np.concatenate((made["x"], made["x_test"])), dtype=torch.float32)[:, None]
    return _split(x, np.concatenate((made["y"], made["y_test"])), 400, 400)
