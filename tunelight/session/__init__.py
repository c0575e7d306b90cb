"""A worker's own context: the trial that it trains, its reports, and the decisions on them. No Ray, no torch."""

from typing import TYPE_CHECKING

from tunelight.compat.moved import public_names

if not TYPE_CHECKING:
    __getattr__ = public_names(
        __name__, dict.fromkeys(("get_checkpoint_path", "get_context", "report"), "tunelight.session.session")
    )
