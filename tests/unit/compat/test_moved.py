"""Import paths of version 0.1: they lead to the same objects, with a warning that says the new path."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import warnings
from types import ModuleType
from typing import Any

import pytest

import tunelight as tl
from tunelight.compat import moved
from tunelight.errors import ImportPathError
from tunelight.settings import load_object


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Let each test import the old paths for the first time, and leave nothing of them."""
    for name in moved.MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delattr(tl, name.split(".")[1], raising=False)
    yield
    for name in moved.MODULES:
        sys.modules.pop(name, None)
        vars(tl).pop(name.split(".")[1], None)


def old(path: str) -> ModuleType:
    package = path.rpartition(".")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module(package)
    with pytest.warns(DeprecationWarning, match=f"^{path} is {moved.MODULES[path]} now"):
        return importlib.import_module(path)


@pytest.mark.parametrize("path", moved.MODULES)
def test_an_old_path_has_what_the_new_one_has(path):
    new = importlib.import_module(moved.MODULES[path])
    module = old(path)
    names = [name for name in dir(new) if not name.startswith("__")]
    assert dir(module) == dir(new)
    assert all(getattr(module, name) is getattr(new, name) for name in names)


def test_the_warning_names_both_paths_and_the_line_that_imports():
    text = "tunelight.callbacks is tunelight.lightning.callbacks now; the old path goes in version 0.3."
    with pytest.warns(DeprecationWarning, match=text) as caught:
        from tunelight.callbacks import TuneReportCallback  # type: ignore[import-untyped]
    (warning,) = caught
    assert warning.filename == __file__
    assert TuneReportCallback is tl.TuneReportCallback


@pytest.mark.filterwarnings("ignore:tunelight.strategies:DeprecationWarning")
def test_the_base_of_the_strategies_is_found_by_its_old_path():
    old: Any = importlib.import_module("tunelight.strategies")
    assert issubclass(tl.RayStrategy, old.GangStrategy)


@pytest.mark.parametrize("path", ["tunelight.strategies:RayStrategy", "tunelight.strategies.ddp.RayStrategy"])
@pytest.mark.filterwarnings("ignore:tunelight.strategies:DeprecationWarning")
def test_a_path_in_a_yaml_file_leads_to_the_same_class(path):
    assert load_object(path) is tl.RayStrategy


@pytest.mark.filterwarnings("ignore:tunelight.storage:DeprecationWarning")
def test_a_name_that_was_never_there_is_still_an_error_with_a_guess():
    with pytest.raises(ImportPathError, match=r"has no 'Recrod'. Did you mean 'Record'"):
        load_object("tunelight.storage:Recrod")
    with pytest.raises(ImportPathError, match="no module 'nowhere'"):
        load_object("tunelight.storage.nowhere:Record")


def test_a_package_loads_no_module_of_its_new_place_twice():
    old("tunelight.storage")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tunelight.storage.state")


@pytest.mark.filterwarnings("ignore:tunelight.callbacks:DeprecationWarning")
def test_a_pickle_of_before_gives_the_same_class():
    now = pickle.dumps(tl.TuneReportCallback, protocol=0)
    before = now.replace(b"tunelight.lightning.callbacks", b"tunelight.callbacks")
    assert before != now
    assert pickle.loads(before) is tl.TuneReportCallback


# --- modules that are packages now --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["get_checkpoint_path", "get_context", "report"])
def test_public_names_of_the_session_are_found_where_they_were(name):
    session: Any = importlib.import_module("tunelight.session")
    with pytest.warns(DeprecationWarning, match=rf"tunelight\.session\.{name} is tunelight\.{name} now"):
        assert getattr(session, name) is getattr(tl, name)
    with pytest.raises(AttributeError, match="has no attribute 'current'"):
        session.current  # noqa: B018


# --- what it costs ------------------------------------------------------------------------------------------


def test_the_finder_is_asked_last_and_once():
    moved.install()
    finders = [finder for finder in sys.meta_path if isinstance(finder, moved._Finder)]
    assert len(finders) == 1
    assert finders[0].find_spec("tunelight.nothing", None) is None


def test_the_package_still_imports_nothing_heavy():
    code = (
        "import sys, tunelight; sys.exit(bool({'torch', 'pytorch_lightning', 'ray', 'yaml', 'cloudpickle', "
        "'tunelight.settings', 'tunelight.compat.ray'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_a_module_by_the_front_door_imports_no_more_than_that():
    code = "import sys; from tunelight import stores; sys.exit('tunelight.settings' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
