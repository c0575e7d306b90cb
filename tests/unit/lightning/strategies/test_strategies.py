"""Strategies without a Ray: what they refuse at once, and what they make of where they are."""

from __future__ import annotations

import copy
import pickle
import threading
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest import mock

import cloudpickle
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import tunelight as tl
from tests import flavours
from tests.kit.training import QUIET, TwoLayers
from tunelight.compat.lightning import CUDAAccelerator, Precision, TorchCheckpointIO, pl
from tunelight.errors import SettingsError, StrategyError, TrainFunctionError
from tunelight.lightning.launcher import GangLauncher

HOROVOD, SHARDED = tl.HorovodRayStrategy, tl.RayShardedStrategy
needs_horovod = pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not built: make horovod")
ALL = pytest.mark.parametrize("kind", [tl.RayStrategy, pytest.param(HOROVOD, marks=needs_horovod), SHARDED])


@ALL
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_workers": 0}, "num_workers must be a whole number, 1 or more, not 0"),
        ({"num_workers": (2, 1)}, r"workers=\(2, 1\): .*Say workers=\(1, 2\)"),
        ({"failures": -2}, "max_failures must be a whole number of -1"),
        ({"num_workers": 1.5}, "num_workers must be a whole number, 1 or more, not 1.5"),
        ({"num_cpus_per_worker": -1}, "num_cpus_per_worker must be a number, 0 or more, not -1"),
        ({"resources_per_worker": {"GPU": -1}}, r"resources_per_worker\['GPU'\] must be a number, 0 or more, not -1"),
        ({"resources_per_worker": {"CPU": -2}}, r"resources_per_worker\['CPU'\] must be a number, 0 or more, not -2"),
        ({"resources_per_worker": {"big": "1"}}, r"resources_per_worker\['big'\] must be a number, 0 or more, not '1'"),
        ({"init_hook": 3}, "init_hook must be a function without arguments, not 3"),
        ({"evaluation": "padded"}, "evaluation must be 'ddp' .* 'exact' .* not 'padded'"),
    ],
)
def test_wrong_arguments_are_errors_at_once(kind: Any, given: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        kind(**given)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (
            HOROVOD,
            {"num_workers": 3, "num_hosts": 2, "num_slots": 2},
            "=3, but num_hosts=2 with num_slots=2",
        ),
        (HOROVOD, {"compression": "zip"}, "compression must be one of none, fp16, not 'zip'"),
        (HOROVOD, {"num_workers": (1, 4), "num_hosts": 2, "num_slots": 2}, "elastic gang, and num_hosts=2 a fixed one"),
        (SHARDED, {"num_workers": 3, "tensor_parallel_size": 2}, "=2 does not divide the gang's 3 workers"),
        (SHARDED, {"num_workers": (2, 4), "tensor_parallel_size": 2}, "tensor_parallel_size=2 needs a fixed one"),
    ],
)
def test_wrong_arguments_of_one_kind(kind: Any, given: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        kind(**given)


def test_cpus_and_gpus_among_the_resources_win() -> None:
    with pytest.warns(UserWarning, match="NCCL cannot"):
        workers = tl.RayStrategy(2, 4, True, None, {"CPU": 0.5, "GPU": 0.5, "big": 1}).workers
    assert (workers.cpus, workers.gpus, workers.resources) == (0.5, 0.5, {"big": 1})
    strategy = tl.RayStrategy(3, 2, use_gpu=True, resources_per_worker={"GPU": 0})
    assert (strategy.num_workers, strategy.num_cpus_per_worker, strategy.use_gpu) == (3, 2, False)
    assert (strategy.num_gpus_per_worker, tl.RayStrategy(use_gpu=True).num_gpus_per_worker) == (0, 1)


def test_without_horovod_its_strategy_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "horovod.torch", None)
    with pytest.raises(StrategyError, match="make horovod"):
        tl.HorovodRayStrategy()


def points() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.zeros(4, 4), torch.zeros(4, 1)))


