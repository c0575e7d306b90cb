"""A worker's exception on the driver: an instance of its own class beside tunelight's."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
from ray.exceptions import RayTaskError

from tunelight.errors import StrategyError, TrialError, WorkerFailedError
from tunelight.gang.causes import as_cause, carried
from tunelight.messages import WorkerError


def arrived(error: BaseException) -> WorkerFailedError:
    """Return what a driver makes of an exception that was raised on a worker."""
    told = WorkerError(1, "there", type(error).__name__, str(error), "", exception=carried(error))
    return as_cause(TrialError(pickle.loads(pickle.dumps(told))))


class OddError(ValueError):
    """Pickle calls its constructor with the wrong arguments."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"code {code}")
        self.code, self.hint = code, hint


class StrictError(Exception):
    """Cannot be made without its argument."""

    def __new__(cls, needed: int) -> StrictError:
        return super().__new__(cls, needed)

    @property
    def fixed(self) -> int:
        return 1


class FinalError(Exception):
    def __init_subclass__(cls, **_: Any) -> None:
        raise LookupError("no subclasses")


@pytest.mark.parametrize(
    ("error", "attributes"),
    [
        (ValueError("mine"), {"args": ("mine",)}),
        (OddError(7, hint="mine"), {"code": 7, "hint": "mine"}),
        (StrictError(3), {"args": (3,), "fixed": 1}),
        (FileNotFoundError(2, "No such file", "a.txt"), {"errno": 2, "filename": "a.txt"}),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), {"start": 0, "reason": "why", "object": b"x"}),
        (ModuleNotFoundError("No module", name="absent"), {"name": "absent"}),
        (KeyError("missing"), {"args": ("missing",)}),
        (StopIteration(3), {"value": 3}),
        (ExceptionGroup("several", [ValueError("one")]), {}),
        (StrategyError("of ours"), {"args": ("of ours",)}),
    ],
)
def test_it_is_an_instance_of_both_and_survives_copies(error: Exception, attributes: dict[str, Any]) -> None:
    here = arrived(error)
    for one in (here, copy.copy(here), copy.deepcopy(here), pickle.loads(pickle.dumps(here))):
        assert isinstance(one, type(error))
        assert isinstance(one, TrialError)
        assert one.error.rank == 1
        assert str(one) == f"rank 1 on there: {type(error).__name__}: {error}"
        assert {name: getattr(one, name) for name in attributes} == attributes


def test_it_is_caught_as_what_it_is() -> None:
    with pytest.raises(OddError, match=r"rank 1 on there: OddError: code 7") as caught:
        raise arrived(OddError(7, hint="mine"))
    assert type(caught.value).__name__ == "TrialError(OddError)"


def test_a_class_of_the_driver_s_own_script_is_the_same_class_again() -> None:
    class LocalError(Exception): ...

    kind = cloudpickle.loads(cloudpickle.dumps(LocalError))
    assert isinstance(arrived(kind("mine")), LocalError)


def test_what_cannot_be_pickled_is_left_out() -> None:
    error = OddError(7, hint="mine")
    error.args, error.lock, error.big = (threading.Lock(),), threading.Lock(), bytes(2**21)  # type: ignore[attr-defined]
    here: Any = arrived(error)
    assert isinstance(here, OddError)
    assert (here.hint, hasattr(here, "lock"), hasattr(here, "big")) == ("mine", False, False)
    assert "lock" in here.args[0]


def test_a_class_that_is_not_here_or_lets_nobody_inherit_leaves_tunelight_s_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = ModuleType("only_there")
    exec("class AbsentError(Exception): ...", vars(module))
    monkeypatch.setitem(sys.modules, "only_there", module)
    data = carried(module.AbsentError("mine"))
    monkeypatch.delitem(sys.modules, "only_there")
    plain = TrialError(WorkerError(0, "there", "AbsentError", "mine", "", exception=data))
    assert as_cause(plain) is plain
    assert type(arrived(FinalError("mine"))) is TrialError

    class StuckError(Exception):
        lock = threading.Lock()  # so that the class cannot be pickled

    assert type(arrived(StuckError("mine"))) is TrialError


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), RuntimeError("mine")])
def test_what_would_end_the_driver_stays_an_error(error: BaseException) -> None:
    here = arrived(error)
    assert type(here) is TrialError


def test_ray_can_make_an_error_of_its_own_of_it() -> None:
    mine = arrived(OddError(7, hint="mine"))
    task: Any = RayTaskError("train", "the traceback", mine).as_instanceof_cause()
    assert isinstance(task, RayTaskError)
    assert isinstance(task, TrialError)
    assert isinstance(task, OddError)


def test_notes_are_kept_once() -> None:
    plain = TrialError(WorkerError(0, "there", "ValueError", "mine", "", exception=carried(ValueError("mine"))))
    plain.add_note("go on from here")
    here = as_cause(plain)
    again = pickle.loads(pickle.dumps(here))
    assert here.__notes__ == again.__notes__ == ["go on from here"]


def test_no_record_holds_the_exception() -> None:
    told = WorkerError(0, "there", "ValueError", "mine", "", exception=carried(ValueError("mine")))
    assert "exception" not in told.asdict()
    assert "exception" not in repr(told).replace("cause='exception'", "")
