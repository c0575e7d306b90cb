"""GangStrategy: the base of tunelight's strategies, on a rank of a gang and on a driver.

A strategy that is made on a worker of a gang joins that gang. One that is made in any other process belongs to a
driver: its launcher takes a gang, a warm one if there is one, and sends the Trainer there. Copying or unpickling a
strategy makes a new one from the same arguments, which finds out by itself where it is.
"""

from __future__ import annotations

import contextlib
import copy
import io
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, SupportsIndex

import torch

from tunelight.compat.lightning import (
    FABRIC,
    HOW_TO_CHOOSE,
    Accelerator,
    AsyncCheckpointIO,
    CheckpointIO,
    ClusterEnvironment,
    CPUAccelerator,
    CUDAAccelerator,
    MixedPrecision,
    ParallelStrategy,
    Precision,
    TorchCheckpointIO,
    _WrappingCheckpointIO,
    know_rank,
    pl,
)
from tunelight.errors import SettingsError, StrategyError
from tunelight.lightning.exact.generators import capture, restore
from tunelight.lightning.launcher import GangLauncher
from tunelight.lightning.state.recovery import recovery_of
from tunelight.messages import Evaluation, Place
from tunelight.policies import FailurePolicy
from tunelight.session.session import Session, current
from tunelight.settings import check_setting

if TYPE_CHECKING:
    from tunelight.extras.standalone.driver import DriverLauncher


def _driver_launcher() -> type[DriverLauncher]:
    """Import the launcher of fits outside of a sweep, which imports Ray."""
    from tunelight.extras.standalone.driver import DriverLauncher

    return DriverLauncher


def _assigned(resource: str) -> float:
    from tunelight.gang.placement import assigned  # it imports Ray

    return assigned().get(resource, 0)


