"""What the training code of a trial's worker is told, and what it reports. Knows neither Ray nor torch."""

from typing import TYPE_CHECKING

from tunelight.compat.moved import public_names

if not TYPE_CHECKING:
    __getattr__ = public_names(
        __name__, dict.fromkeys(("get_checkpoint_path", "get_context", "report"), "tunelight.session.session")
    )
