"""A worker in this process, which is a gang of one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from tests.kit import tasks
from tunelight.gang.gpu_memory import GpuMemory
from tunelight.gang.meeting.group import Meeting
from tunelight.gang.meeting.rendezvous import Rendezvous
from tunelight.gang.reset import CleanState
from tunelight.gang.worker import Compiled, GangWorker, TrialBox
from tunelight.messages import Continue, Ended, Place
from tunelight.session.task import Home

HERE = "127.0.0.1"


def worker_of_one(memory: GpuMemory, *, gpu: int | None = None) -> Any:
    """Return a worker that has met as the only rank."""
    worker: Any = object.__new__(GangWorker)  # its constructor asks Ray
    worker._gpu_memory = memory
    worker._clean, worker._compiled, worker._rendezvous = CleanState(memory), Compiled(), Rendezvous()
    worker._place, worker._thread, worker._left = None, None, ()
    worker._session = worker._writing = None
    ports = worker.host(HERE, "gloo", (1,))
    worker.join(Meeting(HERE, ports[0], "gloo", (1,), ports[1], 60.0), Place(0, 1, 0, 1, 0, HERE, gpu=gpu))
    return worker


def begin(worker: Any, train: Callable[..., object], serial: int, folder: Path, *, job: bool = False) -> TrialBox:
    """Start a trial on it; return its events."""
    box = TrialBox(serial)
    box.mailbox.put(Continue(None))
    train_and_start = tasks.trial(
        folder / "t", cloudpickle.dumps(train), "t", seed=0, home=Home(str(folder)), serial=serial, until=None, job=job
    )
    worker._trial = box
    worker._thread = threading.Thread(target=worker._run, args=(*train_and_start, box))
    worker._thread.start()
    return box


def end_of(box: TrialBox, limit_s: float = 60.0) -> Ended:
    """Return the event that ends a trial, as soon as it comes."""
    while not isinstance(event := box.events.get(timeout=limit_s), Ended):
        pass
    return event
