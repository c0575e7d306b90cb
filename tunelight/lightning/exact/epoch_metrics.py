"""Metrics of ``self.log``: those of a running epoch, saved and restored, and names that the ranks agree on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from tunelight.compat.lightning import _Metadata, _ResultMetric, _Sync, move_data_to_device, pl

METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
"""The attributes of a Trainer's logger connector that hold metrics."""
_META = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")
_VALUES = ("value", "cumulated_batch_size", "_forward_cache")

Logged = dict[str, dict[str, Any]]
"""Logged metrics by key, as plain data and tensors."""


def of(trainer: pl.Trainer) -> dict[str, dict[str, Any]]:
    """Return a Trainer's metrics by the attribute that holds them."""
    return {name: move_data_to_device(dict(getattr(trainer._logger_connector, name)), "cpu") for name in METRICS}


def state(results: Any) -> Logged:
    """Return the content of ``results``, Lightning's collection of a training epoch."""
    kept: Logged = {}
    for key, metric in results.items():
        if metric.has_reset:
            continue
        kept[key] = _described(metric)
        if not metric.is_tensor:
            kept[key]["updates"] = metric.value._update_count
            states = {name: getattr(metric.value, name) for name in metric.value._defaults}
            kept[key]["states"] = copy.deepcopy(move_data_to_device(states, torch.device("cpu")))
            continue
        values = {name: getattr(metric, name, None) for name in _VALUES}
        kept[key]["values"] = {name: value.detach().cpu() for name, value in values.items() if value is not None}
    return kept


def shared_out(everywhere: list[Logged], rank: int, world_size: int) -> list[Logged]:
    """Return the former ranks' metrics that ``rank`` of ``world_size`` ranks takes over.

    A new rank gets the same keys without values: at the epoch's end all ranks reduce the same keys.
    """
    if rank < len(everywhere):
        return everywhere[rank::world_size]
    other = everywhere[rank % len(everywhere)]
    reduced = {key: kept["sync"] or "states" in kept for key, kept in other.items()}
    return [{key: {**kept, "empty": reduced[key]} for key, kept in other.items()}]


def put(trainer: pl.Trainer, states: list[Logged], note: Callable[[str], object]) -> None:
    """Restore an epoch's results of this rank and of lost ones; ``note`` each metric that cannot be restored."""
    results = trainer.fit_loop.epoch_loop._results
    for number, logged in enumerate(states):
        for key, kept in logged.items():
            if "states" in kept:
                if (why := _put_object(trainer, results, key, kept, merge=number > 0)) is not None:
                    whose = "of a worker that is gone" if number else "from before the restart"
                    note(f"The metric {kept['name']!r} lacks a share {whose} in this epoch: {why}.")
                continue
            if number and not kept["sync"]:
                continue  # only rank 0's share of it is logged
            metric = results.get(key)
            if metric is None:
                metric = results[key] = _made(trainer, kept)
            if not kept.get("empty"):
                _add(metric, {name: value.to(trainer.strategy.root_device) for name, value in kept["values"].items()})
    if any(states):
        # Otherwise the next batch counts as the epoch's first, which empties the results.
        trainer._logger_connector._first_loop_iter = False


def agree(trainer: pl.Trainer, gather: Callable[[Logged], list[Logged]]) -> None:
    """Give all ranks the same names in the same order, before an evaluation's values are reduced over the ranks.

    A name that this rank has not logged counts for nothing. ``gather`` returns every rank's argument, by rank. Names
    with a ``sync_dist_group``, and those that are not reduced, stay with their ranks.
    """
    results: Any = trainer._results
    mine = {
        key: _described(metric)
        for key, metric in results.valid_items()
        if metric.meta.on_epoch and metric.meta.sync.group is None
    }
    everywhere: Logged = {}
    for logged in gather(mine):
        everywhere.update({key: kept for key, kept in logged.items() if key not in everywhere})
    for key, kept in everywhere.items():
        of_metric = "metric_attribute" in kept
        if key in mine or not (of_metric or (kept["sync"] and not kept["rank_zero_only"])):
            continue
        metric = results[key] = _made(trainer, kept)
        metric._update_count = 1
        if of_metric:
            metric.value = trainer.lightning_module.get_submodule(kept["metric_attribute"])
    ordered = {key: results[key] for key in everywhere if key in results}
    rest = {key: metric for key, metric in results.items() if key not in ordered}
    results.clear()
    results.update({**ordered, **rest})


def _described(metric: _ResultMetric) -> dict[str, Any]:
    """Return how a metric is logged, as plain data."""
    meta = metric.meta
    kept = {name: getattr(meta, name) for name in _META}
    kept |= {"reduce_fx": meta.reduce_fx.__name__, "dataloader_idx": meta.dataloader_idx}
    kept |= {"sync": meta.sync.should, "rank_zero_only": meta.sync.rank_zero_only}
    if not metric.is_tensor:
        return {**kept, "metric_attribute": meta.metric_attribute}
    values = {name: getattr(metric, name, None) for name in ("value", "cumulated_batch_size")}
    return {**kept, "dtypes": {name: value.dtype for name, value in values.items() if isinstance(value, torch.Tensor)}}


def _made(trainer: pl.Trainer, kept: dict[str, Any]) -> _ResultMetric:
    names = (*_META, "reduce_fx", "dataloader_idx", "metric_attribute")
    meta = _Metadata(**{name: kept[name] for name in names if name in kept})
    meta.sync = _Sync(_should=kept["sync"], fn=trainer.strategy.reduce, rank_zero_only=kept["rank_zero_only"])
    metric = _ResultMetric(meta, is_tensor="metric_attribute" not in kept).to(trainer.strategy.root_device)
    for name, dtype in kept.get("dtypes", {}).items():
        setattr(metric, name, getattr(metric, name).to(dtype))
    return metric


def _put_object(trainer: pl.Trainer, results: Any, key: str, kept: dict[str, Any], *, merge: bool) -> str | None:
    """Restore the state of a model's metric, or merge that of a lost rank into it; return None, or why that failed."""
    value: Any = dict(trainer.lightning_module.named_modules()).get(kept["metric_attribute"])
    if value is None:
        return f"the model has no {kept['metric_attribute']!r} any more"
    states = move_data_to_device(kept["states"], trainer.strategy.root_device)
    if merge:
        try:
            value.merge_state(states)
        except Exception as error:  # noqa: BLE001 - a metric may forbid it, and a user's may raise anything
            return f"{type(value).__name__} cannot merge states ({type(error).__name__}: {error})"
        return None
    for name, state in states.items() if not kept.get("empty") else ():
        setattr(value, name, state)
    if not kept.get("empty"):
        value._update_count, value._computed = kept["updates"], None
    if key not in results:
        metric = results[key] = _made(trainer, kept)
        metric.value = value
    return None


def _add(metric: _ResultMetric, values: dict[str, torch.Tensor]) -> None:
    before = metric.value
    if metric.meta.is_max_reduction or metric.meta.is_min_reduction:
        metric.value = metric.meta.reduce_fx(torch.stack([before, values["value"]]))
    elif metric.meta.on_epoch:
        metric.value = before + values["value"]
    else:
        metric.value = values["value"]
    if "cumulated_batch_size" in values:
        metric.cumulated_batch_size = metric.cumulated_batch_size + values["cumulated_batch_size"]
    metric._forward_cache = values.get("_forward_cache", metric._forward_cache)
    metric._update_count = max(1, metric._update_count)
    metric._computed = None
