"""How a sweep was run, as a report shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tunelight.record import read_sweep_file
from tunelight.reporting.markup import pairs

if TYPE_CHECKING:
    from tunelight.results import SweepResults

SETTINGS: Final = (
    "num_samples",
    "max_epochs",
    "scheduler",
    "searcher",
    "workers",
    "backend",
    "seed",
    "train",
    "model",
    "data",
)
"""The settings that a report shows."""


def told(results: SweepResults) -> dict[str, Any]:
    """Return a sweep's settings: those of ``sweep.yaml``, or of its record where there is none."""
    return read_sweep_file(results.folder) or dict(results.record.sweep)


def how_it_was_run(results: SweepResults) -> str:
    """Return a sweep's settings and the versions that it ran on, to be opened."""
    known = told(results)
    rows = [(key, known[key]) for key in SETTINGS if known.get(key) is not None]
    versions = (known.get("versions") or {}).items()
    return (
        '<details><summary>How it was run</summary><div class="pair">'
        f"{pairs('setting', rows)}{pairs('version', versions)}</div></details>"
    )
