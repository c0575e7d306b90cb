"""Script: the training code of a sweep that runs a script, on each worker of a trial."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunelight.errors import MetricError, ScriptError, SettingsError, first_of, guess
from tunelight.extras.scripts import process
from tunelight.extras.scripts.draft import Read, draft_of, read_options
from tunelight.extras.scripts.files import VARIABLE, files_watched, overwritten_callback
from tunelight.extras.scripts.style import (
    READ,
    Option,
    find_style,
    imported_by,
    parsers_of,
    reports_itself,
    script_file,
    spell,
    spell_one,
    spell_within,
    texts_of,
)
from tunelight.session.session import Session, get_session
from tunelight.settings import SETTINGS, Settings, check_setting
from tunelight.settings.checks import flatten, plain_setting
from tunelight.settings.code import Style

if TYPE_CHECKING:
    from tunelight.extras.scripts.worker import ScriptWorker
    from tunelight.gang.worker import GangWorker
    from tunelight.schedulers.base import GangScheduler
    from tunelight.space import SearchSpace


# The words that W&B's agent puts in place of a command's macros, as in its ``create_sweep_command_args`` (0.31).

AGENTS: Final = ("args_no_equals", "args_append_hydra", "args_override_hydra")
"""Macros that stand for the same words whatever a script reads its arguments by."""
_BEFORE: Final = {"args": "--", "args_no_hyphens": "", "args_append_hydra": "+", "args_override_hydra": "++"}


def agent_words(macro: str, config: Mapping[str, Any]) -> list[str]:
    """Return what stands for a macro: Python's text of each value; nested parameters are one, with a mapping."""
    match macro:
        case "args_json":
            return [json.dumps(dict(config))]
        case "args_no_equals":
            return [word for key, value in config.items() for word in (f"--{key}", str(value))]
        case "args_no_boolean_flags":
            return [
                f"--{key}" if value is True else f"--{key}={value}"
                for key, value in config.items()
                if value is not False
            ]
        case "no_args":
            return []
    return [f"{_BEFORE[macro]}{key}={value}" for key, value in config.items()]


# A search space against the options of a script's parser: keys and values that cannot be written for it.


def check_options(
    script: str, read: Read, examples: Mapping[str, Sequence[Any]], named: set[str], style: Style = "argparse"
) -> None:
    """Raise SettingsError for a key that is none of the script's options, and a value that an option cannot have.

    Args:
        script: its name, for the errors.
        read: what is known of its parser.
        examples: values of the search space's domains, by dotted key.
        named: keys that ``args`` takes the values of.
        style: how the script reads arguments.
    """
    for key, values in examples.items():
        if key in named:
            continue
        if read.options is not None and read.strict and not _is_taken(key, read):
            known = list(dict.fromkeys(option.key for option in read.options))
            raise SettingsError(
                f"{script} has no option for the key {key!r} of the search space.{guess(key, known)} It has: "
                f"{first_of(known, 12) or 'none'}."
            )
        for value in values if style != "wandb" else ():
            try:
                spell_one(style, key, value, read.options or ())
            except SettingsError as error:
                raise SettingsError(f"{script}: {error}") from None


def _is_taken(key: str, read: Read) -> bool:
    """Tell whether a key is an option's name or its beginning, or an argument of what an option names."""
    options = read.options or ()
    if any(option.nested and key.startswith(f"{name.lstrip('-')}.") for option in options for name in option.names):
        return True
    begun = {option.dest for option in options for name in option.names if name.startswith(f"--{key}")}
    return any(option.means(key) for option in options) or (read.abbreviates and len(begun) == 1)


_MACRO = re.compile(r"\$\{([\w.\-]+)\}")
_ALL = ("args", "args_no_hyphens", "args_no_boolean_flags", "args_json", *AGENTS, "no_args")
_EVERYTHING = tuple(f"${{{name}}}" for name in _ALL)
"""Macros that stand for all hyperparameters that no other one names, W&B's names; and for none of them."""
_OVERRIDES = {"${args_no_hyphens}", "${args_append_hydra}", "${args_override_hydra}"}
"""Macros whose words Hydra reads, if a script imports it."""
_SAY_WHERE = ("hydra.run.dir=", "hydra.sweep", "--multirun", "-m")
"""Beginnings of words that say where Hydra writes, which is else the trial's folder."""
_FOLDER = "trial_dir"
"""The macro that stands for the trial's folder."""
_RECORDED = ("file", "module", "args", "style", "imported", "devices")
_LIGHTNING = {"pytorch_lightning", "lightning"}
_LAUNCHED = {*_LIGHTNING, "accelerate", "transformers", "wandb"}
"""Libraries that a command has to tell of the workers, or of the configuration."""


