"""tl.cached: one load, kept, shared and never changed by who gets it; and datasets of a sweep, without a Ray."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import tunelight as tl
from tests.kit.programs import printed_by
from tunelight.errors import DataError, SettingsError
from tunelight.extras.data import shards
from tunelight.extras.data.cached import _kept
from tunelight.extras.data.module import FullLoader, Reading, RowsLoader, ShardLoader
from tunelight.extras.data.server import _check_reach, check_sources, open_dataset, task_error
from tunelight.messages import CACHE_VARIABLE
from tunelight.resources import Reservation, fitted, trials_at_once
from tunelight.settings import Settings


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


NODE = {"CPU": 8.0}


@pytest.mark.parametrize(
    ("made", "given", "message"),
    [
        (Settings, {"datasets": ["x"]}, "datasets must be datasets by name"),
        (Settings, {"datasets": {"train": 3}}, r"datasets\['train'\] must be a dataset of Ray Data"),
        (Settings, {"datasets": {"train": {"parqet": "x"}}}, "no source 'parqet'. Did you mean 'parquet'"),
        (Settings, {"datasets": {"train": {"parquet": []}}}, "parquet must be the path"),
        (Settings, {"data_cpus": -1}, "data_cpus must be 0 or more"),
        (Settings, {"cache": "yes"}, "cache must be true or false"),
        (tl.RayDataModule, {"batch_size": 0}, "batch_size must be a whole number of 1 or more"),
        (tl.RayDataModule, {"prefetch_batches": -1}, "prefetch_batches must be a whole number of 0"),
        (tl.RayDataModule, {"local_shuffle_buffer_size": 8, "batch_size": 16}, "smaller than batch_size=16"),
        (tl.RayDataModule, {"preprocess": {"trian": lambda ds: ds}}, "no 'trian'. Did you mean 'train'"),
    ],
)
def test_a_wrong_value_says_what_was_wanted(made: Any, given: dict[str, Any], message: str):
    with pytest.raises(SettingsError, match=message):
        made(**given)


def test_a_path_is_read_as_parquet_and_room_is_kept_where_there_is_data():
    assert Settings(datasets={"train": Path("x")}).datasets == {"train": {"parquet": "x"}}
    assert Settings(datasets={"train": {"parquet": ["a", "b"]}}).room_for_data == 1
    assert Settings().room_for_data == 0
    assert Settings(datasets={"train": "x"}, data_cpus=0).room_for_data == 0


def test_trials_leave_whole_cpus_free():
    gang = Reservation(workers=2)
    assert trials_at_once(gang, [NODE], 0) == 4
    assert trials_at_once(gang, [NODE], 1) == 3
    assert trials_at_once(gang, [NODE], 3) == 2
    assert trials_at_once(Reservation(1, cpus_per_worker=0.75), [{"CPU": 2.0}], 1) == 1  # 0.5 are no CPU for a task
    assert trials_at_once(gang, [NODE], 1, most=2) == 2


def test_an_elastic_gang_shrinks_for_it_and_does_not_grow_back():
    gang = fitted(Reservation(workers=8, least=2), [NODE], data_cpus=2)
    assert (gang.workers, gang.most) == (6, None)


def test_gangs_that_a_scheduler_resizes_leave_it_too():
    from tunelight.schedulers.members import Ledger

    ledger = Ledger()
    ledger.kept_cpus = 1
    updater = SimpleNamespace(get_num_cpus=lambda: 4, get_num_gpus=lambda: 0)
    ledger.update_capacity(SimpleNamespace(_resource_updater=updater))
    assert ledger.capacity == (3, 0)


def write(path: Path, **columns: list[int]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)


def test_files_are_looked_at_before_ray_starts(tmp_path: Path):
    source = {"train": {"parquet": str(tmp_path)}}
    with pytest.raises(DataError, match=r"that folder has no \*.parquet file"):
        check_sources(source, 2)
    write(tmp_path / "0.parquet", a=[1, 2, 3], b=[1, 2, 3])
    check_sources(source, 3)
    with pytest.raises(DataError, match=r"'train' has 3 rows, fewer than there are ranks that each need one \(4\)"):
        check_sources(source, 4)
    write(tmp_path / "1.parquet", a=[1], c=[1])
    with pytest.raises(DataError, match="unequal columns: b, c is only in one of"):
        check_sources(source, 2)
    (tmp_path / "1.parquet").write_text("no table")
    with pytest.raises(DataError, match="is no Parquet file"):
        check_sources(source, 2)
    with pytest.raises(DataError, match="there is no such file or folder"):
        check_sources({"val": {"parquet": str(tmp_path / "x")}}, 2)
    (tmp_path / "types").mkdir()
    for number, values in enumerate(([1, 2], [0.5, 2.5])):
        write(tmp_path / "types" / f"{number}.parquet", a=values)  # type: ignore[arg-type]
    check_sources({"train": {"parquet": str(tmp_path / "types")}}, 2)
    write(tmp_path / "types" / "2.parquet", a=["x"])  # type: ignore[list-item]
    with pytest.raises(DataError, match=r"unequal types: .*0\.parquet and .*2\.parquet: .*Field a has"):
        check_sources({"train": {"parquet": str(tmp_path / "types")}}, 2)


@pytest.mark.parametrize("there", [True, False])
def test_a_path_that_a_node_cannot_read_is_told_with_that_node(tmp_path, monkeypatch, there):
    import ray

    nodes = [
        {"NodeID": name[0] * 56, "Alive": name != "dead", "NodeManagerHostname": name, "NodeManagerAddress": "10.0.0.1"}
        for name in ("at home", "dead", "busy")
    ]
    asked: list[tuple[str, str]] = []

    class Look:
        """Stands in for a task of Ray's."""

        def options(self, scheduling_strategy: Any = None, **_: Any) -> Look:
            self.node = getattr(scheduling_strategy, "node_id", "")
            return self

        def remote(self, path: str) -> str:
            asked.append((self.node, path))
            return self.node

    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "a" * 56))
    monkeypatch.setattr(ray, "remote", lambda function: Look())
    monkeypatch.setattr(ray, "wait", lambda calls, **_: (calls, []))
    monkeypatch.setattr(ray, "get", lambda call: there)
    with nullcontext() if there else pytest.raises(DataError, match=r"only the driver's node can read: node busy \("):
        _check_reach("train", [str(tmp_path), "s3://bucket/x"])
    assert asked == [("b" * 56, str(tmp_path))]


