"""A worker's exception on the driver."""

from __future__ import annotations

import pickle
import sys
import threading
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from tunelight.errors import StrategyError, TrialError
from tunelight.extras.standalone.driver import own_error
from tunelight.gang.worker import carried
from tunelight.messages import WorkerError


def arrived(error: BaseException) -> Exception:
    """Return what a driver makes of an exception that was raised on a worker."""
    told = WorkerError(1, "there", type(error).__name__, str(error), "line 7", exception=carried(error))
    return own_error(TrialError(pickle.loads(pickle.dumps(told))))


class OddError(ValueError):
    """Pickle calls its constructor with the wrong arguments."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"code {code}")
        self.code, self.hint = code, hint


@pytest.mark.parametrize(
    ("error", "attributes"),
    [
        (ValueError("mine"), {"args": ("mine",)}),
        (FileNotFoundError(2, "No such file", "a.txt"), {"errno": 2, "filename": "a.txt"}),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), {"start": 0, "reason": "why", "object": b"x"}),
        (ModuleNotFoundError("No module", name="absent"), {"name": "absent"}),
        (KeyError("missing"), {"args": ("missing",)}),
        (StopIteration(3), {"value": 3}),
        (ExceptionGroup("several", [ValueError("one")]), {}),
        (StrategyError("of ours"), {"args": ("of ours",)}),
    ],
)
def test_it_is_the_exception_itself_with_a_note_of_where_it_was_raised(
    error: Exception, attributes: dict[str, Any]
) -> None:
    here = arrived(error)
    assert type(here) is type(error)
    assert str(here) == str(error)
    assert here.__notes__ == [f"rank 1 on there: {type(error).__name__}: {error}\n\nline 7"]
    assert {name: getattr(here, name) for name in attributes} == attributes


def test_a_class_of_the_driver_s_own_script_is_the_same_class_again_and_notes_of_both_are_kept() -> None:
    class LocalError(Exception): ...

    kind = cloudpickle.loads(cloudpickle.dumps(LocalError))
    assert isinstance(arrived(kind("mine")), LocalError)
    error = ValueError("mine")
    error.add_note("of the worker")
    plain = TrialError(WorkerError(0, "there", "ValueError", "mine", "", exception=carried(error)))
    plain.add_note("go on from here")
    assert own_error(plain).__notes__ == ["of the worker", "rank 0 on there: ValueError: mine", "go on from here"]
    told = WorkerError(0, "there", "ValueError", "mine", "", exception=carried(ValueError("mine")))
    assert "exception" not in told.asdict()
    assert "exception" not in repr(told).replace("cause='exception'", "")


def test_what_cannot_be_pickled_or_is_large_or_would_end_the_driver_or_is_not_here_leaves_tunelight_s_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unsent = (OddError(7, hint="mine"), ValueError(threading.Lock()), ValueError(bytes(2**21)))
    for error in (*unsent, SystemExit(3), KeyboardInterrupt(), GeneratorExit()):
        assert type(arrived(error)) is TrialError
    module: Any = ModuleType("only_there")
    exec("class AbsentError(Exception): ...", vars(module))
    monkeypatch.setitem(sys.modules, "only_there", module)
    data = carried(module.AbsentError("mine"))
    monkeypatch.delitem(sys.modules, "only_there")
    plain = TrialError(WorkerError(0, "there", "AbsentError", "mine", "", exception=data))
    assert own_error(plain) is plain
