"""TuneUp: what was measured, what to train with, and the sweep's search space with that written into it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tunelight.errors import SettingsError, TunelightError
from tunelight.space import SearchSpace
from tunelight.stores.atomic import replacing
from tunelight.sweep.tuneup.figures import Figures, Setting


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

    def yaml(self, setting: Setting | None = None) -> str:
        """Return :meth:`settings` as YAML to paste into a search space."""
        return yaml.safe_dump(self.settings(setting), sort_keys=False)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the best setting into a search space's file; comments and all else stay.

        Raises: SettingsError where that file is not written by hand as tunelight's own are; OSError.
        """
        text = Path(path).read_text(encoding="utf-8")
        made = self.settings()
        for name in ("trainer_args", "space"):
            for key, value in made.pop(name, {}).items():
                text = with_value(text, (name, key), value)
        for name, value in made.items():
            text = with_value(text, (name,), value)
        try:
            with replacing(path) as draft:
                draft.write_text(text, encoding="utf-8")
                SearchSpace.load(draft)  # else the file stays as it was
        except TunelightError as error:
            raise SettingsError(f"{path} cannot be edited: {error} Paste the settings into it.") from error

    def asdict(self) -> dict[str, Any]:
        """Return plain data."""
        rows = []
        for setting, figures in sorted(self.measured.items(), key=lambda pair: -pair[1].speed):
            low, rate, high = figures.rates
            row = {"steps_per_s": rate, "quartiles": [low, high], "cost_s_per_sample": self.cost(setting)}
            row |= {"data_share": figures.data_s / figures.step_s, "wait_share": figures.wait_s / figures.step_s}
            rows.append({**asdict(setting), **row, "changes_results": setting.changes_results})
        names = ("now", "fastest", "cheapest", "for_sweep")
        return {
            **{name: asdict(one) if (one := getattr(self, name)) is not None else None for name in names},
            "settings": self.settings(),
            "measured": rows,
            "failed": [{**asdict(setting), "why": why} for setting, why in self.failed.items()],
            "foretold": [asdict(each) for each in self.foretold],
            "global_batch": self.global_batch,
            "limit": self.limit,
            "search_s": self.search_s,
            "seconds": self.seconds,
            "notes": list(self.notes),
        }

    def rows(self) -> list[list[str]]:
        """Return the table of measured settings, the fastest first."""
        rows = []
        for setting, figures in sorted(self.measured.items(), key=lambda pair: -pair[1].speed):
            low, rate, high = figures.rates
            mark = " *" if setting.changes_results else ""
            shares = (figures.data_s / figures.step_s, figures.wait_s / figures.step_s)
            speed = f"{rate:.3g} ({low:.3g} to {high:.3g})"
            rows.append(
                [f"{setting}{mark}", speed, f"{1e3 * self.cost(setting):.3g} ms", *(f"{s:.0%}" for s in shares)]
            )
        return rows

    @property
    def columns(self) -> list[str]:
        """The table's columns."""
        held = "GPU" if self.gpus_per_worker else "CPU"
        return ["setting", "steps/s (quartiles)", f"{held} time a sample", "waits for data", "for workers"]

    def __str__(self) -> str:
        low, rate, high = self.measured[self.fastest].rates
        own = self.measured[self.now].speed if self.now in self.measured else None
        against = (
            f", {self.measured[self.fastest].speed / own:.2f} times now's" if own and self.fastest != self.now else ""
        )
        held = "GPU" if self.gpus_per_worker else "CPU"
        lines = [
            f"{len(self.measured)} settings measured in {self.search_s:.0f} s, {self.global_batch} samples a step.",
            f"Fastest for one trial: {self.fastest}: {rate:.3g} steps/s ({low:.3g} to {high:.3g}){against}.",
            f"  It is {self.limit}",
            f"Cheapest: {self.cheapest}: {1e3 * self.cost(self.cheapest):.3g} ms of {held} time a sample.",
        ]
        lines += [] if self.for_sweep is None else [f"Best for this sweep: {self.for_sweep}."]
        lines += [
            f"  {each.setting}: it takes {each.makespan_s:.3g} s, with {each.at_once} at once and "
            f"{each.seconds_per_epoch:.3g} s an epoch"
            for each in self.foretold
        ]
        lines += [f"Not possible: {setting}: {why}" for setting, why in self.failed.items()]
        lines += [f"- {note}" for note in self.notes]
        return "\n".join([*lines, "", self.yaml().rstrip()])


# -- editing YAML by its own text


def with_value(text: str, path: tuple[str, ...], value: Any) -> str:
    """Return YAML's text with the value at a path of keys replaced or added; all else, comments too, stays as it is."""
    written = yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")
    node: Any = yaml.compose(text, yaml.SafeLoader)
    for depth, name in enumerate(path):
        if not isinstance(node, yaml.MappingNode):
            raise SettingsError(f"{'.'.join(path[:depth]) or 'the file'} has no keys. Paste the settings into it.")
        child = next((child for key, child in node.value if key.value == name), None)
        if child is None:
            for part in reversed(path[depth + 1 :]):
                written = f"{{{part}: {written}}}"
            return _added(text, node, f"{name}: {written}", top=depth == 0)
        node = child
    return text[: node.start_mark.index] + written + text[_end(node) :]


def _added(text: str, node: yaml.MappingNode, line: str, *, top: bool) -> str:
    if top:
        return f"{text.rstrip()}\n{line}\n"
    if node.flow_style:
        comma = ", " if node.value else ""
        return f"{text[: node.start_mark.index + 1]}{line}{comma}{text[node.start_mark.index + 1 :]}"
    first = node.value[0][0].start_mark
    return f"{text[: first.index]}{line}\n{' ' * first.column}{text[first.index :]}"


def _end(node: Any) -> int:
    """Return where a value ends: PyYAML counts comments behind a block to it."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)
