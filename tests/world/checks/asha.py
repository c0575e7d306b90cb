"""ASHA's decisions are those of its rule, in the order of the record; branches and repetitions compete with nobody."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from tests.world.checks import Ended
from tests.world.sweeps import EPOCHS

ETA = 4
RUNGS = [rung for rung in (1, 4, 16) if rung < EPOCHS]


def wrong(ended: Ended) -> Iterator[str]:
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
        if number in RUNGS and competes:
            key = (loss if known else math.inf, len(filed[number]))
            filed[number].append(key)
            stops = sorted(filed[number]).index(key) >= max(1, len(filed[number]) // ETA)
        elif trial.id in ended.state.repetitions:  # it may end where what is repeated was stopped
            stops = line["decision"] == "STOP" and number >= furthest
        by_a_person = "command" in str(line.get("why"))
        if (line["decision"] == "STOP") != stops and not by_a_person and known and number < EPOCHS:
            yield f"report {number} of {line['trial']} got {line['decision']} ({line.get('why')})"
