"""What one takes of a trial: its configuration as YAML or JSON, for LightningCLI, or as a command; its model."""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import pickle
import re
import shlex
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tunelight import record as storage
from tunelight.checkpoints import files as checkpoints
from tunelight.compat.lightning import prefer
from tunelight.errors import (
    CheckpointError,
    ImportPathError,
    SettingsError,
    StorageError,
    TrainFunctionError,
    unknown,
)
from tunelight.record import to_yaml
from tunelight.resources import reserve
from tunelight.results.trial import TrialResult
from tunelight.settings import PARTS, load_object
from tunelight.settings.backends import BACKENDS
from tunelight.settings.checks import holder_of
from tunelight.space.files import importable
from tunelight.space.plain import references, split_config
from tunelight.stores import shown
from tunelight.stores.masking import MASK

_YAML: Final = (".yaml", ".yml")
FORMATS: Final = {
    "yaml": _YAML,
    "json": (".json",),
    "lightning-cli": _YAML,
    "shell": (".sh",),
}
"""Formats of exports, and the suffixes of their files."""
_BY_SUFFIX: Final = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "shell"}
_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_MAX_FAILURES: Final = 3
"""The default of ``failures``, which needs no word."""
_BESIDE: Final = ("logger", "profiler")
"""Arguments of a Trainer that training does not depend on."""


def export_trial(
    trial: TrialResult, settings: Mapping[str, Any], path: Path, asked: str | None, *, checkpoint: bool
) -> Path:
    """Write a trial's configuration, and a copy of its checkpoint; see :meth:`SweepResults.export_best`.

    ``settings``: those of its sweep, as in sweep.yaml.
    """
    chosen = format_of(path, asked, parts=trial.has_parts)
    copied = copy_checkpoint(_own_checkpoint(trial), path).absolute() if checkpoint else trial.address
    facts = _facts(trial, settings, copied)
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
    return path


def _own_checkpoint(trial: TrialResult) -> Path:
    if (found := trial.checkpoint) is None:
        raise CheckpointError(
            f"Trial {trial.id} has no checkpoint to copy. Leave checkpoint out, or export another trial; sweeps "
            "write checkpoints unless checkpoints=None, and train functions with TuneReportCheckpointCallback."
        )
    return found


def _facts(trial: TrialResult, settings: Mapping[str, Any], checkpoint: Path | str | None) -> dict[str, Any]:
    """Return the configuration and its provenance."""
    report = dict(trial.metrics)
    epoch, iteration, _ = (report.pop(key, None) for key in ("epoch", "training_iteration", "timestamp"))
    return {
        "config": trial.plain_config,
        **({"objects": objects} if (objects := _referred(trial, settings)) else {}),
        **({"changes": trial.changes} if trial.changes else {}),
        **({"command": command} if (command := trial.command) else {}),
        **({"plain_command": plain} if (plain := trial.plain_command) else {}),
        "metric": settings.get("metric"),
        "mode": settings.get("mode") or "min",
        "value": trial.value,
        "metrics": report,
        "trial": trial.id,
        "seed": trial.seed,
        "training_iteration": iteration,
        "epoch": epoch,
        "sweep": {"name": trial.sweep_folder.name, "folder": shown(trial.sweep_folder)},
        "checkpoint": checkpoint,
        **({"checkpoint_of_report": number} if checkpoint and (number := trial.of_another_report()) else {}),
        "versions": settings.get("versions") or storage.versions(),
    }


def _referred(trial: TrialResult, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return references to the objects in a trial's configuration, by dotted key."""
    found = {}
    for key, plain, ref in references(settings.get("space_objects")):
        holder, last = holder_of(trial.plain_config, key)
        if holder.get(last) == plain:
            found[key] = ref
    return found


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
    """Copy a checkpoint beside ``path``, as NAME.ckpt, and its weights as safetensors; return the copy, a whole file.

    Raises: CheckpointError, StorageError.
    """
    if torn := checkpoints.describe_torn(source):
        raise CheckpointError(torn)
    target = path.with_suffix(".ckpt")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if _holds_shards(source):
            _join(source, target)
        elif source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
            return target
        else:
            shutil.copyfile(source, target)
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error.strerror}. Choose another path.") from error
    except pickle.UnpicklingError as error:
        raise _runs_code(source, error) from error
    _write_weights(target, path.with_suffix(".safetensors"))
    return target


