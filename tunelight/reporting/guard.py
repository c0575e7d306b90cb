"""What is for show must not end a sweep."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

_log = logging.getLogger("tunelight")
_Method = TypeVar("_Method", bound=Callable[..., None])


def guarded(method: _Method) -> _Method:
    """Let a callback's method fail without ending the sweep, which an exception out of it would.

    The first failure of an object is logged as a warning with its traceback, later ones are not.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:  # noqa: BLE001 - whatever it is, a display is not worth a sweep
            if not getattr(self, "_complained", False):
                self._complained = True
                _log.warning(
                    "%s failed; the sweep goes on without what it would have shown (said once).",
                    type(self).__name__,
                    exc_info=True,
                )

    return cast("_Method", call)
