"""ElasticASHA: who is promoted, who pauses, who grows, and that it comes to an end."""

from __future__ import annotations

import random

import pytest

from tests.unit.tune import Cluster
from tunelight.schedulers import ElasticASHA


def curves(n: int, seed: int = 1):
    rng = random.Random(seed)
    return [lambda t, q=rng.random(): q + 1 / t for _ in range(n)]


def make(**settings):
    return ElasticASHA(**{"metric": "loss", "mode": "min", "max_t": 27, **settings})


@pytest.mark.parametrize(
    ("slots", "workers", "most", "n"), [(4, 1, 4, 20), (1, 1, 1, 10), (8, 2, 8, 3), (16, 2, 16, 40)]
)
def test_a_sweep_ends_with_its_best_trial_trained_to_the_end(slots, workers, most, n):
    elastic = make(max_workers=most)
    cluster = Cluster(elastic, slots=slots, workers=workers, max_t=27).run(curves(n))
    values = [curve(1) for curve in curves(n)]
    assert cluster.reached(values.index(min(values))) == 27
    assert cluster.most_used <= slots
