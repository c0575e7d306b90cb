"""What workers use, in a record: within its budget, and as peaks of each trial."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.recording import Sweep, lines
from tunelight.messages import Usage, Used
from tunelight.record import RecordCallback, read_record
from tunelight.record.usage import FIRST_BYTES, OF_SAMPLES, SHARE, Budget
from tunelight.results import SweepResults
from tunelight.results.words import used

MB = 1_000_000


def rank(number: int, cpu: float, memory: int, gpu: float | None = None, samples: int = 2) -> dict[str, Any]:
    """Return what a head passes on of a rank (``tunelight.gang.usage.UsageLog.news``); ``memory`` in MB.

    With a GPU it uses twice as much of that one's 8 GB.
    """
    usage = Usage(cpu, memory * MB)
    if gpu is not None:
        usage = replace(usage, gpu=gpu, gpu_memory=2 * memory * MB, gpu_memory_total=8000 * MB)
    return {"rank": number, **Used(samples, usage, usage, gpu).asdict()}


@pytest.fixture
def sweep(tmp_path):
    made = Sweep(tmp_path)
    yield made
    made.callback.close()


def usage_lines(folder: Path) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, lines(folder)) if line["kind"] == "usage"]


def ratio(folder: Path) -> float:
    """Return the share of the record that says what workers use, beyond the first allowance."""
    found = lines(folder)
    own = sum(len(line) + 1 for line in found if b'"kind":"usage"' in line)
    return (own - FIRST_BYTES) / sum(len(line) + 1 for line in found)


# --- the budget ---------------------------------------------------------------------------------------------


def test_the_budget_is_a_hundredth_of_the_record_beside_a_first_allowance():
    sizes = Counter({"report": 0})
    budget, fields = Budget(sizes), {"trial": "00000", "cpu": [1.23, 0.98], "memory": [612, 598]}
    written = 0
    for _ in range(50_000):
        sizes["report"] += 250
        if budget.allows(fields):
            sizes["usage"] += 110
            written += 1
        assert sizes["usage"] <= FIRST_BYTES + SHARE * sizes.total()
    assert sizes["usage"] > 0.99 * (FIRST_BYTES + SHARE * sizes.total())
    assert written < 2000


def test_samples_leave_room_for_peaks():
    sizes = Counter({"report": 1_000_000})
    budget, fields = Budget(sizes), {"trial": "00000", "cpu": [1.23], "memory": [612]}
    while budget.allows(fields, OF_SAMPLES):
        sizes["usage"] += 120
    assert sizes["usage"] == pytest.approx(OF_SAMPLES * (FIRST_BYTES + 10_000), rel=0.01)
    assert budget.allows(fields)


def test_thousands_of_reports_stay_within_it_also_after_a_resume(tmp_path):
    first = Sweep(tmp_path)
    trial = first.add(lr=0.1)
    first.start(trial)
    for number in range(1, 1501):
        first.report(trial, number, 0.5, own={"usage": (rank(0, 1.25, 612), rank(1, 1.5, 700 + number))})
    assert ratio(tmp_path) <= SHARE
    assert 100 < len(usage_lines(tmp_path)) < 500  # of 1500 samples
    first.callback.record.close()  # the driver dies
    written = len(usage_lines(tmp_path))
    again = RecordCallback(tmp_path, again={"00000": False}, metric="loss", mode="min")
    for number in range(1501, 1601):
        own = {"usage": (rank(0, 1.25, 612), rank(1, 1.5, 3000))}
        result = {"loss": 0.5, "training_iteration": number, "_tunelight": own, "timestamp": 1.0, "epoch": 1}
        again.on_trial_result(iteration=1, trials=[trial], trial=trial, result=result)
    assert len(usage_lines(tmp_path)) < written + 10  # the allowance is for the record, not for each driver
    again.close()
    assert usage_lines(tmp_path)[-1]["peak"]
    assert ratio(tmp_path) <= SHARE
    assert again.state.trials["00000"].peak["memory"] == 3000
    assert read_record(tmp_path) == again.state


# --- what is written ----------------------------------------------------------------------------------------


def test_a_sample_is_recorded_by_rank_and_a_trial_s_peaks_at_its_end(sweep):
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 1, 0.5, own={"usage": (rank(0, 1.804, 612), rank(1, 0.5, 900))})
    sweep.report(trial, 2, 0.4)
    sweep.report(trial, 3, 0.3, own={"usage": (rank(0, 0.25, 400),)})
    known = sweep.state.trials["00000"]
    assert known.usage == [{"cpu": 0.25, "memory": 400}, {"cpu": 0.5, "memory": 900}]
    assert known.peak == {"cpu": 1.8, "memory": 900}
    sweep.end_by_itself(trial)
    first, second, last = usage_lines(sweep.folder)
    assert (first["cpu"], first["memory"]) == ([1.8, 0.5], [612, 900])
    assert (second["cpu"], second["memory"]) == ([0.25, 0.5], [400, 900])
    assert (last["peak"], last["cpu"], last["memory"]) == (True, [1.8, 0.5], [612, 900])
    assert "gpu" not in last
    assert read_record(sweep.folder) == sweep.state
    assert [json.loads(line)["kind"] for line in lines(sweep.folder)][-2:] == ["usage", "state"]


def test_of_a_trial_with_one_sample_only_the_peaks_are_written(sweep):
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 1, 0.5, own={"usage": (rank(0, 0.5, 500, samples=1),)})
    assert usage_lines(sweep.folder) == []
    sweep.end_by_itself(trial)
    (line,) = usage_lines(sweep.folder)
    assert line["peak"]
    assert sweep.state.trials["00000"].peak == {"cpu": 0.5, "memory": 500}


def test_a_gang_that_has_shrunk_has_no_samples_of_ranks_that_are_gone(sweep):
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 1, 0.5, own={"usage": (rank(0, 1.0, 100), rank(1, 1.0, 700)), "workers": 2})
    sweep.report(trial, 2, 0.5, own={"usage": (rank(0, 1.0, 200),), "workers": 1})
    assert sweep.state.trials["00000"].usage == [{"cpu": 1.0, "memory": 200}]
    assert sweep.state.trials["00000"].peak["memory"] == 700


def test_a_rank_that_was_not_heard_yet_is_unknown(sweep):
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 1, 0.5, own={"usage": (rank(1, 1.0, 700),)})
    assert sweep.state.trials["00000"].usage == [{"cpu": None, "memory": None}, {"cpu": 1.0, "memory": 700}]
    assert sweep.state.trials["00000"].peak == {"cpu": 1.0, "memory": 700}


def test_a_trial_that_fails_leaves_its_peaks(sweep):
    trial = sweep.add()
    sweep.start(trial)
    error = {"rank": 0, "node": "n", "type_name": "MemoryError", "message": "no", "traceback": "T", "state": "OOM"}
    own = {"error": error, "usage": (rank(0, 1.0, 64_000),)}
    result = {"_tunelight": own, "done": True, "training_iteration": 0}
    sweep.call("on_trial_result", trial=trial, result=result)
    assert sweep.states() == ["OOM"]
    assert usage_lines(sweep.folder)[-1]["memory"] == [64_000]
    assert read_record(sweep.folder).trials["00000"].peak["memory"] == 64_000


def test_the_mean_of_gpus_counts_each_sample_and_goes_on_after_a_resume(tmp_path):
    first = Sweep(tmp_path)
    trial = first.add()
    first.start(trial)
    first.report(trial, 1, 0.5, own={"usage": (rank(0, 1.0, 100, gpu=0.9, samples=1), rank(1, 1.0, 100, 0.5, 3))})
    first.callback.close()
    state = read_record(tmp_path).trials["00000"]
    assert (state.peak["mean_gpu"], state.peak["samples"]) == (0.6, 4)
    again = RecordCallback(tmp_path, again={"00000": False}, metric="loss", mode="min")
    result = {"loss": 0.5, "training_iteration": 2, "timestamp": 1.0, "epoch": 1}
    own = {"usage": (rank(0, 1.0, 100, gpu=0.8, samples=4),)}
    again.on_trial_result(iteration=1, trials=[trial], trial=trial, result={**result, "_tunelight": own})
    again.close()
    assert read_record(tmp_path).trials["00000"].peak["mean_gpu"] == pytest.approx(0.7)
    assert read_record(tmp_path) == again.state


def test_means_of_gpus_are_known_while_a_trial_runs_and_each_line_says_those_since_the_one_before(sweep):
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 1, 0.5, own={"usage": (rank(0, 1.0, 100, gpu=0.9, samples=2),)})
    sweep.clock.now += 10
    sweep.report(trial, 2, 0.4, own={"usage": (rank(0, 3.0, 200, gpu=0.3, samples=4), rank(1, 3.0, 50, 0.3, 2))})
    known = sweep.state.trials["00000"]
    measured = {"cpu": 3.0, "memory": 200, "gpu": 0.9, "gpu_memory": 400, "gpu_memory_total": 8000}
    means = {"mean_gpu": 0.45, "samples": 8}
    assert known.peak == pytest.approx(measured | means)
    assert known.usage[1] == {**measured, "memory": 50, "gpu": 0.3, "gpu_memory": 100}
    assert known.samples[1] == {"time": 1010.0, **measured, "gpu": 0.3}
    sweep.end_by_itself(trial)
    assert known.peak == pytest.approx(measured | means)
    assert [line.get("samples") for line in usage_lines(sweep.folder)] == [2, 6, None]
    assert read_record(sweep.folder) == sweep.state


def test_samples_for_which_there_is_no_room_are_in_the_means_of_the_next_line(sweep, monkeypatch):
    trial = sweep.add()
    sweep.start(trial)
    room = iter([False, True])
    monkeypatch.setattr(Budget, "allows", lambda self, fields, share=1.0: next(room))
    sweep.report(trial, 1, 0.5, own={"usage": (rank(0, 1.0, 100, gpu=0.9, samples=3),)})
    assert usage_lines(sweep.folder) == []
    sweep.report(trial, 2, 0.5, own={"usage": (rank(0, 1.0, 100, gpu=0.1, samples=1),)})
    assert sweep.state.trials["00000"].peak["mean_gpu"] == pytest.approx(0.7)
    monkeypatch.undo()


def test_a_worker_without_a_gpu_leaves_no_means(sweep):
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 1, 0.5, own={"usage": (rank(0, 1.0, 100),)})
    assert sweep.state.trials["00000"].peak == {"cpu": 1.0, "memory": 100}


def test_a_mig_instance_that_tells_its_memory_alone_is_recorded_with_that(sweep):
    trial = sweep.add()
    sweep.start(trial)
    usage = Usage(1.0, 100 * MB, None, 5000 * MB, 10_000 * MB)
    sweep.report(trial, 1, 0.5, own={"usage": ({"rank": 0, **Used(2, usage, usage).asdict()},)})
    sweep.end_by_itself(trial)
    sweep.end()
    peak = {"cpu": 1.0, "memory": 100, "gpu_memory": 5000, "gpu_memory_total": 10_000}
    found = SweepResults.load(sweep.folder)
    assert found.trials[0].peak == peak
    assert found.trials[0].used["peak memory of its GPUs"] == "5.0 GB of 10.0 GB"
    assert found.gpus_busy is None


# --- what is read -------------------------------------------------------------------------------------------


def test_a_record_that_says_nothing_of_it_is_read(sweep):
    trial = sweep.add(lr=0.1)
    sweep.start(trial)
    sweep.report(trial, 1, 0.5)
    results = SweepResults.load(sweep.folder)
    assert all(trial.peak == {} and trial.usage == [] for trial in results.record.trials.values())
    assert results.best.used == {}
    assert not [name for name in results.dataframe().columns if name.startswith("peak")]


def test_a_reader_takes_quantities_that_it_does_not_know_for_nothing(sweep):
    trial = sweep.add()
    sweep.start(trial)
    sweep.callback.record.append("usage", trial="00000", cpu=[1.0], memory=[612], gpu_heat=[80], mean_gpu_heat=70)
    assert read_record(sweep.folder).trials["00000"].peak == {"cpu": 1.0, "memory": 612}


def test_results_hold_the_peaks_and_say_them_in_words(sweep):
    trial = sweep.add(lr=0.1)
    sweep.start(trial)
    sweep.report(trial, 1, 0.5, own={"usage": (rank(0, 1.8, 1240, gpu=0.31),)})
    sweep.end_by_itself(trial)
    sweep.end()
    results = SweepResults.load(sweep.folder)
    assert results.best.peak == {
        "cpu": 1.8, "memory": 1240, "gpu": 0.31, "gpu_memory": 2480, "gpu_memory_total": 8000,
        "mean_gpu": 0.31,
    }  # fmt: skip
    assert results.best.used == {
        "peak memory of a worker": "1.2 GB",
        "CPUs used": "1.8",
        "peak memory of its GPUs": "2.5 GB of 8.0 GB",
        "GPUs busy": "31 %",
    }
    row = results.dataframe().iloc[0]
    assert (row["peak.memory"], row["peak.mean_gpu"]) == (1240, 0.31)
    assert list(results.dataframe().columns)[-1] == "peak.mean_gpu"
    assert results.gpus_busy == 0.31
    assert "GPUs 31 % busy." in results.summary()
    assert used({"memory": 612, "cpu": 1.84}, cpus=2) == {"peak memory of a worker": "612 MB", "CPUs used": "1.8 of 2"}
