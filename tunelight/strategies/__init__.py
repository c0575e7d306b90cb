"""Lightning strategies that train on a gang: the one they find themselves in, or one of their own."""

from tunelight.strategies.base import GangStrategy
from tunelight.strategies.ddp import RayStrategy
from tunelight.strategies.horovod import HorovodRayStrategy
from tunelight.strategies.sharded import RayShardedStrategy

BY_BACKEND: dict[str, type[GangStrategy]] = {
    kind.backend: kind for kind in (RayStrategy, HorovodRayStrategy, RayShardedStrategy)
}
"""The strategy for each backend of a gang."""

__all__ = ["BY_BACKEND", "GangStrategy", "HorovodRayStrategy", "RayShardedStrategy", "RayStrategy"]
