"""Each command that the driver said it has carried out took effect, once."""

from __future__ import annotations

from collections.abc import Iterator

from tests.world.checks import Ended


def wrong(ended: Ended) -> Iterator[str]:
    own = [trial for trial in ended.trials.values() if trial.repeats in (None, trial.id) and trial.branch is None]
    lrs = [trial.config_at(0)["lr"] for trial in own]
    for lr in ended.did("enqueue"):
        if lrs.count(lr) != 1 and not ended.stopped:
            yield f"{lrs.count(lr)} trials have the enqueued lr {lr}"
    parents = [int(trial.branch.parent) for trial in ended.trials.values() if trial.branch is not None]
    for parent in set(branched := ended.did("branch")):
        if parents.count(parent) < branched.count(parent) and not ended.stopped:
            yield f"{parents.count(parent)} branches of {parent}, not {branched.count(parent)}"
    for index in ended.did("stop_trial"):
        trial = next(one for one in ended.trials.values() if one.index == index)
        if trial.state != "STOPPED" and not trial.failed:
            yield f"trial {trial.id} was stopped, and is {trial.state}"
