"""What a sweep has done: its reports, its ends, its commands, its checkpoints, and what is left of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from tests.world.checks import Ended
from tests.world.ranks import BATCHES, advanced, begun, loss_of, saved_in
from tests.world.sweeps import EPOCHS
from tunelight.checkpoints import files
from tunelight.record.state import TrialState
from tunelight.trial.trial import trial_seed


def reports(ended: Ended) -> Iterator[str]:
    """No report is lost, doubled or out of order, and each is that of the undisturbed run."""
    states = {
        one.id: {report["training_iteration"]: report["state"] for report in one.history}
        for one in ended.trials.values()
    }
    for trial in ended.trials.values():
        yield from _reports(ended, trial, states)

    stopped: set[str] = set()
    for line in ended.lines:
        if line["kind"] == "report" and line["trial"] in stopped:
            yield f"trial {line['trial']} reports after the scheduler has stopped it"
        if line["kind"] == "report" and line["decision"] == "STOP":
            stopped.add(line["trial"])


def _reports(ended: Ended, trial: TrialState, states: Mapping[str, Mapping[int, int]]) -> Iterator[str]:
    numbers = [report["training_iteration"] for report in trial.history]
    first = trial.branch.number if trial.branch is not None else 0
    if numbers != list(range(first + 1, first + len(numbers) + 1)):
        yield f"the reports of {trial.id} are {numbers}"
        return
    state: Any = _began(ended, trial, states)
    taken = {change["training_iteration"]: change["parent"] for change in trial.changes}
    for report in trial.history:
        number = report["training_iteration"]
        adopts = number > first + 1 and number - 1 in taken
        begins = states[taken[number - 1]].values() if adopts else [state]
        if (
            all(_trained(begin, report["used"], report["epochs"]) != report["state"] for begin in begins)
            and not ended.may_go_back(trial)
            and report["state"] not in _made_again(ended, trial, number, report["epochs"])
        ):
            yield f"report {number} of {trial.id} is not that of the undisturbed run"
            return
        state = report["state"]
        if report["loss"] != loss_of(report["used"], state, report["epochs"]) and not math.isnan(report["loss"]):
            yield f"report {number} of {trial.id} has another loss than its training"
        if report["used"] != trial.config_at(number)["lr"]:
            yield f"report {number} of {trial.id} was made with another configuration than was recorded"
            return


def _began(ended: Ended, trial: TrialState, states: Mapping[str, Mapping[int, int]]) -> int:
    """Return the state with which a trial begins: a branch's may be the one with which its parent began."""
    if trial.branch is None:
        return begun(trial_seed(ended.world.settings["seed"], trial.id))
    parent = ended.trials[trial.branch.parent]
    reported = states[parent.id].get(trial.branch.number)
    return _began(ended, parent, states) if reported is None else reported


def _trained(state: int, lr: float, epoch: int) -> int:
    """Return the state after an epoch, counted from 1."""
    for step in range((epoch - 1) * BATCHES + 1, epoch * BATCHES + 1):
        state = advanced(state, lr, step)
    return state


def _made_again(ended: Ended, trial: TrialState, number: int, epochs: int) -> set[int]:
    """Return the states of a report that a trial made from the checkpoint that it adopted, unknown to its driver.

    The note of a start comes with its first report: it is lost where the driver is.
    """
    changes = [change for change in trial.changes if change["training_iteration"] < number]
    if not changes:
        return set()
    first = epochs - number + changes[-1]["training_iteration"]
    states = {one["state"] for one in ended.trials[changes[-1]["parent"]].history if one["epochs"] == first}
    for epoch in range(first + 1, epochs + 1):
        states = {_trained(state, trial.config_at(number)["lr"], epoch) for state in states}
    return states


def ends(ended: Ended) -> Iterator[str]:
    """Each trial finishes or is stopped, unless its training code failed: then its error says how."""
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
    adopted = len(trial.changes) > (trial.branch is not None)  # from a trial that has trained less, or more
    if trial.state != "DIVERGED" and any(math.isnan(report["loss"]) for report in trial.history):
        yield f"trial {trial.id} has reported NaN, and is {trial.state}"
    if trial.branch is not None and _trained_to(ended.trials[trial.branch.parent], trial.branch.number) == EPOCHS:
        cut = ended.stopped and trial.state == "INTERRUPTED"
        if trial.state != "STOPPED" and not cut and "at which it began" not in str(trial.error):
            yield f"the branch {trial.id} has nothing to train, and is {trial.state}: {trial.error}"
    elif trial.failed:
        told = (trial.error or {}).get("message", "")
        broken = ended.world.kernel.broken.get(trial.id, ())
        if not any(trial.state == state and text in told for state, text in broken):
            yield f"trial {trial.id} is {trial.state}: {told!r}; its training code said {list(broken)}"
    elif trial.state == "FINISHED" and epochs != EPOCHS and not (adopted or ended.may_go_back(trial)):
        yield f"trial {trial.id} has finished after {epochs} epochs"
    elif trial.state not in ("FINISHED", "STOPPED") and not ended.stopped:
        yield f"trial {trial.id} is {trial.state}: {trial.error}"
    elif trial.state == "STOPPED" and not trial.why and ended.world.settings["scheduler"] == "fifo":
        yield f"nobody is said to have stopped trial {trial.id}"