COPIES = pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda strategy: pickle.loads(pickle.dumps(strategy)),
        lambda strategy: cloudpickle.loads(cloudpickle.dumps(strategy)),
    ],
    ids=["copy", "deepcopy", "pickle", "cloudpickle"],
)


def no_trainer(**settings: Any) -> pl.Trainer:
    return pl.Trainer(**QUIET | settings)


@COPIES
@ALL
@pytest.mark.parametrize("used", [False, True], ids=["new", "of a Trainer"])
def test_a_driver_s_strategy_is_copied_by_its_arguments(kind: Any, copied: Any, used: bool) -> None:
    strategy = kind(2, resources_per_worker={"CPU": 0.5}, idle_timeout_s=7, failures=5)
    if used:
        no_trainer(strategy=strategy, precision="bf16-true", plugins=[Refusing()])
    other = copied(strategy)
    assert type(other) is kind
    assert other.workers == strategy.workers
    assert (other.launcher, other.accelerator) == (None, None)
    assert type(other.precision_plugin) is Precision
    assert type(other.checkpoint_io) is TorchCheckpointIO
    assert no_trainer(strategy=other).world_size == 2


class Refusing(TorchCheckpointIO):
    """A plugin that cannot be copied, as one with a connection."""

    def __reduce__(self) -> Any:
        raise TypeError("it holds a connection")


class Renamed(tl.RayStrategy):
    """Has arguments of its own, as a user's strategy may."""

    def __init__(self, size: int, *, hook: Any = None) -> None:
        super().__init__(num_workers=size, init_hook=hook)


@COPIES
def test_a_subclass_is_copied_by_the_arguments_of_its_own(copied: Any) -> None:
    other = copied(Renamed(3, hook=print))
    assert (type(other), other.num_workers, other.workers.init_hook) == (Renamed, 3, print)


@ALL
def test_the_copy_of_a_trainer_says_that_a_new_one_is_needed(kind: Any) -> None:
    """Without its launcher it would train in this process alone."""
    trainer = copy.deepcopy(no_trainer(strategy=kind(num_workers=2), max_epochs=1))
    with pytest.raises(StrategyError, match=r"belongs to no Trainer.*Make a new Trainer"):
        trainer.fit(TwoLayers(), points())


def test_a_compiled_model_whose_backend_cannot_be_sent_says_compile() -> None:
    lock, model = threading.Lock(), TwoLayers()
    compiled: Any = torch.compile(model, backend=lambda graph, _inputs: (graph.forward, lock)[0])
    with pytest.raises(TrainFunctionError, match=r"What torch\.compile was told for TwoLayers.*self\.net\.compile\(\)"):
        no_trainer(strategy=tl.RayStrategy(num_workers=2), max_epochs=1).fit(compiled, points())
    assert "training_step" not in vars(model)  # Lightning's compiled ones are gone again


@ALL
def test_one_strategy_may_serve_trainers_with_plugins_one_after_another(kind: Any) -> None:
    """Each Trainer's checkpoint_io is its own: Lightning would say that it was set through both."""
    strategy, first, second = kind(num_workers=2), TorchCheckpointIO(), TorchCheckpointIO()
    assert no_trainer(strategy=strategy, plugins=[first]).strategy.checkpoint_io is first
    assert no_trainer(strategy=strategy, plugins=[second]).strategy.checkpoint_io is second
    without = no_trainer(strategy=strategy).strategy.checkpoint_io
    assert type(without) is TorchCheckpointIO
    assert without not in (first, second)
    assert no_trainer(strategy=strategy).strategy.checkpoint_io is not without
    assert no_trainer(strategy=strategy, plugins=[first], precision="bf16-true").strategy.checkpoint_io is first
    assert type(no_trainer(strategy=strategy).strategy.precision_plugin) is Precision


