"""examples/vit_cifar10.py: the split of its batches, what its model is, and its command line."""

from __future__ import annotations

import argparse
import re
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests import flavours

EXAMPLE = Path(__file__).parents[2] / "examples" / "vit_cifar10.py"


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Any:
    program = tmp_path_factory.mktemp("program") / EXAMPLE.name
    program.write_text(flavours.written(EXAMPLE.read_text()))
    return SimpleNamespace(**runpy.run_path(str(program)))


@pytest.fixture(scope="module")
def images(vit: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = vit.generate_cifar10(tmp_path_factory.mktemp("images") / "generated", train=320, test=10)
    return made


def job(vit: Any, images: Path, **settings: Any) -> Any:
    return vit.Job(replace(vit.SIZES["tiny"], **settings), images, images.parent / "runs")


def test_the_full_model_is_the_tutorial_s_and_both_map_images_to_ten_classes(vit, images):
    sizes = {}
    for name, size in vit.SIZES.items():
        model = vit.Job(size, images, images).model()
        sizes[name] = sum(parameter.numel() for parameter in model.parameters())
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    # A layer: 4 x 384 x 385 for attention, 384 x 768 twice with biases 1,152, two norms of 768. Around them:
    # patches 49 x 384, their 64 places, a norm, the classes 385 x 10.
    layer = 4 * 384 * 385 + 2 * 384 * 768 + 1152 + 2 * 768
    assert sizes["full"] == 12 * layer + 49 * 384 + 64 * 384 + 768 + 3850
    assert sizes["tiny"] < sizes["full"] / 200
    assert vit.SIZES["full"].batch == 512


def test_generated_images_are_left_alone_and_the_same_each_time(vit, images, tmp_path):
    assert vit.generate_cifar10(images, train=10, test=10) == images
    assert not list(images.parent.glob("generated.*"))
    again = vit.generate_cifar10(tmp_path / "again", train=320, test=10)
    assert (again / "train" / "images.parquet").read_bytes() == (images / "train" / "images.parquet").read_bytes()


def test_a_configuration_reaches_the_model_and_its_first_weights_do_not_change(vit, images):
    one, other = job(vit, images).model(), job(vit, images).model(lr=0.5, weight_decay=0.25)
    optimizer = other.configure_optimizers()
    assert isinstance(optimizer, torch.optim.AdamW)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]) == (0.5, 0.25)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_batch_is_split_evenly_or_not_at_all(vit):
    assert [vit.share(512, workers) for workers in (1, 2, 8)] == [512, 256, 64]
    with pytest.raises(ValueError, match="A batch of 512 images cannot be split evenly over 3 workers"):
        vit.share(512, 3)


def images_by_step(vit: Any, images: Path, workers: int, epoch: int = 0) -> list[torch.Tensor]:
    """Return the sorted pixel sums of each step's images, over all ranks."""
    ranks = []
    for rank in range(workers):
        data = job(vit, images, batch=64).data(workers)
        data.setup()
        data.trainer = SimpleNamespace(world_size=workers, global_rank=rank)
        loader = data.train_dataloader()
        loader.sampler.set_epoch(epoch)
        ranks.append([batch[0].long().sum(dim=(1, 2, 3)) for batch in loader])
    return [torch.cat(step).sort().values for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("workers", [2, 4])
def test_a_step_has_the_same_images_whatever_the_number_of_workers(vit, images, workers):
    alone, together = images_by_step(vit, images, 1), images_by_step(vit, images, workers)
    assert [len(step) for step in alone] == [64, 64, 64, 64, 32]
    assert all(torch.equal(*steps) for steps in zip(alone, together, strict=True))
    assert not torch.equal(alone[0], images_by_step(vit, images, 1, epoch=1)[0])


def test_ray_data_s_tasks_prepare_images_as_the_data_module_does(vit, images):
    data = job(vit, images).data(1)
    data.setup()
    pixels, labels = data.val.tensors
    expected, _ = data.on_after_batch_transfer((pixels, labels), 0)
    came = vit.prepared({"image": pixels.numpy().transpose(0, 2, 3, 1), "label": labels.numpy()})
    assert came["image"].dtype == np.float32
    assert torch.allclose(torch.from_numpy(came["image"]), expected, atol=1e-6)
    assert came["label"].tolist() == labels.tolist()


def test_steps_are_named_by_their_numbers(vit):
    assert vit.steps("1,2,4") == [1, 2, 4]
    for wrong in ("5", "1,,2", "one"):
        with pytest.raises(argparse.ArgumentTypeError, match="there are 1, 2, 3 and 4"):
            vit.steps(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "3"], "cannot be split evenly over 3 workers"),
        (["--data", "absent"], "CIFAR-10 is not in .*absent"),
        (["--steps", "7"], "there is no step '7'"),
    ],
)
def test_what_cannot_be_done_is_told_before_ray_starts(vit, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit):
        vit.main([*arguments, "--size", "tiny", "--storage", str(tmp_path / "runs")])
    assert re.search(message, capsys.readouterr().err)
