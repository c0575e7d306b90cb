"""Hugging Face's Accelerate, where training code uses it; names that it keeps private, as read in 1.15."""

from __future__ import annotations

import contextlib
import sys


def forget_states() -> None:
    """Clear what Accelerate, where it is imported, keeps for the life of a process: ranks, precision, accumulation."""
    state = sys.modules.get("accelerate.state")
    for name in ("PartialState", "AcceleratorState", "GradientState") if state is not None else ():
        with contextlib.suppress(AttributeError, TypeError):  # another version, whose states stay as they are
            getattr(state, name)._reset_state()
