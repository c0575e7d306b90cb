"""Files that move between machines and a store, held against fsspec's memory and folders; and secrets, kept out."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import pytest
import yaml

import tunelight as tl
from tests.kit.recording import Writer, written_checkpoint
from tests.unit.cli.test_command import call
from tunelight import stores
from tunelight.checkpoints import files as checkpoints
from tunelight.errors import CheckpointError, SettingsError
from tunelight.extras.report.page import page
from tunelight.extras.reproduce import _prepare
from tunelight.gang.output import bring_home
from tunelight.record import read_sweep_file, write_sweep_file
from tunelight.results import SweepResults
from tunelight.settings import Settings
from tunelight.stores import Store, store_of, write_atomically
from tunelight.stores.atomic import create_atomically
from tunelight.stores.masking import masked, masked_command
from tunelight.stores.tune import for_tune
from tunelight.sweep.past import open_saved_sweep
from tunelight.sweep.run import _prepare as prepare
from tunelight.sweep.run import claimed
from tunelight.sweep.steering import SweepControl


def test_a_url_is_a_path_that_says_its_url_also_below_a_folder_of_the_name_of_the_working_folders(
    machine, tmp_path, monkeypatch
):
    folder = stores.working("local:///shared/sweeps/")
    assert folder == tmp_path / "first" / "tunelight-stores" / "local" / "shared" / "sweeps"
    assert stores.shown(folder / "a" / "b.txt") == "local:///shared/sweeps/a/b.txt"
    s3 = stores.working("s3://bucket/sweeps")
    assert stores.shown(s3) == "s3://bucket/sweeps"
    assert store_of(s3) is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "tunelight-stores" / "me" / ".cache"))
    assert stores.shown(stores.working("s3://bucket/sweeps")) == "s3://bucket/sweeps"


def test_any_other_path_is_itself_also_in_a_folder_of_the_name_of_the_working_folders(tmp_path):
    assert stores.working(tmp_path / "x") == tmp_path / "x"
    assert stores.working(f"file://{tmp_path}/x") == tmp_path / "x"
    assert stores.working("~/x") == Path.home() / "x"
    storage = tmp_path / "tunelight-stores" / "sweeps"
    assert Settings(train=print, storage=storage).storage == storage
    assert store_of(storage / "first" / "00000") is None
    for path in (tmp_path, storage):
        assert store_of(path) is None
        assert stores.shown(path) == str(path)
        assert for_tune(path) is None
    assert store_of(storage.parent) is None


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s33://bucket/x", "Did you mean 's3'"),
        ("memory://x", "the memory of one process"),
        ("s3://", "protocol://bucket/folder"),
        ("s3://bucket/../x", "protocol://bucket/folder"),
        ("s3://key:secret@bucket/x", r"s3://\*\*\*@bucket/x.*into the environment"),
        ("s3://bucket/x?region=eu", "protocol://bucket/folder"),
        ("s3://bucket/*", "protocol://bucket/folder"),
        (Path("s3://bucket/sweeps"), "as text"),
        (Path("/tmp/tunelight-stores/s3/bucket"), r"would be taken for s3://bucket.*choose another folder"),
    ],
)
def test_a_url_that_can_be_no_storage_is_refused_before_anything_is_asked(url, says):
    with pytest.raises(SettingsError, match=says) as told:
        Settings(train=print, storage=url)
    assert "secret" not in str(told.value)


def test_a_library_that_is_missing_is_named(monkeypatch):
    missing = ImportError("Install s3fs to access S3")
    monkeypatch.setattr(fsspec, "get_filesystem_class", mock.Mock(side_effect=missing))
    with pytest.raises(SettingsError, match=r"Install s3fs to access S3\. Every node needs it"):
        stores.working("s3://bucket/x")


def there(folder: Path) -> Store:
    store = store_of(folder)
    assert store is not None
    return store


def test_small_files_are_brought_as_they_are_in_the_store(storage, machine):
    store = there(storage())
    store.write(storage() / "s" / "a.json", b"1")
    store.write(storage() / "s" / "b.txt", b"2")
    for name in ("a.json", "gone.json", "own.txt"):
        (storage() / "s").mkdir(parents=True, exist_ok=True)
        (storage() / "s" / name).write_text("longer")
    store.bring(storage() / "s", "*.json")
    assert {path.name: path.read_text() for path in (storage() / "s").iterdir()} == {"a.json": "1", "own.txt": "longer"}


def test_a_growing_file_is_updated_in_place_and_kept_where_it_is_ahead(storage, machine):
    store, path = there(storage()), storage() / "s" / "log.txt"
    assert not store.update(path)
    store.write(path, b"1\n")
    assert store.update(path)
    inode = path.stat().st_ino
    store.write(path, b"1\n2\n")
    assert store.update(path)
    assert (path.read_bytes(), path.stat().st_ino) == (b"1\n2\n", inode), "whoever follows it reads on"
    path.write_bytes(b"1\n2\n3\n")
    os.utime(path, (0, 0))
    assert store.update(path)
    assert path.read_bytes() == b"1\n2\n3\n"
    store.write(path, b"another's\n")
    assert store.update(path)
    assert path.read_bytes() == b"another's\n"


def test_a_store_that_fails_raises_os_errors(storage, monkeypatch):
    class NoCredentialsError(Exception):
        pass

    error = NoCredentialsError("Unable to locate credentials")
    monkeypatch.setattr(Store, "_name", mock.Mock(side_effect=error))
    store, path = there(storage()), storage() / "s" / "a"
    path.parent.mkdir(parents=True)
    path.write_text("a")
    for ask in (lambda: store.read(path), lambda: store.write(path, b""), lambda: store.push(path)):
        with pytest.raises(OSError, match="NoCredentialsError: Unable to locate credentials"):
            ask()


def test_a_store_that_does_not_answer_is_not_an_empty_one(storage, monkeypatch):
    store = there(storage())
    store.write(storage() / "t" / "checkpoints" / "report-000001.json", b"{}")
    expired = PermissionError("The provided token has expired")
    monkeypatch.setattr(type(store._system), "ls", mock.Mock(side_effect=expired))
    for ask in (lambda: checkpoints.find(storage() / "t"), lambda: checkpoints.pinned(storage() / "t"),
                lambda: store.has_any(storage() / "t")):  # fmt: skip
        with pytest.raises(PermissionError, match="expired"):
            ask()


def test_a_trials_folder_is_brought_home_without_what_is_uploaded_when_it_is_written(storage, machine):
    trial = storage() / "s" / "t"
    names = ("log.txt", "own/pointer.json", "checkpoint_best.pt", "events.tunelight",
             ".hidden", "checkpoint_000000/pointer.json", "checkpoints/report-000001.json")  # fmt: skip
    for name in names:
        (trial / name).parent.mkdir(parents=True, exist_ok=True)
        (trial / name).write_text("stale")
    whole = Path(written_checkpoint(trial, 2).path)
    (draft := trial / "checkpoints/.report-000003.ckpt.x.tmp").touch()
    bring_home(str(trial), 0.0, over=True)
    store = there(trial)
    assert {name for name in names if store.stat(trial / name)} == {"log.txt", "own/pointer.json", "checkpoint_best.pt"}
    assert draft.exists()  # which another gang may still write
    assert store.stat(whole)
    assert not whole.exists()


def test_a_checkpoint_is_found_and_opened_on_another_machine_and_fetched_anew_where_it_is_another(storage, machine):
    for number in (1, 2):
        written_checkpoint(storage() / "s" / "t", number, text=f"weights {number}")
    assert len(list((storage() / "s" / "t" / checkpoints.FOLDER).glob("report-*.ckpt"))) == 1, "one is kept here"
    machine("second")
    trial = storage() / "s" / "t"
    assert [one.number for one in checkpoints.find(trial)] == [1, 2]
    last, warning = checkpoints.resume_point(trial)
    assert last is not None
    assert (last.number, warning) == (2, None)
    assert Path(last.path).is_relative_to(trial)
    assert checkpoints.fetch_local(last.path).read_text() == "weights 2"
    machine("first")
    written_checkpoint(storage() / "s" / "t", 2, text="new")
    machine("second")
    assert checkpoints.fetch_local(checkpoints.find(trial)[1].path).read_text() == "new"


def test_a_checkpoint_that_is_made_again_counts_only_when_it_is_whole(storage, machine, monkeypatch):
    trial = storage() / "s" / "t"
    written_checkpoint(trial, 1, text="one")
    written_checkpoint(trial, 2, text="old")
    with monkeypatch.context() as dying:
        dying.setattr(checkpoints, "write_json", lambda *_: (_ for _ in ()).throw(SystemExit))  # killed after the push
        with pytest.raises(SystemExit):
            written_checkpoint(trial, 2, text="new")
    machine("second")
    last, _ = checkpoints.resume_point(storage() / "s" / "t")
    assert last is not None
    assert checkpoints.fetch_local(last.path).read_text() == "one"


def test_only_older_checkpoints_are_forgotten_here_and_none_that_ranks_may_still_have_to_read(storage):
    trial = storage() / "s" / "t"
    folder = trial / checkpoints.FOLDER
    first = written_checkpoint(trial, 1)
    (folder / ".report-000003.ckpt.tmp").write_text("being written")
    third = replace(written_checkpoint(trial, 2), number=3)
    assert {one.name for one in folder.glob("*report*") if one.suffix in (".ckpt", ".tmp")} == {
        "report-000002.ckpt", ".report-000003.ckpt.tmp",
    }  # fmt: skip
    checkpoints.fetch_local(first.path)
    written = checkpoints.temp_path(third, "start")
    written.write_text("weights")
    checkpoints.commit(third, written, first.path)
    assert Path(first.path).exists()


def test_a_torn_checkpoint_is_passed_over_and_not_opened(storage, machine):
    first = written_checkpoint(storage() / "s" / "t", 1)
    second = written_checkpoint(storage() / "s" / "t", 2)
    there(storage()).write(Path(second.path), b"wei")
    machine("second")
    last, warning = checkpoints.resume_point(storage() / "s" / "t")
    assert last is not None
    assert last.number == first.number
    assert "torn" in (warning or "")
    torn = storage() / "s" / "t" / checkpoints.FOLDER / Path(second.path).name
    with pytest.raises(CheckpointError, match=r"cannot be fetched.*torn"):
        checkpoints.fetch_local(torn)
    assert not torn.exists()
    with pytest.raises(FileNotFoundError, match="nothing is there"):
        there(storage()).push(torn)


def test_checkpoints_are_pruned_in_the_store_but_for_those_that_are_pointed_at(storage, machine):
    trial = storage() / "s" / "t"
    known = [written_checkpoint(trial, number, value=float(number)) for number in range(1, 7)]
    pointer = trial / "checkpoint_000000"
    there(trial).write(pointer / checkpoints.POINTER, json.dumps(known[2].asdict()).encode())
    machine("second")
    trial = storage() / "s" / "t"
    kept = checkpoints.prune(checkpoints.find(trial), 1, "min", {known[2].path.replace("/first/", "/second/")})
    assert [one.number for one in kept] == [1, 3, 5, 6]
    assert [one.number for one in checkpoints.find(trial)] == [1, 3, 5, 6]
    assert checkpoints.pinned(trial) == {known[2].path}


def test_a_file_is_made_in_no_folder_that_is_gone_and_once_though_the_file_system_asks_again(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "gone" / "file", b"")
    assert list(tmp_path.iterdir()) == []
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)  # as NFS, whose first answer was lost
    assert create_atomically(tmp_path / "claim", b"mine")
    assert not create_atomically(tmp_path / "claim", b"yours")
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]


SECRET = "hunter2"
URL = f"postgresql://me:{SECRET}@db.example/studies"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:a@b:c@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("mysql+pymysql://me:a/b@host/db", "mysql+pymysql://me:***@host/db"),
        ("redis://:abc@host", "redis://:***@host"),
        ("git+https://ghp_abc@github.com/me/it", "git+https://***@github.com/me/it"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("s3://bucket/a?X-Amz-Signature=abc&X-Amz-Date=1", "s3://bucket/a?X-Amz-Signature=***&X-Amz-Date=1"),
        ("az://c/a?sig=abc&sv=1#x", "az://c/a?sig=***&sv=1#x"),
        ("http://h/x?access_token=a b", "http://h/x?access_token=*** b"),
        (
            "cannot reach postgres://a:b@c/d, nor http://u:p@e.",
            "cannot reach postgres://a:***@c/d, nor http://u:***@e.",
        ),
        ("postgresql://me:${DB_PASSWORD}@host/db", "postgresql://me:${DB_PASSWORD}@host/db"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("s3://bucket/sweeps?region=eu", "s3://bucket/sweeps?region=eu"),
        ("val_loss=0.5 at me@example.org", "val_loss=0.5 at me@example.org"),
    ],
)
def test_what_is_secret_in_an_address_is_masked(text, shown):
    assert masked(text) == shown
    assert masked(shown) == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--set", "runtime_env={env_vars: {HF_TOKEN: hunter2}}"], None),
        (["--set", '--set=runtime_env={"env_vars": {"A": "hunter2"}}'], None),
        (["--set", "trainer_args={default_root_dir: 'https://h/a?password=hunter2'}"], None),
        (["http://h/x?sig=hunter2"], None),
        (["--set", "model.token =hunter2"], None),
        (["x", "--set", "model.lr=1", "--tokens", "5"], "x --set model.lr=1 --tokens 5"),
        (["x", "--set", "data.api_key=abc", "--set=b.api_key=a=b"], "x --set data.api_key=*** --set=b.api_key=***"),
        (["x", "--password", "abc", "more", "--hf-token=abc"], "x --password *** more --hf-token=***"),
    ],
)
def test_a_command_line_s_secrets_are_masked_and_its_other_words_shown(words, shown):
    found = " ".join(masked_command(words))
    assert SECRET not in found
    assert shown in (None, found)


GIVEN: dict[str, Any] = {
    "runtime_env": {
        "env_vars": {"MY_TOKEN": SECRET, "NCCL_DEBUG": SECRET},
        "pip": [f"--index-url https://u:{SECRET}@x"],
    },
    "trainer_args": {"default_root_dir": f"s3://me:{SECRET}@bucket/x"},
}


def free_of_secrets(folder: Path) -> bool:
    return not any(SECRET in file.read_text() for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def edited(tmp_path: Path) -> SweepResults:
    """Return a sweep into whose sweep.yaml somebody has written secrets."""
    written = Writer(tmp_path)
    written.trial(0.5, state="STOPPED", config={"x": 0.5})
    told = {**written.told, **GIVEN, "space": {"x": {"uniform": [0, 1]}}, "train": "builtins:print", "seed": 1}
    (written.folder / "sweep.yaml").write_text(yaml.safe_dump(told))
    return written.load()


def test_secrets_in_an_edited_file_are_not_shown_nor_in_what_is_made_of_it(edited):
    assert SECRET not in page(edited) + edited.summary()
    for words in (["show", "digits"], ["show", "digits", "0", "--json"], ["best", "digits", "--json"]):
        assert SECRET not in call(*words, "--storage", edited.folder.parent).output
    found = _prepare(edited, edited.trials[0], read_sweep_file(edited.folder))
    assert free_of_secrets(found)
    write_sweep_file(edited.folder, yaml.safe_load((edited.folder / "sweep.yaml").read_text()))
    assert SECRET not in (edited.folder / "sweep.yaml").read_text()


def test_errors_and_notes_are_recorded_without_them(sweep, tmp_path):
    trial = sweep.run(x=1)
    sweep.callback.note(f"cannot reach {URL}")
    sweep.fail(trial, message=f"no {URL}", traceback=f"at {URL}")
    sweep.end()
    assert SECRET not in (tmp_path / "record.jsonl").read_text()


def test_resume_takes_variables_from_the_environment(edited, monkeypatch, caplog):
    from tunelight.sweep.resume import _read_back

    monkeypatch.setenv("MY_TOKEN", "new")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    told = read_sweep_file(edited.folder)
    told["runtime_env"].pop("pip")
    with caplog.at_level(logging.WARNING):
        settings = _read_back(edited.folder, told, {"trainer_args": {}})
    assert settings["runtime_env"] == {"env_vars": {"MY_TOKEN": "new", "NCCL_DEBUG": "INFO"}}
    assert "MY_TOKEN, NCCL_DEBUG" in caplog.text


def test_resume_asks_for_variables_that_are_not_there_and_for_an_address_that_was_masked(edited, monkeypatch):
    monkeypatch.delenv("MY_TOKEN", raising=False)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    with pytest.raises(SettingsError, match=r"runtime_env.*MY_TOKEN.*runtime_env=") as refused:
        tl.resume(edited.folder, trainer_args={})
    assert "NCCL_DEBUG" not in str(refused.value)
    with pytest.raises(SettingsError, match=r"trainer_args\['default_root_dir'\].*\*\*\*.*trainer_args=") as refused:
        tl.resume(edited.folder, runtime_env=None)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("clear", [False, True])
def test_a_sweep_s_folder_holds_no_secret_and_a_script_that_goes_on_with_it_gives_them_again(tmp_path, clear):
    space = tl.SearchSpace({"model.lr": tl.uniform(0, 1)})
    common: dict[str, Any] = {
        "model": "tunelight.extras.digits:DigitsClassifier",
        "data": "tunelight.extras.digits:DigitsData",
        "metric": "val_loss",
        "storage": tmp_path,
        "name": "s",
        "seed": 1,
        **GIVEN,
    }
    with claimed(prepare(space, Settings(**common), None, SweepControl()), None) as first:
        assert {file.name for file in first.folder.iterdir()} >= {"sweep.yaml", "record.jsonl"}
    assert free_of_secrets(first.folder)
    told = yaml.safe_load((first.folder / "sweep.yaml").read_text())
    assert list(told["runtime_env"]["env_vars"]) == ["MY_TOKEN", "NCCL_DEBUG"]
    if clear:  # somebody has written it there
        (first.folder / "sweep.yaml").write_text(yaml.safe_dump({**told, "trainer_args": common["trainer_args"]}))
    settings = Settings(**common, resume=True)
    with open_saved_sweep(settings) as past:
        assert past is not None
        assert SECRET not in str(past.sweep_file)
        again = prepare(space, settings, past, SweepControl())
    assert again.settings.runtime_env == GIVEN["runtime_env"]
    assert SECRET not in str(again.sweep_file)