class GangStrategy(ParallelStrategy):
    """The part of a strategy that deals with gangs; a base class to put before one of Lightning's strategies."""

    _of_tunelight: ClassVar = True
    backend: ClassVar[str]
    """How the gang of such a strategy communicates."""
    _of_process: ClassVar[frozenset[str]] = frozenset(
        {"_given", "_session", "_launcher", "workers", "_model", "_accelerator", "gathered"}
        | {"cluster_environment", "_parallel_devices", "_lightning_optimizers"}
    )
    """Attributes that belong to the process that a strategy is in; the others are sent to the ranks."""
    _given: tuple[tuple[Any, ...], dict[str, Any]]
    evaluation: Evaluation | None
    """How evaluation is divided, if this strategy was given it."""
    _session: Session | None = None
    gathered: Sequence[weakref.ref[torch.Tensor]] = ()
    """Tensors that were made for the next checkpoint: it is written without another copy of them."""
    _launcher: GangLauncher | DriverLauncher | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep the arguments, also those of a subclass's ``__init__``: a strategy is copied by them."""
        strategy = super().__new__(cls)
        strategy._given = (args, kwargs)
        return strategy

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        """Copy and pickle the class and its arguments only: the rest belongs to its Trainer and its process."""
        args, kwargs = self._given
        return partial(type(self), *args, **kwargs), ()

    def __repr__(self) -> str:
        """Name the flavour where both are imported: Lightning's error for a strategy of the other one shows this."""
        text = f"tunelight.{type(self).__name__}"
        other = next(known for known in FABRIC if known != pl.__name__)
        if other not in sys.modules:
            return f"<{text}>"
        return (
            f"<{text} for {pl.__name__}; for a Trainer of {other}, choose that before you ask for it: {HOW_TO_CHOOSE}>"
        )

    def _settle(self, gang: tuple[Any, ...], evaluation: Evaluation | None, **more: Any) -> GangEnvironment:
        """Join the gang that this process is in, if any; return Lightning's view of the gang.

        ``gang``, ``more``: arguments for `workers`. Raises: SettingsError; StrategyError in a gang of another size or
        kind than this strategy's.
        """
        self.evaluation = check_setting("evaluation", evaluation)
        self._of_trainer: dict[str, Any] = {}
        session = current()
        if session is None:
            self.workers = workers(*gang, **more)
            return GangEnvironment(Place(0, self.workers.number, 0, 1, 0, "127.0.0.1"))
        name, context = type(self).__name__, session.context
        if context.backend != self.backend:
            raise StrategyError(
                f"{name} trains on gangs with backend={self.backend!r}, and this one has {context.backend!r}. Pass "
                f"backend={self.backend!r} to the sweep, or use the strategy for {context.backend!r}."
            )
        num_workers = gang[0]
        number = num_workers[-1] if isinstance(num_workers, tuple | list) else num_workers
        if number is not None and number != context.wanted:
            raise StrategyError(
                f"{name}(num_workers={num_workers}) runs in a gang of {context.wanted}: leave "
                "num_workers out, or make it equal to workers= of the sweep."
            )
        self._session = session
        return GangEnvironment(session.place)

    def _devices(self) -> list[torch.device] | None:
        """Return the devices of this rank's node, or of a driver's workers, for Lightning (None: it finds them)."""
        if self._session is not None:
            place = self._session.place
            number = place.world_size // self.num_nodes
            if place.gpu is None:
                return [self.root_device] * number
            of_node = [torch.device("cuda", index) for index in range(number)]
            of_node[place.local_rank] = self.root_device
            return of_node
        return None if self.workers.gpus else [torch.device("cpu")] * self.workers.number

    def _choose_accelerator(self) -> None:
        """Name the workers' GPUs to Lightning where it finds none. Called once Lightning's ``__init__`` is done.

        Not on a Mac: Lightning refuses to distribute training over its GPU, and takes ``accelerator="cpu"`` there.
        """
        if self.joined or not self.workers.gpus or CUDAAccelerator.is_available():
            return
        if not torch.backends.mps.is_available():
            self._accelerator = GpusOfWorkers()

    @property
    def joined(self) -> bool:
        """True on a rank of a gang, False on a driver."""
        return self._session is not None

    @property
    def num_workers(self) -> int:
        """Return the gang's size; for an elastic gang, its intended size."""
        return self.workers.number if self._session is None else self._session.context.wanted

    @property
    def num_cpus_per_worker(self) -> float:
        """Return how many CPUs each worker reserves."""
        return self.workers.cpus if self._session is None else _assigned("CPU")

    @property
    def num_gpus_per_worker(self) -> float:
        """Return how many GPUs each worker reserves."""
        return self.workers.gpus if self._session is None else _assigned("GPU")

    @property
    def use_gpu(self) -> bool:
        """Return whether workers train on GPUs."""
        return self.workers.gpus > 0 if self._session is None else self._session.context.gpu is not None

    # Lightning treats a strategy's accelerator, precision and checkpoint_io as the user's choice, and refuses or
    # overrides the arguments of the next Trainer. Those that a Trainer sets are kept apart, until the next Trainer.

    @property
    def accelerator(self) -> Accelerator | None:
        """Return the accelerator of this strategy's Trainer."""
        return self._of_trainer.get("accelerator")

    @accelerator.setter
    def accelerator(self, accelerator: Accelerator) -> None:
        self._of_trainer = {"accelerator": accelerator}  # every Trainer sets it, before anything else

    @property
    def precision_plugin(self) -> Precision:
        """Return the precision of this strategy's Trainer."""
        return self._of_trainer.get("precision") or self._precision_plugin or Precision()

    @precision_plugin.setter
    def precision_plugin(self, precision_plugin: Precision | None) -> None:
        if self._of_trainer:
            self._of_trainer["precision"] = precision_plugin
        else:  # set by Lightning's __init__, from its argument
            self._precision_plugin = precision_plugin

    @property
    def checkpoint_io(self) -> CheckpointIO:
        """Return what writes and reads the checkpoints of this strategy's Trainer."""
        found: CheckpointIO | None = self._of_trainer.get("checkpoint_io") or self._checkpoint_io
        if found is None:
            found = self._of_trainer["checkpoint_io"] = TorchCheckpointIO()
        elif isinstance(found, _WrappingCheckpointIO) and found.checkpoint_io is None:
            found.checkpoint_io = TorchCheckpointIO()
        return found

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._of_trainer["checkpoint_io"] = io

    # -- on a driver

    def for_ranks(self) -> dict[str, Any]:
        """Return the attributes that a rank's copy lacks, above all those set by the Trainer. Runs on: driver."""
        return {name: value for name, value in vars(self).items() if name not in self._of_process}

    def arrive(self, sent: Mapping[str, Any]) -> None:
        """Set the attributes that `for_ranks` returned on the driver. Runs on: worker."""
        assert self._session is not None  # it was unpickled on a rank
        vars(self).update(sent)
        plugin = self.precision_plugin
        if isinstance(plugin, MixedPrecision):
            plugin.device = self.root_device.type
            scaler = plugin.scaler
            if isinstance(self.accelerator, GpusOfWorkers) and type(scaler) is torch.amp.GradScaler:
                # One that is made where there is no GPU is off for ever.
                plugin.scaler = scaler if scaler.is_enabled() else torch.amp.GradScaler(plugin.device)
        self._of_trainer["accelerator"] = CPUAccelerator() if self._session.context.gpu is None else CUDAAccelerator()
        self._launcher = GangLauncher(self._session)

    def setup_environment(self) -> None:
        """Set up this rank's device. Raises: StrategyError if the strategy was copied with its Trainer."""
        if self._launcher is None:
            raise StrategyError(
                f"This {type(self).__name__} belongs to no Trainer: copied or pickled with a Trainer it was made anew. "
                "Make a new Trainer with it, in place of the copy."
            )
        with self._own_numbers():
            super().setup_environment()

    @contextlib.contextmanager
    def _own_numbers(self) -> Iterator[None]:
        """Keep Lightning from seeding anew inside a fit by the trial's seed: each such run would repeat the numbers."""
        session, module = self._session, self.lightning_module
        inner = session is not None and module is not None and session.within_fit(module.trainer)
        drawn = capture(self.root_device) if inner else {}
        yield
        if drawn and session is not None and session.seeds:
            restore(drawn, self.root_device)

    def teardown(self) -> None:
        """Release the model and this rank's device memory; without a Trainer there is nothing to release."""
        if self._of_trainer:
            super().teardown()

    def shutdown(self) -> None:
        """End this strategy's workers and free their resources; the next fit starts new ones. Runs on: driver."""
        if not self.joined and self._launcher is not None:
            self._driver.shutdown()

    def __enter__(self) -> GangStrategy:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def optimizer_states(self) -> list[dict[str, Any]]:
        """Return the optimizers' states of the last ``fit``, one dictionary each, fetched from the workers.

        Runs on: driver. Raises: StrategyError if there was no fit, or its workers have ended.
        """
        if self.joined:
            return [self.optimizer_state(optimizer) for optimizer in self.optimizers]
        return list(self._driver.training_state()["optimizer_states"])

    @property
    def _driver(self) -> DriverLauncher:
        if not isinstance(self._launcher, _driver_launcher()):
            raise StrategyError(f"{type(self).__name__} belongs to no Trainer yet: pass it as strategy= of one.")
        return self._launcher

    def _configure_launcher(self) -> None:
        if self._session is not None:
            self._launcher = GangLauncher(self._session)
            return
        launcher = _driver_launcher()
        if self.workers.gpus and torch.cuda.is_available() and isinstance(self.accelerator, CPUAccelerator):
            raise StrategyError(
                f"{type(self).__name__} reserves {self.workers.gpus:g} GPU for each worker, and "
                "Trainer(accelerator='cpu') would leave it unused. Leave accelerator out, or the GPU (use_gpu, "
                "resources_per_worker)."
            )
        self._launcher = launcher(self, self._launcher)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the model's state, with which Lightning begins a checkpoint, before it calls the user's hooks."""
        if self._session is not None:
            self._session.writing.calls_hooks()
        return super().lightning_module_state_dict()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint, in the background for a report; on a driver, with the workers' optimizer states."""
        if not self.joined and "optimizer_states" in checkpoint and not checkpoint["optimizer_states"]:
            checkpoint.update(self._driver.training_state(missing_ok=True))
        writing = self._session.writing if self._session is not None else None
        if (
            writing is not None
            and writing.writes(filepath)
            and not getattr(self, "_save_distributed_checkpoint", False)
        ):
            if self.is_global_zero:
                alive = [tensor for known in self.gathered if (tensor := known()) is not None]
                writing.defer(write_later(checkpoint, filepath, self.checkpoint_io, alive))
        elif self.joined:
            super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)
        else:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    # -- on a rank

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        """Make the optimizers; those of a fit that continues as they were made at its start."""
        recovery = recovery_of(trainer)
        with contextlib.nullcontext() if recovery is None else recovery.frozen_as_at_start(trainer.lightning_module):
            super().setup_optimizers(trainer)

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes, each with ``trainer.num_devices`` ranks; 1 where nodes have unequal numbers.

        Their product is always the gang's size, by which training code scales learning rates.
        """
        place = None if self._session is None else self._session.place
        even = place is not None and place.nodes * place.local_world_size == place.world_size
        return place.nodes if place is not None and even else 1

    @num_nodes.setter
    def num_nodes(self, number: int) -> None:
        """Do nothing: the gang's placement decides. Lightning sets it to the Trainer's argument."""

    @property
    def root_device(self) -> torch.device:
        """Return this rank's device: its GPU among those of its node's ranks, else the CPU."""
        if self._session is None or self._session.context.gpu is None:
            return torch.device("cpu")
        return torch.device("cuda", self._session.context.gpu)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return a sampler's arguments for sharding: the gang's size and this rank."""
        replicas, rank = self._shards()
        return {"num_replicas": replicas, "rank": rank}

    def _shards(self) -> tuple[int, int]:
        """Return the number of shards of the data, and the index of this rank's."""
        return self.world_size, self.global_rank

    def full_weights(self) -> Mapping[str, Any]:
        """Return the full model's weights and buffers by name. Called on every rank."""
        assert self.lightning_module is not None  # asked after a run
        return self.lightning_module.state_dict()

    def keep_optimizer_states(self) -> Callable[[], list[dict[str, Any]]]:
        """Return a function that returns the optimizers' states later; it is called on every rank."""
        states = [self.optimizer_state(optimizer) for optimizer in self.optimizers]
        return lambda: states


