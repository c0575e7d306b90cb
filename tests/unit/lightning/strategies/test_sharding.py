"""What of a model is gathered on its own, and that Transformers train sharded, with tied weights too."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.transformers import TRANSFORMERS, Transformer, texts
from tunelight.compat.lightning import pl
from tunelight.compat.torch import fully_shard
from tunelight.extras.sharded import blocks, shard, unreduced


def test_elements_of_containers_are_blocks_the_deepest_first() -> None:
    inner = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 1))
    model = nn.Module()
    model.layers = nn.ModuleList([inner, nn.Linear(10, 10)])
    other = nn.Sequential(nn.Linear(10, 12))
    model.named = nn.ModuleDict({"other": other})
    model.whole = nn.Linear(20, 20)
    assert blocks(model, 100) == [inner[0], other[0]]
    assert blocks(model, 115) == [inner, other[0]]
    assert blocks(model, 1000) == []
    layer = nn.Sequential(nn.Linear(10, 10), nn.ReLU())
    assert blocks(nn.ModuleList([layer] * 3), 100) == [layer[0]], "a module that a list has several times is one"


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Make a process group of one, and return its device mesh."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def losses(model: Transformer) -> list[float]:
    """Train for three steps; return their losses, and that of an evaluation, for which torch has other code."""
    model.log = lambda *_, **__: None  # type: ignore[method-assign]  # it has no Trainer
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    (words,) = next(iter(texts()))
    found = []
    for step in range(3):
        torch.manual_seed(step)  # for dropout
        loss = model.training_step((words,), step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    with torch.no_grad():
        model.eval().validation_step((words,), 0)
        return [*found, model.loss(words).item()]


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_a_sharded_transformer_learns_what_a_plain_one_does(kind: type[Transformer], mesh: Any) -> None:
    plain = kind()
    sharded = copy.deepcopy(plain)
    shard(sharded, mesh, 100)
    assert losses(sharded) == pytest.approx(losses(plain), abs=1e-5)


@pytest.fixture
def grid() -> Iterator[Any]:
    """Return the mesh of two times two ranks, of which this process is the first, and the others do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("data_parallel", "tensor_parallel"))
    dist.destroy_process_group()


def test_what_would_be_trained_on_each_rank_alone_is_named(grid: Any) -> None:
    mesh, other = grid["data_parallel"], grid["tensor_parallel"]
    model: Any = pl.LightningModule()
    model.first, model.second, model.scale = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.ones(4))
    fully_shard(model.first, mesh=other)  # whose ranks are those of one copy
    fully_shard(model, mesh=mesh)
    shard(model, mesh, 1)
    model.late = nn.Linear(4, 1)
    assert sorted(unreduced(model, mesh)) == ["first.bias", "first.weight", "late.bias", "late.weight"]
    model.late.requires_grad_(False)
    assert sorted(unreduced(model, mesh)) == ["first.bias", "first.weight"]
