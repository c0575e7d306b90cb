"""OneEpoch in a sweep whose driver was killed: rebuilt from the record, it trains the same trials to the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray.tune.experiment import Trial

from tests.curves import tiny_table
from tests.unit.schedulers.test_one_epoch import Hand, make
from tunelight.record import PAUSED, STOPPED, TERMINAL, RecordCallback, SweepState, apply, read_lines
from tunelight.simulation import run
from tunelight.simulation.controller import SimController, StubTrial
from tunelight.sweep.replay import replay_scheduler

TRIALS, EPOCHS, KEEP = 14, 6, 2
CURVES = tiny_table(epochs=EPOCHS)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepState:
    """Return the record of a sweep on simulated gangs, whose lines are in ``tmp_path``."""
    scheduler = make(keep=KEEP, max_t=EPOCHS)
    callback = RecordCallback(tmp_path, metric="loss", mode="min", scheduler=scheduler)
    monkeypatch.setattr(run, "build_scheduler", lambda settings: scheduler)
    monkeypatch.setattr(
        run, "SimController", lambda *given, callbacks, **more: SimController(
            *given, callbacks=[callback, *callbacks], **more),
    )  # fmt: skip
    monkeypatch.setattr(StubTrial, "path", None)
    run.simulate(CURVES, scheduler, num_samples=TRIALS, seed=1, cluster="1x4", metric="loss", mode="min")
    callback.record.close()
    return callback.state


def finished(state: SweepState) -> set[str]:
    return {trial.id for trial in state.trials.values() if trial.state == "FINISHED"}


def test_the_record_says_why_trials_ended_with_the_place_that_they_had_then(record: SweepState) -> None:
    assert len(finished(record)) == KEEP
    losses = {trial.id: trial.history[0]["loss"] for trial in record.trials.values()}
    for trial in record.trials.values():
        if trial.id in finished(record):
            assert trial.why is None
            continue
        assert trial.state == STOPPED
        place, came = map(int, str(trial.why).removeprefix("place ").split(" at rung 1; the best 2 ")[0].split(" of "))
        assert place > KEEP
        better = sum(loss < losses[trial.id] for loss in losses.values())
        assert place <= better + 1
        if trial.moves[-2][1] == PAUSED and came == TRIALS:
            assert place == better + 1


def went_on(lines: list[Any]) -> set[str]:
    """Resume a sweep of which the record has these lines, and return the trials that train to the end."""
    scheduler, state = make(keep=KEEP, max_t=EPOCHS), SweepState()
    for line in lines:
        apply(state, line)
    paused = replay_scheduler(lines, scheduler)
    hand = Hand(scheduler)
    hand.search_alg.all_made = False
    live = [trial.id for trial in state.trials.values() if trial.state not in TERMINAL and trial.decision != "STOP"]
    at = {trial.id: len(trial.history) for trial in state.trials.values()}
    for trial_id in sorted(live, key=lambda one: one not in paused):
        hand.trials[trial_id] = Trial("made", stub=True, trial_id=trial_id)
        hand.trials[trial_id].set_status(Trial.PAUSED if trial_id in paused else Trial.PENDING)
        hand.add(trial_id)
    hand.add(*(f"{number:05d}" for number in range(len(state.trials), TRIALS)))
    hand.search_alg.all_made = True
    ended = finished(state)
    for _ in range(200):
        while hand.choose() is not None:
            pass
        going = [name for name, status in hand.states().items() if status in (Trial.PENDING, Trial.RUNNING)]
        if not going:
            return ended
        for name in going:
            at[name] = min(at.get(name, 0) + 1, EPOCHS)
            loss = float(CURVES.curve(CURVES.config(int(name), 1)).metrics["loss"][at[name] - 1])
            if at[name] < EPOCHS:
                hand.report(name, at[name], loss)
            else:
                hand.end(name, loss=loss)
                ended.add(name)
    raise AssertionError(f"it hangs: {hand.states()}")


def test_killed_at_any_line_of_its_record_it_trains_the_same_trials_to_the_end(
    record: SweepState, tmp_path: Path
) -> None:
    lines = [line for line in read_lines(tmp_path) if line["kind"] != "end"]
    assert len(lines) > 60
    for cut in range(1, len(lines)):
        assert went_on(lines[:cut]) == finished(record), lines[cut - 1]
