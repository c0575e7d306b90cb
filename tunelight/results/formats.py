"""How LightningCLI, Hydra and a program are told of a trial: seed, model, data, and a Trainer with its workers."""

from __future__ import annotations

import copy
import math
import pprint
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tunelight.compat.lightning import FABRIC
from tunelight.errors import SettingsError
from tunelight.record import to_yaml
from tunelight.resources import reserve
from tunelight.settings import PARTS
from tunelight.settings.backends import BACKENDS
from tunelight.settings.dotted import holder_of
from tunelight.space.parts import split_config

_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_WIDER: Final = "tunelight.WiderModel"
_MAX_FAILURES: Final = 3
"""The default of ``failures``, which needs no word."""


def lightning_cli(facts: Mapping[str, Any], told: Mapping[str, Any], name: str) -> str:
    """Return a config file for a LightningCLI that was made with the model's and data module's classes."""
    parts, notes = _parts(facts, told, _CLI)
    kind, arguments = _strategy(told)
    parts["trainer"].setdefault("strategy", {"class_path": f"tunelight.{kind}", "init_args": arguments})
    head = [f"Train it with a train.py that calls LightningCLI(Model, Data): python train.py fit --config {name}"]
    if facts["checkpoint"]:
        head.append(f"Validate it: python train.py validate --config {name} --ckpt_path {facts['checkpoint']}")
    sections = {"seed_everything": facts["seed"], **parts}
    return _head(facts, [*head, *notes]) + to_yaml(
        {key: value for key, value in sections.items() if value not in (None, {})}
    )


def hydra(facts: Mapping[str, Any], told: Mapping[str, Any], name: str) -> str:
    """Return a config for Hydra, whose parts ``hydra.utils.instantiate`` builds where their classes are known."""
    parts, notes = _parts(facts, told, _HYDRA)
    kind, arguments = _strategy(told)
    parts["trainer"].setdefault("strategy", {"_target_": f"tunelight.{kind}", **arguments})
    targets = {"model": told.get("model"), "data": told.get("data"), "trainer": f"{_lightning(told)}:Trainer"}
    for part, path in targets.items():
        if isinstance(path, str) and not path.startswith("__main__:"):
            # Lists and mappings are to arrive as Python's own, not as OmegaConf's.
            parts[part] = {"_target_": path.replace(":", "."), "_convert_": "all", **parts[part]}
    head = [f"As conf/experiment/{name}: python train.py +experiment={name.rpartition('.')[0]}"]
    sections = {"seed": facts["seed"], **parts}
    body = to_yaml({key: value for key, value in sections.items() if value not in (None, {})})
    return "# @package _global_\n" + _head(facts, [*head, *notes]) + body


def python(facts: Mapping[str, Any], told: Mapping[str, Any], name: str) -> str:
    """Return a program that trains the configuration: a Trainer with its strategy, or a sweep of one trial."""
    code = {what: told.get(what) for what in ("model", "data", "train")}
    for what, path in code.items():
        if path is not None and (str(path).startswith("__main__:") or "<" in str(path)):
            raise SettingsError(
                f"The sweep's {what} is {path}, which only the script or notebook that ran it can define, so that a "
                "program cannot import it. Move it into a module, or use format='yaml'."
            )
        if path is not None and not _PATH.fullmatch(str(path)):
            raise SettingsError(f"The sweep's {what} {path!r} is no import path, module:Name. Use format='yaml'.")
    head = _words(facts)
    notes: list[str] = []
    if code["model"]:
        parts, notes = _parts(facts, told, _PYTHON)
        imports, body = _fit(facts, told, parts)
    else:
        imports, body = _trial(facts, told)
    said = [_quoted(line) for line in [f"{head[0].rstrip('.')}.", "", *head[1:], *notes, f"Run it: python {name}"]]
    doc = "\n".join([f'"""{said[0]}', *said[1:], '"""'])
    objects = (facts.get("objects") or {}).values()
    used = sorted({path.partition(":")[0] for one in objects for path in _paths(one)})
    start = "\n\n".join([doc, *(["\n".join(f"import {module}" for module in used)] if used else []), *imports])
    return f'{start}\n\n\ndef main() -> None:\n{body}\n\n\nif __name__ == "__main__":\n    main()\n'


