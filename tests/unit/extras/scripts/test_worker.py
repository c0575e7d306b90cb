"""The actor of a rank whose trials run in processes of their own: what it learns from them, and how they end."""

from __future__ import annotations

import pickle
import sys
from multiprocessing import Pipe
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.kit.programs import printed_by
from tunelight.errors import GangError
from tunelight.extras.forks import setup_worker
from tunelight.extras.scripts import worker


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
