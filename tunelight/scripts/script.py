"""Script: the training code of a sweep that runs a script, on each worker of a trial."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunelight.errors import ScriptError, SettingsError
from tunelight.scripts import process
from tunelight.scripts.checks import check_options
from tunelight.scripts.draft import draft_of
from tunelight.scripts.options import Read, parses, read_options
from tunelight.scripts.style import Option, find_style, spell
from tunelight.session.session import get_session
from tunelight.settings import Settings
from tunelight.settings.code import Style, script_code, script_file
from tunelight.settings.dotted import flatten

if TYPE_CHECKING:
    from tunelight.space import SearchSpace

_MACRO = re.compile(r"\$\{([\w.\-]+)\}")


@dataclass(frozen=True)
class Script:
    """Runs a script, with a configuration on its command line. Runs on: worker.

    Attributes:
        file: its path; ``module``: its name, if it is run as a module.
        args: what comes before the hyperparameters; ``${key}`` stands for a key's value, ``${args}`` for all others.
        style: how it reads hyperparameters.
        options: those of its parser, as far as they are known.
        checkpoints: whether reports of a Trainer write one.
    """

    file: str
    module: str | None = None
    args: tuple[str, ...] = ()
    style: Style = "argparse"
    options: tuple[Option, ...] = ()
    checkpoints: bool = True

    def command(self, config: Mapping[str, Any]) -> list[str]:
        """Return the arguments for a configuration, nested or dotted."""
        values = flatten(config)
        named = {name for word in self.args for name in _MACRO.findall(word) if name in values}
        rest = spell(self.style, {key: value for key, value in values.items() if key not in named}, self.options)
        words: list[str] = []
        for word in self.args:
            if word == "${args}":
                words += rest
            else:
                words.append(_MACRO.sub(lambda found: str(values.get(found[1], found[0])), word))
        return words if "${args}" in self.args else [*words, *rest]

    def __call__(self, config: Mapping[str, Any]) -> None:
        """Run the script to its end, with its Trainers and its process group on the gang."""
        from tunelight.scripts.group import joined_group
        from tunelight.scripts.trainer import trainers_taken_in  # imports Lightning

        file = Path(self.file)
        if not file.is_file():
            raise ScriptError(
                f"{self.file} is not on this node. Pass runtime_env={{'working_dir': '.'}} to the sweep, or keep the "
                "script in a folder that all nodes share."
            )
        session = get_session()
        threads = set(threading.enumerate())
        words = self.command(config)
        if self.style == "hydra":
            words = [*words, *_hydra_folders(self.args, session.context.trial_dir)]
        try:
            with trainers_taken_in(session, checkpoints=self.checkpoints), joined_group(session):
                process.run(file, self.module, [self.file, *words])
        finally:
            session.left = process.left_behind([path for path, _ in script_code(self.file)], threads)
            _forget_globals()


def _hydra_folders(args: tuple[str, ...], trial_dir: str) -> list[str]:
    """Return overrides that let Hydra write into the trial's folder, unless the script's own say where."""
    if any(word.startswith(("hydra.run.dir=", "hydra.sweep", "--multirun", "-m")) for word in args):
        return []
    return [f"hydra.run.dir='{trial_dir}'"]


def _forget_globals() -> None:
    """Forget what libraries keep of a script in this process."""
    if (hydra := sys.modules.get("hydra.core.global_hydra")) is not None:
        hydra.GlobalHydra.instance().clear()
    if (omegaconf := sys.modules.get("omegaconf")) is not None:
        omegaconf.OmegaConf.clear_resolvers()
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close("all")
        sys.modules["matplotlib"].rc_file_defaults()


def script_of(space: SearchSpace, settings: Settings) -> Script:
    """Return the script of a sweep, with the options of its parser as far as they can be read.

    Raises: SettingsError for a key that ``args`` names and the space lacks, and for what the script would refuse: a key
    that is none of its options, a value that is none of an option's choices, a required option that is not given.
    """
    assert settings.script is not None  # its caller asks only then
    args = tuple(settings.args)
    named = {name for word in args for name in _MACRO.findall(word) if name != "args"}
    for name in sorted(named - space.domains.keys()):
        raise SettingsError(
            f"args holds ${{{name}}}, and the search space has no key {name!r}. It has: {', '.join(space.domains)}."
        )
    is_module = not Path(settings.script).is_file()
    script = Script(
        file=str(script_file(settings.script)),
        module=settings.script if is_module else None,
        args=args,
        style=settings.style or find_style(settings.script)[0],
        checkpoints=bool(settings.checkpoints),
    )
    read = options_of(script)
    check_options(settings.script if is_module else Path(script.file).name, read, space.domains, args, named)
    return replace(script, options=read.options or ())


def options_of(script: Script) -> Read:
    """Return what is known of the options of a script's parser; that takes seconds, for it imports torch."""
    file = Path(script.file)
    if script.style not in ("argparse", "lightning"):
        return Read(None, f"reads its arguments by {script.style}, which declares no options")
    if not parses(file):
        return Read(None, "imports no library that reads a command line")
    return read_options(file, script.module, script.args)


def draft(file: Path) -> str:
    """Return a first search space file for a script: domains for those of its options that have a default to search by.

    Raises: SettingsError where there is no such script, its options cannot be read, or none can be searched.
    """
    found = script_file(str(file))
    style, _ = find_style(str(found))
    return draft_of(found, options_of(Script(str(found), style=style)))