# --- Lightning's view of a gang, whose processes and ranks exist already, and of its GPUs ---------


class GangEnvironment(ClusterEnvironment):
    """Ranks and sizes of a gang. The setters do nothing: they are fixed."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        know_rank(place.rank)

    creates_processes_externally = True  # the workers run already
    main_address, main_port = "127.0.0.1", 0  # placeholders: the process group exists before Lightning starts

    @staticmethod
    def detect() -> bool:
        """Return False: the environment is passed to Lightning."""
        return False

    def world_size(self) -> int:
        """Return the gang's size."""
        return self._place.world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing."""

    def global_rank(self) -> int:
        """Return this worker's rank in the gang."""
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing."""

    def local_rank(self) -> int:
        """Return this worker's rank on its node."""
        return self._place.local_rank

    def node_rank(self) -> int:
        """Return the rank of this worker's node."""
        return self._place.node_rank


class GpusOfWorkers(CUDAAccelerator):
    """The GPUs of a gang, for a Trainer on a driver that has none.

    By its accelerator Lightning decides what a precision stands for: on CPUs it makes bf16-mixed of 16-mixed.
    """

    @staticmethod
    def is_available() -> bool:
        """Return True: the workers have them."""
        return True

    @staticmethod
    def auto_device_count() -> int:
        """Return 1; the number of workers is the strategy's."""
        return 1

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        """Return ``devices`` as a number or a list; 1 for all that there are, which the strategy knows."""
        if isinstance(devices, str):
            devices = devices.strip().split(",") if "," in devices else int(devices)
        return 1 if devices == -1 else devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:  # noqa: ARG004
        """Return one device, whose type does not choose the next Trainer's accelerator, as "cuda" and "cpu" do."""
        return [torch.device("meta")]


