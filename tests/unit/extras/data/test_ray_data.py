"""Names of Ray Data that differ between versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tunelight.extras.data import shards


class Blocks:
    """Stands in for a dataset: keeps what it is shuffled by."""

    def randomize_block_order(self, *, seed: Any) -> Blocks:
        self.seed = seed
        return self


def test_blocks_are_shuffled_by_seed_and_number_of_the_pass():
    data = pytest.importorskip("ray.data")
    seed = shards.shuffled_each_pass(Blocks(), 5).seed
    if not hasattr(data, "RandomSeedConfig"):
        assert seed is None
        return
    from ray.data._internal.random_config import get_single_integer_random_seed

    def order(config: Any, epoch: int) -> Any:
        context: Any = SimpleNamespace()
        shards.start_at_pass(context, epoch)
        return get_single_integer_random_seed(config, context)

    orders = [order(seed, epoch) for epoch in range(3)]
    assert orders == [order(shards.shuffled_each_pass(Blocks(), 5).seed, epoch) for epoch in range(3)]
    assert len(set(orders)) == 3
