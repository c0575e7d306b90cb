"""How the workers of a gang train as one: the table of backends. A new one is a row here, and the classes it names."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any, Final, Literal

from tunelight.errors import SettingsError, refuse_unknown

Backend = Literal["ddp", "horovod", "sharded"]
"""The names of the table, for type checkers and editors."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """One backend. Classes are import paths, so that the table costs no import of torch or Lightning.

    Args:
        strategy: the Lightning strategy, "module:Class".
        group: the class that connects a gang's ranks, a `tunelight.gang.meeting` group.
        collectives: what ``group`` is chosen by (None: by what the workers hold, as torch's "nccl" or "gloo").
        replaces: beginnings of the names of Lightning's own strategies that it does the work of.
        requires: a module that has to be installed.
        how_to_get: how to install it.
        if_lost: what to add to the error where a worker dies while the ranks connect.
    """

    strategy: str
    group: str = "tunelight.gang.meeting.torch_group:TorchGroup"
    collectives: str | None = None
    replaces: tuple[str, ...] = ()
    requires: str | None = None
    how_to_get: str = ""
    if_lost: str = ""

    @property
    def strategy_name(self) -> str:
        """The name of the strategy's class, by which the package ``tunelight`` has it too."""
        return self.strategy.rpartition(":")[2]

    @classmethod
    def of_collectives(cls, name: str) -> BackendInfo:
        """Return the first backend whose ranks connect by these collectives: "nccl" and "gloo" are "ddp"'s."""
        return next((backend for backend in BACKENDS.values() if backend.collectives == name), BACKENDS["ddp"])

    def load_group(self) -> Any:
        """Import the group's class."""
        return resolve_name(self.group)

    def load_strategy(self) -> Any:
        """Import the strategy's class."""
        return resolve_name(self.strategy)


BACKENDS: Final[dict[str, BackendInfo]] = {
    "ddp": BackendInfo("tunelight.lightning.strategies.training:RayStrategy"),
    "horovod": BackendInfo(
        "tunelight.extras.horovod.strategy:HorovodRayStrategy",
        group="tunelight.extras.horovod.group:HorovodGroup",
        collectives="horovod",
        replaces=("horovod",),
        requires="horovod",
        how_to_get="Horovod is not installed. In tunelight's repository, `make horovod` builds it; elsewhere, see "
        "CONTRIBUTING.md: it builds from source with a C++17 compiler and cmake, for PyTorch with gloo.",
        if_lost="\nHorovod ends the process of a rank that cannot connect to the others. What it said is at the end "
        "of that worker's .err file, in the logs of Ray's session on that node.",
    ),
    "sharded": BackendInfo(
        "tunelight.extras.sharded:RayShardedStrategy",
        replaces=("fsdp", "deepspeed", "model_parallel"),
    ),
}
"""The backends, by name; the first is the default."""


def check_backend(name: str, value: Any) -> str:
    """Return a backend's name; ``name`` is the setting's. Raises: SettingsError for an unknown or a missing one."""
    refuse_unknown(f"There is no {name}", [value], BACKENDS)
    backend = BACKENDS[value]
    if backend.requires is not None and find_spec(backend.requires) is None:
        raise SettingsError(f"{name}={value!r}: {backend.how_to_get}")
    return str(value)