def test_a_path_that_ray_data_does_not_take_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tunelight.extras.data.server._check_reach", lambda *_: None)
    refusing = mock.Mock(**{"read_parquet.side_effect": ValueError("no such scheme.")})
    monkeypatch.setattr("tunelight.extras.data.server.ray_data", lambda: refusing)
    with pytest.raises(DataError, match=r"'train' cannot be read from s4://x/y: no such scheme\. Correct the path"):
        open_dataset("train", {"parquet": "s4://x/y"})


def test_what_a_task_failed_of_is_told_without_rays_frames():
    inner = "\x1b[36mray::Map()\x1b[39m (pid=1)\nKeyError: 'imgae'\n\nThe above exception was the direct cause of all"
    assert task_error(RuntimeError(inner)) == "ray::Map() (pid=1)\nKeyError: 'imgae'"
    outer = f"ray::SplitCoordinator.get()\nray.exceptions.RayTaskError(UserCodeException): {inner}"
    assert task_error(RuntimeError(outer)) == task_error(RuntimeError(inner))


def test_parts_that_nobody_has_are_empty_and_a_missing_train_set_is_an_error():
    data = tl.RayDataModule()
    assert data.val_dataloader() == []
    with pytest.raises(DataError, match=r"There is no dataset 'train'.*datasets=\{'train': ds\}"):
        list(data.train_dataloader())


class FakeShard:
    """Stands in for Ray Data's iterator, which needs an actor: hands out ``rows``, and notes how it was asked."""

    def __init__(self, rows: int) -> None:
        self.rows, self.asked = rows, list[dict[str, Any]]()

    def iter_batches(self, **asked: Any) -> Any:
        self.asked.append(asked)
        size = asked["batch_size"]
        return ({"id": torch.arange(at, min(at + size, self.rows))} for at in range(0, self.rows, size))


def loader(rows: int, known: bool = True, **kwargs: Any) -> tuple[ShardLoader, list[int], FakeShard]:
    shard, opened = FakeShard(rows), list[int]()

    def open_(epoch: int) -> tuple[Any, int | None]:
        opened.append(epoch)
        return shard, rows if known else None

    settings: dict[str, Any] = {"buffer": 0, "drop_last": False, "seed": 5, "device": torch.device("cpu")} | kwargs
    return ShardLoader(open_, Reading(4, ("id",), None, 1), **settings), opened, shard


