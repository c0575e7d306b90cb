"""Suggestions in search spaces of any kind: always inside, whatever conditions and constraints, and equal by seed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from ray.tune.search import Searcher

from tests.unit.searchers.test_optuna import report
from tunelight.errors import SpaceError
from tunelight.searchers.choose import build_searcher
from tunelight.settings import Settings
from tunelight.space import SearchSpace

_LOW, _SPAN = st.integers(1, 20), st.integers(3, 200)
NUMBERS = st.one_of(
    st.builds(lambda low, span: {"uniform": [low - 10.0, low + span * 1.0]}, _LOW, _SPAN),
    st.builds(lambda low, span: {"loguniform": [low / 10, low / 10 * span]}, _LOW, _SPAN),
    st.builds(lambda low, span: {"quniform": [low / 10, low / 10 + span, 0.1]}, _LOW, _SPAN),
    st.builds(lambda low, span: {"randint": [low - 10, low + span]}, _LOW, _SPAN),
    st.builds(lambda low, span: {"lograndint": [low, low + span]}, _LOW, _SPAN),
    st.builds(lambda low, span: {"qlograndint": [4 * low, 4 * (low + span), 4]}, _LOW, _SPAN),
)
FREE = st.one_of(
    st.sampled_from([["a", "b"], [1, 2, 3], [True, False], [0.1, 1, 10], ["x", 2, None]]).map(lambda v: {"choice": v}),
    st.just({"ordinal": ["s", "m", "l"]}),
    st.just({"randn": [0.0, 2.0]}),
)


@st.composite
def spaces(draw: Any) -> SearchSpace:
    """Draw a space of up to eight keys, some conditional, with up to two constraints."""
    keys: dict[str, Any] = {"kind": {"choice": ["one", "two", "three"]}}
    for number in range(draw(st.integers(1, 3))):
        keys[f"n{number}"] = draw(NUMBERS)
    for number in range(draw(st.integers(0, 2))):
        keys[f"c{number}"] = draw(FREE | st.just({"grid_search": [1, 2, 3]}))
    for number in range(draw(st.integers(0, 2))):
        keys[f"w{number}"] = {**draw(NUMBERS | FREE)}
        keys[f"w{number}"]["when"] = {"kind": draw(st.sampled_from(["one", "two"]))}
    always = [key for key in keys if key.startswith("n")]
    require = []
    for _ in range(draw(st.integers(0, 2))):
        a, b = draw(st.sampled_from(always)), draw(st.sampled_from(always))
        share = draw(st.sampled_from([0.4, 0.7]))
        bound = sum(low + share * (high - low) for low, high, *_ in (next(iter(keys[key].values())) for key in (a, b)))
        require.append(f"{a} + {b} <= {bound:.3f}")
    return SearchSpace(keys, require=require)


def in_space(space: SearchSpace, config: dict[str, Any]) -> None:
    values = space.dotted(config)
    assert space.written(values) == config
    assert space.broken(values) is None
    space.check_baselines([config])
    for key, domain in space.domains.items():
        if key in values and hasattr(domain, "is_valid") and not domain.is_function():
            assert domain.is_valid(values[key]), (key, values[key])


@pytest.mark.parametrize("name", ["random", "tpe"])
@given(space=spaces(), seed=st.integers(0, 2**31 - 1), losses=st.lists(st.floats(-1e6, 1e6), min_size=14, max_size=14))
@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_suggestions_are_in_any_space_and_the_same_for_a_seed(name, space, seed, losses):
    given = Settings(searcher=name, metric="loss", seed=seed)
    one, other = build_searcher(space, given), build_searcher(space, given)
    for number, loss in enumerate(losses):
        trial = f"{number:05d}"
        try:
            config: Any = one.suggest(trial) or {}
        except SpaceError:  # hardly any point meets the constraints
            assume(False)
        if config == Searcher.FINISHED:  # each of finitely many configurations has been tried
            assert other.suggest(trial) == config
            return
        assert json.dumps(other.suggest(trial)) == json.dumps(config)
        in_space(space, config)
        assert set(space.dotted(config)) == {key for key in space.domains if _is_on(space, key, config)}
        for searcher in (one, other):
            searcher.on_trial_result(trial, report(1, loss))
            if number % 3 and hasattr(searcher, "end"):
                searcher.end(trial, ("FINISHED", "STOPPED", "DIVERGED", "ERROR")[number % 4], report(2, loss + 1))


def _is_on(space: SearchSpace, key: str, config: dict[str, Any]) -> bool:
    return key not in space.when or config["kind"] in _named(space.when[key])


def _named(condition: Any) -> list[str]:
    return [name for name in ("one", "two", "three") if name in str(condition)]


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_a_step_whose_multiples_round_over_a_bound_stays_within_it(name):
    # 137 * 0.1 is 13.700000000000001, and 13.7 / 0.1 is 136.99999999999997
    space = SearchSpace({"x": {"quniform": [13.5, 13.7, 0.1]}})
    searcher = build_searcher(space, Settings(searcher=name, metric="loss", seed=0))
    found = set()
    for number in range(30):
        config: Any = searcher.suggest(f"t{number}")
        if config == Searcher.FINISHED:
            break
        found.add(config["x"])
        searcher.on_trial_complete(f"t{number}", report(1, 13.7 - config["x"]))
    assert min(found) >= 13.5
    assert max(found) == 13.7
