"""What ranks do together at a place: offer and adopt, and make a thing once for all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.kit.fakes import MemoryControl, MemoryStore
from tests.unit.session.test_session import Ranks
from tunelight.errors import DataError, TrialStopped
from tunelight.messages import Adopt, Adopted, Continue, Offer, Offered
from tunelight.session.boundary import Exchange
from tunelight.session.mailbox import Mailbox
from tunelight.session.session import MadeByRankZero


class Weights:
    """A training that is a number."""

    value = 1

    def agree(self, yes: bool) -> bool:
        return yes

    def give(self) -> int:
        return self.value

    def take(self, state: int, before: Any, config: Any) -> str | None:
        self.value = state
        return None


def test_a_rank_takes_the_order_to_adopt_that_rank_0_means_and_no_earlier_one() -> None:
    box, orders = Mailbox(), [Adopt(f"of {serial}", {}, serial=serial) for serial in (3, 5, 6)]
    for order in orders:
        box.put(order)
    assert [box.take_adopt(serial, 1.0) for serial in (5, 6)] == orders[1:]


def test_all_ranks_adopt_at_the_same_report_and_run_on_as_far_as_the_order_says(tmp_path: Path) -> None:
    gang = Ranks(tmp_path, trial_id="00001", config={"lr": 0.1})
    trained = [Weights(), Weights()]
    for made, weights in zip(gang.sessions, trained, strict=True):
        made.exchange.training = weights
    order = Adopt(9, {"lr": 0.3}, until=3)
    gang.mailboxes[0].put(order)
    threading.Timer(0.2, gang.mailboxes[1].put, [order]).start()  # it may come after rank 0's word
    gang.report({"loss": 1.0})
    assert [weights.value for weights in trained] == [9, 9]
    assert [made.context.config for made in gang.sessions] == [{"lr": 0.3}] * 2
    assert [event.why for event in gang.events if isinstance(event, Adopted)] == [None]
    gang.report({"loss": 1.0})
    threading.Timer(0.2, gang.mailboxes[0].put, [Continue(until=4)]).start()
    gang.report({"loss": 1.0})
    assert gang.sessions[0].context.number == 3


def test_what_is_gone_is_not_adopted_and_a_full_store_costs_the_offer_and_not_the_training() -> None:
    full = mock.Mock(put=mock.Mock(side_effect=MemoryError("no room")), get=mock.Mock(side_effect=KeyError("ref")))
    exchange = Exchange(full)
    exchange.training = Weights()
    assert exchange.adopt(Adopt("ref", {}), {}) == Adopted("what was offered is gone (KeyError)")
    assert "nothing was offered" in str(exchange.adopt(Adopt(None, {}), {}).why)
    assert exchange.training.value == 1
    assert exchange.offer(Offer(7), lead=True) == Offered(None, why="MemoryError: no room", answers=7)


def test_who_refuses_keeps_its_configuration() -> None:
    exchange, config = Exchange(MemoryStore()), {"lr": 0.1}
    exchange.training = mock.Mock(spec=Weights, **{"agree.side_effect": bool, "take.return_value": "the models differ"})
    assert exchange.adopt(Adopt(9, {"lr": 0.3}), config).why == "the models differ"
    assert config == {"lr": 0.1}


def makers(count: int = 2, aborted: str | None = None) -> list[MadeByRankZero]:
    control, given = MemoryControl(), dict[str, Any]()
    return [
        MadeByRankZero(
            control, lead=rank == 0, alone=count == 1, given=given, fetch=given.__getitem__, aborted=lambda: aborted
        )
        for rank in range(count)
    ]


def test_rank_0_makes_and_the_others_fetch_and_a_second_call_makes_a_second_value():
    lead, other = makers()
    made = object()
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.append(other.once("x", lambda: "never called")))
    waiting.start()
    assert lead.once("x", lambda: made) is made
    waiting.join(5)
    assert got == [made]
    assert [lead.once("x", lambda: 2), other.once("x", lambda: None)] == [2, 2]


def test_what_fails_on_rank_0_is_told_to_the_others():
    lead, other = makers()
    fail = mock.Mock(side_effect=ValueError("no such file"))
    with pytest.raises(ValueError, match="no such file"):
        lead.once("dataset train", fail)
    with pytest.raises(DataError, match="could not open dataset train: ValueError: no such file"):
        other.once("dataset train", fail)


def test_whoever_waits_hears_that_the_trial_was_called_off_or_that_the_time_is_over():
    _, other = makers(aborted="stopped")
    with pytest.raises(TrialStopped):
        other.once("x", lambda: None)
    _, other = makers()
    with pytest.raises(DataError, match="Every rank has to ask for the same"):
        other.once("x", lambda: None, limit_s=0.01)


def test_the_end_undoes_all_even_where_one_thing_fails():
    (alone,) = makers(1)
    undone: list[str] = []
    alone.at_end(lambda: undone.append("first"))
    alone.at_end(lambda: undone.append(str(1 / 0)))
    alone.at_end(lambda: undone.append("last"))
    alone.end()
    alone.end()
    assert undone == ["last", "first"]
