"""The models and data of the search spaces that come along."""

from __future__ import annotations

import gzip
import pickle
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tunelight.errors import TunelightError
from tunelight.extras.digits import DigitsMissingError, load_digits
from tunelight.extras.zoo import (
    Cifar10Data,
    ImageMLP,
    ImagesMissingError,
    MnistData,
    VisionTransformer,
)


def test_a_transformer_sees_where_a_patch_lies_and_says_why_it_cannot_be_built():
    torch.manual_seed(0)
    model = VisionTransformer(size=8, channels=1, patch=4, hidden=16, layers=2, heads=2, mlp=16).eval()
    x = torch.rand(1, 1, 8, 8)
    assert not torch.allclose(model(x), model(x.roll(4, dims=3)), atol=1e-4)
    with torch.no_grad():
        evaluated = model(x)
    assert torch.allclose(model.train()(x), evaluated, atol=1e-5), "torch evaluates by other kernels than it trains"
    for name, value, message in (("patch", 5, "patch=5 must divide size=32"), ("heads", 7, "heads")):
        with pytest.raises(ValueError, match=message):
            VisionTransformer(**{name: value})


def idx(path: Path, values: np.ndarray, packed: bool = False) -> None:
    data = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(data) if packed else data)


def mnist(folder: Path, packed: bool = False) -> Path:
    end = ".gz" if packed else ""
    for part, count in (("train", 40), ("t10k", 10)):
        pixels = np.arange(count * 784, dtype=np.uint32).astype(np.uint8).reshape(count, 28, 28)
        idx(folder / f"{part}-images-idx3-ubyte{end}", pixels, packed)
        idx(folder / f"{part}-labels-idx1-ubyte{end}", np.arange(count, dtype=np.uint8) % 10, packed)
    return folder


def cifar(folder: Path) -> Path:
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        batch = {b"data": np.full((8, 3072), 51, np.uint8), b"labels": list(range(8))}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


@pytest.mark.parametrize(("packed", "below"), [(False, ""), (True, "MNIST/raw")])
def test_mnist_is_read_as_it_is_published(tmp_path, packed, below):
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    mnist(tmp_path / below, packed)
    data = MnistData(tmp_path, batch_size=4)
    data.setup()
    assert (len(data.train), len(data.val), len(data.test)) == (36, 4, 10)
    x, y = data.on_after_batch_transfer(next(iter(data.val_dataloader())), 0)
    assert (x.shape, x.dtype, y.tolist()) == ((4, 1, 28, 28), torch.float32, [6, 7, 8, 9])
    assert x[0, 0, 0, :3].mul(255).round().tolist() == [(36 * 784 + step) % 256 for step in range(3)]
    assert ImageMLP(hidden=8)(x).shape == (4, 10)


@pytest.mark.parametrize("below", ["", "cifar-10-batches-py"])
def test_cifar_is_read_as_it_is_published(tmp_path, below):
    (tmp_path / below).mkdir(exist_ok=True)
    cifar(tmp_path / below)
    data = Cifar10Data(tmp_path, batch_size=4)
    data.setup()
    assert (len(data.train), len(data.val), len(data.test)) == (36, 4, 8)
    x, y = data.on_after_batch_transfer(next(iter(data.val_dataloader())), 0)
    assert (x.shape, y.tolist()) == ((4, 3, 32, 32), [4, 5, 6, 7])
    assert torch.allclose(x, torch.tensor(0.2))


def test_missing_images_say_what_and_where_to_get_it(tmp_path):
    with pytest.raises(ImagesMissingError, match=r"is no.* train-images-idx3-ubyte \(or .*\.gz\). Fetch .*data.root"):
        MnistData(tmp_path)
    with pytest.raises(TunelightError, match=r"CIFAR-10 is not in .* data_batch_1\. Fetch"):
        Cifar10Data(tmp_path)
    (mnist(tmp_path) / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ImagesMissingError, match="there is no t10k-labels-idx1-ubyte"):
        MnistData(tmp_path)
    (cifar(tmp_path) / "test_batch").unlink()
    with pytest.raises(ImagesMissingError, match="there is no test_batch"):
        Cifar10Data(tmp_path)


def test_missing_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DigitsMissingError, match=r"pip install 'tunelight\[demo\]'") as caught:
        load_digits.__wrapped__(0)
    assert isinstance(caught.value, TunelightError)
    assert isinstance(caught.value, ImportError)


def test_damaged_images_are_told(tmp_path):
    (cifar(tmp_path) / "test_batch").write_bytes(b"nothing")
    with pytest.raises(ImagesMissingError, match=r"cannot be read.*Fetch and unpack"):
        Cifar10Data(tmp_path).setup()
    (mnist(tmp_path) / "train-images-idx3-ubyte").write_bytes(b"no images")
    with pytest.raises(ImagesMissingError, match=r"train-images-idx3-ubyte is no IDX file.*Fetch and unpack"):
        MnistData(tmp_path).setup()
    idx(tmp_path / "train-images-idx3-ubyte", np.zeros((3, 28, 28), np.uint8))
    with pytest.raises(ImagesMissingError, match="holds 3 images, and train-labels-idx1-ubyte 40 labels"):
        MnistData(tmp_path).setup()


def test_a_batch_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (cifar(tmp_path) / "data_batch_3").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ImagesMissingError, match="which no batch of images does"):
        Cifar10Data(tmp_path).setup()
    assert not (tmp_path / "ran").exists()