@dataclass(frozen=True)
class Script:
    """Runs a script, with a configuration on its command line. Runs on: worker.

    Attributes:
        file: its path; ``module``: its name, if it is run as a module.
        args: what comes before the hyperparameters; ``${key}`` stands for a key's value, ``${args}`` for all others,
            ``${trial_dir}`` for the trial's folder.
        style: how it reads hyperparameters.
        options: those of its parser, as far as they are known.
        imported: the modules that it imports, and their packages.
        checkpoints: whether reports of a Trainer write one.
        devices: the key that says how many devices its Trainer trains on; empty where none is known.
        about: how its arguments are written, and why, for the person who checks a sweep.
        unread: how each key is written where the options are not known, for a sweep's notes; empty where they are.
    """

    file: str
    module: str | None = None
    args: tuple[str, ...] = ()
    style: Style = "argparse"
    options: tuple[Option, ...] = ()
    imported: tuple[str, ...] = ()
    checkpoints: bool = True
    devices: str = ""
    about: str = ""
    unread: str = ""

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> Script:
        """Return the script of a sweep, as far as :meth:`recorded` tells, to spell commands."""
        options = tuple(map(Option.of, recorded.get("options") or ()))
        given: dict[str, Any] = {name: tuple(val) if isinstance(val, list) else val for name, val in recorded.items()}
        return cls(**{name: given[name] for name in _RECORDED if name in given}, options=options)

    def recorded(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return what its commands depend on, as plain data; ``keys``: those of the search space."""
        return {
            **{name: getattr(self, name) for name in _RECORDED},
            "args": list(self.args),
            "imported": [name for name in self.imported if name in _LAUNCHED],
            "options": [
                option.recorded()
                for option in self.options
                if any(option.means(key) or option.key.startswith(f"{key}.") for key in (*keys, self.devices))
            ],
        }

    def watched(self, folder: Path, note: Callable[[str], object]) -> Any:
        """Return the callback for Tune that looks at what trials write beside the script. Runs on: driver."""
        if self.unread:
            note(self.unread)
        return overwritten_callback(folder, note)

    @staticmethod
    def actor(settings: Settings, scheduler: GangScheduler) -> type[GangWorker | ScriptWorker] | None:
        """Return the actor of a worker that runs each trial in a process of its own; None where the user says not to.

        What uses Ray in a trial (datasets, the weights of GangPBT) needs the actor's own process, a new one for each.
        """
        from tunelight.extras.scripts.worker import ScriptWorker
        from tunelight.gang.worker import GangWorker  # imports Ray
        from tunelight.schedulers.pbt import GangPBT

        if settings.reuse_gangs:
            return None
        return GangWorker if settings.datasets is not None or isinstance(scheduler, GangPBT) else ScriptWorker

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.module or Path(self.file).name

    def command(self, config: Mapping[str, Any], folder: str = ".") -> list[str]:
        """Return the arguments for a configuration, nested or dotted; ``folder``: what ``${trial_dir}`` stands for.

        A word of ``args`` that names a key which the configuration lacks is left out, with the option that it belongs
        to. Raises: SettingsError for a value that the script would read as another one.
        """
        config = _placed(config, folder)
        values: dict[str, Any] = {_FOLDER: folder, **flatten(config)}
        words, named = self._fixed(values)
        named |= {_FOLDER} - config.keys()
        rest = {key: value for key, value in values.items() if key not in named}
        if not any(word in _EVERYTHING for word in words):
            words.append("${args}")
        done: list[str] = []
        for word in words:
            if word not in _EVERYTHING:
                done.append(word)
            elif self.style == "wandb" or word[2:-1] in (*AGENTS, "no_args"):
                done += agent_words(word[2:-1], config if self.style == "wandb" else rest)
            else:
                done += self._spelt(rest, word)
        return done

    def _fixed(self, values: Mapping[str, Any]) -> tuple[list[str], set[str]]:
        """Return ``args`` with the values that it names, and the keys of these."""
        words: list[str] = []
        named: set[str] = set()
        for word in self.args:
            keys = [key for key in _MACRO.findall(word) if key not in _ALL]
            alone = keys != [] and word == f"${{{keys[0]}}}"
            last = words[-1] if alone and words else ""  # an option's name takes the next word as its value
            holder = words.pop() if last and (last == keys[0] or (last[0] == "-" and "=" not in last)) else ""
            filled = self._filled(word, keys, holder, values)
            words += filled
            named.update(keys if filled else ())
        return words, named

    def _filled(self, word: str, keys: list[str], holder: str, values: Mapping[str, Any]) -> list[str]:
        """Return a word with the values of its keys, behind ``holder``, the option before it; none where one lacks."""
        if any(key not in values for key in keys):
            return []
        before, _, after = word.partition(f"${{{keys[0]}}}" if keys else word)
        if keys and not after and (not before or before.endswith("=")):  # all of an option's value
            return spell_within(self.style, before or holder, keys[0], values[keys[0]], self.options)
        return [_MACRO.sub(lambda found: str(values.get(found[1], found[0])), word)]

    def _spelt(self, values: Mapping[str, Any], macro: str) -> list[str]:
        """Return the words for all values."""
        if macro == "${args_json}":
            return [json.dumps(dict(values))]
        if macro == "${args_no_hyphens}":
            return spell("hydra", values) if self.style == "hydra" else [f"{key}={val}" for key, val in values.items()]
        options = self.options
        if macro == "${args_no_boolean_flags}":
            options += tuple(Option((f"--{key}",), kind="flag") for key, val in values.items() if isinstance(val, bool))
        return spell(self.style, values, options)

    def train(self, config: Mapping[str, Any], shown: str, options: Sequence[str]) -> list[str]:
        """Return tunelight's command that trains a configuration as a trial did; ``shown``: the script as given."""
        start = ["tunelight", "train", self.module or shown]
        if "wandb" not in self.imported:
            return [*start, *options, "--", *self.command(config, f"${{{_FOLDER}}}")]
        # W&B's configuration holds the values, too, and many a script reads nothing else.
        keys = [f"{key}={json.dumps(value)}" for key, value in config.items()]
        style = [] if self.style == "argparse" else [f"--set=style={self.style}"]
        return [*start, *keys, *options, *style, "--", *self.args]

    def launch(self, config: Mapping[str, Any], shown: str, workers: int, seed: int, *, gpus: bool) -> list[str] | None:
        """Return the command that does it without tunelight; None for a script that reads W&B's configuration.

        Left to its defaults, Lightning trains on one device, and under torchrun each rank for itself.
        """
        if "wandb" in self.imported:
            return None
        known = {}
        words = ["python"] if workers == 1 else ["torchrun", "--nproc_per_node", str(workers)]
        if not _LIGHTNING.isdisjoint(self.imported):
            known["PL_GLOBAL_SEED"] = str(seed)
            if self.devices:
                config = {**flatten(config), self.devices: workers}
            else:  # defaults of each Trainer; one that says devices=1 itself is refused with this strategy
                known["PL_TRAINER_DEVICES"] = str(workers)
                known |= {"PL_TRAINER_STRATEGY": "ddp"} if workers > 1 else {}
        if workers > 1 and not gpus and not {"accelerate", "transformers"}.isdisjoint(self.imported):
            known["ACCELERATE_USE_CPU"] = "true"
        start = ["env", *(f"{name}={value}" for name, value in known.items())] if known else []
        return [*start, *words, *(["-m", self.module] if self.module else [shown]), *self.command(config)]

    def __call__(self, config: Mapping[str, Any]) -> None:
        """Run the script to its end, with its Trainers and its process group on the gang."""
        from tunelight.compat.lightning import know_rank
        from tunelight.extras.scripts.logged import logged, writers_inside
        from tunelight.extras.scripts.trainer import (
            joined_group,
            trainers_taken_in,  # imports Lightning
            transformers_taken_in,
        )

        file = Path(self.file)
        if not file.is_file():
            raise ScriptError(
                f"{self.file} is not on this node. Pass runtime_env={{'working_dir': '.'}} to the sweep, or keep the "
                "script in a folder that all nodes share."
            )
        session = get_session()
        imported = set(self.imported)
        words = self.command(config, session.context.trial_dir)
        # A script that imports hydra may use its `instantiate` alone.
        by_hydra = self.style == "hydra" or ("hydra" in self.imported and not _OVERRIDES.isdisjoint(self.args))
        if by_hydra and not any(word.lstrip("+").startswith(_SAY_WHERE) for word in words):
            words = [*words, f"hydra.run.dir='{session.context.trial_dir}'"]
        with contextlib.ExitStack() as stack:
            reports = stack.enter_context(logged(session, imported, texts_of(self.file)))
            of_trainers = None if "tunelight" in imported and reports_itself(self.file) else reports
            stack.enter_context(trainers_taken_in(session, of_trainers, checkpoints=self.checkpoints))
            stack.enter_context(joined_group(session))
            stack.enter_context(writers_inside(session.context.trial_dir, imported))
            if "transformers" in imported:
                stack.enter_context(transformers_taken_in(session, of_trainers))
            _set_variables(session, imported, config)
            know_rank(session.context.rank)  # before its first Trainer
            stack.enter_context(files_watched(session, file.parent))
            process.run(file, self.module, [self.file, *words])
            reports.end()
            self._check_reported(session, list(reports.names))

    def _check_reported(self, session: Session, names: list[str]) -> None:
        """Raise MetricError for a script that has ended without a report; ``names``: what rank 0 has logged."""
        metric = session.context.metric
        if session.progress.number or not session.task.must_report:
            return
        if session.context.rank and "tunelight" in self.imported:  # rank 0 alone may have reported
            return
        seen = f" It logged {first_of(names, 12)}." if names else ""
        raise MetricError(
            f"{self.name} ended without a report of {metric!r}.{seen} A report is made by a Lightning Trainer that "
            "validates or ends an epoch, by an evaluation of transformers' Trainer, by tunelight.report(metrics), or "
            f"by what is logged as {metric!r} with W&B, MLflow or TensorBoard, or printed as '{metric}: 0.4'."
        )


_CARRIED: Final = (
    *("metric", "mode", "backend", "cpus_per_worker", "resources_per_trial", "evaluation", "failures", "checkpoints"),
    *("datasets", "data_cpus", "cache", "runtime_env", "address"),
)
"""Settings that the command of a trial names where they are not the defaults, beside its workers and its seed."""


def train_command(config: Mapping[str, Any], recorded: Mapping[str, Any], seed: int) -> list[str]:
    """Return tunelight's command that trains a configuration as a trial of a recorded sweep did."""
    options = [] if recorded.get("resources_per_trial") else ["--workers", str(_workers(recorded))]
    gpus = recorded.get("gpus_per_worker")
    options += [*(["--gpus", f"{gpus:g}"] if gpus else []), "--seed", str(seed)]
    for name in _CARRIED:
        usual = "ddp" if name == "evaluation" else check_setting(name, SETTINGS[name].default)
        if name in recorded and recorded[name] != plain_setting(usual):
            value = recorded[name]
            text = value if isinstance(value, str) and value.isidentifier() else json.dumps(value)
            options += ["--set", f"{name}={text}"]
    return Script.of(recorded["call"]).train(config, _shown(recorded), options)


def launch_command(config: Mapping[str, Any], recorded: Mapping[str, Any], seed: int) -> list[str] | None:
    """Return the command that does it without tunelight; None if none is known to do the same."""
    gpus = recorded.get("gpus_per_worker") or 0
    if recorded.get("backend") not in (None, "ddp") or gpus not in (0, 1):
        return None
    script, workers = Script.of(recorded["call"]), _workers(recorded)
    return script.launch(config, _shown(recorded), workers, seed, gpus=bool(gpus))


def _workers(recorded: Mapping[str, Any]) -> int:
    workers = recorded.get("workers") or 1
    return int(workers[-1] if isinstance(workers, list) else workers)


def _shown(recorded: Mapping[str, Any]) -> str:
    """Return the path of a sweep's script, as seen from its working directory."""
    shown, cwd = Path(recorded["call"]["file"]), (recorded.get("run") or {}).get("cwd")
    return str(shown.relative_to(cwd)) if cwd and shown.is_relative_to(cwd) else str(shown)


def _set_variables(session: Session, imported: set[str], config: Mapping[str, Any]) -> None:
    """Set what libraries read from the environment, unless it is set; the worker sets it back after the trial."""
    folder = os.environ[VARIABLE] = session.context.trial_dir
    os.environ.setdefault("WANDB_DIR", folder)  # Trainers use W&B unasked
    if "hydra" in imported:
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # or it exits in place of raising
    if "wandb" in imported:  # its runs have the configuration, as under its agent
        file = Path(folder, "wandb", f"config-{session.context.rank}.yaml")
        file.parent.mkdir(exist_ok=True)
        values = {key: {"value": value} for key, value in _placed(config, folder).items()}
        file.write_text(json.dumps({"wandb_version": 1} | values))
        os.environ.setdefault("WANDB_SWEEP_PARAM_PATH", str(file))


def _placed(value: Any, folder: str) -> Any:
    """Return a value with the trial's folder in its texts, at any depth."""
    if isinstance(value, str):
        return value.replace(f"${{{_FOLDER}}}", folder)
    if isinstance(value, Mapping):
        return {key: _placed(part, folder) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_placed(part, folder) for part in value)
    return value


def script_of(space: SearchSpace, settings: Settings) -> Script:
    """Return the script of a sweep, with the options of its parser as far as they can be read.

    Raises: SettingsError for a key that ``args`` names and the space lacks, for a key that is none of the script's
    options, and for a value that an option cannot have.
    """
    assert settings.script is not None  # its caller asks only then
    args = tuple(settings.args)
    named = {name for word in args for name in _MACRO.findall(word) if name not in (*_ALL, _FOLDER)}
    for name in sorted(named - space.domains.keys()):
        raise SettingsError(
            f"args holds ${{{name}}}, and the search space has no key {name!r}. It has: {', '.join(space.domains)}."
        )
    is_module = not Path(settings.script).is_file()
    style, why = (settings.style, "style= says so") if settings.style else find_style(settings.script)
    script = Script(
        file=str(script_file(settings.script)),
        module=settings.script if is_module else None,
        args=args,
        style=style,
        imported=tuple(sorted(imported_by(settings.script))),
        checkpoints=bool(settings.checkpoints),
    )
    examples = {key: kind.examples(space.domains[key]) for key, kind in space.kinds.items()}
    if style == "wandb":  # a group of parameters is one argument, and there are none where the command asks for none
        examples = {} if "${no_args}" in args else {key: examples.get(key, []) for key in space.describe()}
    else:
        examples = _flat(examples)
    read = options_of(script)
    if not {*args} & {"${args_no_hyphens}", "${args_json}"}:  # then keys are no options
        check_options(script.name, read, examples, named, style)
    about = f"Arguments are written as {style} reads them: {why}."
    if style == "wandb":
        about = "Arguments are written as W&B's agent writes them."
    unread = ""
    if "absl" in script.imported and read.options is None and style == "argparse":
        _refuse_lists(script.name, examples, named)
    if read.options is None and style not in ("hydra", "wandb"):
        about += f" They are not checked against its parser: {script.name} {read.why}."
        first = {name: values[0] for name, values in examples.items() if values and name not in named}
        spelt = [f"{key} as {' '.join(spell_one(style, key, value)) or 'nothing'}" for key, value in first.items()]
        unread = f"The options of {script.name} are not known, which {read.why}. It gets {first_of(spelt, 6)}."
        unread = unread if spelt else ""
    known = replace(script, options=read.options or (), devices=_devices(script, read))
    return replace(known, about=about, unread=unread)


def _refuse_lists(script: str, examples: Mapping[str, list[Any]], named: set[str]) -> None:
    """Raise SettingsError for a list: absl reads its first word, and ignores the others."""
    for key, values in examples.items():
        found = next((value for value in values if isinstance(value, list | tuple)), None)
        if found is not None and key not in named:
            raise SettingsError(
                f"{script}: --{key} does not take {list(found)!r}: absl reads one word for a flag. Search texts that "
                f"the flag splits: '{','.join(map(str, found))}'."
            )


def _flat(examples: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return values by the keys of arguments: a mapping among them is written as one argument for each key."""
    found: dict[str, list[Any]] = {}
    for key, values in examples.items():
        if not any(isinstance(example, Mapping) for example in values):
            found[key] = values
            continue
        for inner, value in (pair for example in values for pair in flatten({key: example}).items()):
            found.setdefault(inner, []).append(value)
    return found


def _devices(script: Script, read: Read) -> str:
    """Return the key that says how many devices a script's Trainer trains on; empty where none is known."""
    if _LIGHTNING.isdisjoint(script.imported):
        return ""
    if script.style == "hydra":
        return "++trainer.devices"
    if script.style == "lightning" and read.options is None:
        return "trainer.devices"
    keys = (opt.dest for opt in read.options or () if opt.default in (None, "auto", "-1") or type(opt.default) is int)
    return next((key for key in keys if key.rpartition(".")[2] in ("devices", "num_devices")), "")


def options_of(script: Script) -> Read:
    """Return what is known of the options of a script's parser; that takes seconds, for it imports torch."""
    file = Path(script.file)
    if script.style == "hydra":
        return Read(None, "reads its arguments by Hydra, which declares no options")
    found = parsers_of(script.file)
    if READ.isdisjoint(found):
        by = f"reads its command line by {next(iter(found), '')}, of which no options are read"
        return Read(None, by if found else "imports no library that reads a command line")
    return read_options(file, script.module, script.args)


def draft(file: Path) -> str:
    """Return a first search space file for a script: domains for those of its options that have a default to search by.

    Raises: SettingsError where there is no such script, its options cannot be read, or none can be searched.
    """
    found = script_file(str(file))
    style, _ = find_style(str(found))
    return draft_of(found, options_of(Script(str(found), style=style)))
