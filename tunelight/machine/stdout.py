"""Standard output: whether it is a notebook's or a terminal's, and how text is written there."""

from __future__ import annotations

import contextlib
import sys

from tunelight.messages import Text


def in_notebook() -> bool:
    """Tell whether this is a notebook's kernel (and not IPython in a terminal)."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def is_terminal(stream: object) -> bool:
    """Tell whether a stream is a terminal; whatever stands for one need only write, or may be None."""
    isatty = getattr(stream, "isatty", None)
    if not callable(isatty):
        return False
    try:
        return bool(isatty())
    except ValueError:  # it is closed
        return False


def write(text: Text) -> None:
    """Write text at once to standard output, or to standard error. A stream that is closed is left alone."""
    stream = sys.stderr if text.error else sys.stdout
    with contextlib.suppress(OSError, ValueError):
        print(text.text, end="", file=stream)  # it takes whatever stands for a stream
        if callable(flush := getattr(stream, "flush", None)):
            flush()
