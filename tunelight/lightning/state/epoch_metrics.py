"""What ``self.log`` has gathered of an epoch that is not over yet: kept in a checkpoint, and put back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from tunelight.compat.lightning import _Metadata, _ResultMetric, _Sync, move_data_to_device, pl

_META = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")
_VALUES = ("value", "cumulated_batch_size", "_forward_cache")

Logged = dict[str, dict[str, Any]]
"""What was logged by key; plain data and tensors."""


def state(results: Any) -> Logged:
    """Return what ``results`` (Lightning's, of a training epoch) hold."""
    kept: Logged = {}
    for key, metric in results.items():
        if metric.has_reset:
            continue
        meta = metric.meta
        kept[key] = {name: getattr(meta, name) for name in _META}
        kept[key] |= {"reduce_fx": meta.reduce_fx.__name__, "dataloader_idx": meta.dataloader_idx}
        kept[key] |= {"sync": meta.sync.should, "rank_zero_only": meta.sync.rank_zero_only}
        if not metric.is_tensor:
            kept[key] |= {"metric_attribute": meta.metric_attribute, "updates": metric.value._update_count}
            states = {name: getattr(metric.value, name) for name in metric.value._defaults}
            kept[key]["states"] = copy.deepcopy(move_data_to_device(states, torch.device("cpu")))
            continue
        values = {name: getattr(metric, name, None) for name in _VALUES}
        kept[key]["values"] = {name: value.detach().cpu() for name, value in values.items() if value is not None}
    return kept


def shared_out(everywhere: list[Logged], rank: int, world_size: int) -> list[Logged]:
    """Return what one of ``world_size`` ranks takes over of what the ranks had logged.

    A rank that is new takes nothing over, but has the same keys: at the epoch's end all ranks reduce the same ones.
    """
    if rank < len(everywhere):
        return everywhere[rank::world_size]
    other = everywhere[rank % len(everywhere)]
    reduced = {key: kept["sync"] or "states" in kept for key, kept in other.items()}
    return [{key: {**kept, "empty": reduced[key]} for key, kept in other.items()}]


def put(trainer: pl.Trainer, states: list[Logged], note: Callable[[str], object]) -> None:
    """Let the training epoch's results go on from ``states``: this rank's own, and those of ranks that are gone.

    ``note`` is told what cannot be taken over, for the person who runs this.
    """
    results = trainer.fit_loop.epoch_loop._results
    for number, one in enumerate(states):
        for key, kept in one.items():
            if "states" in kept:
                if (why := _put_object(trainer, results, key, kept, merge=number > 0)) is not None:
                    whose = "of a worker that is gone" if number else "from before the restart"
                    note(f"The metric {kept['name']!r} lacks a share {whose} in this epoch: {why}.")
                continue
            if number and not kept["sync"]:
                continue  # it is rank 0's share alone that is logged
            metric = results.get(key)
            if metric is None:
                metric = results[key] = _made(trainer, kept)
            if not kept.get("empty"):
                _add(metric, {name: value.to(trainer.strategy.root_device) for name, value in kept["values"].items()})
    if any(states):
        # Else the first batch would count as the epoch's first, which empties the results.
        trainer._logger_connector._first_loop_iter = False


def _made(trainer: pl.Trainer, kept: dict[str, Any]) -> _ResultMetric:
    names = (*_META, "reduce_fx", "dataloader_idx", "metric_attribute")
    meta = _Metadata(**{name: kept[name] for name in names if name in kept})
    meta.sync = _Sync(_should=kept["sync"], fn=trainer.strategy.reduce, rank_zero_only=kept["rank_zero_only"])
    return _ResultMetric(meta, is_tensor="values" in kept).to(trainer.strategy.root_device)


def _put_object(trainer: pl.Trainer, results: Any, key: str, kept: dict[str, Any], *, merge: bool) -> str | None:
    """Give a metric of the model the state that it had, or add that of a rank that is gone.

    Returns: None, or why that could not be done.
    """
    value: Any = dict(trainer.lightning_module.named_modules()).get(kept["metric_attribute"])
    if value is None:
        return f"the model has no {kept['metric_attribute']!r} any more"
    states = move_data_to_device(kept["states"], trainer.strategy.root_device)
    if merge:
        try:
            value.merge_state(states)
        except Exception as error:  # noqa: BLE001 - a metric may forbid it, and one of the user's raise anything
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