_OF_SHARDS: Final = {
    "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "PosixPath", "Size", "StorageMeta",
    "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING", "_StorageInfo", "_get_layout",
}  # fmt: skip
"""What describes tensors in a folder of shards, besides their types."""
_WEIGHTS: Final = "state_dict."
"""Begins the names of the model's."""


class _Description(pickle.Unpickler):
    """Reads what describes a folder of shards, and nothing else: torch would import whatever it names."""

    def find_class(self, module: str, name: str) -> Any:
        ours = module.partition(".")[0] in ("torch", "pathlib")
        known: Any = super().find_class(module, name) if ours else None
        if name in _OF_SHARDS or type(known).__name__ in ("dtype", "layout"):
            return known
        raise pickle.UnpicklingError(f"{module}.{name} describes no tensor")


def _holds_shards(path: Path) -> bool:
    return (path / ".metadata").exists()


def _join(folder: Path, target: Path, *, weights_only: bool = True) -> None:
    """Write a checkpoint of shards into a file, without the optimizers' states. Raises: UnpicklingError; OSError."""
    import torch
    from torch.distributed import checkpoint as shards

    with (folder / ".metadata").open("rb") as stream:
        described = _Description(stream).load().state_dict_metadata
    model = {
        key: torch.empty(known.size, dtype=known.properties.dtype)
        for key, known in described.items()
        if key.startswith(_WEIGHTS) and hasattr(known, "properties")
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no gang
        shards.load(model, checkpoint_id=folder)
    rest = torch.load(folder / "meta.pt", map_location="cpu", weights_only=weights_only)
    weights = {key.removeprefix(_WEIGHTS): value for key, value in model.items()}
    with target.open("wb") as stream:  # torch would hide why it cannot write
        torch.save({**rest, "state_dict": weights}, stream)


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


def lightning_cli(facts: Mapping[str, Any], settings: Mapping[str, Any], name: str) -> str:
    """Return a config file for a LightningCLI that was made with the model's and data module's classes.

    Raises: SettingsError for a sweep whose training such a file cannot describe.
    """
    if settings.get("model") is None:
        what, other = ("tuned a script", "'shell' or 'yaml'") if settings.get("script") else ("has no model=", "'yaml'")
        raise SettingsError(
            f"The format lightning-cli describes a sweep with model=, and this one {what}: the file would not train "
            f"as its trials did. Use format={other}."
        )
    if settings.get("datasets"):
        raise SettingsError(
            "The sweep served datasets= to its trials, which a file for LightningCLI cannot. Use format='yaml'."
        )
    parts, notes = _parts(facts, settings)
    kind, arguments = _strategy(settings)
    parts["trainer"].setdefault("strategy", {"class_path": f"tunelight.{kind}", "init_args": arguments})
    head = [f"Train it with a train.py that calls LightningCLI(Model, Data): python train.py fit --config {name}"]
    if facts["checkpoint"]:
        head.append(f"Validate it: python train.py validate --config {name} --ckpt_path {facts['checkpoint']}")
    sections = {"seed_everything": facts["seed"], **parts}
    return _head(facts, settings, [*head, *notes]) + to_yaml(
        {key: value for key, value in sections.items() if value not in (None, {})}
    )


def shell(facts: Mapping[str, Any], settings: Mapping[str, Any], name: str) -> str:
    """Return a shell script that trains the configuration by the script that was tuned.

    Raises: SettingsError for a sweep of other training code.
    """
    if (command := facts.get("command")) is None:
        other = "'yaml'" if settings.get("model") is None else "'lightning-cli' or 'yaml'"
        raise SettingsError(
            f"The sweep did not tune a script, so that there is no command to export. Use format={other}."
        )
    lines = [f"Run it: ./{name}", "What is given to it is added to the command."]
    if plain := facts.get("plain_command"):
        lines.append(f"Without tunelight: {shlex.join(plain)}")
    if any(MASK in word for word in command):
        lines.append(f"A secret was masked when the sweep was recorded. Put it in the place of {MASK}.")
    folder = (settings.get("run") or {}).get("cwd")
    return "\n".join(
        [
            f"#!/usr/bin/env bash\n{_head(facts, settings, lines)}set -euo pipefail",
            *([f"cd -- {shlex.quote(folder)}"] if folder else []),
            f'exec {shlex.join(command)} "$@"\n',
        ]
    )


def _expressed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with objects in LightningCLI's words. Raises: SettingsError where it has none."""
    config: dict[str, Any] = copy.deepcopy(facts["config"])
    for key, ref in (facts.get("objects") or {}).items():
        holder, last = holder_of(config, key)
        if ref is None or not all(_PATH.fullmatch(path) and path.split(":")[0] != "__main__" for path in _paths(ref)):
            raise SettingsError(
                f"The configuration's {key} is {holder[last]!r}, an object that cannot be imported from a module, so "
                "that this format cannot name it. Define it in a module, or use format='yaml'."
            )
        holder[last] = _named(ref)
    return config


def _paths(described: Any) -> Iterator[str]:
    """Yield the import paths in the reference to an object."""
    match described:
        case str():
            yield described
        case {"enum": path, "name": name}:
            yield f"{path}.{name}"
        case {"dataclass": path, "fields": parts}:
            yield from (path, *_paths({"dict": parts}))
        case {"tuple": parts} | {"list": parts}:
            yield from (path for part in parts for path in _paths(part))
        case {"dict": parts}:
            yield from (path for part in parts.values() for path in _paths(part))


def _named(described: Any) -> Any:
    """Return an object in LightningCLI's words."""
    match described:
        case str():
            return described.replace(":", ".")
        case {"enum": _, "name": name}:
            return name
        case {"dataclass": _, "fields": parts} | {"dict": parts}:
            return {key: _named(part) for key, part in parts.items()}
        case {"tuple": parts} | {"list": parts}:
            return [_named(part) for part in parts]
    return described["value"]


def _parts(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return a configuration as arguments of model, data and Trainer, and what had to be left out.

    Raises: SettingsError where keys do not say whose they are, and for objects that training depends on.
    """
    config = _expressed(facts)
    for key in config:
        part, dot, _ = key.partition(".")
        if part not in PARTS or not (dot or isinstance(config[key], Mapping)):
            raise SettingsError(
                f"The configuration's key {key!r} does not say whose argument it is: keys begin with "
                f"{', '.join(f'{name}.' for name in PARTS)} in a sweep with model=. Use format='yaml' or 'json'."
            )
    parts = split_config(config)
    given = dict(settings.get("trainer_args") or {})
    objects = [key for key, value in given.items() if _holds_object(value)]
    if needed := [key for key in objects if key not in _BESIDE]:
        raise SettingsError(
            f"trainer_args {', '.join(needed)} held objects, which a file cannot name, and without which it would not "
            "train as the trials did. Give them as class_path and init_args, or use format='yaml'."
        )
    plain = {key: value for key, value in given.items() if key not in objects}
    epochs = {} if settings.get("max_epochs") is None else {"max_epochs": settings["max_epochs"]}
    # With GPUs the strategy finds out for itself: the process that starts the workers may have none.
    device = {} if settings.get("gpus_per_worker") else {"accelerator": "cpu"}
    parts["trainer"] = {**epochs, **device, **plain, **parts["trainer"]}
    notes = [f"Left out, for they are objects: trainer_args {', '.join(objects)}."] if objects else []
    return parts, notes


def _strategy(settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the strategy that trains with the sweep's workers, and its arguments where they are not the defaults."""
    workers = settings.get("workers") or 1
    reservation = reserve(
        tuple(workers) if isinstance(workers, list) else workers,
        settings.get("cpus_per_worker", 1),
        settings.get("gpus_per_worker", 0),
        settings.get("resources_per_trial"),
    )
    more = dict(reservation.resources_per_worker)
    if reservation.gpus_per_worker not in (0, 1):
        more["GPU"] = reservation.gpus_per_worker
    failures = (settings.get("failures") or {}).get("max_failures", _MAX_FAILURES)
    evaluation = settings.get("evaluation", reservation.evaluation)
    arguments = {
        "num_workers": reservation.workers if reservation.least is None else [reservation.least, reservation.workers],
        "num_cpus_per_worker": None if reservation.cpus_per_worker == 1 else reservation.cpus_per_worker,
        "use_gpu": bool(reservation.gpus_per_worker) or None,
        "resources_per_worker": more or None,
        "failures": None if failures == _MAX_FAILURES else failures,
        "evaluation": None if evaluation == reservation.evaluation else evaluation,
    }
    kept = {name: value for name, value in arguments.items() if value is not None}
    return BACKENDS[str(settings.get("backend") or "ddp")].strategy_name, kept


def _holds_object(value: Any) -> bool:
    """Tell whether sweep.yaml had no word for a value, or for a part of it."""
    if isinstance(value, Mapping):
        return value.keys() == {"object"} or any(_holds_object(part) for part in value.values())
    return isinstance(value, list) and any(_holds_object(part) for part in value)


def _words(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Return where a configuration came from, in words."""
    when = f"report {facts['training_iteration']}" if facts["training_iteration"] is not None else "no report"
    metric = facts["metric"][0] if isinstance(facts["metric"], list) else facts["metric"]
    value = "nothing comparable" if facts["value"] is None else f"{metric}={facts['value']:.6g}"
    lines = [f"Trial {facts['trial']} of the sweep {facts['sweep']['name']}: {value} at {when}."]
    if facts.get("changes"):
        lines.append(
            "Its configuration changed on the way (population-based training): this is that of its best report."
        )
    if (folds := ((settings.get("repeats") or {}).get("folds"))) is not None:
        lines.append(f"Its sweep trained on {folds} folds, of which code knows within a sweep alone.")
    return lines


def _head(facts: Mapping[str, Any], settings: Mapping[str, Any], more: list[str]) -> str:
    return "".join(f"# {' '.join(line.split())}\n" for line in [*_words(facts, settings), *more])


# --- A trial's model, with the weights of its checkpoint ------------------------------------------


def load_model(
    trial: TrialResult,
    settings: Mapping[str, Any],
    model_cls: type[Any] | None,
    *,
    trust: bool,
    weights_only: bool,
    **kwargs: Any,
) -> Any:
    """Return a trial's LightningModule; see :meth:`TrialResult.load_model`. ``settings``: those of its sweep."""
    prefer(settings.get("lightning"))
    cls = model_cls if model_cls is not None else _recorded_model(trial, settings, trust)
    if not hasattr(cls, "load_from_checkpoint"):
        name = getattr(cls, "__name__", repr(cls))
        raise TrainFunctionError(
            f"The model {name} is no LightningModule class but a {type(cls).__name__}. Call "
            "load_model(YourLightningModule)."
        )
    path = trial.checkpoint
    if path is None:
        raise CheckpointError(
            f"Trial {trial.id} has no checkpoint to load a model from. Use tunelight's "
            "TuneReportCheckpointCallback in the train function (a model= sweep writes checkpoints by "
            "itself, unless checkpoints=None)."
        )
    if torn := checkpoints.describe_torn(path):
        raise CheckpointError(f"{torn} Load another: {_others(trial, path)}.")
    trial.of_another_report()
    import torch  # whoever only reads results need not wait for torch

    try:
        with contextlib.ExitStack() as stack:
            source = path
            if _holds_shards(path):
                source = Path(stack.enter_context(tempfile.TemporaryDirectory()), "whole.ckpt")
                _join(path, source, weights_only=weights_only)
            saved = torch.load(source, map_location="cpu", weights_only=weights_only, mmap=True)
            arguments = kwargs if "hyper_parameters" in saved else {**_model_arguments(trial.config, cls), **kwargs}
            del saved
            # Some packages' own method decides about weights_only, and Lightning's knows it from 2.6 on. What the file
            # holds was settled above.
            if "weights_only" in inspect.signature(cls.load_from_checkpoint).parameters:
                arguments = {**arguments, "weights_only": weights_only}
            try:
                return cls.load_from_checkpoint(source, map_location="cpu", **arguments).eval()
            except pickle.UnpicklingError:
                if weights_only or "weights_only" in arguments:
                    raise
                return cls.load_from_checkpoint(source, map_location="cpu", weights_only=False, **arguments).eval()
    except pickle.UnpicklingError as error:
        raise _runs_code(path, error) from error
    except (OSError, RuntimeError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"The checkpoint {path} cannot be loaded into {cls.__name__}: {error}. Is that the class "
            "that the trial trained? Arguments that it needs can be given to load_model(...)."
        ) from error


def _others(trial: TrialResult, path: Path) -> str:
    """Return the trial's other checkpoints than ``path``, as text."""
    whole = [info for info in checkpoints.find(trial.path) if info.path != str(path) and checkpoints.is_valid(info)]
    found = (info.path if info.value is None else f"{info.path} (value {info.value:.6g})" for info in whole)
    return ", ".join(found) or "the trial has no other"


def _recorded_model(trial: TrialResult, settings: Mapping[str, Any], trust: bool) -> type[Any]:
    recorded = settings.get("model")
    if not isinstance(recorded, str):
        given = "a train function" if settings.get("script") is None else "a script"
        raise TrainFunctionError(
            f"Which class trial {trial.id} trained is not known: the sweep was given {given}, not model=. Call "
            "load_model(YourLightningModule)."
        )
    file = (settings.get("run") or {}).get("file")
    folder = Path(file).parent if isinstance(file, str) else None
    try:
        with importable(folder) if trust and folder is not None else contextlib.nullcontext():
            found: type[Any] = load_object(recorded)
    except ImportPathError as error:
        name = recorded.rpartition(":")[2].rpartition(".")[2]
        how = f"Import the class and call load_model({name if name.isidentifier() else 'YourLightningModule'})"
        if folder is not None and not trust:
            how += (
                f"; or, if you trust the code in {folder}, from which the sweep was run, have it imported from "
                "there: load_model(trust=True)"
            )
        raise ImportPathError(f"The sweep's model {recorded!r} does not import here: {error} {how}.") from error
    return found


def _model_arguments(config: dict[str, Any], cls: type[Any]) -> dict[str, Any]:
    """Return the configuration's part for the module: ``model.*``, else what its constructor takes."""
    of_model = {key: value for key, value in config.items() if key.partition(".")[0] == "model"}
    if arguments := split_config(of_model)["model"]:
        return arguments
    taken = inspect.signature(cls).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
        return config
    names = {parameter.name for parameter in taken}
    return {key: value for key, value in config.items() if key in names}


def _runs_code(path: Path, error: pickle.UnpicklingError) -> CheckpointError:
    return CheckpointError(
        f"{path} holds more than weights and plain data, and opening it would run code: {refused(error)}. If "
        "you trust it, call load_model(weights_only=False)."
    )


def refused(error: pickle.UnpicklingError) -> str:
    """Return what torch refused to load, without the advice on torch.load that torch gives at length."""
    found = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
    return str(error) if found is None else f"it holds {found[1]}"
