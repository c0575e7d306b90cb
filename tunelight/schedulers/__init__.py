"""Ray Tune schedulers for trials that are gangs (runs on: driver)."""

from __future__ import annotations

from tunelight.schedulers.asha import ASHA
from tunelight.schedulers.base import GangScheduler, SweepFacts
from tunelight.schedulers.elastic import ElasticASHA
from tunelight.schedulers.pbt import GangPBT

__all__ = ["ASHA", "ElasticASHA", "GangPBT", "GangScheduler", "SweepFacts"]
