"""Lightning's view of a gang, whose processes and ranks exist already, and of its GPUs."""

from __future__ import annotations

from typing import Any

import torch

from tunelight.compat.lightning import ClusterEnvironment, CUDAAccelerator, know_rank
from tunelight.messages import Place


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