def _trained_to(trial: TrialState, number: int) -> int:
    """Return after which epoch a report was made; 0 without it."""
    return next((report["epochs"] for report in trial.history if report["training_iteration"] == number), 0)


def commands(ended: Ended) -> Iterator[str]:
    """Each command that the driver said it has carried out took effect, once."""
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


def replays(ended: Ended) -> Iterator[str]:
    """The record replays to the state that the driver had at the end."""
    if ended.world.recorded is None:
        return
    had, replayed = _plain(ended.world.recorded), _plain(ended.state)
    for name, value in had.items():
        for key in value if isinstance(value, dict) and isinstance(replayed[name], dict) else ():
            if value[key] != replayed[name].get(key):
                yield f"{name}: {key} was {value[key]}, and the record says {replayed[name].get(key)}"
        if not isinstance(value, dict) and value != replayed[name]:
            yield f"{name} was {value}, and the record says {replayed[name]}"


def _plain(state: Any) -> dict[str, Any]:
    """Return a state as JSON has it, by name and by trial."""

    def of(one: Any) -> Any:
        if is_dataclass(one):
            return {field.name: getattr(one, field.name) for field in fields(one)}
        return list(one) if isinstance(one, Sequence) else str(one)

    plain = json.loads(json.dumps(state, default=of))
    return {**{f"trial {key}": one for key, one in plain.pop("trials").items()}, **plain}


def owners(ended: Ended) -> Iterator[str]:
    """Each run of a sweep ends once; `World.drive` checks that no driver returns results of a sweep that it lost."""
    if (runs := sum(line["kind"] == "end" for line in ended.lines)) > len(ended.state.runs):
        yield f"{len(ended.state.runs)} runs have ended {runs} times"


def left(ended: Ended) -> Iterator[str]:
    """Nothing of a sweep is left: no process, no reservation."""
    rays = ended.world.rays
    for node in rays.nodes_alive():
        for process in node.processes:
            if process.alive and process.locals.get("kind") in ("head", "worker"):
                yield f"{process} is left"
    for group in rays.groups:
        if group.state != "REMOVED":
            yield f"{group._hex} is left ({group.state})"


def checkpoints(ended: Ended) -> Iterator[str]:
    """Each checkpoint that is there is whole, and holds the training of its report."""
    for trial in (one for one in ended.trials.values() if not ended.may_go_back(one)):
        reports = {report["training_iteration"]: report["state"] for report in trial.history}
        taken = {change["training_iteration"]: change["parent"] for change in trial.changes}
        late = ended.world.suffered("the store is")  # so slow that a request arrives after others have deleted it
        for companion in sorted((ended.folder / trial.folder / files.FOLDER).glob("report-*.json")):
            if not companion.with_suffix(".ckpt").exists() and not late:
                yield f"{trial.id}: {companion.name} tells of a checkpoint that is not there"
        for info in files.find(ended.folder / trial.folder):
            name, states = Path(info.path).name, {reports.get(info.number)}
            if ended.stopped and trial.state == "INTERRUPTED" and any(number < info.number for number in taken):
                continue  # made again from what it adopted, by a start of which the sweep's end cut off the note
            if info.adopted:
                parent = ended.trials.get(taken.get(info.number, ""))
                kept = () if parent is None else files.find(ended.folder / parent.folder)  # also of no recorded report
                states = {None} if parent is None else {report["state"] for report in parent.history}
                states |= {saved_in(Path(one.path))["state"] for one in kept}
            if not files.is_valid(info):
                yield f"{trial.id}: {name} is not what its checksum says"
            elif not info.between and states.isdisjoint({None, (saved := saved_in(Path(info.path)))["state"]}):
                if saved["state"] in _made_again(ended, trial, info.number, saved["epoch"]):
                    continue
                yield f"{trial.id}: {name} is another training than report {info.number}"


def best(ended: Ended) -> Iterator[str]:
    """The best result is the best of the reports, and its checkpoint is that of its report."""
    if ended.state.repetitions:
        return  # it is the best mean then
    losses = {
        (report["loss"], trial.id, report["training_iteration"]): report
        for trial in ended.trials.values()
        if not trial.failed and trial.repeats in (None, trial.id)
        for report in trial.history
        if math.isfinite(report["loss"])
    }
    if not losses:
        return
    least = min(losses)
    found = ended.results.best
    if found.metrics["loss"] != least[0]:
        yield f"the best loss is {least}, and results.best says {found.metrics['loss']}"
    elif found.checkpoint is not None and found.checkpoint.name[:13] == files.file_name(least[2])[:13]:
        again = ended.may_go_back(ended.trials[least[1]])  # and made that report once more, by another training
        between = ".step-" in found.checkpoint.name  # of a trial that left in the midst of the next epoch
        if saved_in(found.checkpoint)["state"] != losses[least]["state"] and not (again or between):
            yield f"the checkpoint {found.checkpoint.name} of the best trial is another training than its report"
    elif not ended.stopped and not ended.storage_failed and "checkpoints" not in ended.world.settings:
        yield f"the best trial {found.id} has the checkpoint {found.checkpoint}, not that of report {least[2]}"