def shell(facts: Mapping[str, Any], told: Mapping[str, Any], name: str) -> str:
    """Return a shell script that trains the configuration by the script that was tuned, without tunelight."""
    if (command := facts.get("command")) is None:
        raise SettingsError(
            "The sweep did not tune a script, so that there is no command to export. Use format='python' or 'yaml'."
        )
    lines = [f"Run it: ./{name}", "What is given to it is added to the command."]
    folder = (told.get("run") or {}).get("cwd")
    return "\n".join(
        [
            f"#!/usr/bin/env bash\n{_head(facts, lines)}set -euo pipefail",
            *([f"cd -- {shlex.quote(folder)}"] if folder else []),
            f'exec {shlex.join(command)} "$@"\n',
        ]
    )


def _fit(facts: Mapping[str, Any], told: Mapping[str, Any], parts: dict[str, Any]) -> tuple[list[str], str]:
    """Return imports and body of a program that trains with a Trainer of its own."""
    kind, arguments = _strategy(told)
    trainer = dict(parts["trainer"])
    strategy = repr(trainer.pop("strategy")) if "strategy" in trainer else f"tl.{kind}({_arguments(arguments)})"
    model, data = _imported(told["model"]), _imported(told.get("data"))
    modules: dict[str, list[str]] = {}
    for module, name in (model, data):
        modules.setdefault(module, []).append(name.partition(".")[0])
    own = [f"from {module} import {', '.join(sorted(set(known)))}" for module, known in modules.items() if module]
    imports = "\n".join([f"import {_lightning(told)} as pl", "", "import tunelight as tl", *own])
    for key in trainer:
        if not key.isidentifier():
            raise SettingsError(
                f"The configuration's key 'trainer.{key}' is no argument of a Trainer. Use format='yaml'."
            )
    trainer_lines = [f"        {name}={_coded(value)!r}," for name, value in trainer.items()]
    lines = [
        f"    pl.seed_everything({facts['seed']!r})",
        f"    model = {model[1]}({_arguments(parts['model'])})",
        *([f"    data = {data[1]}({_arguments(parts['data'])})"] if data[1] else []),
        "    trainer = pl.Trainer(",
        *trainer_lines,
        f"        strategy={strategy},",
        "    )",
        f"    trainer.fit(model{', datamodule=data' if data[1] else ''})",
    ]
    return [imports], "\n".join(lines)


