"""What a page says of what workers used: numbers, and lines over time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.unit.recording import Sweep
from tunelight.record import SweepState, TrialState, apply, read_record
from tunelight.reporting.page import page
from tunelight.reporting.usage_section import usage_section
from tunelight.reporting.web import pages
from tunelight.reporting.web.watch import SweepWatch
from tunelight.results import SweepResults

POINT = re.compile(r"([ML])([0-9.]+),([0-9.]+)")


def used(*samples: dict[str, Any]) -> TrialState:
    """Return a trial with samples, five seconds apart; each quantity by rank."""
    state = SweepState()
    apply(state, {"kind": "trial", "time": 0.0, "trial": "00000", "index": 0, "config": {}, "folder": "t"})
    for number, fields in enumerate(samples):
        apply(state, {"kind": "usage", "time": 5.0 * number, "trial": "00000", **fields})
    return state.trials["00000"]


def lines(shown: str) -> dict[str, list[tuple[str, float, float]]]:
    """Return the points of each line, by its caption: whether one begins there, and where it is."""
    found = re.findall(r'class="line" d="([^"]*)".*?<figcaption>(.*?)</figcaption>', shown)
    return {said: [(pen, float(x), float(y)) for pen, x, y in POINT.findall(path)] for path, said in found}


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


def test_a_trial_without_samples_has_no_section() -> None:
    assert list(usage_section(used())) == []
    assert list(usage_section(used({"peak": True, "cpu": [1.0], "memory": [5]}))) == []


def test_quantities_that_are_not_known_have_neither_column_nor_line() -> None:
    shown = "".join(usage_section(used({"cpu": [1.0], "memory": [5]}, {"cpu": [2.0], "memory": [9]})))
    assert "CPUs" in shown
    assert "GPU" not in shown
    assert len(lines(shown)) == 2


def test_lines_go_from_nothing_to_the_most_and_have_gaps_where_a_quantity_was_not_known() -> None:
    both = {"cpu": [1.0, 3.0], "memory": [5, 9]}
    known = {**both, "gpu": [0.25, 0.75]}
    shown = "".join(usage_section(used(known, both, {**known, "gpu": [None, 1.0]}, {**known, "gpu": [0.0, 0.0]})))
    found = lines(shown)
    assert found["part of the time in which its GPUs were busy, over 15s"] == [
        ("M", 6, 75), ("M", 398, 6), ("L", 594, 144),
    ]  # fmt: skip
    assert [pen for pen, _, _ in found["CPUs in use, as a mean of its workers, over 15s"]] == ["M", "L", "L", "L"]


def test_one_sample_is_a_table_without_a_line_and_many_are_thinned_out() -> None:
    one = {"cpu": [1.0], "memory": [5]}
    assert lines("".join(usage_section(used(one)))) == {}
    found = lines("".join(usage_section(used(*[one] * 1000))))
    assert all(50 < len(line) <= 60 for line in found.values())


def test_a_report_shows_gpus_over_time_and_how_busy_they_were(tmp_path: Path) -> None:
    shown = page(with_gpus(tmp_path))
    assert "<p>GPUs 31 % busy.</p>" in shown
    assert re.search(r"<th>GPUs busy</th><td>31 %", shown)
    assert re.search(r"<th>peak memory of its GPUs</th><td>6.2 GB of 80.0 GB", shown)
    assert "part of the time in which its GPUs were busy, over 2m 00s" in lines(shown)


def test_the_live_page_of_a_trial_shows_the_same(tmp_path: Path) -> None:
    with_gpus(tmp_path)
    shown = pages.trial_body(SweepWatch(tmp_path), read_record(tmp_path).trials["00000"])
    assert shown.count("What its workers used") == 1
    assert "part of the time in which its GPUs were busy, over 2m 00s" in lines(shown)
    assert re.search(r"<th>GPUs busy</th><td>31 %", shown)
