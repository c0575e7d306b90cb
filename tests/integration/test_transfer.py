"""A model through Ray's object store and its weights back: how often they are copied, and whose they are then."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tunelight.lightning.transfer import Packed, copy_into, pack, pack_state, unpack, unpack_view

MB = 2**20


def model_of_64_mb() -> Any:
    return torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(4)))


def stored_mb() -> int:
    """Return what the object store holds now; resources say so only some time later."""
    import ray
    from ray._private.internal_api import memory_summary

    said = memory_summary(ray.get_runtime_context().gcs_address, stats_only=True)
    found = re.search(r"Plasma memory usage (\d+) MiB", said)
    assert found is not None
    return int(found[1])


def train(packed: Packed) -> tuple[float, bool, int]:
    """Change the model that came; return its sum, whether the store's copy was changed too, and the MB it took."""
    import psutil

    torch.zeros(1).add_(1)
    before = psutil.Process().memory_full_info().uss
    model = unpack(packed)
    grown = psutil.Process().memory_full_info().uss - before
    model(torch.ones(1, 2048)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(2.0)
    changed = any(bool((buffer != 0).any()) for buffer in packed.storages)
    return float(model[0].weight.sum()), changed, round(grown / MB)


def trained(packed: Packed) -> Packed:
    model = unpack(packed)
    for number, layer in enumerate(model):
        torch.nn.init.constant_(layer.weight, number)
    return pack_state(model.state_dict())


@pytest.fixture
def model() -> Any:
    model = model_of_64_mb()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return model


def test_a_model_lies_once_in_the_object_store(ray4: Any, model: Any) -> None:
    before = stored_mb()
    ref = ray4.put(pack(model))
    assert 64 <= stored_mb() - before <= 68
    del ref


@pytest.mark.slow
def test_each_worker_has_weights_of_its_own_after_one_copy(ray4: Any, model: Any) -> None:
    task = ray4.remote(train)
    ref = ray4.put(pack(model))
    before = stored_mb()
    for total, changed, grown in ray4.get([task.remote(ref) for _ in range(2)]):
        assert total == 2.0 * 2048 * 2048
        assert not changed
        assert 60 <= grown <= 90
    assert stored_mb() - before < 4
    assert all(bool((parameter == 0).all()) for parameter in model.parameters())


def test_weights_come_back_from_the_object_store_into_the_model(ray4: Any, model: Any) -> None:
    parameters = list(model.parameters())
    came: Packed = ray4.get(ray4.remote(trained).remote(ray4.put(pack(model))))
    state = unpack_view(came)
    assert not came.storages[0].flags.writeable
    assert state["0.weight"].data_ptr() == came.storages[0].ctypes.data
    copy_into(model, state)
    assert all(mine is now for mine, now in zip(parameters, model.parameters(), strict=True))
    assert [layer.weight.mean().item() for layer in model] == [0.0, 1.0, 2.0, 3.0]


def test_arrays_of_a_data_module_can_be_written_on_the_worker(ray4: Any) -> None:
    import numpy as np

    def scale(packed: Packed) -> float:
        data = unpack(packed)
        data["inputs"] *= 2
        return float(data["inputs"].sum())

    assert ray4.get(ray4.remote(scale).remote(pack({"inputs": np.ones(MB)}))) == 2 * MB
