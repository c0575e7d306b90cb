"""The grammar of training programs: what each feature may be, and which choices exclude each other.

A program is plain data: {feature: choice}, and `logs`, a list of calls to `self.log`. The first choice of a feature is
the plainest, to which shrinking returns.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any, Final

Program = dict[str, Any]

FEATURES: Final[dict[str, tuple[Any, ...]]] = {
    # data
    "train_data": ("map", "iterable", "splitting"),
    "train_size": (24, 21, 9, 5),
    "batch_size": (4, 3),
    "drop_last": (False, True),
    "sampler": (None, "shuffle", "weighted", "batches", "own"),
    "loader_workers": (0, 1, "persistent"),
    "train_loaders": (None, "list", "min_size", "max_size_cycle", "max_size"),
    "val_loaders": (1, 0, 2),
    "val_data": ("map", "iterable", "splitting"),
    "val_size": (12, 10, 3, 20),
    "data_as": ("loaders", "module", "module class"),
    "reload": (0, 1),
    # the module
    "optimization": ("automatic", "manual", "two optimizers"),
    "optimizer": ("sgd", "adamw", "groups"),
    "schedule": (None, "step", "epoch", "plateau", "onecycle", "warmup"),
    "net": (
        "linear",
        "batchnorm",
        "dropout",
        "tied",
        "frozen",
        "buffer",
        "encoder",
        "lstm",
        "unused",
        "average",
        "configure_model",
    ),
    "metric": (None, "object", "collection", "state"),
    "gather": (None, "validation_step", "validation_end", "training_step", "train_end", "collective"),
    "appended": (False, True),
    "saves": (False, True),
    # the Trainer
    "max_epochs": (2, 1, 3),
    "limit": (None, "max_steps", "min_epochs", "max_time"),
    "accumulate": (1, 2, "schedule"),
    "clip": (None, "norm", "value"),
    "val_check_interval": (None, 0.5, 2),
    "check_val_every": (1, 2),
    "limit_train": (None, 2, 0.5),
    "limit_val": (None, 1, 0.5),
    "overfit_batches": (0, 2),
    "sanity": (0, 2),
    "precision": (None, "bf16-mixed", "64-true"),
    "log_every": (50, 1, 2),
    "use_distributed_sampler": (True, False),
    "detect_anomaly": (False, True),
    "deterministic": (False, True),
    # callbacks and loggers
    "early_stopping": (None, "patient", "threshold"),
    "checkpoint": (None, "monitor", "top", "last", "steps", "train_end", "two"),
    "weights": (None, "ema", "swa"),
    "finetuning": (None, "own", "backbone"),
    "tuner": (None, "lr", "batch size"),
    "lr_monitor": (None, "epoch", "step"),
    "pruning": (False, True),
    "stateful": (False, True),
    "logger": (None, "csv", "tensorboard", "both"),
    "async_checkpoints": (False, True),
    "inner": (None, "fit", "validate"),
    "names": (False, True),
    # the program
    "runs": ("fit", "fit twice", "two trainers", "validate", "test", "predict", "from checkpoint", "validate first"),
}
"""Feature -> its choices, the plainest first."""

LOG: Final[dict[str, tuple[Any, ...]]] = {
    "hook": (
        "validation_step",
        "training_step",
        "on_train_epoch_end",
        "on_validation_epoch_end",
        "on_train_batch_end",
        "on_validation_batch_end",
        "on_train_epoch_start",
        "on_before_zero_grad",
        "on_after_backward",
        "on_train_start",
    ),
    "on_step": (None, False, True),
    "on_epoch": (None, False, True),
    "sync_dist": (True, False),
    "rank_zero_only": (False, True),
    "reduce_fx": ("mean", "sum", "max", "min"),
    "batch_size": (None, "rows", 2),
    "add_dataloader_idx": (True, False),
    "value": ("loss", "batch", "rank", "sometimes"),
    "prog_bar": (False, True),
}
"""A call to `self.log`: part -> its choices, the plainest first."""


MOMENTS: Final = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_optimizer_step",
    "on_validation_batch_start",
    "on_validation_epoch_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_train_end",
)
"""Hooks at which a worker is killed."""


def plainest() -> Program:
    """Return the program in which every choice is the plainest. `kill`: a hook, a rank, and at which of its calls."""
    plain = {feature: choices[0] for feature, choices in FEATURES.items()}
    return {**plain, "logs": [], "kill": ["on_train_epoch_start", 1, 2]}


def read(path: Path) -> tuple[Program, list[str]]:
    """Return a file's program, and in which ways to train it: one of found/, or the program.json of a run."""
    given = json.loads(path.read_text())
    return {**plainest(), **given.get("program", given)}, given.get("ways", [])


