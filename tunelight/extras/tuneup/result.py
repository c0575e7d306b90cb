"""TuneUp: what was measured, what to train with, and the sweep's search space with that written into it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tunelight.errors import SettingsError, TunelightError
from tunelight.extras.tuneup.search import Figures, Setting
from tunelight.space import SearchSpace
from tunelight.stores.atomic import replacing


@dataclass(frozen=True)
class Foretold:
    """What the sweep would take under a setting.

    ``at_once``: how many gangs trained while its speed was measured; ``makespan_s``: the median of its plan's draws.
    """

    setting: Setting
    at_once: int
    seconds_per_epoch: float
    makespan_s: float


@dataclass(frozen=True)
class TuneUp:
    """The fastest setting for one trial, the cheapest one, and the best for the sweep. Print it, or use :meth:`asdict`.

    Experimental.

    Attributes:
        now: the setting that the sweep has.
        fastest: of the most steps a second; of those nearly as fast ``now``, or that of the fewest CPUs.
        cheapest: of the fewest seconds of held CPUs (of GPUs, where workers have them) a sample.
        for_sweep: the one by which the sweep ends first, of ``foretold``; None where that is not known.
        measured: the figures of every setting that was measured; ``failed``: why others could not be.
        global_batch: samples in a step, the same for all.
        limit: what limits the fastest setting, in words.
        search_s, seconds: how long the search took, and all of it.
    """

    now: Setting
    fastest: Setting
    cheapest: Setting
    for_sweep: Setting | None
    measured: Mapping[Setting, Figures]
    failed: Mapping[Setting, str]
    foretold: Sequence[Foretold]
    global_batch: int
    limit: str
    search_s: float
    seconds: float
    notes: Sequence[str] = ()
    gpus_per_worker: float = 0
    names: Mapping[str, str | None] = field(default_factory=dict)
    fixed: bool = True
    """Whether the batch size is one value in the space, which another may replace."""
    trainer_args: Mapping[str, Any] = field(default_factory=dict)

    def cost(self, setting: Setting) -> float:
        """Return the seconds of held CPUs, or GPUs, a sample."""
        figures = self.measured[setting]
        each = self.gpus_per_worker or setting.cpus
        return setting.workers * each * figures.step_s / figures.samples

    @property
    def best(self) -> Setting:
        """What to train with: the best for the sweep, else the fastest."""
        return self.for_sweep or self.fastest

    def settings(self, setting: Setting | None = None) -> dict[str, Any]:
        """Return what a search space says for a setting (``best``): workers, trainer_args and keys of data or model."""
        setting = setting or self.best
        made: dict[str, Any] = {"workers": setting.workers, "cpus_per_worker": setting.cpus}
        args: dict[str, Any] = {}
        if setting.pieces > 1:
            args["accumulate_grad_batches"] = setting.pieces * self.trainer_args.get("accumulate_grad_batches", 1)
        if setting.precision is not None:
            args["precision"] = setting.precision
        ddp = {"bucket_cap_mb": setting.bucket_mb, "gradient_as_bucket_view": setting.view}
        if ddp := {name: value for name, value in ddp.items() if value is not None and setting.workers > 1}:
            args["strategy"] = {"class_path": "tunelight.RayStrategy", "init_args": ddp}
        keys: dict[str, Any] = {}
        batch, loaders = self.names.get("batch_size"), self.names.get("num_workers")
        if batch is not None and self.fixed:
            keys[batch] = self.global_batch // (setting.workers * setting.pieces)
        if loaders is not None and setting.loader_workers is not None:
            keys[loaders] = setting.loader_workers
        return {**made, **({"trainer_args": args} if args else {}), **({"space": keys} if keys else {})}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the best setting into a search space's file; comments and all else stay.

        Raises: SettingsError for a file that would be no search space then; OSError.
        """
        from ruamel.yaml import YAML

        editor, made = YAML(), self.settings()
        editor.preserve_quotes, editor.width = True, 10_000
        document = editor.load(Path(path).read_text(encoding="utf-8"))
        for name, value in made.items():
            if isinstance(value, dict) and document.get(name):
                for key, one in value.items():
                    if key in document[name]:
                        document[name][key] = one
                    else:
                        document[name].insert(0, key, one)  # at the end it would come behind blank lines and comments
            else:
                document[name] = value
        try:
            with replacing(path) as draft:
                editor.dump(document, draft)
                SearchSpace.load(draft)  # else the file stays as it was
        except TunelightError as error:
            raise SettingsError(f"{path} cannot be edited: {error} Paste the settings into it.") from error

    def asdict(self) -> dict[str, Any]:
        """Return plain data."""
        names = ("now", "fastest", "cheapest", "for_sweep")
        lists = {name: getattr(self, name) for name in ("global_batch", "limit", "search_s", "seconds", "notes")}
        return {
            **{name: None if getattr(self, name) is None else asdict(getattr(self, name)) for name in names},
            "settings": self.settings(),
            "measured": [
                {**asdict(setting), "steps_per_s": rate, "quartiles": [low, high]}
                | {"cost_s_per_sample": self.cost(setting), "changes_results": setting.changes_results}
                | {"data_share": figures.data_s / figures.step_s, "wait_share": figures.wait_s / figures.step_s}
                for setting, figures in self._fastest_first()
                for low, rate, high in [figures.rates]
            ],
            "failed": [{**asdict(setting), "why": why} for setting, why in self.failed.items()],
            "foretold": [asdict(each) for each in self.foretold],
            **lists,
        }

    def _fastest_first(self) -> list[tuple[Setting, Figures]]:
        return sorted(self.measured.items(), key=lambda pair: -pair[1].speed)

    @property
    def _held(self) -> str:
        return "GPU" if self.gpus_per_worker else "CPU"

    def table(self) -> list[dict[str, str]]:
        """Return a row for each measured setting, the fastest first, with what is recommended and foretold of it."""
        told = {each.setting: f"{each.makespan_s:.3g} s, {each.at_once} at once" for each in self.foretold}
        return [
            {
                "setting": f"{setting}{' *' * setting.changes_results}",
                "steps/s (quartiles)": "{1:.3g} ({0:.3g} to {2:.3g})".format(*figures.rates),
                f"{self._held} time a sample": f"{1e3 * self.cost(setting):.3g} ms",
                "waits for data": f"{figures.data_s / figures.step_s:.0%}",
                "for workers": f"{figures.wait_s / figures.step_s:.0%}",
                "the sweep": told.get(setting, ""),
            }
            for setting, figures in self._fastest_first()
        ]

    def __str__(self) -> str:
        figures, own = self.measured[self.fastest], self.measured.get(self.now)
        against = f", {figures.speed / own.speed:.2f} times now's" if own and self.fastest != self.now else ""
        lines = [
            f"{len(self.measured)} settings measured in {self.search_s:.0f} s, {self.global_batch} samples a step.",
            f"Fastest for one trial: {self.fastest}: {figures.rates[1]:.3g} steps/s{against}. It is {self.limit}",
            f"Cheapest: {self.cheapest}: {1e3 * self.cost(self.cheapest):.3g} ms of {self._held} time a sample.",
        ]
        lines += [] if self.for_sweep is None else [f"Best for this sweep: {self.for_sweep}."]
        lines += [f"Not possible: {setting}: {why}" for setting, why in self.failed.items()]
        lines += [f"- {note}" for note in self.notes]
        return "\n".join([*lines, "", yaml.safe_dump(self.settings(), sort_keys=False).rstrip()])
