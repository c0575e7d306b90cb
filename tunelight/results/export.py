"""Exports of a trial: its configuration as YAML or JSON, for LightningCLI, or as a command."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tunelight import record as storage
from tunelight.checkpoints import files as checkpoints
from tunelight.errors import CheckpointError, SettingsError, StorageError, unknown
from tunelight.results.formats import lightning_cli, shell
from tunelight.results.words import refused

_YAML: Final = (".yaml", ".yml")
FORMATS: Final = {
    "yaml": _YAML,
    "json": (".json",),
    "lightning-cli": _YAML,
    "shell": (".sh",),
}
"""Formats of exports, and the suffixes of their files."""
_BY_SUFFIX: Final = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "shell"}


def export(facts: Mapping[str, Any], settings: Mapping[str, Any], path: Path, chosen: str) -> None:
    """Write a trial to ``path`` in the format ``chosen``.

    Args:
        facts: its configuration and where that came from, as ``TrialResult`` collects them.
        settings: those of its sweep, as in sweep.yaml.
        path: the file; folders are made.
        chosen: one of ``FORMATS``.
    """
    if chosen == "json":
        text = json.dumps(storage.to_json_types(facts), indent=2) + "\n"
    elif chosen == "yaml":
        text = storage.to_yaml(facts)
    else:
        write = {"lightning-cli": lightning_cli, "shell": shell}[chosen]
        text = write(storage.to_json_types(facts), settings, path.name)
    storage.write_text(path, text)
    if chosen == "shell":
        path.chmod(path.stat().st_mode | 0o111)


def format_of(path: Path, asked: str | None, *, parts: bool = False) -> str:
    """Return the format that is asked for, else the one that the suffix says. Raises: SettingsError, StorageError.

    A YAML file without a format is LightningCLI's where the sweep had ``parts``, model and data, to be told of.
    """
    suffix = path.suffix.lower()
    if asked is None:
        if suffix not in _BY_SUFFIX:
            raise StorageError(
                f"The format follows from the file's suffix, but {str(path)!r} has {suffix or 'none'!r}. Use one of "
                f"{', '.join(_BY_SUFFIX)}, or say format=: {', '.join(FORMATS)}."
            )
        return "lightning-cli" if parts and suffix in _YAML else _BY_SUFFIX[suffix]
    if asked not in FORMATS:
        raise SettingsError(unknown("There is no format", asked, FORMATS))
    if suffix not in FORMATS[asked]:
        raise StorageError(
            f"A file of format {asked!r} ends in {' or '.join(FORMATS[asked])}, but {str(path)!r} in "
            f"{suffix or 'nothing'!r}."
        )
    return asked


def copy_checkpoint(source: Path, path: Path) -> Path:
    """Copy a checkpoint beside ``path``, as NAME.ckpt, and its weights as safetensors; return the copy.

    Raises: CheckpointError, StorageError.
    """
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
    """Write the tensors of a checkpoint's ``state_dict`` as safetensors; shared memory is copied."""
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
            f"data, and opening it would run code ({refused(error)}). load_model(weights_only=False) opens it."
        ) from error
    except (OSError, RuntimeError, ValueError, AttributeError) as error:  # no checkpoint of torch's; a full disk
        raise CheckpointError(f"The weights in {source} cannot be written to {target}: {error}") from error
