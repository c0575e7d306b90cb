"""Strategies without a Ray: what they refuse at once, and what they make of where they are."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.precision import DoublePrecision, HalfPrecision, Precision
from torch import nn
from torch.utils.data import DataLoader

import tunelight as tl
from tests.fakes import MemoryControl
from tunelight import session
from tunelight.control import Mailbox
from tunelight.errors import ResourceError, SettingsError, StrategyError
from tunelight.gang.gpus import visible_gpus
from tunelight.gang.horovod import environment
from tunelight.gang.placement import arrange, layout
from tunelight.gang.rendezvous import Meeting
from tunelight.gang.spec import GangSpec
from tunelight.gang.torch_group import COLLECTIVE_LIMIT_S, TorchGroup
from tunelight.gang.worker import Location
from tunelight.messages import Place, Task
from tunelight.resources import Reservation, check_fits
from tunelight.strategies.base import check_lightning
from tunelight.strategies.driver import _first_bundle
from tunelight.strategies.launcher import GangLauncher
from tunelight.strategies.sharded import blocks

needs_horovod = pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not built: make horovod")
ALL = pytest.mark.parametrize(
    "kind", [tl.RayStrategy, pytest.param(tl.HorovodRayStrategy, marks=needs_horovod), tl.RayShardedStrategy]
)


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Any]:
    """Return a function that makes this process a rank."""

    def join(backend: str = "ddp", rank: int = 1, size: int = 2, gpu: int | None = None) -> session.Session:
        task = Task("00000", str(tmp_path), {}, b"", 1, ".", backend=backend)
        place = Place(rank, size, rank, size, 0, "127.0.0.1", gpus=("0", "1") if gpu is not None else (), gpu=gpu)
        one = session.Session(task, place, MemoryControl(), lambda event: None, Mailbox(None))
        session.set_current(one)
        return one

    yield join
    session.set_current(None)


# --- on a driver --------------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_workers": 0}, "num_workers must be a whole number, 1 or more, not 0"),
        ({"num_workers": (2, 1)}, r"workers=\(2, 1\): .*Say workers=\(1, 2\)"),
        ({"failures": -2}, "max_failures must be a whole number of -1"),
        ({"on_resize": "shrink"}, "There is no on_resize='shrink'"),
        ({"num_workers": 1.5}, "num_workers must be a whole number, 1 or more, not 1.5"),
        ({"num_cpus_per_worker": -1}, "num_cpus_per_worker must be 0 or more, not -1"),
        ({"resources_per_worker": {"GPU": 1}}, "use_gpu is False"),
        ({"init_hook": 3}, "init_hook must be a function without arguments, not 3"),
    ],
)
def test_wrong_arguments_are_errors_at_once(kind: Any, given: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        kind(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_workers": 3, "num_hosts": 2, "num_slots": 2}, "num_workers=3, but num_hosts=2 with num_slots=2"),
        ({"compression": "zip"}, "compression must be one of none, fp16, not 'zip'"),
        ({"num_workers": (1, 4), "num_hosts": 2, "num_slots": 2}, "an elastic gang, and num_hosts=2 a fixed one"),
    ],
)
def test_horovod_s_own_wrong_arguments(given: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        tl.HorovodRayStrategy(**given)


@needs_horovod
def test_hosts_times_slots_is_the_number_of_workers() -> None:
    strategy = tl.HorovodRayStrategy(num_hosts=2, num_slots=3)
    assert (strategy.workers.number, strategy.workers.hosts, strategy.world_size) == (6, 2, 6)


def test_a_tensor_parallel_size_has_to_divide_the_gang() -> None:
    with pytest.raises(SettingsError, match="tensor_parallel_size=2 does not divide the gang's 3 workers"):
        tl.RayShardedStrategy(3, tensor_parallel_size=2)


def test_cpus_and_gpus_among_the_resources_win() -> None:
    with pytest.warns(UserWarning, match="NCCL cannot"):
        workers = tl.RayStrategy(2, 4, True, None, {"CPU": 0.5, "GPU": 0.5, "big": 1}).workers
    assert (workers.cpus, workers.gpus, workers.resources) == (0.5, 0.5, {"big": 1})


def test_without_horovod_its_strategy_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "horovod.torch", None)
    with pytest.raises(StrategyError, match="make horovod"):
        tl.HorovodRayStrategy()


@ALL
def test_a_driver_s_trainer_knows_the_gang_s_size_and_is_rank_0(kind: Any) -> None:
    trainer = pl.Trainer(strategy=kind(num_workers=3), logger=False, enable_checkpointing=False, accelerator="cpu")
    assert (trainer.world_size, trainer.global_rank, trainer.is_global_zero) == (3, 0, True)


def test_a_gpu_accelerator_without_use_gpu_is_refused_by_lightning() -> None:
    with pytest.raises(Exception, match=r"No supported gpu backend|choose one device type"):
        pl.Trainer(strategy=tl.RayStrategy(), accelerator="gpu", logger=False)


def test_a_cpu_accelerator_with_use_gpu_is_refused_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(StrategyError, match="use_gpu=True"):
        pl.Trainer(strategy=tl.RayStrategy(use_gpu=True), accelerator="cpu", logger=False)


@ALL
def test_a_strategy_leaves_the_driver_s_own_behind_when_it_is_pickled(kind: Any) -> None:
    trainer = pl.Trainer(strategy=kind(num_workers=2), logger=False, enable_checkpointing=False, accelerator="cpu")
    sent = pickle.loads(pickle.dumps(trainer.strategy))
    assert sent.launcher is None
    assert sent.workers is None


@pytest.mark.parametrize("version", ["1.6.5", "2.4.0", "2.7.0", "3.0.0rc1"])
def test_a_lightning_that_is_too_old_or_too_new_is_an_error(version: str) -> None:
    check_lightning("2.5.0")
    with pytest.raises(StrategyError, match=f"and {version} is installed"):
        check_lightning(version)


def test_a_driver_s_checkpoint_callbacks_do_not_hear_of_an_exception_and_all_are_given_back() -> None:
    strategy = tl.RayStrategy(num_workers=2)
    others, kept = pl.Callback(), pl.callbacks.ModelCheckpoint()
    trainer = pl.Trainer(strategy=strategy, accelerator="cpu", callbacks=[kept, others], enable_progress_bar=False)
    before: Any = trainer.callbacks  # type: ignore[attr-defined]  # Lightning's, set elsewhere
    strategy.hold_callbacks(trainer)
    held: Any = trainer.callbacks  # type: ignore[attr-defined]  # as above
    assert others in held
    assert kept not in held
    for _ in range(2):  # the second time there is nothing to give back
        strategy.on_exception(RuntimeError("mine"))
        assert trainer.callbacks is before  # type: ignore[attr-defined]  # as above


# --- in a gang ----------------------------------------------------------------------------------------------


@ALL
def test_a_strategy_joins_the_gang_that_it_is_made_in(kind: Any, join: Any) -> None:
    join(kind.backend)
    strategy = kind(num_workers=2)
    assert (strategy.joined, strategy.global_rank, strategy.world_size) == (True, 1, 2)


@ALL
def test_a_gang_of_another_kind_is_refused(kind: Any, join: Any) -> None:
    other = "horovod" if kind.backend != "horovod" else "ddp"
    join(other)
    with pytest.raises(StrategyError, match=f"backend='{kind.backend}'.*this one has '{other}'"):
        kind()


def test_a_gang_of_another_size_is_refused(join: Any) -> None:
    join()
    with pytest.raises(StrategyError, match=r"num_workers=3\) runs in a gang of 2"):
        tl.RayStrategy(num_workers=3)


def test_a_rank_trains_on_its_own_gpu_of_all_that_it_sees(join: Any) -> None:
    join(gpu=1)
    assert tl.RayStrategy().root_device == torch.device("cuda", 1)


def test_a_strategy_from_a_driver_becomes_a_rank_s(join: Any) -> None:
    strategy = pickle.loads(pickle.dumps(tl.RayStrategy(num_workers=2)))
    strategy.join(join(gpu=0))
    assert strategy.root_device == torch.device("cuda", 0)
    assert type(strategy.accelerator).__name__ == "CUDAAccelerator"
    strategy.join(join())
    assert type(strategy.accelerator).__name__ == "CPUAccelerator"


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [(Precision(), torch.float32), (DoublePrecision(), torch.float64), (HalfPrecision("bf16-true"), torch.bfloat16)],
)
def test_a_model_is_made_with_the_trainer_s_precision(precision: Any, dtype: torch.dtype, join: Any) -> None:
    join()
    strategy = tl.RayStrategy()
    strategy.precision_plugin = precision
    with strategy.tensor_init_context():
        made = nn.Linear(2, 2)
    assert (made.weight.dtype, made.weight.device.type) == (dtype, "cpu")


def test_a_rank_s_launcher_calls_the_function_once_and_starts_nothing(join: Any) -> None:
    called: list[int] = []
    assert GangLauncher(join()).launch(called.append, 3) is None
    assert called == [3]


@pytest.mark.parametrize("seconds", [30.0, None])
def test_a_collective_s_limit_reaches_the_process_group(seconds: float | None) -> None:
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = TorchGroup()
    group.join(
        Meeting("127.0.0.1", store.port, "gloo", (1,), timeout_s=seconds), Place(0, 1, 0, 1, 0, "127.0.0.1"), store
    )
    try:
        world: Any = torch.distributed.group.WORLD
        limit = world._get_backend(torch.device("cpu")).options._timeout
    finally:
        group.leave()
    assert limit.total_seconds() == (seconds or COLLECTIVE_LIMIT_S)


class Refusing(pl.LightningModule):
    """Raises before its first step, where Lightning has begun to fetch batches already."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def on_validation_start(self) -> None:
        raise AssertionError("mine")

    on_test_start = on_predict_start = on_validation_start

    def validation_step(self, batch: Any, batch_idx: int) -> None: ...

    test_step = predict_step = validation_step


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_an_error_of_a_start_hook_is_not_masked_while_cleaning_up(stage: str, join: Any) -> None:
    one = pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[]
    )
    one.strategy._launcher = GangLauncher(join(size=1, rank=0))
    with pytest.raises(AssertionError, match="mine"):
        getattr(one, stage)(Refusing(), DataLoader(torch.zeros(4, 2)))  # type: ignore[arg-type]  # a sized sequence


