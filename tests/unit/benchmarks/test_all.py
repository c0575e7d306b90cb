"""The table of all benchmarks' figures, and what each benchmark has to have; `make bench-short` runs them."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(BENCHMARKS))
    bench: Any = importlib.import_module("all")


def test_the_page_of_measurements_is_what_would_be_written():
    page = bench.PAGE.read_text()
    rows = bench.read_rows(page)
    assert bench.written(page, rows, bench.benchmarks()) == page
    assert {one.benchmark for one in rows} <= set(bench.benchmarks())
    assert len({(one.benchmark, one.what) for one in rows}) == len(rows)


@pytest.mark.parametrize("name", bench.benchmarks())
def test_every_benchmark_declares_a_figure(name):
    tree = ast.parse((BENCHMARKS / f"{name}.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert any(isinstance(call.func, ast.Name) and call.func.id == "headline" for call in calls)


def test_arguments_are_of_benchmarks_that_there_are():
    assert bench.RUNS.keys() <= set(bench.benchmarks())
