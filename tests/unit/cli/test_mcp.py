"""The server of the Model Context Protocol, by the SDK's client in this process: short answers, and wrong calls."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import TextContent

from tests.kit import sweeps
from tests.unit.cli.conftest import SPACE
from tests.unit.cli.test_command import call as command_line
from tunelight.cli.app import BAD_INPUT
from tunelight.cli.overrides import read_sets
from tunelight.errors import SettingsError
from tunelight.extras.mcp import _HARMLESS, _sets, make_server
from tunelight.settings import SETTINGS


def call(folder: Path, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """Return the answers to calls: (whether it is an error, its text)."""

    async def talk() -> list[Any]:
        async with Client(make_server(folder, str(folder / "tunelight_runs"))) as client:
            answers = []
            for name, arguments in calls:
                with anyio.fail_after(60):
                    answer = await client.call_tool(name, arguments)
                (content,) = answer.content
                assert isinstance(content, TextContent)
                answers.append((answer.is_error, content.text))
            return answers

    return anyio.run(talk)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcp")
    sweeps.record(folder / "tunelight_runs" / "large", trials=1000, epochs=4, gangs=8)
    sweeps.record(folder / "tunelight_runs" / "small", trials=12, epochs=4)
    (folder / "space.yaml").write_text(SPACE)
    (folder / "link.yaml").symlink_to(tmp_path_factory.mktemp("outside") / "space.yaml")
    (folder / "link.yaml").resolve().write_text(SPACE)
    return folder


def test_twelve_calls_on_a_thousand_trials_are_answered_in_few_words(recorded):
    first = json.loads(call(recorded, ("show", {"sweep": "large"}))[0][1])
    calls: list[tuple[str, dict[str, Any]]] = [
        ("list", {}), ("show", {"sweep": "large"}), ("show", {"sweep": "large", "top": 20}),
        ("show", {"sweep": "large", "since": 0}), ("show", {"sweep": "large", "since": first["since"]}),
        ("show", {"sweep": "large", "trial": "best"}), ("show", {"sweep": "large", "trial": "3"}),
        ("show", {"sweep": "small", "top": 1}), ("best", {"sweep": "large"}),
        ("best", {"sweep": "large", "trial": "5"}),
        ("list", {"state": "finished"}), ("show", {"sweep": "small"}),
    ]  # fmt: skip
    begun = time.perf_counter()
    answers = call(recorded, *calls)
    taken, size = time.perf_counter() - begun, sum(len(text) for _, text in answers)
    print(f"12 calls: {size / 4:.0f} tokens, {taken / 12 * 1000:.0f} ms each")  # noqa: T201 - shown by pytest -s
    assert not any(error for error, _ in answers), answers
    assert size / 4 <= 8000
    about = json.loads(answers[1][1])
    assert sum(about["trials"].values()) == 1000
    assert about["top"][0]["value"] == about["best"]
    changed = json.loads(answers[3][1])["changed"]
    assert changed["trials"] == 1000
    assert len(changed["latest"]) == 10
    assert json.loads(answers[4][1])["changed"]["trials"] == 0


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("show", {"sweep": "larg"}, "Did you mean 'large'?"),
    ("show", {"swep": "large"}, "Did you mean 'sweep'?"),
    ("show", {"sweep": "large", "trial": "5000"}, "has no trial '5000'"),
    ("show", {"sweep": "large", "top": "many"}, "top (integer)"),
    ("show", {"sweep": "large", "since": 10**12}, "cursor of an earlier answer"),
    ("list", {"state": "finishd"}, "Did you mean 'finished'?"),
    ("best", {"sweep": "small", "export": "../best.yaml"}, "is not below"),
    ("best", {"sweep": "small", "format": "yaml"}, "Give export, too"),
    ("report", {"sweep": "small", "out": "/report.html"}, "is not below"),
    ("run", {"space": "../space.yaml"}, "is not below"),
    ("check", {"space": "link.yaml"}, "is not below"),
    ("run", {"space": "spac.yaml"}, "Did you mean 'space.yaml'?"),
    ("run", {"space": "space.yaml", "name": "../there"}, "that of a folder"),
    ("run", {"space": "space.yaml", "settings": {"script": "a.py"}}, "search space's file"),
    ("report", {"sweep": "small", "out": "tunelight_runs/small/sweep.yaml"}, "to which only sweeps write"),
    ("report", {"sweep": "small", "out": "space.yaml"}, "exists already"),
    ("report", {"sweep": "small", "out": "--batch"}, "must not begin with a dash"),
    ("enqueue", {"sweep": "small", "config": {"opt": "/etc/passwd"}}, "opt takes numbers"),
    ("branch", {"sweep": "small", "trial": "1", "config": {"model": {"opt": "os.system"}}}, "model.opt takes numbers"),
    ("run", {"space": "space.yaml", "name": "small"}, "There is a sweep 'small' already"),
    ("stop", {"sweep": "small"}, "No process runs the sweep small"),
    ("enqueue", {"sweep": "small", "config": "lr=1"}, "config (object)"),
    ("branch", {"sweep": "small", "trial": "1", "config": {"lr": 1}}, "No process runs"),
    ("set", {"sweep": "small", "name": "max_concurent", "value": 2}, "max_concurrent"),
]  # fmt: skip


def test_wrong_calls_are_answered_with_the_valid_choice(recorded):
    answers = call(recorded, *((name, arguments) for name, arguments, _ in WRONG))
    for (error, text), (name, arguments, said) in zip(answers, WRONG, strict=True):
        assert error, (name, arguments)
        assert said in text, (name, arguments, text)
        assert "Traceback" not in text


OF_SPACE = {
    "lr": {"loguniform": [1e-4, 0.1]},
    "model": {"net": {"choice": ["resnet18.a1_in1k", "x/y.ckpt"]}, "sizes": {"choice": [[1, 2], [3]]}},
    "optimizer": {"parameters": {"beta": {"values": [0.9]}}},
}


@pytest.mark.parametrize(
    "settings",
    [
        *({name: 1} for name in ("workers", "max_epochs", "num_samples", "seed", "lr", "optimizer.beta")),
        {"metric": "val/loss.top", "scheduler": {"name": "asha", "grace_period": 2}, "time_budget": "1h 30m"},
        {"model.net": "x/y.ckpt", "model.sizes": [1, 2], "trainer.precision": "bf16-mixed", "searcher": None},
        {"resources_per_trial": {"cpu": 1, "extra_custom_resources": {"disk": 4}}},
    ],
)
def test_harmless_settings_and_keys_are_passed_on_as_they_are(settings):
    words = _sets(settings, OF_SPACE)
    assert read_sets([word.removeprefix("--set=") for word in words]) == settings


OUTSIDE: list[dict[str, Any]] = [
    *({name: "a:b"} for name in sorted(set(SETTINGS) - _HARMLESS)),
    *({name: "a:b"} for name in ("train ", " script", "\ttrain", "runtime_env\n", "TRAIN", "train\u00a0")),
    *({name: 0} for name in ("train=os:system #", "trainer_args={callbacks: 1} #", "", "=", "lr=1 ")),
    *({f"trainer.{name}": value} for name, value in (("callbacks", 1), ("default_root_dir", "x"), ("logger", True))),
    *({f"trainer.{name}": "x"} for name in ("plugins", "strategy", "profiler", "max_epochs.class_path")),
    *({name: 1} for name in ("model.other", "data.root", "lr.loguniform.x", "model")),
    {"trainer.precision": {"class_path": "a.B"}},
    {"scheduler": {"name": "asha", "init": {"class_path": "a.B"}}},
    {"scheduler": {"_target_": "ab"}},
    {"scheduler": "my.module:Class"},
    {"searcher": {"name": "tpe", "storage": "sqlite:///a.db"}},
    {"searcher": [{"name": "/a"}]},
    {"time_budget": "~/x"},
    {"model.net": "os.system"},
    {"model.net": {"class_path": "a.B"}},
    {"model.sizes": [1, "../x"]},
    {"lr": {"choice": ["a"]}},
]


@pytest.mark.parametrize("settings", OUTSIDE, ids=repr)
def test_nothing_that_names_code_or_a_place_is_passed_on(settings):
    with pytest.raises(SettingsError):
        _sets(settings, OF_SPACE)


def test_without_the_package_the_extra_is_named_and_a_missing_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "tunelight.extras.mcp", raising=False)
    for folder, said in (tmp_path, "pip install 'tunelight[mcp]'"), (tmp_path / "nowhere", "There is no folder"):
        assert said in command_line("mcp", folder, code=BAD_INPUT).output
