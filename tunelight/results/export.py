"""One trial as a file that something else reads: its configuration, a LightningCLI's or Hydra's, or a program."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunelight import record as storage
from tunelight import stores
from tunelight.checkpoints import files as checkpoints
from tunelight.errors import CheckpointError, SettingsError, StorageError, guess
from tunelight.results.formats import hydra, lightning_cli, python

if TYPE_CHECKING:
    from tunelight.results.trial import TrialResult

_YAML: Final = (".yaml", ".yml")
FORMATS: Final = {
    "yaml": _YAML,
    "json": (".json",),
    "lightning-cli": _YAML,
    "hydra": _YAML,
    "python": (".py",),
}
"""What a trial can be exported as, and the suffixes of such a file."""
_BY_SUFFIX: Final = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".py": "python"}


def export(trial: TrialResult, told: Mapping[str, Any], path: Path, asked: str | None, checkpoint: bool) -> Path:
    """Write ``trial`` of a sweep that was ``told`` so to ``path``; see ``SweepResults.export_best``."""
    chosen = _format(path, asked)
    copied = _copy_checkpoint(trial, path).absolute() if checkpoint else trial.address
    facts = _facts(trial, told, copied)
    if chosen == "json":
        text = json.dumps(storage.to_json_types(facts), indent=2) + "\n"
    elif chosen == "yaml":
        text = storage.to_yaml(facts)
    else:
        write = {"lightning-cli": lightning_cli, "hydra": hydra, "python": python}[chosen]
        text = write(storage.to_json_types(facts), told, path.name)
    storage.write_text(path, text)
    return path


def format_of(trial: TrialResult, path: Path, asked: str | None) -> str:
    """Return the format that a command writes: as asked, else by the suffix, YAML being for LightningCLI if it can be.

    It can where the sweep was given ``model=``. Raises: SettingsError, StorageError.
    """
    if asked is None and path.suffix.lower() in _YAML and trial.has_parts:
        return "lightning-cli"
    return _format(path, asked)


def _format(path: Path, asked: str | None) -> str:
    """Return the format that is asked for, or that the suffix says. Raises: SettingsError, StorageError."""
    suffix = path.suffix.lower()
    if asked is None:
        if suffix not in _BY_SUFFIX:
            raise StorageError(
                f"What to write is told by the file's suffix, but {str(path)!r} has {suffix or 'none'!r}. Use one of "
                f"{', '.join(_BY_SUFFIX)}, or say format=: {', '.join(FORMATS)}."
            )
        return _BY_SUFFIX[suffix]
    if asked not in FORMATS:
        raise SettingsError(f"There is no format {asked!r}.{guess(asked, FORMATS)} There are: {', '.join(FORMATS)}.")
    if suffix not in FORMATS[asked]:
        raise StorageError(
            f"A file of format {asked!r} ends in {' or '.join(FORMATS[asked])}, but {str(path)!r} in "
            f"{suffix or 'nothing'!r}."
        )
    return asked


def _facts(trial: TrialResult, told: Mapping[str, Any], checkpoint: Path | str | None) -> dict[str, Any]:
    """Return the configuration, and where it came from."""
    report = dict(trial.metrics)
    epoch, iteration, _ = (report.pop(key, None) for key in ("epoch", "training_iteration", "timestamp"))
    folder = trial.sweep_folder
    return {
        "config": trial.config,
        **({"changes": trial.changes} if trial.changes else {}),
        "metric": told.get("metric"),
        "mode": told.get("mode") or "min",
        "value": trial.value,
        "metrics": report,
        "trial": trial.id,
        "seed": trial.seed,
        "training_iteration": iteration,
        "epoch": epoch,
        "sweep": {"name": folder.name, "folder": stores.shown(folder)},
        "checkpoint": checkpoint,
        "versions": told.get("versions") or storage.versions(),
    }


def _copy_checkpoint(trial: TrialResult, path: Path) -> Path:
    """Copy a trial's best checkpoint beside ``path``, and its weights as safetensors; return the copy."""
    source = trial.checkpoint
    if source is None:
        raise CheckpointError(
            f"Trial {trial.id} has no checkpoint to copy. Leave checkpoint out, or export another trial; sweeps write "
            "checkpoints unless checkpoints=None, and train functions with TuneReportCheckpointCallback."
        )
    if torn := checkpoints.describe_torn(source):
        raise CheckpointError(torn)
    target = path.with_suffix(".ckpt")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
            return target
        shutil.copyfile(source, target)
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error.strerror}. Choose another path.") from error
    _write_weights(source, path.with_suffix(".safetensors"))
    return target


def _write_weights(source: Path, target: Path) -> None:
    """Write the tensors of a checkpoint's ``state_dict``, each on its own where several share memory."""
    import torch  # whoever only reads results need not wait for torch
    from safetensors.torch import save_file

    try:
        saved = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
        found = saved.get("state_dict", saved)
        weights = {name: value.clone().contiguous() for name, value in found.items() if isinstance(value, torch.Tensor)}
        save_file(weights, target, metadata={"format": "pt"})
        shutil.copymode(source, target)  # safetensors leaves a file that its owner alone may read
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{source} was copied, but its weights were not written to {target}: it holds more than weights and plain "
            f"data, and opening it would run code ({error}). load_model(weights_only=False) opens it."
        ) from error
    except (OSError, RuntimeError, ValueError, AttributeError) as error:  # no checkpoint of torch's; a full disk
        raise CheckpointError(f"The weights in {source} cannot be written to {target}: {error}") from error
