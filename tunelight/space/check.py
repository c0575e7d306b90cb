"""Checks of a sweep's settings against each other and against its search space."""

from __future__ import annotations

import logging

from tunelight.errors import SettingsError
from tunelight.settings import Settings, check_model
from tunelight.space.space import SearchSpace

_log = logging.getLogger("tunelight")


def check_settings(space: SearchSpace, settings: Settings) -> None:
    """Raise SettingsError or SpaceError where settings contradict each other or the search space."""
    code = [name for name in ("train", "model", "script") if getattr(settings, name) is not None]
    if not code:
        raise SettingsError(
            "There is nothing to train. Give a train function, tl.run(space, train), or model= and data=, or script=."
        )
    if len(code) > 1:
        raise SettingsError(
            f"{' and '.join(code)}= are given, and a sweep trains one of them. Leave the others out (where the search "
            f"space holds one: pass {code[0]}=None)."
        )
    for name in ("args", "style") if settings.script is None else ():
        if getattr(settings, name):
            raise SettingsError(f"{name}= is given without script=: it says how a script is called. Give script=.")
    for name in ("data", "trainer_args") if settings.model is None else ():
        if getattr(settings, name) is not None:
            raise SettingsError(
                f"{name}= is given without model=: only a sweep that builds the Trainer itself can use "
                "it. Give model=, or build it inside the train function."
            )
    if settings.resume and settings.name is None:
        raise SettingsError(
            "resume= is given without name=, which says which sweep to resume. Give both from the first call on, "
            "name='digits', resume=True for example: the first call starts the sweep, and later ones resume it."
        )
    _check_judged(space, settings)
    if settings.model is not None:
        with space.placing(settings, "model"):
            check_model(settings.model, settings.data)
        space.check_parts(settings.model, settings.data, settings.trainer_args)
        space.check_trainer(settings)
        named = {*(settings.trainer_args or {}), *(key.removeprefix("trainer.") for key in space.domains)}
        if settings.max_epochs is None and not named & {"max_epochs", "max_steps", "max_time", "fast_dev_run"}:
            _log.warning(
                "max_epochs is not set: a trial that is not stopped trains 1,000 epochs, Lightning's default. Give "
                "max_epochs=."
            )
    if settings.script is not None and space.objects:
        raise SettingsError(
            "A choice of the search space is an object, and a script takes texts and numbers on its command line. Give "
            "those."
        )
    space.check_constraints()
    space.check_baselines(settings.baselines)


def _check_judged(space: SearchSpace, settings: Settings) -> None:
    """Raise SettingsError where trials could not be compared."""
    if not space.domains and settings.num_samples != 1:
        raise SettingsError(
            "The search space is empty, so that all trials would train the same. Give it a key and a domain, or "
            "num_samples=1 to run the script once."
        )
    if settings.metric is None and space.domains:
        raise SettingsError(
            "No metric is given, so no trial could be judged. Say metric='val_loss' (and mode='max' "
            "where more is better) in tl.run, in SearchSpace, or as `metric:` in the YAML file."
        )
