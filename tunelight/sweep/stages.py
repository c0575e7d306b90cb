"""A sweep in two stages, ``proxy=``: cheap trials, and then the best of their configurations in full."""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from tunelight.errors import SettingsError, StorageError
from tunelight.machine.notebook import write
from tunelight.messages import Text
from tunelight.record import check_free, has_record, read_sweep_file, stamped, sweep_folder
from tunelight.results import SweepResults
from tunelight.settings import Settings, WarmStart
from tunelight.settings.checks import plain_setting
from tunelight.settings.proxy import Proxy
from tunelight.space import SearchSpace
from tunelight.space.parts import split_config

_SUFFIX: Final = "-proxy"
_OF_ONE: Final = (
    "proxy",
    "base_width",
    "workers",
    "resources_per_trial",
    "num_samples",
    "repeats",
    "searcher",
    "baselines",
    "warm_start",
    "time_budget",
)
"""Settings that the stages have each their own of."""
_SHARE: Final = 0.5
"""How much of a time budget the first stage may take."""
_EXAMPLES: Final = 3
"""Configurations that the coordinate check looks at: one learning rate may be too large for any width to train."""

RunOne = Callable[..., SweepResults]
"""``run_sweep``: runs one of the two."""


@dataclass(frozen=True)
class Stages:
    """The two sweeps that one request makes.

    Attributes:
        space, settings: as they were asked for, with ``proxy``.
        name: of the second sweep; the first's is ``NAME-proxy``.
        base_width: the narrow values of keys that make the model wider; empty where the second stage only trains
            longer, deeper or on more.
    """

    space: SearchSpace
    settings: Settings
    name: str
    base_width: Mapping[str, Any]
    examples: Sequence[Mapping[str, Any]]
    """Some of its configurations, in full, as random search would draw them."""

    @classmethod
    def of(cls, space: SearchSpace, settings: Settings, name: str) -> Stages:
        """Return the stages of a sweep with ``proxy``. Raises: SettingsError where that cannot be.

        The model is built, narrow and in full, without memory for its parameters.
        """
        assert settings.proxy is not None
        _check_keys(space, settings)
        stages = cls(space, settings, name, {}, ())
        if settings.model is not None:
            stages.narrow.check_parts(settings.model, settings.data)
        rng = np.random.RandomState(settings.seed or 0)
        configs = [stages.full(stages.narrow.sample(rng)) for _ in range(_EXAMPLES)]
        space.check_baselines(configs)
        width = _of_model(settings.proxy) if _grows(space, settings, configs[0]) else {}
        return replace(stages, examples=configs, base_width=width)

    @property
    def proxy(self) -> Proxy:
        """What the first stage's trials are like."""
        assert self.settings.proxy is not None  # there are stages only then
        return self.settings.proxy

    @cached_property
    def narrow(self) -> SearchSpace:
        """The search space of the cheap trials."""
        return self.space.fixed(self.proxy.values)

    def request(self) -> dict[str, Any]:
        """Return what was asked for, as sweep.yaml keeps it beside each stage's own settings."""
        asked = {name: plain_setting(getattr(self.settings, name)) for name in _OF_ONE}
        return {"name": self.name, "first": f"{self.name}{_SUFFIX}", "space": self.space.describe(), "settings": asked}

    def first(self) -> tuple[SearchSpace, Settings]:
        """Return the sweep of the cheap trials."""
        budget = self.settings.budget_s
        own: dict[str, Any] = (
            {} if self.proxy.workers is None else {"workers": self.proxy.workers, "resources_per_trial": None}
        )
        repeats = self.settings.repeats
        settings = replace(
            self.settings,
            name=f"{self.name}{_SUFFIX}",
            proxy=None,
            repeats=None if repeats is None or not repeats.folds else replace(repeats, top=0),  # all on the first fold
            scheduler=copy.deepcopy(self.settings.scheduler),  # an object would know of narrow trials in stage 2
            time_budget=None if budget is None else budget * _SHARE,
            baselines=[self.cheap(config) for config in self.settings.baselines],
            **own,
        )
        return self.narrow, settings

    def second(self, found: SweepResults, left_s: float | None) -> tuple[SearchSpace, Settings]:
        """Return the sweep of the best configurations in full; ``left_s``: what is left of the time budget."""
        configs = [self.full(trial.config) for trial in found.top(self.proxy.top)]
        folder = sweep_folder(self.settings.storage, self.name)
        made = []
        if has_record(folder):  # it was begun with other ones, before the first stage was given more trials
            made = [self.space.dotted(trial.plain_config) for trial in SweepResults.load(folder).trials]
        space = self.space.without_grid()
        kept = [config for config in configs if self.space.dotted(config) not in made]
        settings = replace(
            self.settings,
            name=self.name,
            proxy=None,
            base_width=self.base_width or None,
            num_samples=max(1, len(made) + len(kept)),
            searcher="random",
            baselines=configs,
            warm_start=WarmStart(),
            time_budget=left_s,
        )
        return space, settings

    def check_widths(self, run_one: RunOne) -> list[tuple[str, float]]:
        """Train a few steps at several widths on a worker; return each layer, and the power of the width it moves by.

        Raises: SettingsError for a model whose layers do not move alike at all widths; it names the layer.
        """
        from tunelight.extras.widths.check import check_widths

        layers = check_widths(self.space, self.settings, self.examples, self.base_width, run_one)
        return [(layer.name, layer.power) for layer in layers]

    def cheap(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration with the first stage's values."""
        return self.narrow.written(self.space.dotted(config) | dict(self.proxy.values))

    def full(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration of the first stage without its values."""
        values = {key: value for key, value in self.narrow.dotted(config).items() if key not in self.proxy.values}
        return self.space.filled(self.space.written(values))

    def says(self, number: int) -> str:
        """Return what a stage does, in words."""
        values = ", ".join(f"{key}={value}" for key, value in self.proxy.values.items())
        if number == 1:
            then = f"the best {self.proxy.top} of them are then trained in full, in the sweep {self.name}"
            return f"Stage 1 of 2: trials with {values}; {then}."
        how = (
            "with learning rates and initial values scaled to their width" if self.base_width else "with nothing scaled"
        )
        if self.settings.model is None:
            how += ", for the model is built by the training code"
        return f"Stage 2 of 2: the best configurations of {self.name}{_SUFFIX} ({values}) in full, {how}."


def run_stages(space: SearchSpace, settings: Settings, run_one: RunOne, default: str) -> SweepResults:
    """Run the stages that are left to run; return the second's results, or the first's where that did not end.

    Args:
        space, settings: the sweep's, with ``proxy``.
        run_one: runs one sweep.
        default: what the sweep is called after where it has no name.
    """
    began = time.monotonic()
    assert settings.proxy is not None
    stages = Stages.of(space, settings, settings.name or stamped(default))
    folders = [sweep_folder(settings.storage, name) for name in (f"{stages.name}{_SUFFIX}", stages.name)]
    begun = [settings.resume and has_record(folder) for folder in folders]
    for folder, known in zip(folders, begun, strict=True):
        if not known:
            check_free(folder)
    if begun[1] and not begun[0]:
        raise StorageError(
            f"{folders[1]} is the second stage of a sweep whose first, {folders[0]}, is gone, so that what it found is "
            f"not known. Bring that back, or give proxy=None and base_width={dict(stages.base_width) or None}."
        )
    if settings.seed is None:  # both have one, so that a sweep that was cut off ends as it would have
        seed = read_sweep_file(folders[0])["seed"] if begun[0] else secrets.randbelow(2**31)
        stages = replace(stages, settings=replace(settings, seed=seed))
    first = None
    if begun[1] and settings.num_samples <= (read_sweep_file(folders[0]).get("num_samples") or 0):
        first = SweepResults.load(folders[0], stages.narrow.objects)
    if first is None:
        if stages.base_width and not begun[0]:
            if settings.progress:
                write(Text("Checking that what a narrow model shows holds for a wide one\n", error=True))
            stages.check_widths(run_one)
        first = _run(stages, 1, stages.first(), run_one)
    if first.ended not in ("finished", "time budget") or not first.top(1):
        return first
    left = None if settings.budget_s is None else settings.budget_s - (time.monotonic() - began)
    if left is not None and left <= 0:
        return first
    return _run(stages, 2, stages.second(first, left), run_one)


def _run(stages: Stages, number: int, sweep: tuple[SearchSpace, Settings], run_one: RunOne) -> SweepResults:
    return run_one(*sweep, {**stages.request(), "stage": number, "says": stages.says(number)})


def _grows(space: SearchSpace, settings: Settings, config: Mapping[str, Any]) -> bool:
    """Tell whether the first stage's models are narrower, so that those in full are to be rescaled."""
    assert settings.proxy is not None
    if settings.model is None or not _of_model(settings.proxy):
        return False
    from tunelight.extras.widths import Wider

    wider = Wider(settings.model, settings.proxy.values)
    return bool(wider.grows(split_config(space.objects.restored(config))["model"]))


def _of_model(proxy: Proxy) -> dict[str, int]:
    """Return the sizes of the model among the values."""
    return {key: value for key, value in proxy.values.items() if key.startswith("model.") and type(value) is int}


def _check_keys(space: SearchSpace, settings: Settings) -> None:
    """Raise SettingsError for a key of ``proxy`` that is searched, unknown, or the same in both stages."""
    proxy = settings.proxy
    assert proxy is not None
    known = {key: space.choices(key) for key in space.domains}
    for key, value in proxy.values.items():
        if key not in known:
            if settings.model is None:
                raise SettingsError(
                    f"proxy= has a value for {key!r}, and the search space does not say what it is in full. Add it "
                    f"there as a fixed value. The space has: {', '.join(known)}."
                )
            continue
        if not space.is_fixed(key):
            raise SettingsError(
                f"proxy= has {key}={value!r}, and {key} is searched. Give it one value in the search space, that of "
                "the trials in full, or leave it out of proxy=."
            )
        if known[key] == [value]:
            raise SettingsError(
                f"proxy= has {key}={value!r}, which is its value in full, too. Give a cheaper one in proxy=."
            )
