"""Secrets that a sweep is told are not in its folder, nor shown; a sweep that goes on asks for them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

import tunelight as tl
from tests.kit.recording import Writer
from tests.unit.cli.test_command import call
from tunelight.errors import SettingsError
from tunelight.extras.report.page import page
from tunelight.extras.reproduce import _prepare
from tunelight.record import read_sweep_file, write_sweep_file
from tunelight.results import SweepResults
from tunelight.settings import Settings
from tunelight.stores.masking import masked, masked_command
from tunelight.sweep.past import open_saved_sweep
from tunelight.sweep.run import _prepare as prepare
from tunelight.sweep.run import claimed
from tunelight.sweep.steering import SweepControl

SECRET = "hunter2"
URL = f"postgresql://me:{SECRET}@db.example/studies"


def train(config: dict[str, Any]) -> None:
    """Never run."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:a@b:c@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("mysql+pymysql://me:a/b@host/db", "mysql+pymysql://me:***@host/db"),
        ("redis://:abc@host", "redis://:***@host"),
        ("git+https://ghp_abc@github.com/me/it", "git+https://***@github.com/me/it"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("s3://bucket/a?X-Amz-Signature=abc&X-Amz-Date=1", "s3://bucket/a?X-Amz-Signature=***&X-Amz-Date=1"),
        ("az://c/a?sig=abc&sv=1#x", "az://c/a?sig=***&sv=1#x"),
        ("http://h/x?access_token=a b", "http://h/x?access_token=*** b"),
        (
            "cannot reach postgres://a:b@c/d, nor http://u:p@e.",
            "cannot reach postgres://a:***@c/d, nor http://u:***@e.",
        ),
        ("postgresql://me:${DB_PASSWORD}@host/db", "postgresql://me:${DB_PASSWORD}@host/db"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("s3://bucket/sweeps?region=eu", "s3://bucket/sweeps?region=eu"),
        ("val_loss=0.5 at me@example.org", "val_loss=0.5 at me@example.org"),
    ],
)
def test_what_is_secret_in_an_address_is_masked(text, shown):
    assert masked(text) == shown
    assert masked(shown) == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--set", "runtime_env={env_vars: {HF_TOKEN: hunter2}}"], None),
        (["--set", '--set=runtime_env={"env_vars": {"A": "hunter2"}}'], None),
        (["--set", "trainer_args={default_root_dir: 'https://h/a?password=hunter2'}"], None),
        (["http://h/x?sig=hunter2"], None),
        (["--set", "model.token =hunter2"], None),
        (["x", "--set", "model.lr=1", "--tokens", "5"], "x --set model.lr=1 --tokens 5"),
        (["x", "--set", "data.api_key=abc", "--set=b.api_key=a=b"], "x --set data.api_key=*** --set=b.api_key=***"),
        (["x", "--password", "abc", "more", "--hf-token=abc"], "x --password *** more --hf-token=***"),
    ],
)
def test_a_command_line_s_secrets_are_masked_and_its_other_words_shown(words, shown):
    found = " ".join(masked_command(words))
    assert SECRET not in found
    assert shown in (None, found)


GIVEN: dict[str, Any] = {
    "runtime_env": {
        "env_vars": {"MY_TOKEN": SECRET, "NCCL_DEBUG": SECRET},
        "pip": [f"--index-url https://u:{SECRET}@x"],
    },
    "trainer_args": {"default_root_dir": f"s3://me:{SECRET}@bucket/x"},
}


