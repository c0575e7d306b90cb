"""Lightning strategies that train on a gang: the one they find themselves in, or one of their own."""

from tunelight.lightning.strategies.base import GangStrategy
from tunelight.lightning.strategies.training import RayStrategy