def draw(rng: random.Random) -> Program:
    """Draw a valid program: some features at random, the others at their plainest."""
    while True:
        share = rng.choice([0.1, 0.25, 0.4])
        program = plainest()
        for feature, choices in FEATURES.items():
            if rng.random() < share:
                program[feature] = rng.choice(choices)
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            call = {part: choices[0] for part, choices in LOG.items()}
            for part, choices in LOG.items():
                if rng.random() < 0.4:
                    call[part] = rng.choice(choices)
            program["logs"].append(call)
        program["kill"] = [rng.choice(MOMENTS), rng.randrange(2), rng.randrange(1, 5)]
        if invalid(program) is None:
            return program


def invalid(program: Program) -> str | None:
    """Return why a program has no sense, as a program for one process already; None if it has."""
    get = program.__getitem__
    stream = get("train_data") != "map"
    rules = {
        "an iterable dataset takes no sampler": stream and get("sampler") is not None,
        "loaders in a list are joined by dict only": get("train_loaders") is not None and get("sampler") == "batches",
        "manual optimization clips and accumulates by itself": get("optimization") != "automatic"
        and (get("accumulate") != 1 or get("clip") is not None or get("weights") == "swa"),
        "a schedule of two optimizers": get("optimization") != "automatic" and get("schedule") not in (None, "epoch"),
        "a plateau needs a value": get("schedule") == "plateau" and get("val_loaders") == 0,
        "two schedules": get("weights") == "swa" and get("schedule") is not None,
        "SWA needs epochs": get("weights") == "swa" and (get("max_epochs") < 2 or get("limit") is not None),
        "one average": get("weights") is not None and get("net") == "average",
        "SWA copies modules": get("weights") == "swa" and (get("net") == "configure_model" or stream),
        "finetuning of a layer": get("finetuning") is not None
        and (get("net") not in ("linear", "batchnorm", "dropout") or get("optimization") != "automatic"),
        "finetuning adds groups": get("finetuning") is not None
        and (get("optimizer") == "groups" or get("schedule") is not None or get("weights") is not None),
        "the tuner takes one optimizer": get("tuner") is not None
        and (get("optimization") != "automatic" or get("optimizer") == "groups" or get("weights") is not None),
        "the tuner fits": get("tuner") is not None
        and (get("finetuning") is not None or stream or get("train_loaders") is not None or get("pruning")),
        "the tuner takes a plain loader": get("tuner") is not None and get("sampler") == "batches",
        "a name for each loader": get("val_loaders") > 1
        and any("validation" in call["hook"] and not call["add_dataloader_idx"] for call in get("logs")),
        "a watched value in each epoch": get("check_val_every") != 1
        and (get("early_stopping") == "threshold" or get("schedule") == "plateau"),
        "a monitor needs validation": get("val_loaders") == 0
        and (
            get("early_stopping") is not None
            or get("checkpoint") in ("monitor", "top", "two")
            or get("runs") in ("validate", "validate first")
            or get("metric") is not None
        ),
        "checks of validation without one": get("val_loaders") == 0
        and (get("val_check_interval") is not None or get("limit_val") is not None or get("check_val_every") != 1),
        "a stream has no length": stream
        and (
            isinstance(get("val_check_interval"), float)
            or get("limit_train") == 0.5
            or get("schedule") == "onecycle"
            or get("overfit_batches")
        ),
        "validation of a stream by parts": get("val_data") != "map" and get("limit_val") == 0.5,
        "two units of validation": get("val_check_interval") is not None and get("check_val_every") != 1,
        "overfitting replaces loaders": get("overfit_batches")
        and (get("train_loaders") is not None or get("limit_train") is not None or get("sampler") is not None),
        "checks beyond the epoch": get("val_check_interval") is not None
        and (get("limit_train") is not None or get("overfit_batches") or get("train_size") < 12 or get("tuner")),
        "a learning rate to watch": get("lr_monitor") is not None and get("logger") is None,
        "pruning of linear layers": get("pruning")
        and (get("net") not in ("linear", "dropout", "batchnorm") or get("finetuning") or get("weights")),
        "rows of a batch in other types": get("precision") == "64-true" and get("net") in ("lstm", "encoder"),
        "a gather in a step that lacks validation": get("val_loaders") == 0
        and get("gather") in ("validation_step", "validation_end"),
        "logs of validation without one": get("val_loaders") == 0
        and any("validation" in call["hook"] for call in get("logs")),
        "a test set is the validation's": get("val_loaders") == 0 and get("runs") in ("test", "predict"),
        "steps end where epochs would": get("limit") == "max_steps" and get("check_val_every") != 1,
        "nothing to save": get("async_checkpoints") and get("checkpoint") is None,
        "one kind of log each": any(_unlogged(call) for call in get("logs")),
        "an average is no parameter": get("net") == "average" and get("precision") == "64-true",
        "two trainers go on with what was pruned": get("pruning") and get("runs") not in ("fit", "validate", "test"),
        "a fit of other groups": get("finetuning") is not None and get("runs") in ("fit twice", "two trainers"),
    }
    return next((reason for reason, holds in rules.items() if holds), None)


