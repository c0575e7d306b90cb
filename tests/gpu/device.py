"""What the GPU tests run on: a GPU, or CPUs so that the tests themselves are tried where there is none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

VARIABLE = "TUNELIGHT_GPU_TESTS"


def on_cpus() -> bool:
    """Tell whether the tests are to run without a GPU. Raises: ValueError for a value that means nothing."""
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "cpu"):
        raise ValueError(f'{VARIABLE} must be "cpu" or not set, not {asked!r}.')
    return bool(asked)


def gpus() -> int:
    """Return how many CUDA devices torch sees, without making a context on one."""
    import torch

    return torch.cuda.device_count()


@dataclass(frozen=True)
class Device:
    """What trials train on. ``kind``: "cuda" or "cpu"."""

    kind: str

    @property
    def is_gpu(self) -> bool:
        """Whether trials train on GPUs."""
        return self.kind == "cuda"

    def each(self, share: float = 1) -> dict[str, Any]:
        """Return the settings of a sweep whose workers have ``share`` of a GPU each."""
        return {"gpus_per_worker": share} if self.is_gpu else {}

    def number(self, on_gpu: int, on_cpus: int) -> int:
        """Return how much a test does: on CPUs only enough to run all of its lines."""
        return on_gpu if self.is_gpu else on_cpus