def test_a_strategy_ends_the_workers_of_an_earlier_trainer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunelight.extras.standalone.driver.pool", pool := mock.Mock())
    with tl.RayStrategy(num_workers=2) as strategy:
        first = vars(no_trainer(strategy=strategy).strategy.launcher)
        first["_held"], first["_lease"] = held, _ = object(), 3
        no_trainer(strategy=strategy)
    pool.end.assert_called_once_with(held, 3)


def test_plugins_of_the_strategy_s_own_stay_may_not_be_contradicted_and_one_that_wraps_gets_lightning_s() -> None:
    own, precision = TorchCheckpointIO(), pl.plugins.HalfPrecision("bf16-true")
    strategy = tl.RayStrategy(checkpoint_io=own, precision_plugin=precision)
    for _ in range(2):
        assert no_trainer(strategy=strategy).strategy.checkpoint_io is own
        assert no_trainer(strategy=strategy).strategy.precision_plugin is precision
    wrapped: Any = no_trainer(
        strategy=tl.RayStrategy(), plugins=[pl.plugins.AsyncCheckpointIO()]
    ).strategy.checkpoint_io
    assert type(wrapped) is pl.plugins.AsyncCheckpointIO
    assert type(wrapped.checkpoint_io) is TorchCheckpointIO
    with pytest.raises(pl.utilities.exceptions.MisconfigurationException, match="checkpoint_io set through both"):
        no_trainer(strategy=strategy, plugins=[TorchCheckpointIO()])


@pytest.mark.parametrize("kind", [tl.RayStrategy, tl.HorovodRayStrategy, tl.RayShardedStrategy])
def test_a_trainer_of_the_other_lightning_says_how_to_choose(kind: Any) -> None:
    other = flavours.other()
    text = rf"tunelight\.{kind.__name__} for {pl.__name__}; for a Trainer of {other}, choose that .*tunelight\.use\("
    with pytest.raises(ValueError, match=text):
        import_module(other).Trainer(strategy=kind(num_workers=2), accelerator="cpu", logger=False)


@ALL
def test_a_gang_of_another_kind_or_size_is_refused(kind: Any, join: Any) -> None:
    other = "horovod" if kind.backend != "horovod" else "ddp"
    join(other)
    with pytest.raises(StrategyError, match=f"backend='{kind.backend}'.*this one has '{other}'"):
        kind()
    join()
    with pytest.raises(StrategyError, match=r"num_workers=3\) runs in a gang of 2"):
        tl.RayStrategy(num_workers=3)


