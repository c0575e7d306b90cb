"""A model that is wider than the one whose hyperparameters were searched: the maximal update parametrisation."""

from tunelight.extras.widths.check import check_widths
from tunelight.extras.widths.wider import Wider

__all__ = ["Wider", "check_widths"]