def test_a_pass_is_an_epoch_and_only_a_leap_opens_the_shard_anew(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tunelight.extras.data.module.close_shard", lambda shard: None)
    data, opened, shard = loader(10, buffer=8)
    for epoch in (3, 4, 7):
        data.set_epoch(epoch)
        assert [len(batch[0]) for batch in data] == [4, 4, 2]
    assert opened == [3, 7]
    seeds = [asked["local_shuffle_seed"] for asked in shard.asked]
    assert len(set(seeds)) == 3
    again, _, other = loader(10, buffer=8)
    again.set_epoch(3)
    list(again)
    assert other.asked[0]["local_shuffle_seed"] == seeds[0]


def test_columns_that_are_missing_or_make_no_tensors_are_told_with_their_types():
    with pytest.raises(DataError, match=r"no column 'lable'\. Did you mean 'label'.*image, label"):
        Reading(4, ("image", "lable"), None, 1).collate({"image": [1], "label": [2]})

    def collate(rows: dict[str, Any], columns: tuple[str, ...] | None = None) -> Any:
        return Reading(4, columns, None, 1).collate(arrays(rows))

    with pytest.raises(DataError, match=r"columns \(name: object, a: int64\).*collate_fn="):
        collate({"name": ["x", "y"], "a": [1, 2]})
    with pytest.raises(DataError, match=r"columns \(image: object.*collate_fn="):
        collate({"image": [[1.0], [1.0, 2.0]]})
    assert collate({"name": ["x"], "a": [1]}, ("a",))["a"].tolist() == [1]
    assert collate({"image": [[1.0, 0.0], [1.0, 2.0]]})["image"].tolist() == [[1.0, 0.0], [1.0, 2.0]]


def arrays(rows: dict[str, Any]) -> dict[str, Any]:
    """Return columns as Ray Data has them in its NumPy format: text and lists as objects."""
    made: dict[str, Any] = {}
    for name, values in rows.items():
        nested = [np.array(value) if isinstance(value, list) else value for value in values]
        made[name] = np.empty(len(values), dtype=object if isinstance(values[0], str | list) else np.int64)
        made[name][:] = nested
    return made


class FakeBlocks:
    """Stands in for a materialized dataset: batches of rows, as Ray Data hands them out."""

    def count(self) -> int:
        return 10

    def iter_batches(self, *, batch_size: int, **_: Any) -> Any:
        return ({"id": np.arange(at, min(at + batch_size, 10))} for at in range(0, 10, batch_size))


@pytest.mark.parametrize(("ranks", "batch_size"), [(2, 2), (3, 2), (4, 3), (7, 1), (12, 2)])
@pytest.mark.parametrize("padded", [True, False])
def test_rows_are_given_to_ranks_as_by_lightning_s_samplers(ranks: int, batch_size: int, padded: bool) -> None:
    whole = FullLoader(FakeBlocks(), Reading(batch_size, None, lambda rows: rows["id"].tolist(), 1))
    loaders = [RowsLoader(whole, ranks, rank, padded=padded) for rank in range(ranks)]
    batches = [list(loader) for loader in loaders]
    assert [len(loader) for loader in loaders] == [len(rank) for rank in batches]
    rows = [[row for batch in rank for row in batch] for rank in batches]
    if not padded:
        assert rows == [list(range(rank, 10, ranks)) for rank in range(ranks)]
        return
    assert {len(rank) for rank in rows} == {-(-10 // ranks)}
    for rank, mine in enumerate(rows):
        own = list(range(rank, 10, ranks))
        assert mine[: len(own)] == own  # then repeated ones


def test_batches_are_dealt_in_turns_and_only_ones_own_are_made():
    made: list[Any] = []

    def collate(rows: dict[str, Any]) -> Any:
        made.append(rows["id"].tolist())
        return made[-1]

    whole = FullLoader(FakeBlocks(), Reading(2, None, collate, 1))
    assert len(whole) == 5
    first, second = (whole.dealt(2, part, 1.0) for part in range(2))
    assert list(first) == [[0, 1], [4, 5], [8, 9]]
    assert made == [[0, 1], [4, 5], [8, 9]]
    assert list(second) == [[2, 3], [6, 7], [0, 1]]  # the last is borrowed, and leaves no trace
    assert [second.owns(turn) for turn in range(3)] == [True, True, False]
    assert len(first) == 3


def test_its_length_is_known_where_the_rows_are_and_an_empty_shard_is_an_error():
    assert len(loader(10)[0]) == 3
    assert len(loader(10, drop_last=True)[0]) == 2
    with pytest.raises(TypeError, match="no length"):
        len(loader(10, known=False)[0])
    with pytest.raises(DataError, match="shard of rank 0 is empty in epoch 0"):
        list(loader(0)[0])


class Blocks:
    """Stands in for a dataset: keeps what it is shuffled by."""

    def randomize_block_order(self, *, seed: Any) -> Blocks:
        self.seed = seed
        return self


def test_blocks_are_shuffled_by_seed_and_number_of_the_pass():
    data = pytest.importorskip("ray.data")
    seed = shards.shuffled_each_pass(Blocks(), 5).seed
    if not hasattr(data, "RandomSeedConfig"):
        assert seed is None
        return
    from ray.data._internal.random_config import get_single_integer_random_seed

    def order(config: Any, epoch: int) -> Any:
        context: Any = SimpleNamespace()
        shards.start_at_pass(context, epoch)
        return get_single_integer_random_seed(config, context)

    orders = [order(seed, epoch) for epoch in range(3)]
    assert orders == [order(shards.shuffled_each_pass(Blocks(), 5).seed, epoch) for epoch in range(3)]
    assert len(set(orders)) == 3
