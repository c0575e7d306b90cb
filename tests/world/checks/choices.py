"""What schedulers and repetitions have chosen, by their rules, written for reading."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tests.world.checks import Ended
from tests.world.sweeps import EPOCHS
from tunelight.record import TERMINAL, SweepState, apply


def asha(ended: Ended, eta: int = 4, rungs: Sequence[int] = (1, 4)) -> Iterator[str]:
    """ASHA's decisions are those of its rule, in the record's order; branches and repetitions compete with nobody."""
    if not isinstance(scheduler := ended.world.settings["scheduler"], dict) or scheduler["name"] != "asha":
        return
    filed: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    repeated = [ended.trials[str(one.repeats)] for one in ended.state.repetitions.values()]
    furthest = max((len(one.history) for one in repeated), default=0)
    for line in ended.lines:
        if line["kind"] != "report":
            continue
        trial = ended.trials[line["trial"]]
        number, loss = line["training_iteration"], line["metrics"]["loss"]
        stops, known = False, math.isfinite(loss)
        competes = trial.branch is None and trial.id not in ended.state.repetitions
        if number in rungs and competes:
            key = (loss if known else math.inf, len(filed[number]))
            filed[number].append(key)
            stops = sorted(filed[number]).index(key) >= max(1, len(filed[number]) // eta)
        elif trial.id in ended.state.repetitions:  # it may end where what is repeated was stopped
            stops = line["decision"] == "STOP" and number >= furthest
        by_a_person = "command" in str(line.get("why"))
        if (line["decision"] == "STOP") != stops and not by_a_person and known and number < EPOCHS:
            yield f"report {number} of {line['trial']} got {line['decision']} ({line.get('why')})"


def elastic_asha(ended: Ended, eta: int = 3, rungs: Sequence[int] = (1, 3)) -> Iterator[str]:
    """Who trains on past a rung of ElasticASHA's has been among its best before; somebody trains to the end.

    One report more is made by a trial each time that its head was killed as it was to pause.
    """
    if "elastic_asha" not in str(ended.world.settings["scheduler"]) or not ended.world.kernel.saves:
        return  # what writes no checkpoints trains on where it would pause
    filed: defaultdict[int, dict[str, float]] = defaultdict(dict)
    good: set[tuple[str, int]] = set()
    again: Counter[tuple[str, int]] = Counter()
    competing = {one.id for one in ended.trials.values() if one.branch is None}
    unended = {one.id for one in ended.trials.values() if not one.failed and one.state != "STOPPED"}
    for line in ended.lines:
        if line.get("state") == "PENDING":
            again.update((line["trial"], rung) for rung in rungs if line["trial"] in filed[rung])
        if line["kind"] != "report" or line["trial"] not in competing:
            continue
        trial, number, loss = line["trial"], line["training_iteration"], line["metrics"]["loss"]
        for rung in rungs:
            better = {one for one, other in filed[rung].items() if other < filed[rung].get(trial, math.inf)}
            if number > rung + max(1, again[trial, rung]) and (trial, rung) not in good and better & unended:
                yield f"report {number} of {trial}, which was never among the best of rung {rung}: {filed[rung]}"
                good.add((trial, rung))
        if number in rungs:
            filed[number][trial] = loss if math.isfinite(loss) else math.inf
            best = sorted(filed[number], key=lambda one: filed[number][one])
            good |= {(one, number) for one in best[: max(1, len(best) // eta)]}
    furthest = max((one.number for one in ended.trials.values() if one.id in competing), default=0)
    lost = any(one.failed or ("command" in str(one.why) and one.number >= rungs[0]) for one in ended.trials.values())
    if furthest < EPOCHS and not ended.stopped and not lost:
        yield f"no trial has trained to the end, but to report {furthest} at most"


def gang_pbt(ended: Ended) -> Iterator[str]:
    """A member of GangPBT's population takes over a report that was made, of one that had become better than itself."""
    made: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for line in ended.lines:
        if line["kind"] == "report":
            made[line["trial"]][line["training_iteration"]] = line["metrics"]["loss"]
        elif line["kind"] == "config" and (parent := line.get("parent")) is not None:
            trial, number, taken = line["trial"], line["training_iteration"], line["parent_iteration"]
            about = f"{trial} after its report {number} took over report {taken} of {parent}"
            own = (one["loss"] for one in ended.trials[trial].history if one["training_iteration"] == number)
            if taken not in made[parent]:
                yield f"{about}, which was not made"
            elif min(made[parent].values()) > next(own, math.inf):  # its line follows, or was lost
                yield f"{about}, which never was better"


def repeats(ended: Ended) -> Iterator[str]:
    """The best configurations are trained again, from scratch and as often as asked, once all trials have ended."""
    again = {(trial.repeats, trial.repetition): trial for trial in ended.state.repetitions.values()}
    if len(again) != len(ended.state.repetitions):
        yield f"{len(ended.state.repetitions)} repetitions are {sorted(again)}"
    for (first, _), trial in again.items():
        if trial.config != ended.trials[str(first)].config:
            yield f"{trial.id} trains {first} again with {trial.config}"
    state = SweepState()
    for line in ended.lines:
        apply(state, line)
        if line["kind"] == "trial" and line.get("repeats") is not None:
            search = (one for one in state.searched if one.branch is None)
            going = [one.id for one in search if one.state not in TERMINAL and one.decision != "STOP"]
            if going:
                yield f"{line['trial']} trains {line['repeats']} again while {going} may still be better"
    if (asked := ended.world.settings.get("repeats")) is None or ended.stopped:
        return
    ended_by_themselves = [
        (min(losses), trial.index, trial.id)
        for trial in ended.state.searched
        if trial.branch is None and trial.state == "FINISHED"
        if (losses := [report["loss"] for report in trial.history if math.isfinite(report["loss"])])
    ]
    for *_, first in sorted(ended_by_themselves)[: asked["top"]]:
        for number in range(1, asked["repeats"]):
            if (first, number) not in again:
                yield f"{first} is among the best, and was not trained again ({number})"
            elif again[first, number].state == "STOPPED" and not again[first, number].why:
                yield f"{again[first, number].id} was stopped by nobody, and {first} came to its end"
