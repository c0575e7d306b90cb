"""Hugging Face's Accelerate, where training code uses it; names that it keeps private, as read in 1.15."""

from __future__ import annotations

import sys


def forget_states() -> None:
    """Clear what Accelerate keeps for the life of a process: ranks, precision, gradient accumulation.

    A warm worker's next trial may have others. Does nothing where Accelerate is not imported.
    """
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
