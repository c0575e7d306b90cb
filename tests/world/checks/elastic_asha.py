"""Who trains on past a rung of ElasticASHA's has been among its best before; somebody trains to the end.

One report more is made by a trial each time that its head was killed as it was to pause.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.world.checks import Ended
from tests.world.sweeps import EPOCHS

ETA = 3
RUNGS = [rung for rung in (1, 3) if rung < EPOCHS]


def wrong(ended: Ended) -> Iterator[str]:
    if "elastic_asha" not in str(ended.world.settings["scheduler"]) or not ended.world.kernel.saves:
        return  # what writes no checkpoints trains on where it would pause
    filed: defaultdict[int, dict[str, float]] = defaultdict(dict)
    good: set[tuple[str, int]] = set()
    again: Counter[tuple[str, int]] = Counter()
    competing = {one.id for one in ended.trials.values() if one.branch is None}
    unended = {one.id for one in ended.trials.values() if not one.failed and one.state != "STOPPED"}
    for line in ended.lines:
        if line.get("state") == "PENDING":
            again.update((line["trial"], rung) for rung in RUNGS if line["trial"] in filed[rung])
        if line["kind"] != "report" or line["trial"] not in competing:
            continue
        trial, number, loss = line["trial"], line["training_iteration"], line["metrics"]["loss"]
        for rung in RUNGS:
            better = {one for one, other in filed[rung].items() if other < filed[rung].get(trial, math.inf)}
            if number > rung + max(1, again[trial, rung]) and (trial, rung) not in good and better & unended:
                yield f"report {number} of {trial}, which was never among the best of rung {rung}: {filed[rung]}"
                good.add((trial, rung))
        if number in RUNGS:
            filed[number][trial] = loss if math.isfinite(loss) else math.inf
            best = sorted(filed[number], key=lambda one: filed[number][one])
            good |= {(one, number) for one in best[: max(1, len(best) // ETA)]}
    furthest = max((one.number for one in ended.trials.values() if one.id in competing), default=0)
    lost = any(one.failed or ("command" in str(one.why) and one.number > RUNGS[0]) for one in ended.trials.values())
    if furthest < EPOCHS and not ended.stopped and not lost:
        yield f"no trial has trained to the end, but to report {furthest} at most"
