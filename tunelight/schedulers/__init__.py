"""Ray Tune schedulers for trials that are gangs (runs on: driver)."""

from __future__ import annotations

from tunelight.schedulers.asha import ASHA

__all__ = ["ASHA"]
