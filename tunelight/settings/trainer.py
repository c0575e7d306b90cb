"""Arguments of Lightning's Trainer that a sweep sets itself: strategy, accelerator and devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunelight.compat.registry import NAMES
from tunelight.errors import SettingsError
from tunelight.settings.backends import BACKENDS

_ON_CPUS = ("auto", "cpu")
_ON_GPUS = (*_ON_CPUS, "gpu", "cuda")


def check_trainer_argument(
    name: str,
    value: Any,
    *,
    workers: int | tuple[int, int] | None,
    gpus_per_worker: float,
    resources_per_trial: Mapping[str, Any] | None,
) -> None:
    """Raise SettingsError for a Trainer argument that contradicts the sweep's workers."""
    words = resources_per_trial or {}
    gpus = bool(gpus_per_worker or words.get("extra_gpu"))
    alone = workers in (None, 1) and not (words.get("extra_cpu") or words.get("extra_gpu"))
    if name == "strategy" and not (_is_ours(value) or (alone and not isinstance(value, str))):
        text = value if isinstance(value, str) else type(value).__name__
        replacing = (name for name, one in BACKENDS.items() if text.lower().startswith(one.replaces))
        backend = next(replacing, "ddp")
        raise SettingsError(
            f"The Trainer gets strategy={value!r}, but the Trainer of a sweep with model= trains on its trial's "
            f"workers. Leave it out, and say backend={backend!r}; for arguments of a strategy give one of tunelight's, "
            "tl.RayStrategy(find_unused_parameters=True) for example, in a file ray_find_unused_parameters_true."
        )
    if name == "accelerator" and isinstance(value, str) and value.lower() not in (_ON_GPUS if gpus else _ON_CPUS):
        if value.lower() == "mps":
            if alone and not gpus:
                return  # an Apple GPU, which Ray does not count
            wanted = "an Apple GPU trains one worker alone. Say workers=1, or leave it out: more workers train on CPUs"
        elif value.lower() in _ON_GPUS:
            wanted = "no worker holds a GPU. Say gpus_per_worker=1, and leave the accelerator out"
        else:
            wanted = "workers train on CPUs, or with gpus_per_worker=1 on GPUs. Leave it out"
        raise SettingsError(f"The Trainer gets accelerator={value!r}, but {wanted}.")
    if name in ("devices", "num_nodes") and value not in (1, "1", -1, "-1", "auto"):
        raise SettingsError(
            f"The Trainer gets {name}={value!r}, but each worker of a trial is one process with a device of its own. "
            "Leave it out, and say workers=, the number of workers that train one trial."
        )


def _is_ours(value: Any) -> bool:
    if isinstance(value, str):
        return value in NAMES
    if isinstance(value, Mapping):
        return str(value.get("class_path")).rpartition(".")[2] in {one.strategy_name for one in BACKENDS.values()}
    return any(base.__module__.startswith("tunelight.lightning.strategies") for base in type(value).__mro__)
