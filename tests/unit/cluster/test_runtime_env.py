"""What of a runtime environment goes along with the job, and what with each worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunelight.cluster.runtime_env import for_job, for_workers, refuse_local
from tunelight.errors import SettingsError

HERE = {"lo": ("127.0.0.1",), "eth0": ("10.0.0.1",)}


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    return tmp_path


def test_the_drivers_folder_goes_to_another_machine_without_its_sweeps(cwd):
    told = for_job({"env_vars": {"A": "1"}}, "10.0.0.9:6379", Path("tunelight_runs"), HERE)
    assert told == {"env_vars": {"A": "1"}, "working_dir": str(cwd), "excludes": ["/tunelight_runs"]}
    assert for_job(None, "10.0.0.9:6379", Path("/shared"), HERE)["excludes"] == []


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "127.0.0.1:6379", "localhost:6379", "auto"])
def test_on_this_machine_nothing_needs_to_be_sent(cwd, address):
    assert for_job(None, address, cwd, HERE) == {}


def test_a_folder_that_was_named_or_sent_with_the_job_comes_first(cwd, monkeypatch):
    named = {"working_dir": "elsewhere"}
    assert for_job(named, "10.0.0.9:6379", cwd, HERE) == named
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert for_job(None, "10.0.0.9:6379", cwd, HERE) == {}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (None, None),
        ({"working_dir": ".", "excludes": ["data"]}, None),
        ({"working_dir": "s3://code.zip", "pip": ["x"]}, {"working_dir": "s3://code.zip", "pip": ["x"]}),
        ({"py_modules": ["mine"], "env_vars": {"A": "1"}}, {"env_vars": {"A": "1"}}),
    ],
)
def test_workers_are_not_given_what_ray_sends_with_the_job(given: Any, left: Any) -> None:
    assert for_workers(given) == left


def test_a_folder_comes_too_late_for_a_process_that_is_connected():
    refuse_local({"working_dir": "s3://code.zip"})
    with pytest.raises(SettingsError, match=r"working_dir='\.', .*connected already.*ray.init"):
        refuse_local({"working_dir": "."})
