"""A script as the main program of a process: what it sees of it, how it ends, what it leaves; and its rank's actor."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import statistics  # noqa: F401 - has to be imported by then
import sys
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.kit.programs import printed_by
from tunelight.errors import GangError, ScriptError, TrialStopped
from tunelight.extras.forks import setup_worker
from tunelight.extras.scripts import installed, process, worker
from tunelight.extras.scripts.installed import Imports, is_installed

Play = Callable[..., Any]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a script in a thread, as a worker does; raise what it raises."""

    def run(source: str, *args: str, **beside: str) -> None:
        for name, text in beside.items():
            (tmp_path / f"{name}.py").write_text(text)
        file = tmp_path / "train.py"
        file.write_text(source)
        raised: list[BaseException] = []

        def body() -> None:
            try:
                process.run(file, None, [str(file), *args])
            except BaseException as error:  # noqa: BLE001 - raised again below
                raised.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        if raised:
            raise raised[0]

    return run


def test_a_script_is_main_and_sees_its_arguments_and_the_modules_beside_it(play: Play, tmp_path: Path) -> None:
    before = [*sys.argv], [*sys.path], sys.modules["__main__"]
    play(
        "import sys, beside, pathlib\n"
        "assert __name__ == '__main__' and sys.modules['__main__'].__dict__ is globals()\n"
        "assert sys.path[0] == str(pathlib.Path(__file__).parent)\n"
        "pathlib.Path(__file__).with_name('seen').write_text(repr(sys.argv[1:]) + beside.X)",
        "--lr=1",
        beside="X = '!'",
    )
    assert (tmp_path / "seen").read_text() == "['--lr=1']!"
    assert ([*sys.argv], [*sys.path], sys.modules["__main__"]) == before
    del sys.modules["beside"]


def test_modules_beside_the_script_win_over_those_of_python_in_its_process_alone(play: Play, tmp_path: Path) -> None:
    before, path = sys.modules["statistics"], list(sys.path)
    try:
        play(
            "import statistics, pathlib\npathlib.Path(__file__).with_name('seen').write_text(statistics.X)",
            statistics="X = 'mine'",
        )
    finally:
        sys.modules["statistics"] = before
    assert (tmp_path / "seen").read_text() == "mine"
    assert sys.path == path


def test_threads_and_executors_of_a_script_end_their_work_before_it_ends(play: Play, tmp_path: Path) -> None:
    play(
        "import pathlib, threading, time\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "def work(name):\n    time.sleep(0.05)\n    pathlib.Path(__file__).with_name(name).touch()\n"
        "threading.Thread(target=work, args=('thread',)).start()\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "ThreadPoolExecutor(1).submit(work, 'executor')\n"
    )
    assert {"thread", "executor"} <= {one.name for one in tmp_path.iterdir()}


@pytest.mark.parametrize(
    "source", ["import sys; sys.exit()", "raise SystemExit(0)", "exit(0)", "import os; os._exit(0)", ""]
)
def test_a_script_ends_well(play: Play, source: str) -> None:
    play(source)


BOX = """
import sys
print("Usage: train.py [OPTIONS]", file=sys.stderr)
print("\u256d\u2500 Error \u2500\u256e", file=sys.stderr)
print("\u2502 Invalid value for '--lr': 0.75 is not \u2502", file=sys.stderr)
print("\u2502 in the range 0<=x<=0.5.               \u2502", file=sys.stderr)
print("\u2570\u2500\u2500\u256f", file=sys.stderr)
sys.exit(2)
"""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (BOX, "train.py exited with 2: Invalid value for '--lr': 0.75 is not in the range 0<=x<=0.5."),
        ("exit(3)", "train.py exited with 3"),
        ("import os; os._exit(4)", "train.py exited with 4"),
        ("import sys; sys.exit('no data')", "train.py exited with 1: no data"),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()",
            "train.py exited with 2: train.py: error: unrecognized arguments: --rl=1",
        ),
    ],
)
def test_an_exit_code_tells_of_an_error_with_the_script_s_own_words(play: Play, source: str, said: str) -> None:
    with pytest.raises(ScriptError) as error:
        play(source, "--rl=1")
    assert str(error.value) == said