def free_of_secrets(folder: Path) -> bool:
    return not any(SECRET in file.read_text() for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def edited(tmp_path: Path) -> SweepResults:
    """Return a sweep into whose sweep.yaml somebody has written secrets."""
    written = Writer(tmp_path)
    written.trial(0.5, state="STOPPED", config={"x": 0.5})
    told = {**written.told, **GIVEN, "space": {"x": {"uniform": [0, 1]}}, "train": f"{__name__}:train", "seed": 1}
    (written.folder / "sweep.yaml").write_text(yaml.safe_dump(told))
    return written.load()


def test_secrets_in_an_edited_file_are_not_shown_nor_in_what_is_made_of_it(edited):
    assert SECRET not in page(edited) + edited.summary()
    for words in (["show", "digits"], ["show", "digits", "0", "--json"], ["best", "digits", "--json"]):
        assert SECRET not in call(*words, "--storage", edited.folder.parent).output
    found = _prepare(edited, edited.trials[0], read_sweep_file(edited.folder))
    assert free_of_secrets(found)
    write_sweep_file(edited.folder, yaml.safe_load((edited.folder / "sweep.yaml").read_text()))
    assert SECRET not in (edited.folder / "sweep.yaml").read_text()


def test_errors_and_notes_are_recorded_without_them(sweep, tmp_path):
    trial = sweep.run(x=1)
    sweep.callback.note(f"cannot reach {URL}")
    sweep.fail(trial, message=f"no {URL}", traceback=f"at {URL}")
    sweep.end()
    assert SECRET not in (tmp_path / "record.jsonl").read_text()


def test_resume_takes_variables_from_the_environment(edited, monkeypatch, caplog):
    from tunelight.sweep.resume import _read_back

    monkeypatch.setenv("MY_TOKEN", "new")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    told = read_sweep_file(edited.folder)
    told["runtime_env"].pop("pip")
    with caplog.at_level(logging.WARNING):
        settings = _read_back(edited.folder, told, {"trainer_args": {}})
    assert settings["runtime_env"] == {"env_vars": {"MY_TOKEN": "new", "NCCL_DEBUG": "INFO"}}
    assert "MY_TOKEN, NCCL_DEBUG" in caplog.text


def test_resume_asks_for_variables_that_are_not_there_and_for_an_address_that_was_masked(edited, monkeypatch):
    monkeypatch.delenv("MY_TOKEN", raising=False)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    with pytest.raises(SettingsError, match=r"runtime_env.*MY_TOKEN.*runtime_env=") as refused:
        tl.resume(edited.folder, trainer_args={})
    assert "NCCL_DEBUG" not in str(refused.value)
    with pytest.raises(SettingsError, match=r"trainer_args\['default_root_dir'\].*\*\*\*.*trainer_args=") as refused:
        tl.resume(edited.folder, runtime_env=None)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("clear", [False, True])
def test_a_sweep_s_folder_holds_no_secret_and_a_script_that_goes_on_with_it_gives_them_again(tmp_path, clear):
    space = tl.SearchSpace({"model.lr": tl.uniform(0, 1)})
    common: dict[str, Any] = {
        "model": "tunelight.extras.digits:DigitsClassifier",
        "data": "tunelight.extras.digits:DigitsData",
        "metric": "val_loss",
        "storage": tmp_path,
        "name": "s",
        "seed": 1,
        **GIVEN,
    }
    with claimed(prepare(space, Settings(**common), None, SweepControl()), None) as first:
        assert {file.name for file in first.folder.iterdir()} >= {"sweep.yaml", "record.jsonl"}
    assert free_of_secrets(first.folder)
    told = yaml.safe_load((first.folder / "sweep.yaml").read_text())
    assert list(told["runtime_env"]["env_vars"]) == ["MY_TOKEN", "NCCL_DEBUG"]
    if clear:  # somebody has written it there
        (first.folder / "sweep.yaml").write_text(yaml.safe_dump({**told, "trainer_args": common["trainer_args"]}))
    settings = Settings(**common, resume=True)
    with open_saved_sweep(settings) as past:
        assert past is not None
        assert SECRET not in str(past.sweep_file)
        again = prepare(space, settings, past, SweepControl())
    assert again.settings.runtime_env == GIVEN["runtime_env"]
    assert SECRET not in str(again.sweep_file)
