"""What every gang must do, real or fake: the one run protocol, told as tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import tunelight as tl
from tests.kit import tasks
from tunelight.errors import GangError
from tunelight.messages import Continue, Ended, Report, Save, Saved, Stop
from tunelight.session.session import get_session
from tunelight.session.task import Home, Start, Task


def reporting(config: dict[str, Any]) -> None:
    for number in range(1, config.get("reports", 3) + 1):
        if config.get("fail_at") == number:
            raise ValueError("no more")
        time.sleep(config.get("pause_s", 0))
        tl.report({"loss": 1.0 / number})


def saving(config: dict[str, Any]) -> None:
    session = get_session()

    def save(path: str) -> None:
        def write() -> None:
            time.sleep(config.get("seconds", 0.3))
            Path(path).write_text("weights")

        session.writing.defer(write)

    session.boundary.writer = save
    tl.report({"loss": 1.0}, checkpoint=save)


class GangContract:
    """Subclass it with a ``gang`` fixture."""

    def task(self, tmp_path: Path, train: Callable[..., Any] = reporting, **config: Any) -> tuple[Task, Start]:
        until = config.pop("until", 1)
        return tasks.trial(tmp_path, cloudpickle.dumps(train), config=config, until=until, home=Home(str(tmp_path)))

    @staticmethod
    def drain(gang: Any) -> list[Any]:
        events = []
        deadline = time.monotonic() + 30
        while gang.running and time.monotonic() < deadline:
            event = gang.next_event(30)
            if event is not None:
                events.append(event)
            if isinstance(event, Ended) and event.error is not None:
                gang.fail(event.error)
        return events

    def test_it_says_who_its_ranks_are_and_since_when(self, gang: Any) -> None:
        assert gang.name
        assert len({one.pid for one in gang.locations}) == len(gang.locations) == gang.size
        assert time.time() - 3600 < gang.met_at <= time.time()

    def test_reports_come_in_order_and_then_the_end(self, gang: Any, tmp_path: Path) -> None:
        gang.start(*self.task(tmp_path, until=None))
        events = self.drain(gang)
        assert [event.number for event in events if isinstance(event, Report)] == [1, 2, 3]
        assert isinstance(events[-1], Ended)
        assert not gang.running

    def test_a_report_waits_for_its_answer(self, gang: Any, tmp_path: Path) -> None:
        gang.start(*self.task(tmp_path))
        assert isinstance(gang.next_event(30), Report)
        assert gang.next_event(0.3) is None
        gang.answer(Continue(until=2))
        second = gang.next_event(30)
        assert isinstance(second, Report)
        assert second.number == 2
        gang.finish(10)

    def test_a_stop_ends_the_trial_at_the_report_that_waits(self, gang: Any, tmp_path: Path) -> None:
        gang.start(*self.task(tmp_path))
        gang.next_event(30)
        gang.answer(Stop("asha"))
        events = self.drain(gang)
        assert not [event for event in events if isinstance(event, Report)]
        assert all(event.stopped for event in events if isinstance(event, Ended))

    def test_finish_stops_a_trial_that_runs_ahead_and_keeps_its_reports(self, gang: Any, tmp_path: Path) -> None:
        gang.start(*self.task(tmp_path, until=None, reports=1000, pause_s=0.02))
        gang.next_event(30)
        late = gang.finish(10)
        assert not gang.running
        assert gang.unfit is None
        assert isinstance(late[-1], Ended)
        numbers = [event.number for event in late if isinstance(event, Report)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))

    def test_an_answer_is_taken_by_what_it_answers(self, gang: Any, tmp_path: Path) -> None:
        gang.start(*self.task(tmp_path, saving))
        gang.next_event(30)
        ordered = gang.answer(Stop("moved", save=True))
        time.sleep(0.1)  # the real one may hand in two decisions in another order than they were sent
        assert gang.ask(Save(), Saved) is None  # the trial ended before it came to this
        (saved,) = [event for event in self.drain(gang) if isinstance(event, Saved) and event.answers]
        assert saved.answers == ordered
        assert saved.checkpoint is not None
        assert saved.checkpoint.number == 1

    def test_finish_waits_for_a_checkpoint_that_is_being_written_and_hands_over_what_came(self, gang, tmp_path) -> None:
        gang.start(*self.task(tmp_path, saving, seconds=1.5))
        gang.next_event(30)
        (wrote,) = [event for event in gang.finish(0.1) if isinstance(event, Saved)]
        assert wrote.checkpoint is not None
        assert Path(wrote.checkpoint.path).read_text() == "weights"
        assert gang.unfit is None

    def test_it_is_warm_while_none_of_its_processes_is_new(self, gang: Any, tmp_path: Path) -> None:
        for _ in range(2):
            gang.start(*self.task(tmp_path, until=None))
            self.drain(gang)
        assert gang.warm
        gang.start(*self.task(tmp_path, until=None, pause_s=3))
        gang.finish(0.1)
        gang.heal()  # its ranks are replaced
        gang.start(*self.task(tmp_path, until=None))
        self.drain(gang)
        assert not gang.warm

    def test_a_rank_that_does_not_stop_makes_the_gang_unfit_until_it_is_healed(self, gang: Any, tmp_path: Path) -> None:
        gang.start(*self.task(tmp_path, until=None, pause_s=3))
        gang.finish(0.3)
        assert "did not stop" in gang.unfit
        gang.heal()
        assert gang.unfit is None

    def test_an_error_is_an_end_and_the_gang_trains_again(self, gang: Any, tmp_path: Path) -> None:
        gang.start(*self.task(tmp_path, until=None, fail_at=2))
        errors = [event.error for event in self.drain(gang) if isinstance(event, Ended) and event.error]
        assert errors[0].type_name == "ValueError"
        gang.heal()
        gang.start(*self.task(tmp_path, until=None))
        assert len([event for event in self.drain(gang) if isinstance(event, Report)]) == 3

    def test_a_trial_ends_after_its_last_checkpoint_is_written(self, gang: Any, tmp_path: Path) -> None:
        gang.start(*self.task(tmp_path, saving, until=None))
        events = self.drain(gang)  # another rank may end before rank 0's report is taken
        (report,) = [event for event in events if isinstance(event, Report)]
        assert report.checkpoint is None
        (wrote,) = [event for event in events if isinstance(event, Saved)]
        assert wrote.checkpoint is not None
        assert Path(wrote.checkpoint.path).read_text() == "weights"
        (end,) = [event for event in events if isinstance(event, Ended) and event.rank == 0]
        assert events.index(report) < events.index(wrote) < events.index(end)

    def test_a_closed_gang_is_unfit(self, gang: Any) -> None:
        gang.close()
        with pytest.raises(GangError, match="closed"):
            gang.heal()