def test_a_script_that_is_a_part_of_a_package_is_told_its_module(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    file = tmp_path / "pkg" / "train.py"
    file.write_text("from . import model")
    with pytest.raises(ScriptError, match=r"give the script as its module, pkg\.train"):
        process.run(file, None, [str(file)])


def test_an_error_and_a_stop_come_through(play: Play) -> None:
    with pytest.raises(ZeroDivisionError):
        play("1 / 0")
    stop = "from tunelight.errors import TrialStopped\ntry:\n    raise TrialStopped('so')\nexcept Exception:\n    pass"
    with pytest.raises(TrialStopped):
        play(stop)


def test_what_the_next_script_would_stumble_over_is_set_back(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    play(
        "import atexit, signal, sys\n"
        "atexit.register(print, 'never: it is a library s')\n"
        "@atexit.register\ndef last():\n    print('last words')\n"
        "old = signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "assert signal.signal(signal.SIGTERM, old) is not old\n"
        "sys.excepthook = None\n"
    )
    assert sys.excepthook is not None
    assert signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, signal.default_int_handler)
    atexit.unregister(print)
    assert "last words" in capsys.readouterr().out


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


def test_installed_are_python_s_own_the_environment_s_and_pip_s_and_no_sources_of_an_editable_one(libraries) -> None:
    own = str(libraries.parent)
    beside = libraries.parent / "beside.py"
    assert [is_installed(file, own) for file in (os.__file__, pytest.__file__, str(beside))] == [True, True, False]
    assert is_installed(str(libraries / "lib_one.py"), own)  # also where it lies in the script's folder
    assert not is_installed(str(libraries / "pkg" / "train.py"), str(libraries / "pkg"))  # a script that is installed
    sources = libraries.parent / "src"
    (sources / "mypkg.egg-info").mkdir(parents=True)  # as setuptools leaves it
    sys.path.append(str(sources))
    assert not is_installed(str(sources / "mypkg" / "model.py"), str(libraries.parent / "scripts"))


def test_a_script_s_own_modules_and_what_may_read_a_variable_that_it_has_set_are_not_among_them(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ)
    monkeypatch.delenv("OF_A_LIBRARY", raising=False)
    monkeypatch.delenv("OF_THE_SCRIPT", raising=False)
    (libraries / "lib_one.py").write_text("import os\nos.environ['OF_A_LIBRARY'] = '1'")
    (libraries / "lib_three.py").touch()
    (libraries / "lib_two.py").write_text("import os\ndef seed(): os.environ['PL_GLOBAL_SEED'] = '1'")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "beside.py").touch()
    text = (
        "import beside\n"
        "import lib_two; lib_two.seed()\n"  # as Lightning's seed_everything does
        "import os, lib_one\nos.environ.setdefault('OF_THE_SCRIPT', '1')\nimport lib_three"
    )
    try:
        assert found(tmp_path / "own" / "train.py", text, monkeypatch) == ("lib_two", "lib_one")
    finally:
        for name in ("OF_A_LIBRARY", "OF_THE_SCRIPT", "PL_GLOBAL_SEED"):
            del os.environ[name]


class Error(Exception):
    """An error of a module that only the training code can import."""


def _exit() -> None:
    raise SystemExit("no data")


def _fail(error: Exception) -> None:
    raise error


def _answer(rank: Any, *args: Any) -> Any:
    """Return what the actor gets from a method ``call`` of a rank, once the module ``gone`` is gone."""
    module = ModuleType("gone")
    sys.modules["gone"] = module
    module.Error = Error  # type: ignore[attr-defined]
    try:
        answer = worker._packed(rank, "call", args)
    finally:
        del sys.modules["gone"]
    return worker._unpacked(*answer)


def test_an_answer_that_the_actor_cannot_read_is_an_error_of_that_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Error, "__module__", "gone")
    assert _answer(SimpleNamespace(call=abs), -3) == 3
    with pytest.raises(ValueError, match="its own"):
        _answer(SimpleNamespace(call=_fail), ValueError("its own"))
    for call, args, said in (
        (_fail, (Error("no such file"),), "gone.Error: no such file"),
        (lambda: Error, (), "No module named 'gone'"),
        (_exit, (), "SystemExit: no data"),
    ):
        with pytest.raises(GangError, match=said) as caught:
            _answer(SimpleNamespace(call=call), *args)
        assert caught.value.cause == "exception"


def test_the_actor_ends_with_its_process_also_where_that_sends_what_is_no_answer(monkeypatch):
    ended: list[int] = []
    monkeypatch.setattr(worker.os, "_exit", ended.append)
    process = object.__new__(worker._Process)
    process._link, its = Pipe()
    process._calls, process._ends = {}, False
    with its, process._link:
        its.send_bytes(b"no pickle")
        with pytest.raises(pickle.UnpicklingError):
            process._read()
    assert ended == [1]


def test_no_process_is_forked_with_an_older_version_of_what_it_imports(monkeypatch, tmp_path):
    templates: list[str] = []

    def fork(_argv: object, _files: object, template: str, _modules: object) -> bool:
        templates.append(template)
        return True

    monkeypatch.setattr(setup_worker, "fork_beside", fork)
    (tmp_path / "lib.py").write_text("X = 1")
    modules = {"lib": str(tmp_path / "lib.py"), "of_an_archive": str(tmp_path / "none.zip/lib.py")}
    worker._start([], modules)
    worker._start([], modules)
    (tmp_path / "lib.py").write_text("X = 22")
    worker._start([], modules)
    assert templates[0] == templates[1] != templates[2]


HEAD = "import os, pickle, subprocess, sys, types\nfrom tunelight.extras.scripts import worker\n"


def test_a_rank_that_cannot_be_made_says_why_at_the_first_call() -> None:
    said = printed_by(f"""{HEAD}
from multiprocessing import Pipe
mine, its = Pipe()
life, lives = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.close(lives)
    sys.argv = ["worker", str(os.dup(its.fileno())), str(life)]
    worker._Rank = lambda *_: sys.exit("a library is broken")
    worker.main()
mine.send_bytes(pickle.dumps((None, dict(os.environ), None)))
mine.send_bytes(pickle.dumps((1, "arrive", (None,))))
its.close()
number, answer = pickle.loads(mine.recv_bytes())
try:
    worker._unpacked(*answer)
except worker.GangError as error:
    print(error.cause, str(error).splitlines()[-1])
""")
    assert said == "exception SystemExit: a library is broken\n"


def test_processes_in_sessions_of_their_own_end_with_the_trial() -> None:
    said = printed_by(f"""{HEAD}
rank = object.__new__(worker._Rank)
rank._compiled = types.SimpleNamespace(end=str)
with subprocess.Popen(["sleep", "90"], start_new_session=True) as apart, subprocess.Popen(["sleep", "90"]) as beside:
    rank._clean_up(None, ())
    print(apart.wait(10), beside.poll())
    beside.kill()
""")
    assert said == "-9 None\n"
