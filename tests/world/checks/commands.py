"""Each command that the driver said it has carried out took effect, once."""

from __future__ import annotations

from collections.abc import Iterator

from tests.world.checks import Ended


def wrong(ended: Ended) -> Iterator[str]:
    own = [trial for trial in ended.trials.values() if trial.repeats in (None, trial.id) and trial.branch is None]
    lrs = [trial.config_at(0)["lr"] for trial in own]
    least = 0 if ended.tried("num_samples") else 1  # fewer trials may leave out what has not begun
    for lr in ended.did("enqueue"):
        if not least <= lrs.count(lr) <= 1 and not ended.stopped:
            yield f"{lrs.count(lr)} trials have the enqueued lr {lr}"
    branches = [
        (int(trial.branch.parent), trial.config_at(trial.branch.number + 1)["lr"])
        for trial in ended.trials.values()
        if trial.branch is not None
    ]
    for parent, lr in (branched := ended.did("branch")) if not ended.stopped else ():
        found = sum(one == parent and lr in (None, own) for one, own in branches)
        if found < (asked := branched.count((parent, lr))):
            yield f"{found} branches of {parent} with lr {lr}, not {asked}"
    for index in ended.did("stop_trial"):
        trial = next(one for one in ended.trials.values() if one.index == index)
        if trial.state != "STOPPED" and not trial.failed:
            yield f"trial {trial.id} was stopped, and is {trial.state}"
