"""The models and data of the search spaces that come with tunelight, beside those in ``tunelight.extras.digits``."""

from __future__ import annotations

import functools
import gzip
import io
import itertools
import os
import pickle
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tunelight.errors import TunelightError
from tunelight.extras.digits import Classifier, Parts

Images = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images of shape [N, C, H, W], and their labels of shape [N]."""

# --- Classifiers of images of any size: a plain network and a vision transformer ------------------


class ImageMLP(Classifier):
    """Classify images of ``channels`` x ``size`` x ``size`` with ``layers`` hidden layers of ``hidden`` units each."""

    def __init__(
        self,
        lr: float = 1e-3,
        *,
        size: int = 28,
        channels: int = 1,
        hidden: int = 256,
        layers: int = 2,
        dropout: float = 0.0,
        classes: int = 10,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        widths = [channels * size * size, *[hidden] * layers]
        parts: list[nn.Module] = [nn.Flatten()]
        for before, after in itertools.pairwise(widths):
            parts += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
        self.net = nn.Sequential(*parts, nn.Linear(widths[-1], classes))


class _Patches(nn.Module):
    """Cut images into patches, and give each an embedding with its place: [B, C, S, S] to [B, patches, hidden]."""

    def __init__(self, size: int, channels: int, patch: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(channels, hidden, patch, stride=patch)
        self.place = nn.Parameter(torch.randn(1, (size // patch) ** 2, hidden) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.embed(x).flatten(2).transpose(1, 2) + self.place
        return tokens


class _Mean(nn.Module):
    """Average over the patches: [B, patches, hidden] to [B, hidden]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


