"""Which strategy and which accelerator the Trainer of a model= sweep gets."""

from __future__ import annotations

from typing import Any

import pytest

from tunelight.compat.lightning import pl
from tunelight.lightning.recipe import with_device


@pytest.mark.parametrize(
    ("given", "on_gpu", "expected"),
    [
        ({}, False, {"strategy": "ours", "accelerator": "cpu"}),
        ({}, True, {"strategy": "ours"}),
        ({"accelerator": "auto"}, False, {"strategy": "ours", "accelerator": "cpu"}),
        ({"accelerator": "gpu"}, True, {"strategy": "ours", "accelerator": "gpu"}),
        ({"accelerator": "mps"}, False, {"strategy": "auto", "accelerator": "mps"}),
        ({"strategy": "another"}, False, {"strategy": "another"}),
    ],
)
def test_a_worker_s_device_decides(given: dict[str, Any], on_gpu: bool, expected: dict[str, Any]) -> None:
    assert with_device(given, lambda: "ours", on_gpu=on_gpu) == expected


@pytest.mark.filterwarnings("ignore:GPU available but not used")
def test_where_lightning_sees_an_apple_gpu_a_sweep_trains_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning refuses its DDP family wherever it would choose MPS by itself."""
    seen = f"{pl.accelerators.MPSAccelerator.__module__}.MPSAccelerator.is_available"
    monkeypatch.setattr(seen, staticmethod(lambda: True))
    ddp = pl.strategies.DDPStrategy
    with pytest.raises(ValueError, match="MPS"):
        pl.Trainer(strategy=ddp(), logger=False)
    args = with_device({"logger": False}, ddp, on_gpu=False)
    assert type(pl.Trainer(**args).accelerator).__name__ == "CPUAccelerator"
