"""No report is lost, doubled or out of order, and each is that of the undisturbed run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tests.world.checks import Ended
from tests.world.ranks import BATCHES, advanced, begun, loss_of
from tunelight.record.state import TrialState
from tunelight.trial.trial import trial_seed


def wrong(ended: Ended) -> Iterator[str]:
    states = {
        one.id: {report["training_iteration"]: report["state"] for report in one.history}
        for one in ended.trials.values()
    }
    for trial in ended.trials.values():
        yield from _of(ended, trial, states)

    stopped: set[str] = set()
    for line in ended.lines:
        if line["kind"] == "report" and line["trial"] in stopped:
            yield f"trial {line['trial']} reports after the scheduler has stopped it"
        if line["kind"] == "report" and line["decision"] == "STOP":
            stopped.add(line["trial"])


def _of(ended: Ended, trial: TrialState, states: Mapping[str, Mapping[int, int]]) -> Iterator[str]:
    numbers = [report["training_iteration"] for report in trial.history]
    first = trial.branch.number if trial.branch is not None else 0
    if numbers != list(range(first + 1, first + len(numbers) + 1)):
        yield f"the reports of {trial.id} are {numbers}"
        return
    state: Any = (
        begun(trial_seed(ended.world.settings["seed"], trial.id))
        if trial.branch is None
        else states[trial.branch.parent].get(first)
    )
    taken = {change["training_iteration"]: change["parent"] for change in trial.changes}
    for report in trial.history:
        number = report["training_iteration"]
        begins = [state]
        if number > first + 1 and number - 1 in taken:
            begins += states[taken[number - 1]].values()
        if all(_trained(begin, report) != report["state"] for begin in begins) and not ended.may_go_back(trial):
            yield f"report {number} of {trial.id} is not that of the undisturbed run"
            return
        state = report["state"]
        if report["loss"] != loss_of(report["used"], state, report["epochs"]) and not math.isnan(report["loss"]):
            yield f"report {number} of {trial.id} has another loss than its training"
        if report["used"] != trial.config_at(number)["lr"]:
            yield f"report {number} of {trial.id} was made with another configuration than was recorded"
            return


def _trained(state: int, report: Mapping[str, Any]) -> int:
    """Return the state after the epoch of a report."""
    for step in range((report["epochs"] - 1) * BATCHES + 1, report["epochs"] * BATCHES + 1):
        state = advanced(state, report["used"], step)
    return state