# --- Workers: the gang that a strategy asks for on a driver, by the strategy's arguments ------------------

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


# --- Copies a checkpoint to main memory, to write it while training continues -----------------------------


def write_later(
    checkpoint: dict[str, Any], path: str, writer: CheckpointIO, uncopied: Iterable[torch.Tensor] = ()
) -> Callable[[], object]:
    """Copy ``checkpoint``, except for tensors of its own; return a function that writes it. Runs on: worker, rank 0."""
    while isinstance(writer, AsyncCheckpointIO) and writer.checkpoint_io is not None:
        writer = writer.checkpoint_io  # its thread would write after the function has returned
    plain = type(writer) is TorchCheckpointIO  # which keeps the file's bytes in memory as well, twice
    try:
        snapshot = frozen(checkpoint, uncopied)
    except Exception:  # for example, a user's object that can be pickled but not copied
        if not plain:
            raise
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        return partial(Path(path).write_bytes, buffer.getbuffer())
    return partial(torch.save if plain else writer.save_checkpoint, snapshot, path)


def frozen(value: Any, uncopied: Iterable[torch.Tensor] = ()) -> Any:
    """Return a deep copy with its tensors in main memory; storages that tensors share are copied once.

    ``uncopied``: tensors that nothing else holds, which are not copied.
    """
    copies: dict[int, Any] = {id(tensor): tensor for tensor in uncopied}
    storages: dict[int, torch.UntypedStorage] = {}
    for part in tensors_of(value):
        if id(part) not in copies:
            copies[id(part)] = _in_main_memory(part, storages)
    return copy.deepcopy(value, copies)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested mappings, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_of(item)


def _in_main_memory(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.is_quantized or tensor.is_meta or tensor.is_conj() or tensor.is_neg():
        return tensor.detach().to("cpu", copy=True)
    source = tensor.untyped_storage()
    key = source._cdata
    if key not in storages:
        storages[key] = source.clone() if source.device.type == "cpu" else source.cpu()
    made = torch.empty(0, dtype=tensor.dtype)
    return made.set_(storages[key], tensor.storage_offset(), tensor.size(), tensor.stride())
