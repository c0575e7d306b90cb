"""Views of a sweep: live progress, watching from another terminal, figures, and the HTML report.

Each part is imported at its first use: a report needs no Ray, and a sweep no plotly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tunelight.extras.attach import watch
    from tunelight.extras.report.page import report, write_image
    from tunelight.reporting.display import Steps
    from tunelight.reporting.progress import ProgressCallback

__all__ = ["ProgressCallback", "Steps", "report", "watch", "write_image"]

_WHERE: Final = {
    "ProgressCallback": "tunelight.reporting.progress",
    "Steps": "tunelight.reporting.display",
    "report": "tunelight.extras.report.page",
    "watch": "tunelight.extras.attach",
    "write_image": "tunelight.extras.report.page",
}


def __getattr__(name: str) -> Any:
    """Import a part at its first use."""
    if name not in _WHERE:
        raise AttributeError(f"module 'tunelight.reporting' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
