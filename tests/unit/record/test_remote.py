"""storage: a sweep's files in a store: claimed, mirrored, followed and held."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.kit.recording import overtaken
from tests.kit.waiting import until
from tests.unit.stores.test_stores import there
from tunelight import stores
from tunelight.errors import CommandError, SettingsError, StorageError
from tunelight.extras.attach import RecordFollower, ask
from tunelight.record import (
    Record,
    create_sweep_folder,
    find_sweep,
    leased,
    list_sweeps,
    mirrored,
    read_record,
    read_sweep_file,
    record_of,
    sweep_folder,
    write_sweep_file,
)
from tunelight.record import remote as remote_module
from tunelight.record.lease import COMMANDS_FILE, Lease, Owner, Owners, claim
from tunelight.record.remote import StoreMirror, pull
from tunelight.stores import Store


@pytest.fixture
def folder(storage: Any) -> Path:
    """Return the folder of a new sweep in the storage."""
    return create_sweep_folder(storage(), "s")


def upload(folder: Path) -> bool:
    """Upload what a driver would that holds the sweep."""
    lease: Any = mock.Mock(owner=Owner(1), **{"held.return_value": True})
    return StoreMirror(there(folder), folder, lease).upload()


@pytest.fixture
def record(folder: Path) -> Iterator[Record]:
    """Return the record of that sweep, with two reports."""
    with contextlib.closing(Record.open(folder)) as made:
        made.append("sweep", sweep={"metric": "loss", "mode": "min", "name": folder.name})
        made.append("trial", trial="0", index=0, config={}, seed=1, folder="t")
        for number in (1, 2):
            report(made, number)
        yield made


def report(record: Record, number: int) -> None:
    record.append("report", trial="0", training_iteration=number, metrics={"loss": 1.0}, decision="CONTINUE", epoch=0,
                  timestamp=0.0, workers=1)  # fmt: skip


def test_a_sweep_is_claimed_in_the_store_and_of_a_deleted_one_nothing_is_left(storage, record, machine):
    record.close()
    machine("second")
    with pytest.raises(StorageError, match="exists already"):
        create_sweep_folder(storage(), "s")
    machine("first")
    there(storage()).delete(storage() / "s")
    assert read_record(create_sweep_folder(storage(), "s")).trials == {}


def test_a_mirrored_sweep_is_read_followed_and_listed_elsewhere(storage, folder, record, machine):
    write_sweep_file(folder, {"metric": "loss", "mode": "min"})
    with leased(folder) as lease, mirrored(folder, lease):
        machine("second")
        other = storage() / "s"
        assert len(read_record(other).trials["0"].history) == 2
        assert read_sweep_file(other)["metric"] == "loss"
        follower = RecordFollower(other)
        follower.look()
        report(record, 3)
        assert upload(folder)
        assert [line["training_iteration"] for line in follower.look()] == [3]
        assert [found.folder for found in list_sweeps(storage())] == [other]
        assert find_sweep("s", storage()) == other
        assert find_sweep("last", storage()) == other
        assert [path.name for path in storage().iterdir()] == ["s"], "a question leaves no folder"


def test_what_a_killed_driver_had_not_brought_is_kept_where_it_ran_also_once_its_machine_was_started_anew(
    storage, folder, record, machine, monkeypatch
):
    claim(Owners(folder))
    assert upload(folder)
    report(record, 3)
    record.close()
    old = record.path.stat().st_mtime - 100
    os.utime(record.path, (old, old))  # whatever clocks say
    machine("second")
    pull(storage() / "s")
    assert len(read_record(storage() / "s").trials["0"].history) == 2
    machine("first")
    monkeypatch.setattr("tunelight.record.lease.process_table", lambda: "first, after its boot")
    monkeypatch.setattr("tunelight.record.lease.STALE_S", 0.0)
    with leased(folder):
        pull(folder)
        assert record_of(folder).name == "record.2.jsonl"
        assert len(read_record(folder).trials["0"].history) == 3


def test_a_running_drivers_own_record_is_not_touched(folder, record, machine):
    with leased(folder):
        os.utime(record.path, (0, 0))
        there(folder).write(folder / "record.jsonl", b"")
        assert len(read_record(folder).trials["0"].history) == 2


def test_a_driver_that_slept_overwrites_nothing_of_its_successor(storage, folder, record, machine, monkeypatch):
    with overtaken(folder) as lease, mirrored(folder, lease):
        machine("second")
        monkeypatch.setattr("tunelight.record.lease.STALE_S", 0.0)  # the first one has slept for longer
        with leased(storage() / "s") as second, mirrored(storage() / "s", second):
            report(record, 3)
            assert not lease.held()
            assert not StoreMirror(there(folder), folder, lease).upload()
            assert record_of(storage() / "s").name == "record.2.jsonl"
            assert b'"training_iteration":3' not in there(folder).read(record_of(storage() / "s"))
        machine("first")


def test_a_store_that_takes_nothing_is_told_at_the_beginning(folder, record, monkeypatch):
    record.close()
    monkeypatch.setattr(Store, "write", mock.Mock(side_effect=OSError(28, "No space left on device")))
    with (
        leased(folder) as lease,
        pytest.raises(StorageError, match=r"No space left on device.*another storage="),
        mirrored(folder, lease),
    ):
        pytest.fail("it began")


def test_a_store_that_fails_meanwhile_is_told_once_and_brought_up_to_date(
    storage, record, machine, monkeypatch, caplog
):
    folder = record.path.parent
    monkeypatch.setattr(remote_module, "EVERY_S", 0.01)
    with leased(folder) as lease:
        mirror = StoreMirror(there(folder), folder, lease)
        assert mirror.upload()
        with monkeypatch.context() as broken:
            broken.setattr(Store, "_name", mock.Mock(side_effect=ConnectionError("gone")))
            report(record, 3)
            assert not mirror.upload()
            assert not mirror.upload()
        assert mirror.upload()
    assert caplog.text.count("cannot be written") == 1
    record.close()
    machine("second")
    assert len(read_record(storage() / "s").trials["0"].history) == 3


def test_a_report_is_in_the_store_before_the_other_files_are_due(folder, record, monkeypatch):
    other = folder / "experiment_state.json"
    (folder / "sweep.yaml").write_text("before the record, which tells of changes to it")
    monkeypatch.setattr(remote_module, "EVERY_S", 3600.0)
    with leased(folder) as lease, mirrored(folder, lease):
        report(record, 3)
        until(lambda: b'"training_iteration":3' in there(folder).read(record.path), 20)  # with all that is there
        other.write_text("later")
        report(record, 4)
        until(lambda: b'"training_iteration":4' in there(folder).read(record.path), 20)
        assert there(folder).stat(other) is None
    assert there(folder).read(other) == b"later"


def test_a_sweeps_folder_by_its_url(machine):
    assert stores.shown(sweep_folder("s3://bucket/sweeps", "s")) == "s3://bucket/sweeps/s"
    with pytest.raises(SettingsError, match=r"no sweep's name may hold.*'s\*'"):
        sweep_folder("s3://bucket/sweeps", "s*")  # deleting it would delete others


def test_a_driver_that_lost_the_race_leaves_the_winners_lease_alone(folder, monkeypatch):
    create, winner = Owners.create, list[Lease]()

    def slow(owners: Owners, owner: Owner) -> bool:
        monkeypatch.setattr(Owners, "create", create)
        winner.append(claim(owners))
        return create(owners, owner)

    monkeypatch.setattr(Owners, "create", slow)
    with pytest.raises(StorageError, match="is run by another driver already"):
        claim(Owners(folder))
    assert remote_module.is_driven_here(folder)
    winner[0].release()
    assert not remote_module.is_driven_here(folder)


def test_a_sweep_in_a_store_is_told_on_its_driver_s_machine(storage, folder, record, machine):
    claim(Owners(folder))
    assert upload(folder)
    machine("second")
    other = storage() / "s"
    with pytest.raises(CommandError, match=r"is in an object store, and process \d+ on .* runs it: tell it to stop on"):
        ask(RecordFollower(other), "stop", "0")
    assert not (other / COMMANDS_FILE).exists()


def test_an_object_whose_creation_was_sent_twice_is_ones_own(storage):
    folder = create_sweep_folder(storage(), "s")
    store, path = there(folder), folder / "one"

    class Twice:
        """Sends each object twice, as a client does that has lost an answer."""

        def __init__(self, system: Any) -> None:
            self._system = system

        def __getattr__(self, name: str) -> Any:
            return getattr(self._system, name)

        def open(self, name: str, mode: str) -> Any:
            self._system.pipe_file(name, b"mine")
            return self._system.open(name, mode)

        def pipe_file(self, name: str, data: bytes, mode: str = "overwrite") -> None:
            self._system.pipe_file(name, data)
            self._system.pipe_file(name, data, mode=mode)

    system = store._system
    try:
        store._system = Twice(system)
        assert store.create(path, b"mine")
    finally:
        store._system = system
    assert not store.create(path, b"another's")
    assert store.read(path) == b"mine"
