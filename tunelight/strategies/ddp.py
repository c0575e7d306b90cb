"""RayStrategy: DistributedDataParallel on a gang of Ray workers."""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric.utilities.types import ReduceOp
from pytorch_lightning.strategies import DDPStrategy

from tunelight.errors import StrategyError
from tunelight.session import Session, current
from tunelight.strategies.environment import GangEnvironment
from tunelight.strategies.launcher import GangLauncher


class RayStrategy(DDPStrategy):
    """Train with DDP on the gang that this process belongs to.

    Args:
        num_workers: the gang's size, if you want it checked; by default what the trial holds.
        ddp_kwargs: passed to torch's ``DistributedDataParallel`` (``find_unused_parameters`` and so on).

    Runs on: worker. Raises: StrategyError outside of a gang, or when ``num_workers`` is not its size.
    """

    strategy_name = "tunelight"

    def __init__(self, num_workers: int | None = None, **ddp_kwargs: Any) -> None:
        session = current()
        if session is None:
            raise StrategyError(
                "RayStrategy was made outside of a trial: it joins the gang that it finds itself in. Build "
                "the Trainer inside the train function that you give to tunelight.run(...)."
            )
        if num_workers is not None and num_workers != session.world_size:
            raise StrategyError(
                f"RayStrategy(num_workers={num_workers}) runs in a gang of {session.world_size}: leave "
                "num_workers out, or make it equal to workers= of the sweep."
            )
        super().__init__(cluster_environment=GangEnvironment(session), **ddp_kwargs)
        self._session: Session = session

    @property
    def root_device(self) -> torch.device:
        """Return this rank's device: the first GPU that Ray gave this worker, else the CPU."""
        if self.parallel_devices is not None and self.parallel_devices[0].type == "cuda":
            return torch.device("cuda", 0)
        return torch.device("cpu")

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return how a sampler shards: by the gang's size and this rank."""
        return {"num_replicas": self._session.world_size, "rank": self._session.rank}

    def _configure_launcher(self) -> None:
        self._launcher = GangLauncher(self._session)

    def reduce(
        self, tensor: torch.Tensor, group: Any = None, reduce_op: ReduceOp | str | None = "mean"
    ) -> torch.Tensor:
        """Reduce over the ranks. Means are taken in float64, so that integer counts stay exact.

        Returns a tensor of the same shape: of the same dtype if that is floating, else float32 for a mean.
        """
        if reduce_op not in ("mean", "avg", ReduceOp.AVG, None) or not isinstance(tensor, torch.Tensor):
            return super().reduce(tensor, group, reduce_op)
        if tensor.is_complex():
            return super().reduce(tensor, group, reduce_op)
        size = torch.distributed.get_world_size(group)
        total = super().reduce(tensor.to(torch.float64), group, "sum")
        return (total / size).to(tensor.dtype if tensor.is_floating_point() else torch.float32)
