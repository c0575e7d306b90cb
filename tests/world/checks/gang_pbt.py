"""A member of GangPBT's population takes over a report that was made, of one that had become better than itself."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from tests.world.checks import Ended


def wrong(ended: Ended) -> Iterator[str]:
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
