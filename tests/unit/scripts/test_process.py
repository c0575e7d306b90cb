"""A script in a process that goes on: what it sees of it, how it ends, and what it leaves."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunelight.errors import ScriptError, TrialStopped
from tunelight.scripts import process

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
    assert "beside" not in sys.modules


def test_a_module_beside_the_script_begins_anew_each_time(play: Play, tmp_path: Path) -> None:
    source = (
        "import beside, pathlib\nbeside.count += 1\n"
        "pathlib.Path(__file__).with_name('seen').write_text(str(beside.count))"
    )
    for _ in range(3):
        play(source, beside="count = 0")
        assert (tmp_path / "seen").read_text() == "1"
    os.utime(tmp_path / "beside.py", (1, 1))
    play(source, beside="count = 10")
    assert (tmp_path / "seen").read_text() == "11"


@pytest.mark.parametrize(
    "source", ["import sys; sys.exit()", "raise SystemExit(0)", "exit(0)", "import os; os._exit(0)", ""]
)
def test_a_script_ends_well(play: Play, source: str) -> None:
    play(source)


@pytest.mark.parametrize(
    ("source", "said"),
    [
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


def test_an_error_and_a_stop_come_through(play: Play) -> None:
    with pytest.raises(ZeroDivisionError):
        play("1 / 0")
    stop = "from tunelight.errors import TrialStopped\ntry:\n    raise TrialStopped('so')\nexcept Exception:\n    pass"
    with pytest.raises(TrialStopped):
        play(stop)


def test_what_a_script_sets_is_set_back(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    made = logging.getLogger("tests.made_before")
    play(
        "import atexit, faulthandler, logging, signal, sys, threading\n"
        "atexit.register(print, 'never: it is a library s')\n"
        "@atexit.register\ndef last():\n    print('last words')\n"
        "old = signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "assert signal.signal(signal.SIGTERM, old) is not old\n"
        "logging.getLogger('tests.made_before').addHandler(logging.StreamHandler())\n"
        "logging.getLogger('tests.made_by_it').setLevel('DEBUG')\n"
        "sys.excepthook = None\n"
    )
    assert sys.excepthook is not None
    assert made.handlers == []
    assert logging.getLogger("tests.made_by_it").level == logging.NOTSET
    assert signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, signal.default_int_handler)
    atexit.unregister(print)
    assert "last words" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch.save = print", "torch.save = ..."),
        ("import torch.nn as nn\nnn.Linear.forward = None", "nn.Linear.forward = ..."),
        ("from torch import nn\ndef f():\n    setattr(nn.Linear, 'x', 1)", "nn.Linear.attribute = ..."),
        ("import torch\ntorch.backends.cudnn.benchmark = True", None),
        ("import sys\nsys.stdout = None", None),
        ("import beside\nbeside.x = 1", None),
        ("import torch\ndef f(torch):\n    torch.save = 1", None),
        ("import argparse\nargs = argparse.Namespace()\nargs.lr = 1", None),
    ],
)
def test_a_change_of_a_library_is_found(tmp_path: Path, source: str, found: str | None) -> None:
    (tmp_path / "train.py").write_text(source)
    line = source.count("\n") + 1
    (tmp_path / "beside.py").write_text("")
    left = process.left_behind([tmp_path / "train.py", tmp_path / "beside.py"], set(threading.enumerate()))
    assert left == (() if found is None else (f"a library that the script has changed: train.py:{line}: {found}",))


def test_a_thread_that_a_script_leaves_is_found(play: Play, tmp_path: Path) -> None:
    own = set(threading.enumerate())
    play(
        "import threading\ngo = threading.Event()\nimport builtins\nbuiltins.tunelight_go = go\n"
        "def tick():\n    go.wait(20)\n"
        "threading.Thread(target=tick, daemon=True, name='ticks').start()"
    )
    try:
        assert process.left_behind([tmp_path / "train.py"], own) == (
            "a library that the script has changed: train.py:4: builtins.tunelight_go = ...",
        )
        (tmp_path / "train.py").write_text("")
        assert process.left_behind([tmp_path / "train.py"], own) == ("a thread of the script: ticks",)
    finally:
        vars(__builtins__ if not isinstance(__builtins__, dict) else sys.modules["builtins"]).pop("tunelight_go").set()