@ALL
@pytest.mark.parametrize(
    ("layout", "devices"), [((2,), 2), ((2, 2), 2), ((1, 1, 1), 1), ((3, 1), 4), ((1, 3), 4)], ids=str
)
def test_a_rank_s_trainer_counts_the_devices_of_the_gang(kind, layout, devices, join) -> None:
    join(kind.backend, layout=layout)
    trainer = no_trainer(strategy=kind(), accelerator="cpu")
    assert (trainer.num_devices, trainer.num_nodes) == (devices, sum(layout) // devices)
    assert trainer.world_size == sum(layout)


def test_a_rank_s_own_gpu_is_among_the_devices_at_its_local_rank(join: Any) -> None:
    for layout, gpus in (((1, 1), [1]), ((2, 2), [0, 1])):
        join(gpu=1, layout=layout)
        assert tl.RayStrategy().parallel_devices == [torch.device("cuda", gpu) for gpu in gpus]


@ALL
def test_a_driver_s_strategy_goes_to_a_rank_with_what_its_trainer_set(kind: Any, join: Any) -> None:
    strategy = kind(num_workers=2, failures=7)
    trainer = no_trainer(strategy=strategy, precision="bf16-true")
    trainer.strategy.connect(model := TwoLayers())
    sent = cloudpickle.dumps((trainer, model, strategy.for_ranks()))
    join(kind.backend, gpu=0)
    there, module, state = cloudpickle.loads(sent)
    there.strategy.arrive(state)
    assert there.strategy.root_device == torch.device("cuda", 0)
    assert type(there.strategy.accelerator).__name__ == "CUDAAccelerator"
    assert there.strategy.precision_plugin is there._accelerator_connector.precision_plugin
    assert there.strategy.lightning_module is module
    assert isinstance(there.strategy.launcher, GangLauncher)
    assert (there.world_size, there.global_rank) == (2, 1)
    join(kind.backend)
    there, _, state = cloudpickle.loads(sent)
    there.strategy.arrive(state)
    assert type(there.strategy.accelerator).__name__ == "CPUAccelerator"


@ALL
def test_a_rank_s_strategy_tells_its_gang_s_size_whatever_it_was_asked_for(kind: Any, join: Any) -> None:
    join(kind.backend, gpu=0)
    strategy = kind(num_cpus_per_worker=2)
    assert (strategy.num_workers, strategy.use_gpu) == (2, True)
    assert (strategy.num_cpus_per_worker, strategy.num_gpus_per_worker) == (0, 0)  # this process is no worker of Ray's


def test_a_cpu_accelerator_with_use_gpu_is_refused_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(StrategyError, match="reserves 1 GPU for each worker"):
        pl.Trainer(strategy=tl.RayStrategy(use_gpu=True), accelerator="cpu", logger=False)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled")
@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        (tl.RayStrategy, "16-mixed"),
        (tl.RayStrategy, "bf16-mixed"),
        (tl.RayStrategy, "32-true"),
        pytest.param(tl.HorovodRayStrategy, "16-mixed", marks=needs_horovod),
        (tl.RayShardedStrategy, "bf16-mixed"),
    ],
)
def test_a_driver_without_a_gpu_keeps_the_precision_for_workers_with_gpus(kind: Any, precision: Any) -> None:
    """For CPUs Lightning makes bf16-mixed of 16-mixed."""
    strategy = kind(2, use_gpu=True)
    for _ in range(2):  # one strategy serves one trainer after another
        trainer = pl.Trainer(strategy=strategy, precision=precision, logger=False, enable_checkpointing=False)
        assert trainer.precision == precision
        assert trainer.precision_plugin is trainer.strategy.precision_plugin
        assert isinstance(trainer.accelerator, CUDAAccelerator)
        assert (trainer.num_devices, trainer.device_ids, trainer.is_global_zero) == (1, [0], True)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(("devices", "number"), [("auto", 1), (2, 2), ("2", 2), ("0,1", 2), ([0, 1], 2), (-1, 1)])
def test_the_number_of_devices_is_read_as_lightning_does(devices: Any, number: int) -> None:
    strategy = tl.RayStrategy(2, use_gpu=True)
    trainer = pl.Trainer(strategy=strategy, devices=devices, logger=False, enable_checkpointing=False)
    read = trainer._accelerator_connector._devices_flag
    assert (len(read) if isinstance(read, list) else read) == number


@pytest.mark.usefixtures("no_gpu")
def test_on_a_mac_the_cpu_is_chosen_as_for_any_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    strategy = tl.RayStrategy(2, use_gpu=True)
    assert strategy.use_gpu
    trainer = pl.Trainer(strategy=strategy, accelerator="cpu", logger=False, enable_checkpointing=False)
    assert trainer.world_size == 2


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled")
def test_a_loss_is_scaled_on_ranks_though_the_driver_has_no_gpu(join: Any) -> None:
    """A scaler that is made where there is no GPU is switched off, wherever it is sent."""
    driver = tl.RayStrategy(2, use_gpu=True)
    trainer = pl.Trainer(strategy=driver, precision="16-mixed", logger=False, enable_checkpointing=False)
    made: Any = trainer.precision_plugin
    assert not made.scaler.is_enabled()
    sent = pickle.loads(cloudpickle.dumps(driver.for_ranks()))
    join()
    ranked = copy.copy(driver)
    ranked.arrive(sent)
    plugin: Any = ranked.precision_plugin
    assert (plugin.precision, plugin.device) == ("16-mixed", "cpu")  # the fake rank is on a CPU
    assert plugin.scaler.is_enabled()