# --- places -------------------------------------------------------------------------------------------------


def located(*nodes: tuple[str, tuple[str, ...]]) -> list[Location]:
    return [Location(node, f"10.0.0.{node}", 1, node, gpus) for node, gpus in nodes]


def test_all_gpus_of_a_node_are_visible_in_pci_order_and_each_rank_has_its_own() -> None:
    placed = arrange(located(("1", ("10",)), ("2", ("0",)), ("1", ("2",))))
    seen = [(place.rank, place.gpus, place.gpu) for _, place in placed]
    assert seen == [(0, ("2", "10"), 1), (1, ("2", "10"), 0), (2, ("0",), 0)]


def test_gpus_may_be_uuids_or_mig_slices() -> None:
    assert visible_gpus([("GPU-b",), ("GPU-a",), ("MIG-1",)]) == ("GPU-a", "GPU-b", "MIG-1")


def test_two_ranks_may_share_a_gpu() -> None:
    placed = arrange(located(("1", ("0",)), ("1", ("0",))))
    assert [(place.gpus, place.gpu) for _, place in placed] == [(("0",), 0), (("0",), 0)]


@pytest.mark.parametrize(
    ("spec", "collectives"),
    [
        (GangSpec(2), "gloo"),
        (GangSpec(2, gpus_per_worker=1), "nccl"),
        (GangSpec(2, gpus_per_worker=0.5), "gloo"),
        (GangSpec(2, gpus_per_worker=1, process_group="gloo"), "gloo"),
        (GangSpec(2, gpus_per_worker=1, backend="sharded"), "nccl"),
        (GangSpec(2, gpus_per_worker=1, backend="horovod"), "horovod"),
    ],
)
def test_ranks_meet_by_what_they_hold(spec: GangSpec, collectives: str) -> None:
    assert spec.collectives == collectives


