"""What the live page hears of sweeps, and the server beside a sweep: it starts once, and leaves by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.kit.recording import Sweep
from tests.kit.sweeps import record
from tests.kit.waiting import until
from tunelight.errors import ReportError, SettingsError
from tunelight.extras.report import page
from tunelight.extras.web import server
from tunelight.extras.web.app import log_part, trial_details
from tunelight.extras.web.server import LivePage, check_installed
from tunelight.extras.web.watch import SweepList, SweepWatch
from tunelight.record import Record, leased, list_sweeps, mirrored, write_sweep_file


def watched(folder: Path) -> SweepWatch:
    found = SweepWatch(folder)
    found.look()
    while not found.whole:
        found.look()
    return found


def again(watch: SweepWatch) -> None:
    watch._looked = -1e9  # without the quarter of a second
    watch.look()


def test_only_what_changed_comes_again(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, num_samples=4)
    trials = [sweep.add(lr=0.1 * number) for number in range(3)]
    sweep.step()
    for trial in trials:
        sweep.start(trial)
        sweep.report(trial, 1, 1.0)
    watch = watched(tmp_path)
    assert [row["i"] for row in watch.rows(0)] == [0, 1, 2]
    seen, sent = watch.version, dict[int, int]()
    assert watch.curves(sent)["curves"].keys() == {0, 1, 2}
    sweep.report(trials[1], 2, 0.5)
    again(watch)
    (row,) = watch.rows(seen)
    assert (row["i"], row["value"], row["last"], row["at"]) == (1, 0.5, 0.5, 2)
    assert watch.curves(sent)["curves"] == {1: ([1, 2], [1.0, 0.5])}
    assert watch.rows(watch.version) == []
    head = watch.head()
    assert (head["best"]["trial"], head["best"]["value"]) == (1, 0.5)
    assert head["state"] == "cut off"  # no process holds its lock
    assert head["total"] == 4


def test_of_many_trials_the_best_curves_and_those_that_run_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "_MOST_BEST", 2)
    sweep = Sweep(tmp_path)
    trials = [sweep.add(lr=number) for number in range(6)]
    sweep.step()
    for number, trial in enumerate(trials):
        sweep.start(trial)
        sweep.report(trial, 1, float(number))
        if number < 5:
            trial.status = "TERMINATED"
            sweep.call("on_trial_complete", trial=trial)
    watch, sent = watched(tmp_path), dict[int, int]()
    found = watch.curves(sent)
    assert found["curves"].keys() == {0, 1, 5}
    assert found["of"] == 6
    sweep.report(trials[5], 2, -1.0)
    again(watch)
    assert watch.curves(sent) == {"curves": {5: ([1, 2], [5.0, -1.0])}, "gone": [1], "of": 6}


def test_rows_are_those_of_the_latest_trials_and_the_head_says_how_many_are_left_out(tmp_path, monkeypatch):
    for module in ("report.page", "web.watch"):
        monkeypatch.setattr(f"tunelight.extras.{module}.MOST_ROWS", 3)
    record(tmp_path, trials=8)
    watch = watched(tmp_path)
    assert {row["i"] for row in watch.rows(0)} == {5, 6, 7}
    assert watch.head()["more"] == 5


def test_the_head_says_how_keys_were_searched_and_how_long_all_runs_took(tmp_path: Path) -> None:
    space = {"lr": {"loguniform": [1e-4, 1]}, "model": {"width": {"qrandint": [1, 999, 2]}}, "opt": {"choice": ["a"]}}
    write_sweep_file(tmp_path, {"space": space})
    clock = iter((1000.0, 1050.0, 9000.0, 9050.0))
    record = Record(tmp_path, lambda: next(clock))
    for _ in range(2):  # it was killed, and resumed
        record.append("sweep", sweep={"metric": "loss", "mode": "min"})
        record.append("note", trial=None, text="")
    record.close()
    head = watched(tmp_path).head()
    assert head["even"] == {"lr": False, "model.width": True}
    assert head["seconds"] == 100.0


def test_a_record_that_is_written_anew_in_place_begins_anew(tmp_path: Path) -> None:
    record(tmp_path / "a", trials=2)
    record(tmp_path / "b", trials=6)
    watch = watched(tmp_path / "a")
    with (tmp_path / "a" / "record.jsonl").open("r+b") as stream:  # file systems give a number of a file out again
        stream.write((tmp_path / "b" / "record.jsonl").read_bytes())
    again(watch)
    assert watch.generation == 1
    assert {row["i"] for row in watch.rows(0)} == set(range(6))


def test_a_brief_view_does_not_grow_with_what_trials_do(sweep: Sweep, tmp_path: Path) -> None:
    trial = sweep.add(lr=0.1)
    sweep.step()
    sweep.start(trial)
    for number in range(300):
        sweep.callback.record.append("checkpoint", trial="00000", path=f"c{number}", training_iteration=number)
        sweep.callback.note(f"note {number}", "00000")
    state = watched(tmp_path).state
    known = state.trials["00000"]
    assert [one["path"] for one in known.checkpoints][-1] == "c299"
    assert max(len(known.checkpoints), len(known.notes)) <= 8
    assert len(state.notes) <= 100


def test_the_list_has_all_sweeps_reads_those_that_changed_and_names_what_cannot_be_read(tmp_path: Path) -> None:
    record(tmp_path / "good", trials=6)
    record(tmp_path / "bad", trials=3)
    with (tmp_path / "bad" / "record.jsonl").open("r+b") as stream:
        stream.seek(100)
        stream.write(b"????")
    sweeps = SweepList(lambda: list_sweeps(tmp_path), every_s=0)
    found = {one["name"]: one for one in sweeps.summaries()[0]}
    assert found["good"]["state"] == "finished"
    assert found["good"]["trials"] == 6
    assert found["bad"]["state"] == "unreadable"
    assert "damaged" in found["bad"]["error"]
    before = found["good"]
    assert next(one for one in sweeps.summaries()[0] if one["name"] == "good") is before
    os.utime(tmp_path / "good" / "record.jsonl")
    assert next(one for one in sweeps.summaries()[0] if one["name"] == "good") is not before


def test_a_sweep_in_a_store_is_followed_from_another_machine(machine: Any, storage: Any) -> None:
    folder = storage() / "digits"
    folder.mkdir(parents=True)
    with leased(folder) as lease, mirrored(folder, lease):
        record(folder, trials=3)
    machine("second")
    sweeps = SweepList(lambda: list_sweeps(storage()), every_s=0)
    (summary,) = sweeps.summaries()[0]
    assert (summary["name"], summary["state"], summary["trials"]) == ("digits", "finished", 3)
    watch = sweeps.watch("digits")
    assert watch is not None
    assert {row["i"] for row in watch.rows(0)} == {0, 1, 2}
    assert trial_details(watch, watch.state.trials["00001"])
    assert (
        log_part(watch.folder, watch.state.trials["00001"], None)["note"]
        == "Its log is in the store; nothing but the record is fetched from there."
    )


@pytest.fixture
def folder_of_one(tmp_path: Path) -> Iterator[Path]:
    record(tmp_path / "digits", trials=3)
    yield tmp_path
    found = server.running(tmp_path)
    if found is not None:
        end(found.pid)


def end(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 10)


def test_a_second_sweep_of_the_folder_finds_the_server_and_a_later_one_has_its_address(folder_of_one, capsys):
    page = LivePage(folder_of_one / "digits")
    page.say()
    said = capsys.readouterr().err
    first = server.running(folder_of_one)
    assert first is not None
    assert said == f"Live page: {first.place}/sweep/digits?token={first.token}\n"
    assert server.start(folder_of_one) == first.address
    assert server.running(folder_of_one) == first
    assert first.pid not in [one.pid for one in psutil.Process().children()]
    end(first.pid)
    assert server.running(folder_of_one) is None
    assert server.start(folder_of_one) == first.address
    again = server.running(folder_of_one)
    assert again is not None
    end(again.pid)
    with socket.socket() as other:  # where its port is taken meanwhile it has another, and the same token
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # another program was quicker
            other.bind(("127.0.0.1", first.port))
            other.listen()
        elsewhere = server.start(folder_of_one)
    assert elsewhere != first.address
    assert elsewhere.partition("token=")[2] == first.token


def test_a_server_that_cannot_start_says_why_and_the_sweep_goes_on(folder_of_one, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(ReportError, match="could not be started"):
        server.start(folder_of_one)
    LivePage(folder_of_one / "digits").say()
    assert "could not be started, and the sweep goes on without" in capsys.readouterr().err


def test_a_sweep_with_a_page_is_refused_before_ray_starts_where_packages_are_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"web=True needs starlette and uvicorn: pip install 'tunelight\[web\]'"):
        check_installed(web=True)


@pytest.mark.parametrize(("streams", "driven", "leaves"), [(0, False, True), (1, False, False), (0, True, False)])
def test_it_leaves_once_no_page_is_open_and_no_sweep_runs(tmp_path, monkeypatch, streams, driven, leaves):
    monkeypatch.setattr(server, "_IDLE_S", 0.1)
    monkeypatch.setattr(server, "_LOOK_S", 0.15)
    own: Any = SimpleNamespace(should_exit=False)
    page: Any = SimpleNamespace(streams=streams)
    sweeps: Any = SimpleNamespace(names=list, any_driven=lambda: driven)

    async def watch() -> None:
        task = asyncio.create_task(server._leave_when_idle(own, page, sweeps, tmp_path))
        await asyncio.sleep(0.6)
        task.cancel()

    asyncio.run(watch())
    assert own.should_exit is leaves


def test_an_address_that_cannot_be_listened_on_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for host, port in (("127.0.0.1", taken.getsockname()[1]), ("no.such.host.invalid", None), ("192.0.2.1", None)):
            with pytest.raises(SettingsError, match=r"cannot listen|is not known"):
                server._listen(host, port)
