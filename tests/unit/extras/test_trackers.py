"""Runs of experiment trackers between two trials, with stand-ins, and TensorBoard's files by its own readers.

tests/integration/test_trackers.py asks W&B and MLflow themselves.
"""

from __future__ import annotations

import logging
import math
import pickle
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from tests.kit.recording import Lines
from tunelight.extras import trackers
from tunelight.extras.tensorboard import TensorBoardCallback


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what the libraries are told; a run of each is going on, of MLflow two."""
    told: list[Any] = []
    runs = ["nested", "outer"]

    def end_run(status: str) -> None:
        told.append(("mlflow", runs.pop(), status))

    def finish(exit_code: int) -> None:
        told.append(("wandb finishes", exit_code))

    def teardown(exit_code: int) -> None:
        told.append(("wandb's service ends", exit_code))
        sys.exit(exit_code)  # as wandb does by its service's

    libraries: dict[str, Any] = {
        "mlflow": SimpleNamespace(active_run=lambda: runs or None, end_run=end_run),
        "wandb": SimpleNamespace(
            run=SimpleNamespace(_is_attached=False, config={}, summary={}), finish=finish, teardown=teardown
        ),
    }
    for name, library in libraries.items():
        monkeypatch.setitem(sys.modules, name, library)
    return told


def test_a_run_that_cannot_be_ended_is_in_the_log_and_costs_no_other(said, capsys):
    del sys.modules["wandb"].finish
    trackers.end_runs("finished", limit_s=20)
    assert "tunelight: ending the run of wandb: AttributeError" in capsys.readouterr().out
    assert [what for what, *_ in said] == ["mlflow", "mlflow"]


def test_a_run_that_does_not_end_in_time_is_named(said: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(sys.modules["wandb"], "finish", lambda exit_code: released.wait(60))
    assert trackers.end_runs("finished", limit_s=0.1) == ("a run of wandb that had not ended within 0 s",)
    released.set()
    assert [what for what, *_ in said] == ["mlflow", "mlflow"]


class Store:
    """Takes its time to be opened, and finds out whether another one is opened meanwhile."""

    opening = 0
    most = 0
    tracking_uri = "sqlite:///runs.db"

    def __init__(self) -> None:
        Store.opening += 1
        Store.most = max(Store.most, Store.opening)
        threading.Event().wait(0.1)
        Store.opening -= 1


def test_stores_are_opened_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "_locks", tmp_path)
    monkeypatch.setattr(trackers, "_opened", set())
    make = Store.__init__
    monkeypatch.setattr(Store, "__init__", lambda self: trackers._mlflow_client(make, self))
    threads = [threading.Thread(target=Store) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert Store.most == 1


def test_what_the_user_passes_or_sets_stays_and_other_ranks_have_no_run_unless_they_name_their_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))
    monkeypatch.setattr(trackers, "_trial", None)  # and so again after the test
    for name in ("WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.setenv(name, "x")

    def wandb_init(project=None, *, id=None, name=None, tags=None, group=None, mode=None, resume=None, settings=None):  # noqa: A002 - as wandb's
        given = {"id": id, "name": name, "tags": tags, "group": group, "mode": mode, "resume": resume}
        return {key: value for key, value in given.items() if value is not None}

    def init(rank: int = 0, **given: Any) -> Any:
        """Start a trial on a rank, call wandb.init, and return what that is called with."""
        trackers.begin(str(tmp_path / "digits" / "trial_00003"), "00003", {"lr": 0.1}, rank=rank)
        return trackers._wandb_init(wandb_init, "p", **given)

    assert init(rank=1) == {"mode": "disabled"}
    assert init(rank=1, group="ranks") == {"group": "ranks"}
    monkeypatch.setenv("WANDB_RUN_GROUP", "mine")
    given: dict[str, Any] = {"id": "i", "name": "n", "tags": ["t"]}
    assert init(**given, settings={"run_group": "mine"}) == given


class Sweep(Lines):
    """A sweep that never ran, and what TensorBoard reads of it; a second passes before each report."""

    def __init__(self, folder: Path, metric: str | None = "loss", mode: str = "min") -> None:
        super().__init__(metric=metric, mode=mode)
        self.folder = folder
        self.callback = TensorBoardCallback(folder, self.state, clock=lambda: self.now)

    def report(self, trial: str, n: int, epoch: int | None = -1, **metrics: Any) -> None:
        self.now += 1
        super().report(trial, n, epoch, **metrics)

    def read(self, trial: str) -> EventAccumulator:
        events = EventAccumulator(str(self.folder / f"trial_{trial}"))
        events.Reload()
        return events

    def scalars(self, trial: str, tag: str) -> list[tuple[int, float]]:
        return [(event.step, event.value) for event in self.read(trial).Scalars(tag)]


@pytest.fixture
def sweep(tmp_path):
    made = Sweep(tmp_path)
    yield made
    made.callback.close()


def test_each_number_is_a_scalar_of_its_own_name_and_the_best_so_far_one_beside_the_metric(sweep):
    sweep.start("a")
    sweep.report("a", 1, loss=math.nan, acc=0.25, val={"f1": 2}, label="x", ok=True, series=[1, 2], _private=1)
    for n, loss in enumerate((0.5, 0.75, 0.25), start=2):
        sweep.report("a", n, loss=loss)
    sweep.end("a")
    assert set(sweep.read("a").Tags()["scalars"]) == {"loss", "loss/best", "acc", "val/f1", "ok"}
    assert sweep.scalars("a", "val/f1") == [(1, 2.0)]
    assert sweep.scalars("a", "loss")[1:] == [(2, 0.5), (3, 0.75), (4, 0.25)]
    assert sweep.scalars("a", "loss/best") == [(2, 0.5), (3, 0.5), (4, 0.25)]
    assert [event.wall_time for event in sweep.read("a").Scalars("loss")][:2] == [1_000_001.0, 1_000_002.0]
    sweep.start("b")
    sweep.report("b", 1, **{"loss": 0.5, "loss/best": 7.0})  # the user's own
    sweep.end("b")
    assert sweep.scalars("b", "loss/best") == [(1, 7.0)]


def test_a_trial_that_runs_can_be_read_with_its_configuration_of_every_type_and_no_thread_is_started(tmp_path):
    sweep = Sweep(tmp_path, metric=None)
    config = {
        "lr": 0.125, "hidden": 64, "norm": True, "act": "relu", "drop": None, "layers": [1, 2],
        "nan": math.nan, "model": {"depth": 3, "empty": {}}, "huge": 10**400, "_private": 1,
    }  # fmt: skip
    before = threading.active_count()
    sweep.start("a", config)
    sweep.report("a", 1, acc=0.5)
    assert threading.active_count() == before
    assert table_of(tmp_path)["trial_a"][0] == {
        "lr": 0.125, "hidden": 64.0, "norm": True, "act": "relu", "drop": "None", "layers": "[1, 2]",
        "nan": "nan", "model.depth": 3.0, "model.empty": "{}", "huge": str(10**400),
    }  # fmt: skip
    assert sweep.scalars("a", "acc") == [(1, 0.5)]
    assert sweep.read("a").Tags()["scalars"] == ["acc"]  # and no best of no metric
    assert pickle.loads(pickle.dumps(TensorBoardCallback(tmp_path, sweep.state)))
    sweep.callback.close()


def table_of(folder: Path) -> dict[str, tuple[dict[str, Any], dict[str, float], int]]:
    """Return what the HPARAMS tab would list: run -> (hyperparameters, metrics, status)."""
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    runs = plugin_event_multiplexer.EventMultiplexer()
    runs.AddRunsFromDirectory(str(folder))
    runs.Reload()
    provider = data_provider.MultiplexerDataProvider(runs, str(folder))
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    request = api_pb2.ListSessionGroupsRequest(
        slice_size=100, allowed_statuses=[0, 1, 2, 3], aggregation_type=api_pb2.AGGREGATION_AVG
    )
    found = list_session_groups.Handler(RequestContext(), context, "", request).run()
    return {
        group.name: (
            {key: getattr(value, value.WhichOneof("kind")) for key, value in group.hparams.items()},
            {value.name.tag: value.value for value in group.metric_values},
            group.sessions[0].status,
        )
        for group in found.session_groups
    }


def test_the_hparams_tab_lists_every_trial_with_its_best_value(sweep):
    for trial, state, opt in (("a", "FINISHED", "sgd"), ("b", "STOPPED", None), ("c", "ERROR", "adam")):
        sweep.start(trial, {"opt": opt, f"only_{trial}": 1})
        sweep.report(trial, 1, loss=0.25)
        sweep.report(trial, 2, loss=0.5)
        sweep.end(trial, state)
    sweep.start("d", {"opt": "sgd"})
    sweep.end("d", "DIVERGED")
    sweep.start("e", {"opt": "sgd"})
    sweep.callback.close()
    table = table_of(sweep.folder)
    assert table["trial_a"] == ({"opt": "sgd", "only_a": 1.0}, {"loss": 0.5, "loss/best": 0.25}, 1)
    assert table["trial_b"] == ({"opt": "None", "only_b": 1.0}, {"loss": 0.5, "loss/best": 0.25}, 1)
    assert table["trial_c"] == ({"opt": "adam", "only_c": 1.0}, {"loss": 0.5, "loss/best": 0.25}, 2)
    assert table["trial_d"] == ({"opt": "sgd"}, {}, 2)
    assert table["trial_e"] == ({"opt": "sgd"}, {}, 0)


def test_how_a_trial_ended_is_told_as_text_also_where_tune_saw_it_fail(sweep):
    error = {"rank": 1, "type_name": "ValueError", "message": "no <b>", "traceback": "Traceback\n  line"}
    for trial, state in (("a", "STOPPED"), ("b", "ERROR")):
        sweep.start(trial)
        sweep.report(trial, 1, loss=0.5)
        how = {"error": error} if state == "ERROR" else {"why": "place 2 of 2"}
        sweep.line("state", trial=trial, state=state, **how)
        sweep.hear("on_trial_error" if state == "ERROR" else "on_trial_complete", trial)
    said = {trial: sweep.read(trial).Tensors("state") for trial in "ab"}
    assert [event.tensor_proto.string_val[0].decode() for event in said["a"]] == ["STOPPED\n\n    place 2 of 2"]
    assert said["b"][0].tensor_proto.string_val[0].decode().splitlines() == [
        "ERROR", "", "    rank 1: ValueError: no <b>", "    Traceback", "      line",
    ]  # fmt: skip
    assert said["b"][0].step == 1
    assert sweep.read("a").SummaryMetadata("state").plugin_data.plugin_name == "text"
    content = sweep.read("b").SummaryMetadata(metadata.SESSION_END_INFO_TAG).plugin_data.content
    assert metadata.parse_session_end_info_plugin_data(content).status == 2


def test_a_trial_that_starts_again_keeps_its_first_file_and_a_sweep_taken_up_again_writes_only_what_is_new(sweep):
    sweep.start("a")
    sweep.report("a", 1, loss=0.5)
    sweep.end("a", "ERROR")
    sweep.now -= 1  # both files are opened within the same second
    sweep.line("state", trial="a", state="RUNNING")
    sweep.hear("on_trial_start", "a")
    sweep.report("a", 2, loss=0.25)
    sweep.end("a")
    assert len(list((sweep.folder / "trial_a").iterdir())) == 2
    assert sorted(sweep.scalars("a", "loss")) == [(1, 0.5), (2, 0.25)]
    sweep.start("b")
    sweep.report("b", 1, loss=0.5)
    sweep.callback.close()
    sweep.callback = TensorBoardCallback(sweep.folder, sweep.state, clock=lambda: sweep.now + 60)
    sweep.report("b", 2, loss=0.25)
    sweep.end("b")
    assert sweep.scalars("b", "loss") == [(1, 0.5), (2, 0.25)]


def test_no_file_stays_open_and_a_paused_trial_goes_on_in_its_own(sweep):
    before = open_files(sweep.folder)
    for number in range(10):
        trial = f"{number:05d}"
        sweep.start(trial)
        sweep.report(trial, 1, loss=number)
        sweep.line("state", trial=trial, state="PAUSED")
    sweep.line("state", trial="00007", state="RUNNING")
    sweep.hear("on_trial_start", "00007")
    sweep.report("00007", 2, loss=0.5)
    assert open_files(sweep.folder) == before
    sweep.end("00007")
    assert sweep.scalars("00007", "loss") == [(1, 7.0), (2, 0.5)]
    assert len(list((sweep.folder / "trial_00007").iterdir())) == 1
    sweep.callback.close()
    assert sweep.scalars("00009", "loss") == [(1, 9.0)]


def open_files(folder: Path) -> list[str]:
    return [file.path for file in psutil.Process().open_files() if Path(file.path).is_relative_to(folder)]


def test_it_never_raises_warns_once_and_leaves_out_whom_the_live_view_does_not_know(tmp_path, caplog):
    (tmp_path / "file").write_text("no folder")
    sweep = Sweep(tmp_path / "file")
    with caplog.at_level(logging.WARNING, logger="tunelight"):
        sweep.hear("on_trial_start", "unknown")
        sweep.hear("on_trial_complete", "unknown")
        assert not caplog.records
        sweep.start("a")
        sweep.report("a", 1, loss=0.5)
        sweep.end("a")
        sweep.callback.close()
    assert len(caplog.records) == 1
    assert "TensorBoardCallback failed; the sweep goes on" in caplog.text