class VisionTransformer(Classifier):
    """Classify square images by attention between their patches; the embeddings' mean is classified.

    After Dosovitskiy et al., "An Image is Worth 16x16 Words" (https://arxiv.org/abs/2010.11929). The defaults are for
    CIFAR-10. Raises: ValueError unless ``patch`` divides ``size``, and ``heads`` divides ``hidden``.
    """

    def __init__(
        self,
        lr: float = 1e-3,
        *,
        weight_decay: float = 0.05,
        size: int = 32,
        channels: int = 3,
        patch: int = 4,
        hidden: int = 384,
        layers: int = 12,
        heads: int = 8,
        mlp: int = 768,
        dropout: float = 0.0,
        classes: int = 10,
    ) -> None:
        super().__init__()
        if size % patch:
            raise ValueError(f"patch={patch} must divide size={size}: images are cut into whole patches.")
        if hidden % heads:
            raise ValueError(f"heads={heads} must divide hidden={hidden}: each head gets the same share of it.")
        self.save_hyperparameters()
        layer = nn.TransformerEncoderLayer(
            hidden, heads, mlp, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.net = nn.Sequential(
            _Patches(size, channels, patch, hidden),
            nn.TransformerEncoder(layer, layers, nn.LayerNorm(hidden), enable_nested_tensor=False),
            _Mean(),
            nn.Linear(hidden, classes),
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW with the configuration's learning rate and weight decay."""
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"], weight_decay=self.hparams["weight_decay"])


# Image data sets that lie on disk, as their authors publish them: MNIST and CIFAR-10. Nothing is downloaded.

_VALIDATION = 5000
"""Images at the end of the training set that are kept for validation; a tenth of a smaller set."""


class ImagesMissingError(TunelightError, FileNotFoundError):
    """A data set does not lie where it was looked for, or its files are damaged."""


class LocalImages(Parts):
    """Serve a data set from the folder ``root`` (``~`` is the home folder): the last 5,000 training images validate.

    ``batch_size`` counts images a rank; ``num_workers`` is the DataLoader's. Images are uint8 until they are on the
    device, and there float32 in 0..1. A process that has read a folder keeps it.
    Raises: ImagesMissingError at once where a file is missing; in ``setup`` where one is damaged.
    """

    title: ClassVar[str]
    source: ClassVar[str]

    def __init__(self, root: str | os.PathLike[str], batch_size: int = 128, num_workers: int = 0) -> None:
        super().__init__(batch_size, num_workers)
        self.root = Path(root).expanduser().absolute()
        for train in (True, False):
            self.find(self.root, train)

    @classmethod
    @abstractmethod
    def find(cls, root: Path, train: bool) -> list[Path]:
        """Return the files of the training or the test set. Raises: ImagesMissingError."""

    @classmethod
    @abstractmethod
    def read(cls, files: Sequence[Path]) -> Images:
        """Return images of shape [N, C, H, W] and labels of shape [N] from files."""

    @classmethod
    def missing(cls, root: Path, wanted: str) -> ImagesMissingError:
        """Return the error for a file that is not in a folder."""
        return ImagesMissingError(
            f"{cls.title} is not in {root}: there is no {wanted}. Fetch it from {cls.source} and unpack it there, or "
            "name the folder that it lies in on every node: data.root."
        )

    def setup(self, stage: str | None = None) -> None:
        """Read the images, or take those that this process has already."""
        images, labels = _read(self.read, tuple(self.find(self.root, True)))
        kept = min(_VALIDATION, len(labels) // 10)
        self.train = TensorDataset(images[:-kept], labels[:-kept])
        self.val = TensorDataset(images[-kept:], labels[-kept:])
        self.test = TensorDataset(*_read(self.read, tuple(self.find(self.root, False))))

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Turn a batch's images into numbers in 0..1."""
        images, labels = batch
        return images.float().div(255), labels


@functools.lru_cache(maxsize=4)
def _read(read: Callable[[Sequence[Path]], Images], files: tuple[Path, ...]) -> tuple[Tensor, Tensor]:
    try:
        images, labels = read(files)
    except (OSError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ImagesMissingError(
            f"The images in {files[0].parent} cannot be read: {error}. Fetch and unpack them again."
        ) from error
    return torch.from_numpy(np.array(images)), torch.from_numpy(labels)  # a copy: what was read cannot be written to


class MnistData(LocalImages):
    """Serve MNIST, 28 x 28, from its four IDX files, packed or not, in ``root`` or in MNIST/raw below it."""

    title = "MNIST"
    source = "https://ossci-datasets.s3.amazonaws.com/mnist/"

    @classmethod
    def find(cls, root: Path, train: bool) -> list[Path]:
        """Return the files with images and labels. Raises: ImagesMissingError."""
        part = "train" if train else "t10k"
        found = []
        for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
            places = [folder / f"{name}{end}" for folder in (root, root / "MNIST" / "raw") for end in ("", ".gz")]
            path = next((path for path in places if path.is_file()), None)
            if path is None:
                raise cls.missing(root, f"{name} (or {name}.gz)")
            found.append(path)
        return found

    @classmethod
    def read(cls, files: Sequence[Path]) -> Images:
        """Return the images, shape [N, 1, 28, 28], and their labels."""
        images, labels = map(_idx, files)
        if len(images) != len(labels):
            raise ValueError(f"{files[0].name} holds {len(images)} images, and {files[1].name} {len(labels)} labels")
        return images[:, None], labels.astype(np.int64)


def _idx(path: Path) -> NDArray[np.uint8]:
    """Return the bytes of an IDX file in their shape: a magic number, the sizes (big-endian), the bytes."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if data[:3] != b"\0\0\x08":
        raise ValueError(f"{path.name} is no IDX file of bytes")
    shape = np.frombuffer(data, ">u4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


class Cifar10Data(LocalImages):
    """Serve CIFAR-10, 32 x 32 in colour, in its Python version, from ``root`` or cifar-10-batches-py below it."""

    title = "CIFAR-10"
    source = "https://www.cs.toronto.edu/~kriz/cifar.html"

    @classmethod
    def find(cls, root: Path, train: bool) -> list[Path]:
        """Return the files of batches. Raises: ImagesMissingError."""
        names = [f"data_batch_{number}" for number in range(1, 6)] if train else ["test_batch"]
        for folder in (root, root / "cifar-10-batches-py"):
            files = [folder / name for name in names]
            if all(path.is_file() for path in files):
                return files
        raise cls.missing(root, names[0])

    @classmethod
    def read(cls, files: Sequence[Path]) -> Images:
        """Return the images, shape [N, 3, 32, 32], and their labels."""
        images, labels = (np.concatenate(part) for part in zip(*map(_pickled, files), strict=True))
        return images.reshape(-1, 3, 32, 32), labels.astype(np.int64)


class _OnlyArrays(pickle.Unpickler):
    """Unpickles what a batch holds, a dict with an array and a list, and nothing that could run code."""

    _allowed = frozenset(
        (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
    ) | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which no batch of images does")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _pickled(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return images and labels of a batch of the Python version."""
    batch = _OnlyArrays(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    return batch[b"data"], np.asarray(batch[b"labels"])


__all__ = [
    "Cifar10Data",
    "ImageMLP",
    "ImagesMissingError",
    "MnistData",
    "VisionTransformer",
]
