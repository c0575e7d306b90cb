"""Lightning strategies that train on a gang: the one they find themselves in, or one of their own."""

from tunelight.lightning.strategies.base import GangStrategy
from tunelight.lightning.strategies.ddp import RayStrategy
from tunelight.lightning.strategies.horovod import HorovodRayStrategy
from tunelight.lightning.strategies.sharded import RayShardedStrategy

BY_BACKEND: dict[str, type[GangStrategy]] = {
    kind.backend: kind for kind in (RayStrategy, HorovodRayStrategy, RayShardedStrategy)
}
"""The strategy for each backend of a gang."""
