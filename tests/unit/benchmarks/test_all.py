"""The table of all benchmarks' figures: how benchmarks/all.py fills it, here with benchmarks of a line."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(BENCHMARKS))
    bench: Any = importlib.import_module("all")
    figures: Any = importlib.import_module("figures")
ON = "2 cores, 4 GB, Python 3.11.0"


def row(benchmark: str, what: str, figure: str = "1.00 x", on: str = ON) -> Any:
    return bench.Row(benchmark, what, figure, "at most 2", "2026-01-02", "01234567", on)


@pytest.fixture
def declared(tmp_path, monkeypatch):
    """A function that returns what has been declared."""
    path = tmp_path / "declared.jsonl"
    monkeypatch.setenv(figures.FIGURES, str(path))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of benchmarks, and a page."""
    monkeypatch.setattr(bench, "HERE", tmp_path)
    monkeypatch.setattr(bench, "benchmarks", lambda variable="BENCHMARKS": ["one", "two"] * (variable == "BENCHMARKS"))
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS))
    (tmp_path / "measurements.md").write_text(f"# Page\n\n{bench.BEGIN}{bench.END}\nMore.\n")
    return tmp_path


def rows_of(folder: Path) -> list[Any]:
    return list(bench.read_rows((folder / "measurements.md").read_text()))


def script(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(f"import sys\nfrom figures import headline\n{text}\n")


# --- one figure -------------------------------------------------------------------------------------------


def test_a_figure_says_its_repeats_and_whether_it_is_what_was_asked(declared, capsys):
    assert not figures.headline("ours / theirs", 1.234, of=figures.spread([1.1, 1.3]), most=1.15)
    assert figures.headline("speed", 3, "us", least=2, digits=0)
    assert not figures.headline("as good", float("inf"), most=0.25)
    assert capsys.readouterr().out.startswith("ours / theirs: 1.23 x (n = 2, 1.10 to 1.30); at most 1.15: MISSED\n")
    assert figures.headline("not measured", float("nan"), most=1)
    assert declared() == [
        {"what": "ours / theirs", "figure": "1.23 x (n = 2, 1.10 to 1.30)", "goal": "at most 1.15, missed"},
        {"what": "speed", "figure": "3 us", "goal": "at least 2"},
        {"what": "as good", "figure": "never", "goal": "at most 0.25, missed"},
    ]


# --- the table --------------------------------------------------------------------------------------------


def test_the_page_of_measurements_is_what_would_be_written():
    page = bench.PAGE.read_text()
    rows = bench.read_rows(page)
    assert bench.written(page, rows, bench.benchmarks()) == page
    assert {one.benchmark for one in rows} <= set(bench.benchmarks())
    assert len({(one.benchmark, one.what) for one in rows}) == len(rows)


# --- running ----------------------------------------------------------------------------------------------


def test_a_benchmark_that_fails_leaves_what_it_measured_and_the_others_run(folder, capsys):
    script(folder, "one", "headline('a', 1.0); headline('b | c', 2.0)")
    script(folder, "two", "print('hello'); headline('a', 3.0)")
    assert bench.main(["--folder", str(folder)]) == 0
    script(folder, "one", "headline('b | c', 4.0); sys.exit('went wrong')")
    script(folder, "two", "headline('d', 5.0)")
    assert bench.main(["--folder", str(folder)]) == 1
    found = [(one.benchmark, one.what, one.figure) for one in rows_of(folder)]
    assert found == [("one", "a", "1.00 x"), ("one", "b / c", "4.00 x"), ("two", "d", "5.00 x")]
    assert (folder / "one.txt").read_text() == "b | c: 4.00 x\nwent wrong\n"
    assert capsys.readouterr().out.endswith("Failed, or missed a goal: one.\n")


def test_one_benchmark_is_measured_alone_and_other_rows_keep_their_dates(folder):
    page = folder / "measurements.md"
    page.write_text(bench.written(page.read_text(), [row("one", "a"), row("two", "a")], ["one", "two"]))
    script(folder, "two", "headline('a', 3.0)")
    assert bench.main(["--folder", str(folder), "--only", "two"]) == 0
    first, second = rows_of(folder)
    assert first == row("one", "a")
    assert (second.figure, second.commit, second.on) == ("3.00 x", bench.commit(), bench.machine())
    assert page.read_text().endswith("\nMore.\n")


def test_a_short_run_has_figures_only_in_a_folder_of_its_own(folder, monkeypatch):
    script(folder, "one", "headline(sys.argv[1], 1.0)")
    monkeypatch.setattr(bench, "FOLDER", folder / "kept")
    monkeypatch.setattr(bench, "PAGE", folder / "measurements.md")
    before = (folder / "measurements.md").read_text()
    assert bench.main(["--only", "one", "--short"]) == 0
    assert (folder / "measurements.md").read_text() == before
    assert bench.main(["--only", "one", "--short", "--folder", str(folder / "mine")]) == 0
    assert [one.what for one in rows_of(folder / "mine")] == ["--short"]


# --- every benchmark --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", bench.benchmarks())
def test_every_benchmark_declares_a_figure(name):
    tree = ast.parse((BENCHMARKS / f"{name}.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert any(isinstance(call.func, ast.Name) and call.func.id == "headline" for call in calls)


def test_arguments_are_of_benchmarks_that_there_are():
    assert bench.RUNS.keys() <= set(bench.benchmarks())
