"""When a worker is sampled, and what its head passes on of that."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tunelight.gang import usage
from tunelight.gang.usage import EVERY_S, Meter, UsageLog
from tunelight.gang.worker import GangWorker, TrialBox
from tunelight.machine.usage import Sampler
from tunelight.messages import Ended, Usage


class Counted(Sampler):
    """Counts how often it is asked; a sample's memory is its number."""

    def __init__(self, clock: Any) -> None:
        self.samples = 0
        super().__init__(clock=clock)

    def sample(self) -> Usage:
        self.samples += 1
        return Usage(1.0, self.samples)


class Broken(Sampler):
    def sample(self) -> Usage:
        raise OSError("/proc is gone")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_trial_is_sampled_every_few_seconds_and_not_with_each_event() -> None:
    clock = Clock()
    meter = Meter(Counted(clock), clock)
    assert meter.left_s == EVERY_S
    taken = []
    for _ in range(40):  # two reports a second
        clock.now += 0.5
        taken += [(clock.now - 100.0, sample.memory) for sample in meter.read(told=True)]
    assert taken == [(0.5, 1), (5.5, 2), (10.5, 3), (15.5, 4)]


def test_a_rank_without_events_is_sampled_once_that_is_due() -> None:
    clock = Clock()
    meter = Meter(Counted(clock), clock)
    assert meter.read(told=False) == ()
    clock.now += EVERY_S + 1
    assert meter.left_s == 0.0
    assert len(meter.read(told=False)) == 1
    assert meter.left_s == EVERY_S


def test_what_cannot_be_measured_ends_no_trial_and_is_not_tried_at_once_again() -> None:
    clock = Clock()
    meter = Meter(Broken(clock=clock), clock)
    assert meter.read(told=True) == ()
    assert meter.left_s == EVERY_S


def test_a_poll_ends_when_a_sample_is_due_also_one_that_came_before_its_trial_s_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage, "EVERY_S", 0.2)
    worker = GangWorker.__new__(GangWorker)
    worker._trial, worker._lock, worker._sampler = TrialBox(0), threading.Lock(), Sampler()
    worker._session = worker._thread = None
    began = time.monotonic()
    events, _, samples = worker.poll(1, 20.0)
    assert (events, len(samples)) == ([], 1)
    assert 0.2 <= time.monotonic() - began < 5.0
    worker._trial.events.put(Ended(0))
    events, _, samples = worker.poll(1, 20.0)
    assert (events, samples) == ([Ended(0)], ())
    assert worker.poll(0, 0.0)[2] == ()  # of a trial before


def test_news_hold_what_came_since_the_last_ones() -> None:
    log = UsageLog()
    log.begin("00000")
    assert log.news() is None
    log.hear(1, [Usage(1.0, 100, 0.5, 7, 80), Usage(0.5, 300, 0.1, 5, 80)])
    log.hear(0, [])
    log.hear(0, [Usage(2.0, 200)])
    first, second = log.news() or ()
    assert (first["rank"], first["last"]["memory"], first["gpu"]) == (0, 200, None)
    assert (second["rank"], second["samples"]) == (1, 2)
    assert second["gpu"] == 0.3
    of_gpus = {"gpu_memory_total": 80}
    assert second["last"] == {"cpu": 0.5, "memory": 300, "gpu": 0.1, "gpu_memory": 5} | of_gpus
    assert second["peak"] == {"cpu": 1.0, "memory": 300, "gpu": 0.5, "gpu_memory": 7} | of_gpus
    assert log.news() is None
    log.hear(1, [Usage(0.1, 50)])
    (later,) = log.news() or ()
    assert later["peak"]["memory"] == 50


def test_a_restart_of_a_trial_keeps_what_it_used_and_another_trial_does_not() -> None:
    log = UsageLog()
    log.begin("00000")
    log.hear(0, [Usage(1.0, 900)])
    log.begin("00000")
    log.hear(0, [Usage(1.0, 100)])
    (both,) = log.news() or ()
    assert (both["samples"], both["peak"]["memory"]) == (2, 900)
    log.hear(0, [Usage(1.0, 900)])
    log.begin("00001")
    assert log.news() is None
