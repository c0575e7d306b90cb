"""CIFAR-10's images as Parquet."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from tunelight.extras.zoo import Cifar10Data, ImagesMissingError, find_parquet, read_parquet, write_parquet

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 3, 32, 32), np.uint8)
LABELS = np.arange(20) % 10


def picture(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(stream, "PNG")
    return stream.getvalue()


LAYOUTS = {
    "flat lists": lambda: pa.array(PIXELS.reshape(20, -1).tolist(), pa.list_(pa.uint8())),
    "nested lists": lambda: pa.array(PIXELS.transpose(0, 2, 3, 1).tolist()),
    "nested lists by colour": lambda: pa.array(PIXELS.tolist()),
    "tensors by colour": lambda: pa.FixedShapeTensorArray.from_numpy_ndarray(PIXELS),
    "pictures": lambda: pa.array([{"bytes": picture(one), "path": None} for one in PIXELS]),
    "bare pictures": lambda: pa.array([picture(one) for one in PIXELS]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_are_read_in_every_layout(tmp_path, layout):
    parquet.write_table(pa.table({"img": LAYOUTS[layout](), "label": LABELS}), tmp_path / "a.parquet")
    images, labels = read_parquet([tmp_path / "a.parquet", tmp_path / "a.parquet"])
    assert np.array_equal(images, np.concatenate([PIXELS, PIXELS]))
    assert images.dtype == np.uint8
    assert labels.tolist() == [*LABELS, *LABELS]


def test_ray_data_s_tensors_are_read_without_ray_data(tmp_path):
    flat = pa.array(PIXELS.transpose(0, 2, 3, 1).reshape(20, -1).tolist(), pa.list_(pa.uint8()))
    told = {"ARROW:extension:name": "ray.data.arrow_tensor_v2", "ARROW:extension:metadata": "[32, 32, 3]"}
    schema = pa.schema([pa.field("image", flat.type, metadata=told), pa.field("label", pa.int64())])
    parquet.write_table(pa.table([flat, pa.array(LABELS)], schema=schema), tmp_path / "a.parquet")
    assert np.array_equal(read_parquet([tmp_path / "a.parquet"])[0], PIXELS)


def test_what_is_written_is_read(tmp_path):
    write_parquet(tmp_path / "a.parquet", PIXELS, LABELS)
    images, labels = read_parquet([tmp_path / "a.parquet"])
    assert np.array_equal(images, PIXELS)
    assert labels.tolist() == LABELS.tolist()
    assert parquet.read_schema(tmp_path / "a.parquet").field("image").type.shape == [32, 32, 3]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"picture": [1], "label": [1]}, "a.parquet has no column image or img, but picture, label"),
        ({"image": [[1, 2]], "label": [1]}, "and no images of 32 x 32 pixels"),
        ({"image": [[300] * 3072], "label": [1]}, "and no images of 32 x 32 pixels"),
        ({"image": [[0.5] * 3072], "label": [1]}, "and no images of 32 x 32 pixels"),
        ({"image": ["a"], "label": [1]}, "and no images of 32 x 32 pixels"),
    ],
)
def test_other_contents_are_told(tmp_path, columns, message):
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        read_parquet([tmp_path / "a.parquet"])


@pytest.mark.parametrize("places", [("train.parquet", "test.parquet"), ("train/0.parquet", "test/0.parquet"),
                                    ("plain_text/train-0.parquet", "plain_text/test-0.parquet")])  # fmt: skip
def test_cifar_is_served_from_parquet(tmp_path, places):
    for place in places:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        write_parquet(tmp_path / place, PIXELS, LABELS)
    data = Cifar10Data(tmp_path, batch_size=2)
    data.setup()
    assert (len(data.train), len(data.val), len(data.test)) == (18, 2, 20)
    x, y = data.on_after_batch_transfer(next(iter(data.val_dataloader())), 0)
    assert torch.equal(x, torch.from_numpy(PIXELS[18:]).float() / 255)
    assert y.tolist() == [8, 9]
    assert find_parquet(tmp_path / "train.parquet", "test") or "train.parquet" not in places


def test_parquet_without_a_test_set_or_damaged_is_told(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"nothing")
    with pytest.raises(ImagesMissingError, match=r"or test\*.parquet"):
        Cifar10Data(tmp_path)
    (tmp_path / "test.parquet").write_bytes(b"nothing")
    with pytest.raises(ImagesMissingError, match=r"cannot be read.*Fetch and unpack"):
        Cifar10Data(tmp_path / "train.parquet").setup()
