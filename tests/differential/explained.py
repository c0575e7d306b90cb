"""Differences from Lightning's DDP that are meant: each has its sentence in the documentation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.differential.grammar import Program


@dataclass(frozen=True)
class Explained:
    """One difference, for a reason that a page in docs/ gives."""

    where: str
    """A regular expression for the way and the place, as in "driver /returned-0/returned/0"."""
    page: str
    reason: str
    only: Sequence[tuple[str, tuple[object, ...]]] = ()
    """Features of the programs that have it, by name."""


EXPLAINED: Final = (
    Explained(
        r"(driver|horovod|sharded) /(returned-0/returned/|1-predict-\d-0/hooks/on_predict_batch_)",
        "migration.md",
        "on a driver all predictions are returned, in the order of the data",
        (("runs", ("predict",)),),
    ),
    Explained(
        r"(left|killed|paused|resumed|resized) ",
        "faults.md",
        "ModelPruning begins anew after a restart, since Lightning's checkpoint has no masks",
        (("pruning", (True,)),),
    ),
    *(
        Explained(
            rf"(left|paused|resumed|killed) /{place}",
            "faults.md",
            "what callbacks make while a fit trains is not there after a restart behind it",
            features,
        )
        for place, *features in (
            (r"fit-\d-\d/(schedules|callbacks/StochasticWeightAveraging)", ("weights", ("swa",))),
            (r"fit-\d-\d/frozen", ("finetuning", ("own",)), ("runs", ("validate",))),  # as after the validation
            (r"(raised|returned|reports)", ("accumulate", ("schedule",)), ("runs", ("fit twice",))),
        )
    ),
    Explained(
        r"killed /raised-KILLED: missing",
        "faults.md",
        "an error of the training code ends a trial, and a rank that is killed meanwhile raises none",
    ),
    Explained(
        r"(left|paused|resumed|killed|resized) /(fit-\d-\d/callbacks/ModelCheckpoint|checkpoints|files)",
        "faults.md",
        "what ModelCheckpoint wrote in steps that are lost stays, and is written beside it again",
        (("checkpoint", ("monitor", "top", "last", "steps", "train_end", "two")),),
    ),
    Explained(
        r"left /.*(mean_loss|steps_seen)",
        "faults.md",
        "plain attributes are not restored: a list of an epoch's losses lacks those from before the restart",
        (("appended", (True,)),),
    ),
    Explained(
        r"\w+ /(\d-)?fit-\d-\d(-\d)?/callbacks/Finetuning/internal_optimizer_metadata",
        "faults.md",
        "a second fit's checkpoints lack the groups that BaseFinetuning made in the first",
        (("finetuning", ("own",)), ("runs", ("fit twice",))),
    ),
    Explained(
        r"adopted /\d-fit-\d-\d/own",
        "schedulers.md",
        "an adoption calls on_load_checkpoint",
        (("saves", (True,)),),
    ),
    Explained(
        r"\w+ /files",
        "migration.md",
        "two loggers on one folder have one version",
        (("logger", ("both",)),),
    ),
    Explained(
        r"\w+ /(checkpoints|files|(\d-)?fit-\d-\d(-\d)?/callbacks/ModelCheckpoint)",
        "migration.md",
        "two Trainers of a trial have one version of a logger, and so one folder of checkpoints",
        (("runs", ("from checkpoint", "two trainers")), ("logger", ("csv", "tensorboard", "both"))),
    ),
    Explained(
        r"\w+ /(2-fit|fit-2|returned|checkpoints|reports|files|rows)",
        "migration.md",
        "a fit with ckpt_path reads its first epoch in its own order, also where loaders have processes",
        (("runs", ("from checkpoint",)), ("loader_workers", (1, "persistent"))),
    ),
)


def explained(way: str, difference: str, program: Program) -> Explained | None:
    """Return what explains a difference; None if nothing does."""
    for known in EXPLAINED:
        where = known.where.replace("KILLED", str(program["kill"][1]))  # the rank
        if re.match(where, f"{way.rpartition('_')[2]} {difference}") and all(
            program[feature] in choices for feature, choices in known.only
        ):
            return known
    return None
