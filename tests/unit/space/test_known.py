"""baselines="known": configurations made from the names and domains of a space."""

from __future__ import annotations

import enum
import logging
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tunelight.errors import SettingsError
from tunelight.record import read_sweep_file
from tunelight.settings import Settings
from tunelight.space import SearchSpace, known
from tunelight.space.check import check_settings, with_baselines
from tunelight.space.known import known_baselines


class Opt(enum.Enum):
    SGD = 1
    ADAM = 2


def train(config: dict[str, Any]) -> None:
    """Never run."""


def made(domains: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    space = SearchSpace(domains, **more)
    found = known_baselines(space)
    space.check_baselines(found)
    return list(found)


def values(key: str, domain: Any) -> list[Any]:
    """Return the values that a key has in the baselines."""
    return [config[key] for config in made({key: domain})]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The packages of optimizers that are taken to be installed."""
    there: set[str] = set()
    monkeypatch.setattr(known, "find_spec", lambda name: name if name in there else None)
    return there


def test_a_usual_space_gets_two_configurations() -> None:
    domains = {
        "model": {
            "lr": tl.loguniform(1e-5, 1e-1),
            "hidden": tl.lograndint(16, 1025),
            "dropout": tl.uniform(0.0, 0.5),
            "weight_decay": tl.loguniform(1e-6, 1e-1),
            "optimizer": tl.choice(["sgd", "adam", "AdamW"]),
            "depth": 3,
        },
        "batch_size": tl.choice([128, 32, 64]),
    }
    first, second = made(domains)
    assert first == {
        "model": {"lr": 3e-4, "hidden": 128, "dropout": 0, "weight_decay": 1e-6, "optimizer": "AdamW", "depth": 3},
        "batch_size": 64,
    }
    assert second["model"] == {**first["model"], "lr": 1e-3, "weight_decay": 0.01}


@pytest.mark.parametrize(
    ("key", "domain", "expected"),
    [
        ("learning_rate", tl.loguniform(1e-3, 1e-1), [1e-3]),
        ("model.base_lr", tl.loguniform(1e-6, 1e-4), [1e-4]),
        ("lr", tl.choice([5e-3, 1e-4, 1e-5]), [1e-4, 5e-3]),
        ("lr", tl.quniform(0.0, 0.1, 0.0005), [0.0005, 0.001]),
        ("lr", tl.uniform(-5, -1), [-3.0]),  # exponents
        ("log_lr", tl.uniform(1, 5), [3.0]),
        ("min_lr", tl.loguniform(1e-8, 1e-4), [1e-6]),
        ("lr_decay", tl.uniform(0.5, 1.0), [0.75]),
        ("lr_drop", tl.randint(1, 10), [5]),
        ("attn_pdrop", tl.uniform(0.1, 0.5), [0.1]),
        ("hidden_dropout_prob", tl.choice([0.3, 0.1, 0.2]), [0.1]),
        ("use_dropout", tl.choice([True, False]), [False]),
        ("wd", tl.choice([0.1, 0.0, 0.02]), [0.0]),
        ("weight_decay", tl.loguniform(0.05, 1), [0.05]),
        ("momentum", tl.uniform(0.8, 1.0), [0.9]),
        ("gamma", tl.loguniform(1e-4, 1), [0.01]),
        ("gamma", tl.qloguniform(0.1, 13.7, 0.1), [1.2]),
        ("share", tl.quniform(0.0, 1.0, 0.2), [0.4]),
        ("layers", tl.randint(1, 10), [5]),
        ("width", tl.qrandint(32, 512, 32), [256]),
        ("width", tl.qlograndint(32, 512, 32), [128]),
        ("noise", tl.randn(0.5, 1.0), [0.5]),
        ("noise", tl.qrandn(0.5, 1.0, 0.2), [0.4]),
        ("batch_size", tl.choice([256, 16]), [16]),
        ("size", tl.ordinal(["s", "m", "l"]), ["m"]),
        ("amsgrad", tl.choice([True, False]), [True]),
        ("activation", tl.choice(["relu", "gelu"]), ["relu"]),
        ("optimizer", tl.choice(["sgd", "rmsprop"]), ["sgd"]),
        ("optimizer", tl.choice(["torch.optim.SGD", "torch.optim.Adam"]), ["torch.optim.Adam"]),
        ("optim", tl.choice(["adafactor", "adamw_torch"]), ["adamw_torch"]),
        ("optimizer", tl.choice([Opt.SGD, Opt.ADAM]), [Opt.ADAM]),
        ("optimizer", {"choice": [{"class_path": "a.SGD"}, {"class_path": "a.Adam"}]}, [{"class_path": "a.Adam"}]),
        ("lr", {"loguniform": [1e-5, 1], "around": 0.1}, [0.1]),
        ("dropout", {"uniform": [0, 0.5], "around": 0.2}, [0.2]),
        ("size", {"ordinal": [1, 2, 3], "around": 3}, [3]),
        ("batch_size", {"qrandint": [16, 128, 16], "around": 32}, [32]),
    ],
)
def test_each_kind_of_key_gets_a_value_of_its_domain(key: str, domain: Any, expected: list[Any]) -> None:
    assert values(key, domain) == expected


def test_what_no_rule_is_for_is_drawn_or_computed_the_same_way_each_time() -> None:
    domains = {"lr": tl.loguniform(1e-4, 1e-1), "twice": tl.sample_from(lambda spec: 2 * spec["lr"])}
    assert [config["twice"] for config in made(domains)] == [6e-4, 2e-3]


@pytest.mark.parametrize("name", ["schedulefree_adamw", "AdamWScheduleFree", "schedule-free"])
def test_a_third_has_an_optimizer_without_a_schedule_where_its_package_is_there(installed: set[str], name: str) -> None:
    domains = {"optimizer": tl.choice(["adamw", name]), "lr": tl.loguniform(1e-4, 1e-1)}
    assert [config["optimizer"] for config in made(domains)] == ["adamw", "adamw"]
    installed.add("schedulefree")
    assert made(domains)[2:] == [{"optimizer": name, "lr": 1e-3}]


def test_prodigy_is_taken_where_the_learning_rate_may_be_one(installed: set[str]) -> None:
    installed.add("prodigyopt")
    names = tl.choice(["adam", "Prodigy"])
    wide = {"optimizer": names, "lr": {"loguniform": [1e-4, 10], "around": 1e-2}}
    assert made(wide) == [{"optimizer": "adam", "lr": 1e-2}, {"optimizer": "Prodigy", "lr": 1.0}]
    for lr in (tl.loguniform(1e-4, 0.1), 0.1):
        assert {config["optimizer"] for config in made({"optimizer": names, "lr": lr})} == {"adam"}
    installed.add("schedulefree")
    both = {"optimizer": tl.choice(["adam", "prodigy", "schedulefree"]), "lr": tl.loguniform(1e-4, 10)}
    assert [config["optimizer"] for config in made(both)] == ["adam", "adam", "schedulefree"]


def test_conditions_hold_and_what_breaks_a_constraint_is_left_out() -> None:
    domains = {
        "optimizer": tl.choice(["sgd", "adam"]),
        "momentum": {"uniform": [0, 0.9], "when": {"optimizer": "sgd"}},
        "beta": {"uniform": [0.8, 1.0], "when": {"optimizer": "adam"}},
        "lr": tl.loguniform(1e-4, 1e-1),
    }
    assert made(domains, require="lr >= 5e-4") == [{"optimizer": "adam", "beta": 0.9, "lr": 1e-3}]


def test_where_none_is_left_the_sweep_says_so_and_has_none(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("tunelight"), "propagate", True)
    space = SearchSpace({"lr": tl.loguniform(1e-4, 1e-1)}, require="lr >= 0.05")
    told: Any = "known"
    assert with_baselines(space, Settings(baselines=told)).baselines == ()
    assert "none of these configurations meets `require`" in caplog.text


def test_a_grid_is_refused_with_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("space: {lr: {uniform: [0, 1]}, n: {grid_search: [1, 2]}}\nmetric: loss\nbaselines: known\n")
    with pytest.raises(SettingsError, match=r"space\.yaml:3:1: baselines='known' makes no .* n is searched by grid"):
        tl.run(file, train)


def test_the_sweep_records_the_configurations_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunelight.sweep import run as module

    class ReadyError(Exception): ...

    def ready(settings: Any, reservation: Any, path: Path, signals: Any) -> Any:
        recorded.append(read_sweep_file(path.parent)["baselines"])
        raise ReadyError

    recorded: list[Any] = []
    monkeypatch.setattr(module, "connected", ready)
    file = tmp_path / "space.yaml"
    file.write_text("space: {lr: {loguniform: [1e-4, 1e-1]}, n: 3}\nmetric: loss\nbaselines: known\n")
    more: dict[str, Any] = {"storage": tmp_path, "progress": False}
    with pytest.raises(ReadyError):
        tl.run(file, train, **more)
    with pytest.raises(ReadyError):
        tl.run({"lr": tl.loguniform(1e-4, 1e-1)}, train, metric="loss", baselines="known", **more)
    assert recorded == [[{"lr": 3e-4, "n": 3}, {"lr": 1e-3, "n": 3}], [{"lr": 3e-4}, {"lr": 1e-3}]]


def test_a_space_that_says_known_may_be_fixed_and_made_plain() -> None:
    told: Any = {"baselines": "known"}
    space = SearchSpace({"lr": tl.loguniform(1e-4, 1e-1), "opt": tl.choice([Opt.SGD, Opt.ADAM])}, **told)
    assert space.plain().settings["baselines"] == space.fixed({"lr": 0.5}).settings["baselines"] == "known"
    settings = with_baselines(space, Settings(train=train, metric="loss", **told))
    check_settings(space, settings)
    assert settings.baselines[0] == {"lr": 3e-4, "opt": Opt.ADAM}
