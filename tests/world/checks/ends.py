"""Each trial finishes or is stopped, unless its training code failed: then its error says how."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.world.checks import Ended
from tests.world.sweeps import EPOCHS
from tunelight.record.state import TrialState


def wrong(ended: Ended) -> Iterator[str]:
    for trial in ended.trials.values():
        yield from _end(ended, trial)
    # A person who had no answer in time does not know whether a trial was added.
    asked, totals = ended.world.settings["num_samples"], ended.did("num_samples")
    if len(totals) == ended.tried("num_samples") == 1 and not ended.tried("enqueue"):
        asked = totals[0]
    least, most = asked + len(ended.did("enqueue", "branch")), asked + ended.tried("enqueue", "branch")
    if asked not in totals and ended.tried("num_samples"):
        least, most = asked + len(ended.did("branch")), most + 3
    if not (0 if ended.stopped else least) <= (found := len(ended.state.searched)) <= most:
        yield f"{found} trials, not {least} to {most}"


def _end(ended: Ended, trial: TrialState) -> Iterator[str]:
    epochs = trial.history[-1]["epochs"] if trial.history else 0
    if trial.state != "DIVERGED" and any(math.isnan(report["loss"]) for report in trial.history):
        yield f"trial {trial.id} has reported NaN, and is {trial.state}"
    if trial.branch is not None and _trained_to(ended.trials[trial.branch.parent], trial.branch.number) == EPOCHS:
        if trial.state != "STOPPED" and "at which it began" not in str(trial.error):
            yield f"the branch {trial.id} has nothing to train, and is {trial.state}: {trial.error}"
    elif trial.failed:
        told = (trial.error or {}).get("message", "")
        broken = ended.world.kernel.broken.get(trial.id, ())
        if not any(trial.state == state and text in told for state, text in broken):
            yield f"trial {trial.id} is {trial.state}: {told!r}; its training code said {list(broken)}"
    elif trial.state == "FINISHED" and epochs != EPOCHS and not ended.may_go_back(trial):
        yield f"trial {trial.id} has finished after {epochs} epochs"
    elif trial.state not in ("FINISHED", "STOPPED") and not ended.stopped:
        yield f"trial {trial.id} is {trial.state}: {trial.error}"
    elif trial.state == "STOPPED" and not trial.why and ended.world.settings["scheduler"] == "fifo":
        yield f"nobody is said to have stopped trial {trial.id}"


def _trained_to(trial: TrialState, number: int) -> int:
    """Return after which epoch a report was made; 0 without it."""
    return next((report["epochs"] for report in trial.history if report["training_iteration"] == number), 0)
