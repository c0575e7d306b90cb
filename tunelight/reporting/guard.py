"""Errors of displays must not end a sweep."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

_log = logging.getLogger("tunelight")
_Method = TypeVar("_Method", bound=Callable[..., None])


def guarded(method: _Method) -> _Method:
    """Catch the errors of a method that shows something, which would end the sweep.

    The first one of an object is logged as a warning with its traceback, later ones are not. A closed standard output
    counts as an error: rich raises SystemExit then.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an error of a display must not end the sweep
            if not getattr(self, "_complained", False):
                self._complained = True
                closed = isinstance(error, SystemExit | BrokenPipeError)
                _log.warning(
                    "%s; the sweep goes on without what it would have shown (said once).",
                    "Standard output is closed" if closed else f"{type(self).__name__} failed",
                    exc_info=not closed,
                )

    return cast("_Method", call)
