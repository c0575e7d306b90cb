"""Following a sweep that another process runs: its record as it grows, its end, and a driver that is gone."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.kit.recording import Sweep
from tunelight.errors import StorageError
from tunelight.extras.attach import RecordFollower
from tunelight.machine.processes import process_table
from tunelight.record import RECORD_FILE, leased
from tunelight.record.lease import Owner, Owners
from tunelight.reporting import watch


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    (tmp_path / "digits").mkdir()
    made = Sweep(tmp_path / "digits")
    yield made
    made.callback.close()


class Watching:
    """A watcher for whom each pause is a moment in which the sweep goes on."""

    def __init__(self, sweep: Sweep, *moments: Callable[[], object]) -> None:
        self.stream, self.now, self._moments = io.StringIO(), 1000.0, list(moments)
        self._folder = sweep.folder

    def __call__(self) -> Any:
        console = Console(file=self.stream, width=100)
        return watch(self._folder, console=console, clock=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        if self._moments:
            self._moments.pop(0)()

    @property
    def text(self) -> str:
        return self.stream.getvalue()


def test_it_tells_of_each_end_and_ends_with_the_sweep(sweep: Sweep) -> None:
    def begin() -> None:
        sweep.run(0.5, lr=0.1)
        sweep.callback.note("val_loss is logged without sync_dist", "00000")

    with leased(sweep.folder):
        watching = Watching(sweep, begin, lambda: sweep.end_by_itself(sweep.trials[0]), sweep.end)
        state = watching()
    assert watching.text.splitlines() == [
        "trial 00000: val_loss is logged without sync_dist",
        "trial 00000 finished after 1 epoch  loss=0.5  (best 0.5 by 00000)  1 done",
        "Sweep digits ended after 0s: 1 trial (1 finished). Best loss=0.5 by trial 00000 at epoch 1: lr=0.1",
    ]
    assert state.ended == "finished"
    again = Watching(sweep)
    again()
    assert again.text.splitlines() == watching.text.splitlines()[-1:]  # it has ended already


def test_a_driver_that_died_is_told_of(sweep: Sweep) -> None:
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    Owners(sweep.folder).create(Owner(1, socket.gethostname(), dead.pid, table=process_table(), born=1))
    sweep.run()
    watching = Watching(sweep)
    state = watching()
    assert state.ended is None
    assert f"Its driver (process {dead.pid} on {socket.gethostname()}) is gone" in watching.text
    assert "tunelight.resume(" in watching.text
    assert watching.now - 1000.0 == pytest.approx(5.0, abs=1.0)  # it may just be starting


def test_a_sweep_that_nobody_runs_is_told_of_and_a_driver_that_comes_back_followed(sweep: Sweep) -> None:
    watching = Watching(sweep)
    watching()
    assert "Sweep digits has not ended. No driver runs it" in watching.text
    held = leased(sweep.folder)
    moments = [lambda: None, held.__enter__, *[lambda: None] * 20, sweep.end]
    watching = Watching(sweep, *moments)
    assert watching().ended == "finished"
    held.__exit__(None, None, None)


def test_ctrl_c_gives_the_terminal_back_and_what_cannot_be_read_is_an_error(sweep: Sweep, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    watching = Watching(sweep, interrupt)
    with pytest.raises(KeyboardInterrupt):
        watching()
    assert "(watching ended)" in watching.text
    with pytest.raises(StorageError, match="holds no sweep that can be read"):
        watch(tmp_path)
    follower = RecordFollower(sweep.folder)
    with (sweep.folder / RECORD_FILE).open("ab") as stream:
        stream.write(b'{"kind":"note"}\n')
    assert [line["kind"] for line in follower.look()] == ["sweep"]  # what lies before it
    for _ in range(2):
        with pytest.raises(StorageError, match=r"record\.jsonl, line 2: corrupt"):
            follower.look()
