"""Lightning strategies that train on the gang they find themselves in."""

from tunelight.strategies.ddp import RayStrategy

__all__ = ["RayStrategy"]
