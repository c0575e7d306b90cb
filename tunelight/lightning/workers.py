"""Workers: the gang that a strategy asks for on a driver, by the strategy's arguments."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from tunelight.errors import SettingsError
from tunelight.policies import FailurePolicy
from tunelight.settings import check_setting

IDLE_TIMEOUT_S = 300.0
"""How long a driver's gang stays warm after its last job."""


@dataclass(frozen=True)
class Workers:
    """The gang that a driver's strategy asks for.

    Args:
        number: how many workers. least: the smallest size of an elastic gang; None: it has a fixed size.
        cpus, gpus, resources: what each worker reserves.
        init_hook: called on each worker before the gang first meets.
        idle_timeout_s: seconds for which idle workers are kept.
        hosts: how many nodes the workers are spread over, evenly; None: Ray places them.
        failures: what a job survives.

    Raises: SettingsError.
    """

    number: int = 1
    cpus: float = 1
    gpus: float = 0
    resources: Mapping[str, float] | None = None
    init_hook: Callable[[], object] | None = None
    idle_timeout_s: float = IDLE_TIMEOUT_S
    hosts: int | None = None
    least: int | None = None
    failures: FailurePolicy = field(default_factory=FailurePolicy)

    def __post_init__(self) -> None:
        if self.least is not None and self.hosts is not None:
            raise SettingsError(
                f"num_workers=({self.least}, {self.number}) is an elastic gang, and num_hosts={self.hosts} a fixed "
                "one. Leave num_hosts and num_slots out, or say one number."
            )
        for name, value in (("num_workers", self.number), ("num_hosts", self.hosts)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise SettingsError(f"{name} must be a whole number, 1 or more, not {value!r}.")
        if self.init_hook is not None and not callable(self.init_hook):
            raise SettingsError(f"init_hook must be a function without arguments, not {self.init_hook!r}.")


NumWorkers = int | tuple[int, int] | None
Failures = FailurePolicy | Mapping[str, Any] | int | None


def workers(
    num_workers: NumWorkers,
    num_cpus_per_worker: float,
    use_gpu: bool,
    init_hook: Callable[[], object] | None,
    resources_per_worker: Mapping[str, float] | None,
    *,
    idle_timeout_s: float,
    failures: Failures,
    hosts: int | None = None,
) -> Workers:
    """Return a driver's gang; CPU and GPU in ``resources_per_worker`` override the rest. Raises: SettingsError."""
    custom = dict(resources_per_worker or {})
    amounts = {"num_cpus_per_worker": num_cpus_per_worker}
    amounts |= {f"resources_per_worker[{name!r}]": amount for name, amount in custom.items()}
    for name, amount in amounts.items():
        if isinstance(amount, bool) or not isinstance(amount, Real) or not amount >= 0:
            raise SettingsError(f"{name} must be a number, 0 or more, not {amount!r}.")
    cpus = custom.pop("CPU", num_cpus_per_worker)
    gpus = custom.pop("GPU", 1 if use_gpu else 0)
    if 0 < gpus < 1:
        warnings.warn(
            f"{gpus:g} GPU for each worker lets several share one, which NCCL cannot do: they meet by gloo, which is "
            "slower between GPUs.",
            stacklevel=4,
        )
    least, number = None, _bundles_here() or 1 if num_workers is None else num_workers
    if isinstance(number, tuple | list):
        least, number = check_setting("workers", number)
    policy = FailurePolicy() if failures is None else check_setting("failures", failures)
    return Workers(number, cpus, gpus, custom, init_hook, idle_timeout_s, hosts, least, policy)


def _bundles_here() -> int | None:
    """Return how many workers this process's placement group has bundles for; None outside of one."""
    if "ray" not in sys.modules:
        return None  # then this process is not Ray's
    from tunelight.gang.placement import current_group  # it imports Ray

    group = current_group()
    if group is None:
        return None
    bundles = group.bundle_specs
    # get_tune_resources makes equal bundles, and another one before them for a head that holds something
    return len(bundles) - (len(bundles) > 1 and bundles[0] != bundles[1])
