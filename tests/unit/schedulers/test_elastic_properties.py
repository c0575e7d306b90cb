"""What holds for ElasticASHA in every sweep: random curves, failures, clusters and settings."""

from __future__ import annotations

import functools
import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ray.tune.experiment import Trial

from tests.kit.controller import Cluster
from tunelight.schedulers import ElasticASHA
from tunelight.schedulers.common import top_count


class Watched:
    """Stands before an ElasticASHA and checks, after whatever it is told, whom it has promoted."""

    def __init__(self, inner: ElasticASHA) -> None:
        self.__dict__["inner"] = inner
        self.__dict__["known"] = set()
        self.__dict__["closed"] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not name.startswith(("on_", "choose")):
            return found

        def call(*told: Any) -> Any:
            answer = found(*told)
            self.check()
            if answer == "CONTINUE":
                self.check_promoted(told[1].trial_id)
            return answer

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)

    def check(self) -> None:
        added = sum(1 for _ in self.inner._members)
        for rung in self.inner._promotion.rungs:
            filed, then = self.closed.get(rung.milestone, (len(rung.filed), added))
            same = filed == len(rung.filed)
            assert same or then < added, "a trial that was known came to a rung that counted as closed"
            for trial_id in rung.promoted:
                if (rung.milestone, trial_id) not in self.known:
                    self.known.add((rung.milestone, trial_id))
                    best = top_count(len(rung.filed), self.inner._promotion.eta)
                    assert rung.rank(trial_id) < max(1, best)
                    if rung.rank(trial_id) >= best:
                        self.closed[rung.milestone] = (len(rung.filed), added)

    def check_promoted(self, trial_id: str) -> None:
        member = self.inner._members.get(trial_id)
        if member.progress < self.inner._promotion.max_t:
            assert all(trial_id in rung.promoted for rung in self.inner._promotion.rungs[: member.target])


def _curve(values: list[float], fails_at: int | None, t: int) -> float:
    if t == fails_at:
        raise RuntimeError("the training code raised")
    return values[(t - 1) % len(values)]


CURVES = st.lists(
    st.builds(
        functools.partial,
        st.just(_curve),
        st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5, math.nan]), min_size=1, max_size=4),
        st.one_of(st.none(), st.none(), st.integers(1, 9)),
    ),
    min_size=1,
    max_size=25,
)


SCHEDULER = st.fixed_dictionaries(
    {
        "max_workers": st.sampled_from([None, 1, 2, 4, 7]),
        "reduction_factor": st.sampled_from([1.5, 2, 3, 4]),
        "max_t": st.sampled_from([1, 5, 9]),
        "cooldown": st.integers(0, 5),
        "deadline_s": st.sampled_from([None, 5.0, 30.0]),
    }
)
CLUSTER = st.fixed_dictionaries(
    {
        "slots": st.integers(3, 12),
        "workers": st.integers(1, 3),
        "skip": st.integers(1, 3),
        "grants": st.booleans(),
        "pending_at_once": st.integers(1, 4),
        "every_s": st.sampled_from([0.0, 0.0, 1.6, 2.5]),
        "seed": st.integers(0, 3),
    }
)


@settings(max_examples=150, deadline=None)
@given(curves=CURVES, scheduler=SCHEDULER, cluster=CLUSTER)
def test_it_ends_promotes_only_the_best_and_gives_no_slot_twice(curves, scheduler, cluster):
    watched = Watched(ElasticASHA("loss", "min", **scheduler))
    max_t = scheduler["max_t"]
    ran = Cluster(watched, max_t=max_t, **cluster).run(curves, steps=2_000)
    assert {trial.status for trial in ran.trials} <= {Trial.TERMINATED, Trial.ERROR}
    assert ran.used() == 0
    assert scheduler["deadline_s"] is not None or len(ran.trials) == len(curves)
    paused = {entry[1] for entry in ran.log if "PAUSE" in entry[2:]}
    assert paused <= {entry[1] for entry in ran.log if entry[0] in ("promoted", "ended", "failed")}
