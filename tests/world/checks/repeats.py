"""The best configurations are trained again, from scratch and as often as asked, once all trials have ended."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.world.checks import Ended
from tunelight.record import TERMINAL, SweepState, apply


def wrong(ended: Ended) -> Iterator[str]:
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
