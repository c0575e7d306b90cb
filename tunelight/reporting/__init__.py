"""What a person sees of a sweep: progress while it runs, and TensorBoard's files (runs on: driver)."""

from __future__ import annotations

from tunelight.reporting.progress import ProgressCallback
from tunelight.reporting.tensorboard import TensorBoardCallback

__all__ = ["ProgressCallback", "TensorBoardCallback"]
