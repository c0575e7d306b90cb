"""What goes to the workers and comes back: how often it is copied, whose it is then, and what arrives of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import ray
import torch

from tests.integration.test_strategies import Small, data, trainer
from tests.unit.lightning.state.test_changes import Proxy
from tunelight import errors
from tunelight.gang.parcel import Packed, pack, unpack

MB = 2**20


def stored_mb() -> int:
    """Return what the object store holds now; resources say so only some time later."""
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


@pytest.fixture
def model() -> Any:
    """Return a model of 64 MB."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(4)))
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


@pytest.mark.usefixtures("warm_gangs")
def test_what_cannot_be_unpickled_is_named_before_training_and_costs_no_metric_after_it() -> None:
    class Wrapping(Small):
        def on_train_start(self) -> None:
            self.proxy = Proxy([1])

    one = trainer()
    with pytest.warns(UserWarning, match=r"model\.proxy \(RecursionError"):
        one.fit(model := Wrapping(), data())
    assert one.state.finished
    assert "loss" in one.callback_metrics
    model.layer.proxy = Proxy([1])  # type: ignore[assignment]  # what a user might do
    with pytest.raises(errors.TrainFunctionError, match=r"model\.layer\.proxy cannot be sent to the workers"):
        one.fit(model, data())


@pytest.mark.usefixtures("warm_gangs")
def test_a_model_reads_what_is_in_the_object_store(ray4: Any) -> None:
    class Reading(Small):
        reference: Any

        def on_train_start(self) -> None:
            self.read = ray.get(self.reference, timeout=30)

    model = Reading()
    model.reference = ray.put([1, 2])
    trainer().fit(model, data())
    assert model.read == [1, 2]
