"""Lightning strategies that train on a gang: the one they find themselves in, or one of their own."""

from tunelight.strategies.ddp import RayStrategy
from tunelight.strategies.horovod import HorovodRayStrategy
from tunelight.strategies.sharded import RayShardedStrategy

__all__ = ["HorovodRayStrategy", "RayShardedStrategy", "RayStrategy"]
