"""What must hold after any sweep, whatever happened to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.world.ranks import BATCHES, advanced, begun
from tests.world.sweeps import EPOCHS
from tunelight.extras.attach import RecordFollower
from tunelight.record.state import TrialState
from tunelight.trial.trial import trial_seed

ADDS = ("enqueue", "branch")
"""Commands by which a sweep has one more trial."""
States = Mapping[str, Mapping[int, int]]
"""The state of each trial's training at each of its reports."""


def wrong(world: Any) -> Iterator[str]:
    """Yield what is wrong with a sweep's results and record, and what it has left behind."""
    if world.results is None:
        yield f"no results: {world.error!r}"
        return
    follower = RecordFollower(world.folder / "sweep")
    follower.look()
    trials = follower.state.trials
    states = {
        one.id: {report["training_iteration"]: report["state"] for report in one.history} for one in trials.values()
    }
    for trial in trials.values():
        yield from _ends(trial)
        yield from _reports(trial, states, world.settings["seed"])
    # A person who had no answer in time does not know whether a trial was added.
    least = world.settings["num_samples"] + sum(said in ADDS for said in world.done)
    most = world.settings["num_samples"] + sum(text.split()[-1] in ADDS for text in world.faults)
    if not least <= len(trials) <= most:
        yield f"{len(trials)} trials, not {least} to {most}"
    yield from _left(world)


def _ends(trial: TrialState) -> Iterator[str]:
    """Yield where a trial has not come to a good end."""
    if trial.branch is not None and trial.branch.number == EPOCHS:  # its parent had trained to its end
        if trial.state != "STOPPED" and "at which it began" not in str(trial.error):
            yield f"the branch {trial.id} has nothing to train, and is {trial.state}: {trial.error}"
    elif trial.state not in ("FINISHED", "STOPPED"):
        yield f"trial {trial.id} is {trial.state}: {trial.error}"
    epochs = trial.history[-1]["epochs"] if trial.history else 0
    if trial.state == "FINISHED" and epochs != EPOCHS:
        yield f"trial {trial.id} has finished after {epochs} epochs"


def _reports(trial: TrialState, states: States, seed: int) -> Iterator[str]:
    """Yield where reports are lost, doubled, out of order, or not those of an undisturbed run."""
    numbers = [report["training_iteration"] for report in trial.history]
    first = trial.branch.number if trial.branch is not None else 0
    if numbers != list(range(first + 1, first + len(numbers) + 1)):
        yield f"reports of {trial.id}: {numbers}"
        return
    state: Any = begun(trial_seed(seed, trial.id)) if trial.branch is None else states[trial.branch.parent].get(first)
    for report in trial.history:
        number = report["training_iteration"]
        for step in range((report["epochs"] - 1) * BATCHES + 1, report["epochs"] * BATCHES + 1):
            state = advanced(state, report["used"], step)
        if report["state"] != state:
            yield f"report {number} of {trial.id} is not that of the undisturbed run"
            return
        if report["used"] != trial.config_at(number)["lr"]:
            yield f"report {number} of {trial.id} was made with another configuration than was recorded"
            return


def _left(world: Any) -> Iterator[str]:
    """Yield the processes and reservations that are still there."""
    for node in world.rays.nodes_alive():
        for process in node.processes:
            if process.alive and process.locals.get("kind") in ("head", "worker"):
                yield f"{process} is left"
    for group in world.rays.groups:
        if group.state != "REMOVED":
            yield f"{group._hex} is left ({group.state})"
