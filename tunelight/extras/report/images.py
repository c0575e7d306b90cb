"""Write figures as pictures, with kaleido and a browser."""

from __future__ import annotations

import importlib.util
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunelight.errors import ReportError, guess

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LIMIT_S = 180.0
"""A browser starts in seconds; one that hangs must not block its caller for ever."""
_KINDS = ("png", "svg", "pdf", "jpeg", "webp")
_HOW = (
    "Plotly draws pictures with kaleido and a Chrome or Chromium: pip install 'tunelight[png]', and have one of those "
    "installed (`plotly_get_chrome` fetches one; BROWSER_PATH names one elsewhere). Without them, "
    "figure.write_html(path) and tunelight.reporting.report(results, path) need nothing more."
)


def write_image(
    figure: go.Figure, path: str | os.PathLike[str], *, width: int = 1200, height: int | None = None, scale: float = 2
) -> Path:
    """Write a figure as a picture by the file's suffix (.png, .svg, .pdf, .jpeg, .webp), and return the path.

    Args:
        width, height: in CSS pixels (height: the figure's own). scale: picture's pixels for each of them.

    Raises: ReportError for another suffix, without kaleido or a browser, where that does not answer within 180 s, or
        where the file cannot be written.
    """
    target = Path(path).expanduser().absolute()
    kind = target.suffix.lower().lstrip(".").replace("jpg", "jpeg")
    if kind not in _KINDS:
        raise ReportError(
            f"A picture is written as {', '.join(f'.{one}' for one in _KINDS)} by the file's suffix, but {str(path)!r} "
            f"has {target.suffix or 'none'!r}.{guess(kind, _KINDS)}"
        )
    if importlib.util.find_spec("kaleido") is None:
        raise ReportError(f"{target.name} cannot be drawn: kaleido is not installed. {_HOW}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _within_limit(
            figure, target, format=kind, width=width, height=height or figure.layout.height or 460, scale=scale
        )
    except TimeoutError as error:
        raise ReportError(f"{target.name} was not drawn: {error}. Try again; {_HOW}") from error
    except OSError as error:
        raise ReportError(f"{target} cannot be written: {error}.") from error
    except Exception as error:  # kaleido and its browser fail with classes of their own
        said = " ".join(str(error).split()).rstrip(".")
        raise ReportError(f"{target.name} cannot be drawn: {type(error).__name__}: {said}. {_HOW}") from error
    return target


def _within_limit(figure: Any, target: Path, **how: Any) -> None:
    """Draw in a thread, since the browser may hang. Raises: the thread's exception; TimeoutError."""
    failed: list[Exception] = []

    def draw() -> None:
        try:
            figure.write_image(target, **how)
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            failed.append(error)

    thread = threading.Thread(target=draw, name="tunelight-picture", daemon=True)
    thread.start()
    thread.join(_LIMIT_S)
    if thread.is_alive():
        raise TimeoutError(f"the browser did not answer within {_LIMIT_S:.0f} s")
    if failed:
        raise failed[0]
