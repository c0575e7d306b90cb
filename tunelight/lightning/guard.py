"""Where Lightning finds the guard, through the entry points of ``pytorch_lightning`` and of ``lightning.pytorch``.

Lightning loads this for every Trainer of the environment. So nothing is imported here, and outside of a trial
nothing added: a script that has nothing to do with tunelight must not notice it, whatever its version of Lightning.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunelight.session.session import Session


def guard_callbacks() -> list[Any]:
    """Return the callbacks of a Trainer inside a trial, else nothing. Called by ``pytorch_lightning``."""
    if _session() is None:
        return []
    from tunelight.lightning.strategy_check import guard_callbacks  # inside a trial alone

    return list(guard_callbacks())


def guard_other_callbacks() -> list[Any]:
    """Return the guard inside a trial, else nothing. Called by ``lightning.pytorch``."""
    session = _session()
    if session is None:
        return []
    from tunelight.lightning.strategy_check import guard_for  # inside a trial alone

    return [guard_for(session, "lightning.pytorch")]


def _session() -> Session | None:
    """Return the session of the trial that this process trains; a worker of a gang has its module imported."""
    known = sys.modules.get("tunelight.session.session")
    return None if known is None else known.current()
