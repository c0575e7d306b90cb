"""Where Lightning finds the guard, through the entry points of ``pytorch_lightning`` and of ``lightning.pytorch``.

Lightning loads this module for every Trainer of the environment. So it imports nothing, and adds nothing outside of
a trial: scripts without tunelight must not notice it, whatever their version of Lightning.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunelight.compat.lightning import Flavour


def guard_callbacks() -> list[Any]:
    """Return the callbacks of a Trainer inside a trial, else nothing. Called by ``pytorch_lightning``."""
    return _callbacks("pytorch_lightning")


def guard_other_callbacks() -> list[Any]:
    """Return the same for a Trainer of ``lightning.pytorch``, which calls it."""
    return _callbacks("lightning.pytorch")


def _callbacks(flavour: Flavour) -> list[Any]:
    sessions = sys.modules.get("tunelight.session.session")  # a worker of a gang has imported it
    session = None if sessions is None else sessions.current()
    if session is None:
        return []
    from tunelight.lightning.launcher import launch_by_gang  # inside a trial alone
    from tunelight.lightning.strategy_check import guard_callbacks

    launch_by_gang(session, sys._getframe(1))
    return guard_callbacks(session, flavour)
