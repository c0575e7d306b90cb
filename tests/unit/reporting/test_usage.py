"""What a page says of what workers used: numbers, and lines over time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.unit.recording import Sweep
from tests.unit.reporting.test_report import strings
from tunelight.record import SweepState, TrialState, apply, read_record
from tunelight.reporting.page import page
from tunelight.reporting.sections import usage_blocks
from tunelight.reporting.web import pages
from tunelight.reporting.web.watch import SweepWatch
from tunelight.results import SweepResults


def used(*samples: dict[str, Any]) -> TrialState:
    """Return a trial with samples, five seconds apart; each quantity by rank."""
    state = SweepState()
    apply(state, {"kind": "trial", "time": 0.0, "trial": "00000", "index": 0, "config": {}, "folder": "t"})
    for number, fields in enumerate(samples):
        apply(state, {"kind": "usage", "time": 5.0 * number, "trial": "00000", **fields})
    return state.trials["00000"]


def charts(state: TrialState) -> dict[str, Any]:
    """Return the lines over time, by their titles."""
    return {block["title"]: block["chart"] for block in usage_blocks(state) if "chart" in block}


def with_gpus(folder: Path) -> SweepResults:
    sweep = Sweep(folder, cpus_per_worker=4, gpus_per_worker=1)
    trial = sweep.add(lr=0.1)
    sweep.step()
    sweep.start(trial)
    for number in range(1, 4):
        sweep.clock.now += 60
        usage = {
            "cpu": 1.0, "memory": 612_000_000, "gpu": 0.3, "gpu_memory": 6_200_000_000,
            "gpu_memory_total": 80_000_000_000,
        }  # fmt: skip
        more = {"samples": 12, "gpu": 0.31}
        own = {"usage": ({"rank": 0, "last": usage, "peak": usage, **more},), "workers": 1, "seconds": 55.0 * number}
        sweep.report(trial, number, 0.5, own=own)
    sweep.end_by_itself(trial)
    sweep.end()
    sweep.callback.close()
    return SweepResults.load(folder)


def test_a_trial_without_samples_has_nothing_to_show() -> None:
    assert list(usage_blocks(used())) == []
    assert list(usage_blocks(used({"peak": True, "cpu": [1.0], "memory": [5]}))) == []


def test_quantities_that_are_not_known_have_neither_column_nor_line() -> None:
    state = used({"cpu": [1.0], "memory": [5]}, {"cpu": [2.0], "memory": [9]})
    assert next(usage_blocks(state))["names"] == ["rank, last", "CPUs", "memory MB"]
    assert len(charts(state)) == 2


def test_lines_have_gaps_where_a_quantity_was_not_known() -> None:
    both = {"cpu": [1.0, 3.0], "memory": [5, 9]}
    known = {**both, "gpu": [0.25, 0.75]}
    found = charts(used(known, both, {**known, "gpu": [None, 1.0]}, {**known, "gpu": [0.0, 0.0]}))
    gpus = found["part of the time in which its GPUs were busy"]
    assert (gpus["x"], gpus["y"], gpus["top"]) == ([0.0, 0.08, 0.17, 0.25], [0.5, None, 1.0, 0.0], 1.0)
    assert found["CPUs in use, as a mean of its workers"]["y"] == [2.0] * 4


def test_one_sample_is_a_table_without_a_line_and_many_are_thinned_out() -> None:
    one = {"cpu": [1.0], "memory": [5]}
    assert charts(used(one)) == {}
    found = charts(used(*[one] * 1000))
    assert all(50 < len(chart["x"]) <= 60 for chart in found.values())


def test_the_report_and_the_live_page_of_a_trial_show_gpus(tmp_path: Path) -> None:
    shown = page(with_gpus(tmp_path))
    assert '"gpus_busy":0.31' in shown
    live = strings(pages.trial_details(SweepWatch(tmp_path), read_record(tmp_path).trials["00000"]))
    for text in ("\n".join(live), shown):
        assert re.search(r"GPUs busy\W+31 %", text)
        assert re.search(r"peak memory of its GPUs\W+6.2 GB of 80.0 GB", text)
        assert "part of the time in which its GPUs were busy" in text