def test_horovod_is_told_where_each_rank_is_on_uneven_nodes() -> None:
    placed = [place for _, place in arrange(located(("1", ()), ("1", ()), ("2", ())))]
    assert layout(placed) == (2, 1)
    meeting = Meeting("10.0.0.1", 5, "horovod", layout(placed), 6)
    told = [environment(meeting, place) for place in placed]
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    assert [tuple(int(one[f"HOROVOD_{name}"]) for name in names) for one in told] == [
        (0, 3, 0, 2, 0, 2),
        (1, 3, 1, 2, 0, 1),
        (2, 3, 0, 1, 1, 2),
    ]
    assert {one["HOROVOD_GLOO_RENDEZVOUS_PORT"] for one in told} == {"6"}


@pytest.mark.parametrize(("bundles", "first"), [([{"CPU": 1}] * 2, 0), ([{"CPU": 0.5}, {"CPU": 1}, {"CPU": 1}], 1)])
def test_workers_find_their_bundles_in_a_trial_s_reservation(bundles: Any, first: int) -> None:
    assert _first_bundle(bundles, Reservation(2), "RayStrategy") == first


@pytest.mark.parametrize("bundles", [[{"CPU": 1}], [{"CPU": 1}, {"CPU": 0.5}]])
def test_a_trial_s_reservation_that_is_too_small_is_an_error(bundles: Any) -> None:
    with pytest.raises(ResourceError, match=r"get_tune_resources\(num_workers=2"):
        _first_bundle(bundles, Reservation(2), "RayStrategy")


def test_workers_that_want_a_node_each_do_not_fit_on_one() -> None:
    check_fits(Reservation(2), [{"CPU": 4}])
    with pytest.raises(ResourceError, match="a node for each worker"):
        check_fits(Reservation(2), [{"CPU": 4}], spread=True)


# --- sharding -----------------------------------------------------------------------------------------------


def test_big_blocks_are_sharded_bottom_up_and_containers_are_not() -> None:
    inner = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 1))
    model = nn.Module()
    model.layers = nn.ModuleList([inner, nn.Linear(10, 10)])
    model.small = nn.Linear(2, 2)
    assert blocks(model, 100) == [inner[0], model.layers[1]]
    assert blocks(model, 115) == [inner]
    assert blocks(model, 1000) == []


def test_an_elastic_gang_cannot_share_a_model_by_tensor_parallelism() -> None:
    with pytest.raises(SettingsError, match=r"tensor_parallel_size=2 needs a fixed one"):
        tl.RayShardedStrategy(num_workers=(2, 4), tensor_parallel_size=2)


@ALL
def test_an_elastic_gang_says_its_least_and_wanted_size(kind: Any) -> None:
    asked = kind(num_workers=(1, 4), failures=5, on_resize={"scale_lr": "sqrt"}).workers
    assert (asked.least, asked.number, asked.failures.max_failures, asked.on_resize.keep) == (1, 4, 5, "sqrt")