def _trial(facts: Mapping[str, Any], told: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return imports and body of a program that trains by the sweep's own train function, as a sweep of one trial."""
    module, name = _imported(told.get("train"))
    names = ("mode", "workers", "cpus_per_worker", "gpus_per_worker", "resources_per_trial", "backend", "max_epochs")
    settings = {key: value for key in names if (value := told.get(key)) is not None}
    if settings.get("resources_per_trial"):
        settings.pop("workers", None)
    if isinstance(settings.get("workers"), list):
        settings["workers"] = tuple(settings["workers"])
    more = _arguments({"metric": told.get("metric"), "num_samples": 1, "scheduler": "fifo", **settings})
    space = "{key: tl.choice([value]) for key, value in CONFIG.items()}"
    body = f"    results = tl.run({space}, {name}, {more})\n    print(results.summary())"
    first = f"from {module} import {name.partition('.')[0]}"
    return [f"import tunelight as tl\n{first}", f"CONFIG = {_literal(_expressed(facts, _PYTHON))}"], body


def _expressed(facts: Mapping[str, Any], words: _Words) -> dict[str, Any]:
    """Return the configuration with objects in a format's own words. Raises: SettingsError where it has none."""
    config: dict[str, Any] = copy.deepcopy(facts["config"])
    for key, one in (facts.get("objects") or {}).items():
        holder, last = holder_of(config, key)
        if one is None or not all(_PATH.fullmatch(path) and path.split(":")[0] != "__main__" for path in _paths(one)):
            raise SettingsError(
                f"The configuration's {key} is {holder[last]!r}, an object that cannot be imported from a module, so "
                "that this format cannot name it. Define it in a module, or use format='yaml'."
            )
        holder[last] = words.of(one)
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
            yield from (path for one in parts for path in _paths(one))
        case {"dict": parts}:
            yield from (path for one in parts.values() for path in _paths(one))


@dataclass(frozen=True)
class _Words:
    """How a format names objects: by their dotted paths, and the values of a dataclass's fields."""

    path: Callable[[str], Any]
    member: Callable[[str, str], Any]
    made: Callable[[str, dict[str, Any]], Any]
    callback: Callable[[dict[str, Any]], Any]
    """WiderModel with its arguments, among a Trainer's callbacks."""

    def of(self, described: Any) -> Any:
        """Return an object in the format's words."""
        match described:
            case str():
                return self.path(described.replace(":", "."))
            case {"enum": path, "name": name}:
                return self.member(path.replace(":", "."), name)
            case {"dataclass": path, "fields": parts}:
                return self.made(path.replace(":", "."), {key: self.of(one) for key, one in parts.items()})
            case {"tuple": parts}:
                return tuple(self.of(one) for one in parts)
            case {"list": parts}:
                return [self.of(one) for one in parts]
            case {"dict": parts}:
                return {key: self.of(one) for key, one in parts.items()}
        return described["value"]


class _Code(str):
    """Python code, which its ``repr`` is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _hydra_object(path: str) -> dict[str, Any]:
    return {"_target_": "hydra.utils.get_object", "path": path}


_CLI: Final = _Words(
    str,
    lambda _, name: name,
    lambda _, fields: fields,
    lambda arguments: {"class_path": _WIDER, "init_args": arguments},
)
_HYDRA: Final = _Words(
    _hydra_object,
    lambda path, name: _hydra_object(f"{path}.{name}"),
    lambda path, fields: {"_target_": path, **fields},
    lambda arguments: {"_target_": _WIDER, "_convert_": "all", **arguments},
)
_PYTHON: Final = _Words(
    _Code,
    lambda path, name: _Code(f"{path}.{name}"),
    lambda path, fields: _Code(f"{path}({_arguments(fields)})"),
    lambda arguments: _Code(f"tl.WiderModel({_arguments(arguments)})"),
)


def _parts(
    facts: Mapping[str, Any], told: Mapping[str, Any], words: _Words
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return a configuration as arguments of model, data and Trainer, and what had to be left out.

    Raises: SettingsError where keys do not say whose they are.
    """
    config = _expressed(facts, words)
    for key in config:
        part, dot, _ = key.partition(".")
        if part not in PARTS or not (dot or isinstance(config[key], Mapping)):
            raise SettingsError(
                f"The configuration's key {key!r} does not say whose argument it is: keys begin with "
                f"{', '.join(f'{name}.' for name in PARTS)} in a sweep with model=. For that of a train function, use "
                "format='yaml', 'json' or 'python'."
            )
    parts = split_config(config)
    given = dict(told.get("trainer_args") or {})
    objects = [key for key, value in given.items() if _holds_object(value)]
    own = {key: value for key, value in given.items() if key not in objects}
    epochs = {} if told.get("max_epochs") is None else {"max_epochs": told["max_epochs"]}
    # With GPUs the strategy finds out for itself: the process that starts the workers may have none.
    device = {} if told.get("gpus_per_worker") else {"accelerator": "cpu"}
    trainer = parts["trainer"] = {**epochs, **device, **own, **parts["trainer"]}
    if wider := facts.get("wider"):
        known = trainer.get("callbacks") or []
        trainer["callbacks"] = [*(known if isinstance(known, list) else [known]), words.callback(wider)]
    notes = [f"Left out, for they are objects: trainer_args {', '.join(objects)}."] if objects else []
    return parts, notes


def _lightning(told: Mapping[str, Any]) -> str:
    """Return the package of Lightning that a sweep's code was written with.

    Raises: SettingsError for any other name, for this one becomes code.
    """
    name = str(told.get("lightning") or "pytorch_lightning")
    if name not in FABRIC:
        raise SettingsError(
            f"The sweep's record names the package {name!r} as its Lightning; there are: {', '.join(FABRIC)}."
        )
    return name


def _strategy(told: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the strategy that trains with the sweep's workers, and its arguments where they are not the defaults."""
    workers = told.get("workers") or 1
    one = reserve(
        tuple(workers) if isinstance(workers, list) else workers,
        told.get("cpus_per_worker", 1),
        told.get("gpus_per_worker", 0),
        told.get("resources_per_trial"),
    )
    more = dict(one.resources_per_worker)
    if one.gpus_per_worker not in (0, 1):
        more["GPU"] = one.gpus_per_worker
    failures = (told.get("failures") or {}).get("max_failures", _MAX_FAILURES)
    arguments = {
        "num_workers": one.workers if one.least is None else [one.least, one.workers],
        "num_cpus_per_worker": None if one.cpus_per_worker == 1 else one.cpus_per_worker,
        "use_gpu": bool(one.gpus_per_worker) or None,
        "resources_per_worker": more or None,
        "failures": None if failures == _MAX_FAILURES else failures,
        "evaluation": None if told.get("evaluation", one.evaluation) == one.evaluation else told["evaluation"],
    }
    kept = {name: value for name, value in arguments.items() if value is not None}
    return BACKENDS[str(told.get("backend") or "ddp")].strategy_name, kept


def _holds_object(value: Any) -> bool:
    """Tell whether sweep.yaml had no word for a value, or for a part of it."""
    if isinstance(value, Mapping):
        return value.keys() == {"object"} or any(_holds_object(part) for part in value.values())
    return isinstance(value, list) and any(_holds_object(part) for part in value)


def _words(facts: Mapping[str, Any]) -> list[str]:
    """Return where a configuration came from, in words."""
    when = f"report {facts['training_iteration']}" if facts["training_iteration"] is not None else "no report"
    metric = facts["metric"][0] if isinstance(facts["metric"], list) else facts["metric"]
    value = "nothing comparable" if facts["value"] is None else f"{metric}={facts['value']:.6g}"
    lines = [f"Trial {facts['trial']} of the sweep {facts['sweep']['name']}: {value} at {when}."]
    if facts.get("changes"):
        lines.append(
            "Its configuration changed on the way (population-based training): this is that of its best report."
        )
    return lines


def _head(facts: Mapping[str, Any], more: list[str]) -> str:
    return "".join(f"# {' '.join(line.split())}\n" for line in [*_words(facts), *more])


def _quoted(line: str) -> str:
    """Return a line as it can stand in a docstring: what a record holds must not end it."""
    return " ".join(line.split()).replace("\\", "/").replace('"""', "...")


def _imported(path: Any) -> tuple[str, str]:
    """Return module and name of "module:Outer.Name"; both empty without a path."""
    module, _, name = str(path or ":").partition(":")
    return module, name


def _arguments(values: Mapping[str, Any]) -> str:
    """Return keyword arguments as they are written in a call."""
    if all(name.isidentifier() for name in values):
        return ", ".join(f"{name}={_coded(value)!r}" for name, value in values.items())
    return f"**{_coded(values)!r}"


def _literal(config: Mapping[str, Any]) -> str:
    return pprint.pformat(_coded(config), sort_dicts=False, width=110)


class _Special(float):
    """A NaN or an infinity, which Python has no literal for."""

    def __repr__(self) -> str:
        return f'float("{float(self)}")'


def _coded(value: Any) -> Any:
    """Return plain data whose ``repr`` is Python."""
    if isinstance(value, Mapping):
        return {key: _coded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_coded(part) for part in value)
    return _Special(value) if isinstance(value, float) and not math.isfinite(value) else value
