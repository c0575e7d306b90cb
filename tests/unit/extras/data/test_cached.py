"""tl.cached: one load, kept, shared through memory, and never changed by who gets it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tunelight as tl
from tests.kit.programs import printed_by
from tunelight.errors import DataError
from tunelight.extras.data.cached import _kept
from tunelight.messages import CACHE_VARIABLE


class Calls(list[Any]):
    """No data that a load depends on: it cannot be pickled."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a record of calls")


calls = Calls()


def forget() -> None:
    while _kept:
        _kept.popitem()[1].close()


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    forget()
    calls.clear()
    yield
    forget()


def load(size: int, factor: int = 1) -> dict[str, Any]:
    calls.append(size)
    return {"x": torch.arange(size) * factor, "y": np.arange(size), "name": "digits"}


def test_where_no_file_lies_in_memory_a_process_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "memfd_create")
    cached = tl.cached(load)
    one, two = cached(1000), cached(1000)
    assert calls == [1000]
    one["x"].zero_()
    assert torch.equal(two["x"], cached(1000)["x"])
    assert torch.equal(two["x"], torch.arange(1000))


class Loader:
    def __init__(self, split: str) -> None:
        self.split = split

    def __call__(self) -> str:
        return self.split

    def load(self) -> str:
        return self.split


def of(split: str, size: int = 1) -> str:
    return split


SPLIT = "train"


def of_a_global() -> str:
    return SPLIT


@pytest.mark.parametrize(
    "make",
    [
        lambda split: lambda: split,
        lambda split: functools.partial(of, split),
        lambda split: functools.partial(of, split=split),
        lambda split: functools.partial(functools.partial(of, split), 2),
        Loader,
        lambda split: Loader(split).load,
        lambda split: functools.partial(of, split, size=frozenset({1})),  # type: ignore[arg-type]
        {
            "train": lambda: "train" if "a" in {"a", "b"} else "val",
            "val": lambda: "train" if "a" in {"b", "c"} else "val",
        }.get,
    ],
    ids=["captured", "partial", "keyword", "partial of a partial", "object", "method", "frozenset", "constant"],
)
def test_functions_that_differ_in_any_way_are_different_calls(make: Any):
    assert [tl.cached(make(split))() for split in ("train", "val", "train")] == ["train", "val", "train"]
    assert len(_kept) == 2


def test_a_global_that_the_function_reads_belongs_to_the_call(monkeypatch: pytest.MonkeyPatch):
    load = tl.cached(of_a_global)
    first = load()
    monkeypatch.setitem(globals(), "SPLIT", "val")
    assert (first, load()) == ("train", "val")


def test_a_set_is_the_same_call_in_every_process():
    program = """if True:
        import tunelight as tl
        from tunelight.extras.data.cached import _kept
        tl.cached(lambda: "x" in {"a", "b", "c", "d"})()
        print(*_kept)"""
    assert len({printed_by(program, env={**os.environ, "PYTHONHASHSEED": seed}) for seed in ("1", "2")}) == 1


def test_what_was_least_used_goes_first(monkeypatch: pytest.MonkeyPatch):
    memory = {"SC_PHYS_PAGES": 560_000, "SC_PAGE_SIZE": 1}  # of which it keeps a quarter
    monkeypatch.setattr(os, "sysconf", memory.__getitem__)
    cached = tl.cached(load)
    for size in (3000, 4000, 3000, 5000):  # 16 bytes an entry: with the last, it is too much by one
        cached(size)
    assert calls == [3000, 4000, 5000]
    cached(3000)
    cached(4000)
    assert calls == [3000, 4000, 5000, 4000]
    memory["SC_PHYS_PAGES"] = 40
    assert len(cached(1000)["y"]) == 1000


def test_what_cannot_be_pickled_is_named():
    with pytest.raises(DataError, match="cannot keep the result, of generator: cannot pickle"):
        tl.cached(lambda: (number for number in range(3)))()
    with pytest.raises(DataError, match="its arguments cannot be pickled"):
        tl.cached(load)(size=(number for number in range(3)))  # type: ignore[arg-type]


def half(value: Any, file: Any) -> None:
    file.write(b"half")
    raise MemoryError("no memory")


def test_what_was_let_go_or_could_not_be_kept_is_loaded_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    cached = tl.cached(load)
    cached(1000)
    forget()
    with monkeypatch.context() as broken:
        broken.setattr("joblib.dump", half)
        with pytest.raises(DataError, match="no memory") as caught:
            cached(1000)
    assert caught.tb is not None  # it still refers to the file
    assert len(cached(1000)["x"]) == 1000
    assert calls == [1000, 1000, 1000]