def _unlogged(call: dict[str, Any]) -> bool:
    """Tell whether Lightning refuses a call in its hook, or drops it."""
    epoch_only = call["hook"] in (
        "on_train_epoch_end",
        "on_validation_epoch_end",
        "on_train_epoch_start",
        "on_train_start",
    )
    return (
        (epoch_only and (call["on_step"] or call["on_epoch"] is False))
        or (call["on_step"] is False and call["on_epoch"] is False)
        or (call["hook"] in ("on_before_zero_grad", "on_after_backward", "on_train_start") and call["on_epoch"] is True)
        or (call["on_step"] is None and call["on_epoch"] is False and "validation" in call["hook"])
        or (call["value"] == "sometimes" and not call["hook"].endswith("_step"))
        or (call["value"] == "batch" and "batch" not in call["hook"] and not call["hook"].endswith("_step"))
        or (call["batch_size"] == "rows" and "batch" not in call["hook"] and not call["hook"].endswith("_step"))
        or (call["rank_zero_only"] and call["sync_dist"])
    )


def digest(program: Program) -> str:
    """Return a short name for a program."""
    return hashlib.sha1(json.dumps(program, sort_keys=True).encode(), usedforsecurity=False).hexdigest()[:10]


def reached(program: Program) -> set[str]:
    """Return the choices of a program beyond the plainest, as 'feature=choice'."""
    found = {f"{feature}={program[feature]}" for feature in FEATURES if program[feature] != FEATURES[feature][0]}
    for call in program["logs"]:
        found |= {f"log.{part}={call[part]}" for part in LOG}
    return found


def smaller(program: Program) -> list[Program]:
    """Return the valid programs that are one step plainer: one feature, one call or one part of a call."""
    logs = program["logs"]
    found = [{**program, "logs": logs[:number] + logs[number + 1 :]} for number in range(len(logs))]
    for feature, choices in FEATURES.items():
        if program[feature] != choices[0]:
            found.append({**program, feature: choices[0]})
    for number, call in enumerate(program["logs"]):
        for part, choices in LOG.items():
            if call[part] != choices[0]:
                plainer = {**call, part: choices[0]}
                found.append({**program, "logs": [*logs[:number], plainer, *logs[number + 1 :]]})
    return [one for one in found if invalid(one) is None]
