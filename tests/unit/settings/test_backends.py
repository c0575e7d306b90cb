"""The table of backends: its rows name what is there, and everything that knows backends reads it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, get_args

import pytest

import tunelight as tl
from tunelight.errors import SettingsError
from tunelight.gang.meeting.rendezvous import group_for
from tunelight.settings import backends
from tunelight.settings.backends import BACKENDS, Backend, BackendInfo, check_backend


def test_type_checkers_know_the_names_of_the_table():
    assert get_args(Backend) == tuple(BACKENDS)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_names_its_strategy_which_the_package_hands_out(name):
    strategy = BACKENDS[name].load_strategy()
    assert strategy.backend == name
    assert getattr(tl, BACKENDS[name].strategy_name) is strategy


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_names_the_group_that_connects_its_ranks(name):
    required = BACKENDS[name].requires
    if required is not None and find_spec(required) is None:
        pytest.skip(BACKENDS[name].how_to_get)
    group = group_for(BACKENDS[name].collectives or "gloo")
    assert type(group) is BACKENDS[name].load_group()
    methods = ("host", "join", "leave", "close", "tidy", "lost_peer")
    assert [method for method in methods if not inspect.ismethod(getattr(group, method, None))] == []


def test_torchs_own_collectives_are_those_of_ddp():
    assert BackendInfo.of_collectives("nccl") is BackendInfo.of_collectives("gloo") is BACKENDS["ddp"]


def test_a_backend_that_is_not_installed_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda _: None)
    assert check_backend("backend", "ddp") == "ddp"
    with pytest.raises(SettingsError, match=r"backend='horovod': Horovod is not installed.*make horovod"):
        check_backend("backend", "horovod")


def test_the_package_hands_out_a_strategy_by_the_table_alone(monkeypatch):
    row: Any = BackendInfo("tunelight.digits:DigitsClassifier")
    monkeypatch.setitem(BACKENDS, "own", row)
    assert vars(tl).get("DigitsClassifier") is None
    assert tl.__getattr__("DigitsClassifier") is row.load_strategy()


def test_the_table_imports_neither_torch_nor_lightning():
    code = (
        "import sys, tunelight.settings.backends; "
        "sys.exit(bool({'torch', 'pytorch_lightning', 'ray', 'horovod'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
