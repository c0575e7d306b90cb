"""Records of random sweeps, cut off at every byte: readers never fail and never invent, against a slow reference."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunelight.extras.attach import RecordFollower
from tunelight.record import Record, SweepState, read_record

Line = dict[str, Any]
FAILED = ("ERROR", "DIVERGED", "OOM")


def events(rng: random.Random) -> Iterator[Line]:
    """Yield what happens in a sweep of several trials at once, which is cut off and resumed now and then."""
    metric = {"metric": "loss", "mode": rng.choice(["min", "max"]), "num_samples": 4}
    yield {"kind": "sweep", "sweep": {**metric, "name": "s", "run": {"command": "python a.py"}}}
    states: dict[str, str] = {}
    reports: dict[str, int] = {}
    for _ in range(rng.randrange(60, 120)):
        going = [trial for trial, state in states.items() if state == "RUNNING"]
        waiting = [trial for trial, state in states.items() if state in ("PENDING", "PAUSED", "INTERRUPTED")]
        kind = rng.choice(
            ["trial", "start", "report", "report", "report", "checkpoint", "end", "note", "config", "run"]
        )
        if kind == "trial" and len(states) < 4:
            trial = f"{len(states):05d}"
            config = {"lr": rng.random(), "name": rng.choice(["plain", "ünïcode \n\u2028", '"crc":"00000000"}'])}
            states[trial], reports[trial] = "PENDING", 0
            yield {"kind": "trial", "trial": trial, "index": int(trial), "config": config, "folder": f"trial_{trial}"}
        elif kind == "start" and waiting:
            trial = rng.choice(waiting)
            states[trial] = "RUNNING"
            yield {"kind": "state", "trial": trial, "state": "RUNNING"}
            yield {"kind": "training", "trial": trial}
        elif kind == "report" and going:
            trial = rng.choice(going)
            reports[trial] += 1
            value = rng.choice([rng.random(), 0.5, math.nan, math.inf, -math.inf, None])
            yield {
                "kind": "report", "trial": trial, "training_iteration": reports[trial], "epoch": reports[trial] - 1,
                "metrics": {"loss": value}, "timestamp": 1.0, "decision": "CONTINUE",
            }  # fmt: skip
        elif kind == "checkpoint" and going:
            trial = rng.choice(going)
            if reports[trial]:
                path = f"trial_{trial}/checkpoints/report-{reports[trial]:06d}.ckpt"
                yield {"kind": "checkpoint", "trial": trial, "path": path, "training_iteration": reports[trial]}
        elif kind == "end" and going:
            trial = rng.choice(going)
            states[trial] = rng.choice(["FINISHED", "STOPPED", *FAILED, "PAUSED"])
            yield {"kind": "state", "trial": trial, "state": states[trial], "why": rng.choice([None, "place 2 of 2"])}
        elif kind == "config" and len(going) > 1:
            one, other = rng.sample(going, 2)
            yield {
                "kind": "config", "trial": one, "training_iteration": reports[one], "parent": other,
                "parent_iteration": reports[other], "config": {"lr": rng.random()},
            }  # fmt: skip
        elif kind == "note":
            yield {"kind": "note", "trial": rng.choice([None, *states]), "text": "a remark"}
        elif kind == "run" and rng.random() < 0.3:
            for trial in going:
                states[trial] = "INTERRUPTED"
                yield {"kind": "state", "trial": trial, "state": "INTERRUPTED"}
            yield {"kind": "end", "reason": "interrupted"}
            yield {"kind": "sweep", "sweep": {**metric, "run": {"command": "python a.py"}}}


def expected(lines: list[Line]) -> dict[str, Any]:
    """Return what a reader must know of some events, found by searching them all for each question."""
    trials = [line for line in lines if line["kind"] == "trial"]
    found: dict[str, Any] = {"trials": {}, "runs": sum(line["kind"] == "sweep" for line in lines)}
    mode = lines[0]["sweep"]["mode"] if lines else "min"
    for trial in trials:
        own = [line for line in lines if line.get("trial") == trial["trial"]]
        states = ["PENDING", *(line["state"] for line in own if line["kind"] == "state")]
        configs = [line["config"] for line in own if "config" in line]
        found["trials"][trial["trial"]] = {
            "state": states[-1],
            "config": configs[-1],
            "reports": [
                (line["training_iteration"], line["metrics"]["loss"]) for line in own if line["kind"] == "report"
            ],
            "checkpoints": [line["path"] for line in own if line["kind"] == "checkpoint"],
            "parents": [line["parent"] for line in own if line["kind"] == "config"],
        }
    for name, failed in (("best", False), ("best_failed", True)):
        values = [
            (value if mode == "min" else -value, int(trial), number)
            for trial, known in found["trials"].items()
            for number, value in known["reports"]
            if (known["state"] in FAILED) is failed and value is not None and math.isfinite(value)
        ]
        found[name] = None
        if values:
            value, index, number = min(values)
            found[name] = (value if mode == "min" else -value, f"{index:05d}", number)
    ends = [line["kind"] for line in lines if line["kind"] in ("sweep", "end")]
    found["ended"] = bool(ends) and ends[-1] == "end"
    found["notes"] = [(line["trial"], line["text"]) for line in lines if line["kind"] == "note"]
    return found


def known(state: SweepState) -> dict[str, Any]:
    """Return the same of what a reader has made of a record."""
    best = {
        name: None if one is None else (one.value, one.trial, one.training_iteration)
        for name, one in (("best", state.best), ("best_failed", state.best_failed))
    }
    trials = {
        trial.id: {
            "state": trial.state,
            "config": trial.config,
            "reports": [(report["training_iteration"], report["loss"]) for report in trial.history],
            "checkpoints": [one["path"] for one in trial.checkpoints],
            "parents": [change["parent"] for change in trial.changes],
        }
        for trial in state.trials.values()
    }
    states = [trial.state for trial in state.trials.values()]
    assert {name: count for name, count in state.counts.items() if count} == {one: states.count(one) for one in states}
    assert set(state.live) == {trial.id for trial in state.trials.values() if trial.state in ("RUNNING", "PAUSED")}
    return {
        "trials": trials, "runs": len(state.runs), **best, "ended": state.ended is not None, "notes": state.notes,
    }  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Tell whether two answers are equal, NaN to NaN."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def written(folder: Path, lines: list[Line], clock: Callable[[], float]) -> bytes:
    """Write a record; return its bytes."""
    record = Record.open(folder, clock)
    for line in lines:
        record.append(**line)
    record.close()
    return record.path.read_bytes()


@pytest.mark.parametrize("seed", range(6))
def test_a_record_cut_off_at_any_byte_is_read_up_to_there(tmp_path, seed, monkeypatch) -> None:
    monkeypatch.setattr("tunelight.record.record._LONG", seed % 2 * 4096)  # with a snapshot, which grows
    rng = random.Random(seed)
    lines = list(events(rng))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    text = written(whole, lines, lambda: 1000.0)
    path = cut / "record.jsonl"
    path.write_bytes(b"")
    follower = RecordFollower(cut)
    shown = -1
    for size in range(len(text) + 1):
        with path.open("ab") as stream:
            stream.write(text[size - 1 : size] if size else b"")
        count = text.count(b"\n", 0, size)
        at_line = text[size - 1 : size + 1].count(b"\n") > 0
        if count == shown and not at_line and rng.random() < 0.97:
            continue  # each place around the end of a line, and some within
        shown = count
        wanted = expected(lines[:count])
        assert same(known(read_record(cut)), wanted), size
        assert same(known(read_record(cut, lazy=True)), wanted), size
        follower.look()
        assert same(known(follower.state), wanted), size
    assert same(known(read_record(whole)), expected(lines))


@pytest.mark.parametrize("seed", range(6, 10))
def test_a_driver_goes_on_behind_the_last_whole_line(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    lines = list(events(rng))
    whole = tmp_path / "whole"
    whole.mkdir()
    text = written(whole, lines, lambda: 1000.0)
    for number, size in enumerate(sorted(rng.sample(range(len(text)), 60))):
        cut = tmp_path / str(number)
        cut.mkdir()
        (cut / "record.jsonl").write_bytes(text[:size])
        follower = RecordFollower(cut)
        follower.look()
        count = text.count(b"\n", 0, size)
        written(cut, lines[count:], lambda: 1000.0)
        assert (cut / "record.jsonl").read_bytes() == text
        follower.look()
        assert same(known(follower.state), expected(lines))
