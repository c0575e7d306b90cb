"""The copy of a study on disk: what Optuna and its dashboard read there, and what happens when it cannot be written."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import tunelight as tl
from tests.unit.recording import Sweep
from tests.unit.searchers.test_optuna import FLAT, counts, report, searcher
from tests.waiting import until
from tunelight.compat.optuna import constraints_of
from tunelight.errors import SettingsError
from tunelight.record import write_sweep_file
from tunelight.searchers import study_copy as mirror
from tunelight.searchers.study_copy import StudyCopy, check_address

THREE = {"COMPLETE": 1, "FAIL": 1, "PRUNED": 1}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "_PAUSE_S", 0.01)
    monkeypatch.setattr(mirror, "_RETRY_S", 0.01)


def opened(where: Path | str, name: str) -> optuna.Study:
    storage: Any = str(where) if "://" in str(where) else JournalStorage(JournalFileBackend(str(where)))
    return optuna.load_study(study_name=name, storage=storage)


def shown(where: Path, study: optuna.Study) -> bool:
    """Tell whether the copy shows the study by now; it may not have been begun."""
    with contextlib.suppress(KeyError):
        return same(opened(where, where.parent.name), study)
    return False


def told(one: Any, live: int = 1) -> Any:
    """Tell a searcher of a trial of each kind, and of one that goes on."""
    for number in range(3 + live):
        one.suggest(f"{number:05d}")
        one.on_trial_result(f"{number:05d}", report(1, 1.0 + number))
    one.end("00000", "FINISHED", report(2, 0.5))
    one.end("00001", "STOPPED", report(2, 0.75))
    one.end("00002", "ERROR")
    return one


def same(study: optuna.Study, other: optuna.Study) -> bool:
    def plain(one: optuna.Study) -> list[Any]:
        named = [trial for trial in one.trials if "trial" in trial.user_attrs]
        return [
            (t.params, t.distributions, t.state, t.values, t.intermediate_values, t.user_attrs, constraints_of(t))
            for t in named
        ]

    return plain(study) == plain(other)


# --- what is there ----------------------------------------------------------------------------------------


def test_the_journal_shows_the_study_while_it_grows_and_as_it_ended(tmp_path):
    one = searcher("tpe", FLAT)
    one.copy_to(tmp_path)
    told(one)
    until(lambda: shown(tmp_path / "study.journal", one.study), 20)
    assert counts(opened(tmp_path / "study.journal", tmp_path.name)) == {**THREE, "RUNNING": 1}
    one.on_trial_result("00003", report(2, 0.25))
    one.end("00003", "DIVERGED")
    one.close({})
    study = opened(tmp_path / "study.journal", tmp_path.name)
    assert same(study, one.study)
    assert counts(study) == {**THREE, "COMPLETE": 2}
    assert study.best_trial.user_attrs == {"trial": "00000", "state": "FINISHED"}
    assert study.metric_names == ["loss"]
    assert optuna.visualization.plot_optimization_history(study) is not None


def test_a_data_base_takes_the_study_just_as_well(tmp_path):
    where = f"sqlite:///{tmp_path}/studies.db"
    one = searcher("tpe", FLAT, study_storage=where)
    check_address(where, tmp_path)
    one.copy_to(tmp_path)
    told(one)
    one.close({})
    assert not (tmp_path / "study.journal").exists()
    assert same(opened(where, tmp_path.name), one.study)


def test_what_was_not_run_is_not_shown(tmp_path):
    from tests.unit.searchers.test_optuna import Half

    one = searcher("sobol", Half({"x": tl.uniform(0, 1), "y": tl.uniform(0, 1)}))
    one.copy_to(tmp_path)
    for number in range(6):
        one.suggest(f"{number:05d}")
    one.close({})
    assert len(one.study.trials) > 6
    study = opened(tmp_path / "study.journal", tmp_path.name)
    assert [trial.user_attrs["trial"] for trial in study.trials] == [f"{number:05d}" for number in range(6)]


def ask(app: Any, path: str) -> Any:
    """Ask a WSGI application as a server would."""
    answer: dict[str, Any] = {}
    environ = {
        "REQUEST_METHOD": "GET", "PATH_INFO": path, "SERVER_NAME": "localhost", "SERVER_PORT": "80",
        "wsgi.input": io.BytesIO(), "wsgi.errors": io.StringIO(), "wsgi.url_scheme": "http", "QUERY_STRING": "",
    }  # fmt: skip
    body = b"".join(app(environ, lambda status, headers, exc=None: answer.update(status=status)))
    assert answer["status"].startswith("200"), (answer, body)
    return json.loads(body)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_the_dashboard_counts_the_states_as_they_are(tmp_path):
    optuna_dashboard = pytest.importorskip("optuna_dashboard")

    one = searcher("tpe", FLAT)
    one.copy_to(tmp_path)
    told(one)
    journal = tmp_path / "study.journal"
    until(lambda: shown(journal, one.study), 20)
    app = optuna_dashboard.wsgi(JournalStorage(JournalFileBackend(str(journal))))
    (summary,) = ask(app, "/api/studies")["study_summaries"]
    assert summary["study_name"] == tmp_path.name
    trials = ask(app, f"/api/studies/{summary['study_id']}")["trials"]
    assert sorted(trial["state"] for trial in trials) == ["Complete", "Fail", "Pruned", "Running"]
    one.close({})


# --- when it goes on --------------------------------------------------------------------------------------


def again(tmp_path: Path, states: dict[str, str], **more: Any) -> optuna.Study:
    """Return the copy after another run in which trial 3 goes on, of which the copy said ``states``."""
    first = searcher("tpe", FLAT, **more)
    first.copy_to(tmp_path)
    told(first)
    if states:
        first.close(states)
    else:  # its driver is killed: nobody says what becomes of the trial
        until(lambda: shown(tmp_path / "study.journal", first.study), 20)
        first._study_copy.close()
    study = opened(tmp_path / "study.journal", tmp_path.name)
    study.set_user_attr("by", "hand")
    second = searcher("tpe", FLAT, **more)
    for number, trial in enumerate(first.study.trials):
        second.take(f"{number:05d}", trial.params, asked=True)
        for step, value in trial.intermediate_values.items():
            second.on_trial_result(f"{number:05d}", report(step, value))
    for number, state in enumerate(("FINISHED", "STOPPED", "ERROR")):
        second.end(f"{number:05d}", state)
    second.copy_to(tmp_path)
    second.on_trial_result("00003", report(2, 0.125))
    second.end("00003", "FINISHED")
    second.suggest("00004")
    second.close({"00004": "STOPPED"})
    found = opened(tmp_path / "study.journal", tmp_path.name)
    assert same(found, second.study)
    assert counts(found) == {"COMPLETE": 2, "FAIL": 1, "PRUNED": 2}
    return found


def test_what_a_killed_driver_left_running_is_brought_up_to_date_in_place(tmp_path):
    assert again(tmp_path, {}).user_attrs["by"] == "hand"


def test_a_copy_that_contradicts_the_record_is_written_anew(tmp_path):
    assert "by" not in again(tmp_path, {"00003": "INTERRUPTED"}).user_attrs


def test_a_line_that_was_torn_by_a_full_disk_is_cut_off(tmp_path):
    journal = tmp_path / "study.journal"
    one = searcher("tpe", FLAT)
    one.copy_to(tmp_path)
    one.suggest("00000")
    one.close({})
    with journal.open("ab") as file:
        file.write(b'{"op_code":4,"wor')
    two = searcher("tpe", FLAT)
    two.copy_to(tmp_path)
    two.suggest("00000")
    two.close({})
    assert same(opened(journal, tmp_path.name), two.study)


# --- when it cannot be written ----------------------------------------------------------------------------


def test_a_full_disk_is_said_once_and_the_copy_is_whole_once_there_is_room(tmp_path, caplog):
    one = searcher("tpe", FLAT)
    full = [OSError(28, "No space left on device")] * 3

    def opens() -> Any:
        if full:
            raise full.pop()
        return JournalStorage(JournalFileBackend(str(tmp_path / "j")))

    copy = one._study_copy = StudyCopy(one.study, one._storage, opens, "study.journal", tmp_path)
    with caplog.at_level(logging.WARNING, "tunelight"):
        copy.start()
        until(lambda: copy.failed is not None, 20)
        told(one)
        until(lambda: not full, 20)
        one.close({})
    (said,) = caplog.messages
    assert said.startswith("study.journal cannot be written: No space left on device. The sweep goes on")
    assert same(opened(tmp_path / "j", tmp_path.name), one.study)


def test_a_write_that_fails_halfway_is_made_good(tmp_path, monkeypatch):
    one = searcher("tpe", FLAT)
    one.copy_to(tmp_path)
    one.suggest("00000")
    journal = tmp_path / "study.journal"
    until(lambda: shown(journal, one.study), 20)
    whole, failures = JournalFileBackend.append_logs, [1, 2]

    def torn(self: Any, logs: Any) -> None:
        if failures:
            failures.pop()
            with journal.open("ab") as file:
                file.write(b'{"op_code":')
            raise OSError(28, "No space left on device")
        whole(self, logs)

    monkeypatch.setattr(JournalFileBackend, "append_logs", torn)
    one.on_trial_result("00000", report(1, 0.5))
    one.end("00000", "FINISHED")
    until(lambda: not failures, 20)
    one.close({})
    assert same(opened(journal, tmp_path.name), one.study)


def test_a_disk_that_stays_full_costs_the_end_of_a_sweep_no_time_without_end(tmp_path, caplog):
    one = searcher("tpe", FLAT)

    def opens() -> Any:
        raise OSError(28, "No space left on device")

    one._study_copy = StudyCopy(one.study, one._storage, opens, "study.journal", tmp_path)
    with caplog.at_level(logging.WARNING, "tunelight"):
        one._study_copy.start()
        began = time.monotonic()
        one.close({})
    assert time.monotonic() - began < 5
    assert "study.journal does not show the study as it ended: No space left on device." in caplog.messages[-1]


def test_a_study_of_another_sweep_is_left_alone(tmp_path, caplog):
    where = f"sqlite:///{tmp_path}/studies.db"
    first = searcher("tpe", FLAT, study_storage=where)
    first.copy_to(tmp_path / "a" / "digits")
    first.suggest("00000")
    first.close({})
    with pytest.raises(SettingsError, match=r"a study 'digits' already, .*optuna delete-study --storage sqlite"):
        check_address(where, tmp_path / "b" / "digits")
    check_address(where, tmp_path / "a" / "digits")
    second = searcher("tpe", FLAT, study_storage=where)
    with caplog.at_level(logging.WARNING, "tunelight"):
        second.copy_to(tmp_path / "b" / "digits")
        until(lambda: second._study_copy.failed is not None, 20)
        second.close({})
    assert same(opened(where, "digits"), first.study)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("studies.db", "'studies.db' is no address. Give one as 'sqlite:///studies.db'"),
        ("sqlite:////nowhere/at/all/studies.db", "cannot be used: .*unable to open"),
        ("sqllite:///x.db", "cannot be used"),
    ],
)
def test_an_address_that_does_not_work_is_told_before_anything_starts(tmp_path, where, says):
    with pytest.raises(SettingsError, match=says):
        check_address(where, tmp_path)


def train(config: dict[str, Any]) -> None:
    """Never run."""


def test_a_sweep_whose_driver_died_at_its_end_has_its_copy_brought_up_to_date(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    write_sweep_file(folder, {"metric": "loss", "seed": 3})
    first = searcher("tpe", FLAT)
    first.copy_to(folder)
    sweep = Sweep(folder)
    for number in range(2):
        trial = sweep.add(**first.suggest(f"{number:05d}"))
        sweep.start(trial)
        sweep.report(trial, 1, 0.5)
        sweep.end_by_itself(trial)
    sweep.callback.record.close()
    until(lambda: shown(folder / "study.journal", first.study), 20)
    first._study_copy.close()  # the ends are in the record, and nobody told the study of them
    assert counts(opened(folder / "study.journal", "s")) == {"RUNNING": 2}
    results = tl.run(
        FLAT, train, searcher="tpe", metric="loss", num_samples=2, storage=tmp_path, name="s", resume=True
    )  # fmt: skip
    assert results.num_finished == 2
    assert counts(opened(folder / "study.journal", "s")) == {"COMPLETE": 2}
