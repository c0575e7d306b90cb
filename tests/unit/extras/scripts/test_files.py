"""What trials of a script write beside it: what another trial must not read, and what is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tunelight.errors import ScriptError
from tunelight.extras.scripts.files import FILE, files_watched, overwritten, overwritten_callback, read

Act = Callable[[int], object]


class Trials:
    """Trials of a sweep in the working directory, one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.file = folder / "tunelight_runs/s" / FILE

    def train(self, *, before: Act = bool, after: Act = bool, trial: int | None = None) -> None:
        """Run a trial that acts before and after its one step of training."""
        number = self.count if trial is None else trial
        self.count = max(self.count, number + 1)
        context = SimpleNamespace(
            trial_id=f"{number:05d}",
            rank=0,
            trial_dir=str(self.folder / "tunelight_runs" / "s" / f"trial_{number:05d}"),
        )
        Path(context.trial_dir).mkdir(parents=True, exist_ok=True)
        session: Any = SimpleNamespace(context=context)
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        with files_watched(session, self.folder):
            before(number)
            weight.grad = torch.ones(1)
            self.step = optimizer.step
            self.step()
            after(number)


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    monkeypatch.chdir(tmp_path)
    return Trials(tmp_path)


def write_once(file: str) -> None:
    """Write a file in training, unless it is there."""
    if not Path(file).exists():
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_bytes(b"3")


def save(_: int) -> None:  # its writer is in C++: Python hears of no opened file
    """Write a file until its time of change is another one."""
    file = Path("snapshot.pt")
    before = file.stat().st_mtime if file.exists() else 0.0
    while not file.exists() or file.stat().st_mtime <= before:
        torch.save(torch.ones(3), "snapshot.pt")


def load(_: int) -> None:
    if Path("snapshot.pt").exists():
        torch.load("snapshot.pt")


def test_a_trial_that_goes_on_from_another_one_s_weights_is_refused_before_it_trains(trials: Trials) -> None:
    trials.train(before=load, after=save)
    with pytest.raises(ScriptError, match=r"snapshot.pt was written by another trial .*\$\{trial_dir\}"):
        trials.train(before=load, after=save)
    trials.train(before=load, after=save, trial=0)  # it is its own: the trial was cut off, and goes on

    def begin(number: int) -> None:
        save(number)
        load(number)

    trials.train(before=begin)  # its own, too


def test_data_that_the_first_trial_has_prepared_is_for_all(trials: Trials) -> None:
    def prepare(_: int) -> None:
        if not Path("data.pt").exists():
            torch.save(torch.ones(3), "data.pt")
        torch.load("data.pt")

    Path("older.pt").write_bytes(b"")
    for _ in range(3):
        trials.train(before=prepare, after=lambda _: Path("older.pt").read_bytes())
    assert overwritten(read(trials.file)) == ""


@pytest.mark.parametrize("file", ["cache/0.npy", "cache/joblib/f/output.pkl", "history.csv"])
def test_a_cache_that_a_trial_has_filled_in_its_training_is_for_all(trials: Trials, file: str) -> None:
    def fill(_: int) -> None:
        write_once(file)
        trials.step()

    for _ in range(3):
        trials.train(before=lambda number: number and Path(file).read_bytes(), after=fill)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # torch may have threads
def test_a_dataloader_s_worker_may_read_what_another_trial_wrote(trials: Trials) -> None:
    class Images(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            return len(Path("0.pt").read_bytes())

    def read_all(number: int) -> None:
        loader = torch.utils.data.DataLoader(Images(), num_workers=1, multiprocessing_context="fork")
        assert not number or [int(batch) for batch in loader] == [1]

    for _ in range(2):
        trials.train(before=read_all, after=lambda _: write_once("0.pt"))


def test_what_each_trial_writes_and_reads_back_is_named_once(trials: Trials) -> None:
    def best(number: int) -> None:
        save(number)
        load(number)
        Path("outputs").mkdir(exist_ok=True)
        Path("outputs/done.txt").write_text("done")
        Path(f"of-{number}.txt").write_text("its own")
        Path("__pycache__").mkdir(exist_ok=True)
        Path("__pycache__/a.bin").write_text("a")
        os.utime("notes.txt", (number + 1, number + 1))  # somebody edits them meanwhile

    notes: list[str] = []
    Path("notes.txt").write_text("")
    trials.train(after=best)
    callback = overwritten_callback(trials.file.parent, notes.append)
    callback.on_trial_complete(0, [], None)
    for _ in range(2):
        trials.train(after=best)
        callback.on_trial_complete(0, [], None)
    assert len(notes) == 1
    assert "written outputs/done.txt, snapshot.pt: each overwrites" in notes[0]
    for way in ("${trial_dir}", "TUNELIGHT_TRIAL_DIR", "max_concurrent=1"):
        assert way in notes[0]
