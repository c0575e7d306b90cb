"""Choices that are objects: plain data stands for them in a sweep, and training code and results get them back."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any

import numpy as np
import pytest

import tunelight as tl
from tunelight.errors import SettingsError, SpaceError
from tunelight.searchers.choose import build_searcher
from tunelight.settings import Settings
from tunelight.space.plain import Objects

SCRIPT = """
import dataclasses, enum
class Opt(enum.Enum):
    SGD = 1
    ADAM = 2
@dataclasses.dataclass
class Aug:
    p: float
def train(config):
    return config["opt"] is Opt.SGD, isinstance(config["aug"], Aug), config["act"] is act
def act(x):
    return x
"""


class Opt(enum.Enum):
    SGD = 1
    ADAM = 2


@dataclasses.dataclass(frozen=True)
class Aug:
    p: float
    opt: Opt = Opt.SGD


def double(x: int) -> int:
    return 2 * x


def rng() -> np.random.RandomState:
    return np.random.RandomState(0)


def space(**more: Any) -> tl.SearchSpace:
    return tl.SearchSpace(
        {
            "opt": tl.choice([Opt.SGD, Opt.ADAM]),
            "model": {"aug": tl.choice([Aug(0.5), Aug(0.1)]), "kind": tl.choice([list, double])},
            "sizes": tl.grid_search([(1, 2), (3,)]),
            **more,
        }
    )


def test_a_configuration_has_the_objects_and_its_plain_form_their_texts() -> None:
    given = space()
    config, plain = given.sample(rng()), given.plain().sample(rng())
    assert config["opt"] in Opt
    assert config["model"]["aug"] in (Aug(0.5), Aug(0.1))
    assert config["sizes"] == (1, 2)
    assert plain == json.loads(json.dumps(plain))
    assert plain["opt"] == f"Opt.{config['opt'].name}"
    assert given.plain_configs([config]) == (plain,)
    assert given.objects.restored(plain) == config


@pytest.mark.parametrize("name", ["random", "grid", "tpe", "cmaes"])
def test_every_searcher_of_a_sweep_suggests_plain_data_that_stands_for_objects(name: str) -> None:
    given = space()
    searcher = build_searcher(given.plain(), Settings(searcher=name, metric="loss", seed=0, num_samples=2))
    config: Any = searcher.suggest("00000")
    assert config == json.loads(json.dumps(config))
    assert given.objects.restored(config)["opt"] in Opt
    assert given.objects.restored(config)["model"]["kind"] in (list, double)


def test_a_searcher_that_is_used_without_a_sweep_suggests_the_objects() -> None:
    searcher: Any = tl.OptunaSearcher("tpe", space=space(), metric="loss", mode="min")
    assert searcher.suggest("00000")["opt"] in Opt


def test_classes_of_a_script_are_those_of_its_train_function_on_a_worker() -> None:
    from tunelight.gang.parcel import pack, unpack
    from tunelight.lightning.recipe import training_code

    script: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, script)
    choices = {"opt": [script["Opt"].SGD], "aug": [script["Aug"](0.5)], "act": [script["act"]]}
    given = tl.SearchSpace({key: tl.choice(values) for key, values in choices.items()})
    config = json.loads(json.dumps(given.plain().sample(rng())))
    train = unpack(pack(training_code(given, Settings(train=script["train"], metric="loss"))))
    assert train.train(train.restored(config)) == (True, True, True)


def test_another_process_imports_and_rebuilds_what_the_record_refers_to() -> None:
    given = space()
    recorded = json.loads(json.dumps(given.objects.described()))
    plain = given.plain().sample(rng())
    assert Objects.recalled(recorded).restored(plain) == given.objects.restored(plain)


def test_an_object_that_no_reference_leads_to_is_told_apart_and_stays_its_text() -> None:
    first, second = (lambda x: x), (lambda x: -x)
    given = tl.SearchSpace({"act": tl.choice([first, second])})
    assert given.dotted({"act": second}) != given.dotted({"act": first})
    assert given.objects.restored(given.dotted({"act": second}))["act"] is second
    recorded = given.objects.described()
    assert Objects.recalled(recorded).restored({"act": "there"}) == {"act": "there"}
    with pytest.raises(SpaceError, match="act: the record has the choice"):
        Objects.recalled(recorded, strict=True)


def test_a_record_of_others_makes_nothing_but_dataclasses_and_members() -> None:
    called = {"x": [["a", {"dataclass": "os:system", "fields": {"command": {"value": "true"}}}]]}
    assert not Objects.recalled(called)
    assert not Objects.recalled({"x": "a", "y": [1], "z": [["a", {"enum": "os:path", "name": "join"}]]})
    assert not Objects.recalled(["x"])


def test_conditions_functions_and_priors_know_the_objects() -> None:
    given = tl.SearchSpace(
        {
            "opt": {"ordinal": [Opt.SGD, Opt.ADAM], "around": Opt.ADAM},
            "momentum": {"uniform": [0, 1], "when": {"opt": Opt.SGD}},
            "sgd": tl.sample_from(lambda config: config["opt"] is Opt.SGD),
        }
    )
    for number in range(8):
        config = given.plain().sample(np.random.RandomState(number))
        assert ("momentum" in config) == config["sgd"] == (config["opt"] == "Opt.SGD")


def test_baselines_may_be_objects_and_what_is_enqueued_must_be_a_choice() -> None:
    given = tl.SearchSpace({"opt": tl.choice([Opt.SGD, Opt.ADAM])})
    given.check_baselines([{"opt": Opt.ADAM}])
    assert given.plain_configs([{"opt": Opt.ADAM}]) == ({"opt": "Opt.ADAM"},)
    given.plain().check_baselines([{"opt": "Opt.ADAM"}])
    with pytest.raises(SettingsError, match=r"not one of its choices: 'Opt.SGD', 'Opt.ADAM'"):
        given.plain().check_baselines([{"opt": "Opt.RMS"}])


def test_numbers_of_numpy_become_numbers() -> None:
    given = tl.SearchSpace({"n": tl.choice(list(np.arange(1, 3))), "x": tl.choice([np.float32(0.5)])})
    assert {type(value) for value in given.sample(rng()).values()} == {int, float}
    assert not given.objects


def test_a_population_moves_from_object_to_object_in_a_plain_tuner_and_by_text_in_a_sweep() -> None:
    from tunelight.schedulers.pbt import explore, mutations_of

    mutations = mutations_of({"opt": [Opt.SGD, Opt.ADAM]})
    assert explore({"opt": Opt.SGD}, mutations, rng(), 0.0, (1.2,)) == {"opt": Opt.ADAM}
    assert explore({"opt": "Opt.SGD"}, mutations, rng(), 0.0, (1.2,)) == {"opt": "Opt.ADAM"}


@pytest.mark.parametrize(
    "domain",
    [
        {"choice": [tl.uniform(0, 1), 3]},
        {"grid_search": [[tl.uniform(0, 1)]]},
        {"ordinal": [{"lr": tl.uniform(0, 1)}, 2]},
        {"fixed": [tl.uniform(0, 1)]},
    ],
)
def test_a_domain_inside_of_a_value_is_refused_where_it_is_written(domain: Any) -> None:
    with pytest.raises(SpaceError, match=r"holds a domain, uniform of \[0, 1\].*'when'"):
        tl.SearchSpace({"x": domain})


def test_a_choice_refuses_a_domain_at_once() -> None:
    with pytest.raises(SpaceError, match=r"tl.choice: choice holds a domain"):
        tl.choice([tl.uniform(0, 1), 3])
