"""Which of the modules that a script imports another process may have from its beginning."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tunelight.extras.scripts import installed, process
from tunelight.extras.scripts.installed import Imports, is_installed


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on the path into which pip has installed."""
    folder = tmp_path / "libraries"
    (folder / "lib_one-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return folder


def found(script: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return what a script imports that others may have."""
    script.parent.mkdir(exist_ok=True)
    script.write_text(text)
    monkeypatch.setattr(installed, "current", Imports())
    process.run(script, None, [str(script)])
    assert installed.current is not None
    return tuple(installed.current.found())


def test_installed_are_python_s_own_the_environment_s_and_what_pip_has_put_on_the_path(libraries: Path) -> None:
    own = str(libraries.parent)
    beside = libraries.parent / "beside.py"
    assert [is_installed(file, own) for file in (os.__file__, pytest.__file__, str(beside))] == [True, True, False]
    assert is_installed(str(libraries / "lib_one.py"), own)  # also where it lies in the script's folder
    assert not is_installed(str(libraries / "pkg" / "train.py"), str(libraries / "pkg"))  # a script that is installed


def test_the_sources_of_an_editable_installation_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src" / "mypkg.egg-info").mkdir(parents=True)  # as setuptools leaves it
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "src")])
    assert not is_installed(str(tmp_path / "src" / "mypkg" / "model.py"), str(tmp_path / "scripts"))


def test_a_script_s_own_modules_are_not_among_them(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (libraries / "lib_one.py").write_text("import lib_two")
    (libraries / "lib_two.py").touch()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "beside.py").touch()
    assert found(tmp_path / "own" / "train.py", "import beside, lib_one", monkeypatch) == ("lib_two", "lib_one")


def test_what_may_read_a_variable_that_the_script_has_set_is_not_among_them(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ)
    monkeypatch.delenv("OF_A_LIBRARY", raising=False)
    monkeypatch.delenv("OF_THE_SCRIPT", raising=False)
    (libraries / "lib_one.py").write_text("import os\nos.environ['OF_A_LIBRARY'] = '1'")
    (libraries / "lib_three.py").touch()
    (libraries / "lib_two.py").write_text("import os\ndef seed(): os.environ['PL_GLOBAL_SEED'] = '1'")
    text = (
        "import lib_two; lib_two.seed()\n"  # as Lightning's seed_everything does
        "import os, lib_one\nos.environ.setdefault('OF_THE_SCRIPT', '1')\nimport lib_three"
    )
    try:
        assert found(tmp_path / "own" / "train.py", text, monkeypatch) == ("lib_two", "lib_one")
    finally:
        for name in ("OF_A_LIBRARY", "OF_THE_SCRIPT", "PL_GLOBAL_SEED"):
            del os.environ[name]
