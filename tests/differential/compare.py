"""Compares two outcomes of a program: what each run of a Trainer left on each rank, and the files."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

OURS = {"Report", "TuneReportCheckpointCallback", "Kill", "Observer", "Recovery", "Guard"}
"""Callbacks that are no part of a program."""


def outcome(folder: Path) -> dict[str, Any]:
    """Return what :mod:`observe` has written to a folder."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.pt")):
        found[path.stem] = torch.load(path, weights_only=False)
    for path in sorted(folder.glob("raised-*.json")):
        said = json.loads(path.read_text())
        found[path.stem] = {name: said[name] for name in ("type", "kinds", "text")}
    files = folder / "files"
    named = {_name(str(path.relative_to(files))): path for path in sorted(files.rglob("*")) if path.is_file()}
    found["files"] = sorted(named)
    tables = [csv.DictReader(path.read_text().splitlines()) for path in files.rglob("metrics.csv")]
    rows = [{name: float(value) for name, value in row.items() if value} for table in tables for row in table]
    # Of all fits, in whatever folder each logs.
    found["rows"] = sorted(rows, key=lambda row: (row["step"], row.get("epoch", -1), sorted(row), sorted(row.items())))
    found["checkpoints"] = {name: _checkpoint(path) for name, path in named.items() if path.suffix == ".ckpt"}
    return found


def _name(path: str) -> str:
    """Return a file's name without its time, and with any version of a logger."""
    return re.sub(r"lightning_logs/[^/]+", "lightning_logs/version", re.sub(r"tfevents\..*", "tfevents", path))


def _checkpoint(path: Path) -> dict[str, Any]:
    saved = torch.load(path, map_location="cpu", weights_only=False)
    kept = {key: saved.get(key) for key in ("epoch", "global_step", "state_dict", "hyper_parameters", "own")}
    names = {re.sub(r"\{.*", "", str(key)) for key in saved.get("callbacks", {})}
    kept["callbacks"] = sorted(names - OURS)
    return kept


def differences(wanted: Any, got: Any, tolerance: float, at: str = "") -> Iterator[str]:
    """Yield where two outcomes differ by more than a tolerance, and how."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        yield from _keys(_named(wanted), _named(got), tolerance, at)
    elif isinstance(wanted, list | tuple) and isinstance(got, list | tuple):
        if len(wanted) != len(got):
            yield f"{at}: {len(got)} entries, wanted {len(wanted)}: {_short(got)}, wanted {_short(wanted)}"
        else:
            for number, pair in enumerate(zip(wanted, got, strict=True)):
                yield from differences(*pair, tolerance, f"{at}/{number}")
    elif isinstance(wanted, torch.Tensor) and isinstance(got, torch.Tensor):
        yield from _tensors(wanted, got, tolerance, at)
    elif isinstance(wanted, float) and isinstance(got, float):
        both_nan = math.isnan(wanted) and math.isnan(got)
        if not both_nan and not math.isclose(wanted, got, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{at}: {got!r}, wanted {wanted!r}"
    elif _plain(wanted) != _plain(got):
        yield f"{at}: {_short(got)}, wanted {_short(wanted)}"


def _keys(wanted: dict[Any, Any], got: dict[Any, Any], tolerance: float, at: str) -> Iterator[str]:
    for key in [*wanted, *(key for key in got if key not in wanted)]:
        here = f"{at}/{key}"
        if key not in got:
            yield f"{here}: missing, wanted {_short(wanted[key])}"
        elif key not in wanted:
            yield f"{here}: unexpected {_short(got[key])}"
        else:
            yield from differences(wanted[key], got[key], tolerance, here)


def _tensors(wanted: torch.Tensor, got: torch.Tensor, tolerance: float, at: str) -> Iterator[str]:
    if wanted.shape != got.shape or wanted.dtype != got.dtype:
        yield f"{at}: {got.dtype}{list(got.shape)}, wanted {wanted.dtype}{list(wanted.shape)}"
    elif not torch.allclose(wanted.double(), got.double(), rtol=tolerance, atol=tolerance, equal_nan=True):
        yield f"{at}: off by {float((wanted.double() - got.double()).abs().max()):.3g}"


def _named(value: dict[Any, Any]) -> dict[Any, Any]:
    """Return a mapping whose keys name no folder above a program's files."""
    return {_name(key.rpartition("/files/")[2]) if isinstance(key, str) else key: one for key, one in value.items()}


def _plain(value: Any) -> Any:
    return re.sub(r"0x[0-9a-f]+|/\S*/", "", value if isinstance(value, str) else repr(value))


def _short(value: Any) -> str:
    said = " ".join(repr(value).split())
    return said if len(said) < 160 else f"{said[:150]} ..."
