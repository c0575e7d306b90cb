"""ray_lightning's themes about workers: how many, their ranks, what they hold and what reaches them."""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tunelight as tl
from tests.integration.parity import (
    BACKENDS,
    EVERY_BACKEND,
    KINDS,
    Boring,
    Tell,
    lines,
    loader,
    note,
    same,
    strategy,
    trainer,
    weights,
)
from tunelight import errors
from tunelight.compat.lightning import pl
from tunelight.gang.placement import Location, arrange
from tunelight.gang.spec import GangSpec
from tunelight.resources import Reservation

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_gangs")]  # a port: run by make test-full


# --- actors, ranks, resources -----------------------------------------------------------------------------


def who(one: pl.Trainer, module: pl.LightningModule) -> dict[str, int]:
    return {
        "pid": os.getpid(),
        "rank": one.global_rank,
        "module": module.global_rank,
        "local": one.local_rank,
        "node": one.node_rank,
        "size": one.world_size,
    }


@pytest.mark.parametrize("workers", [1, 2])
@BACKENDS
def test_actor_creation(backend: str, workers: int, warm_gangs: Any, tmp_path: Path) -> None:
    told = Tell(tmp_path, who)
    ours = strategy(backend, workers)
    one = trainer(ours, callbacks=[told])
    one.fit(Boring(), loader())
    ranks = told.heard()
    pids = {rank["pid"] for rank in ranks}
    idle = [held.gang for held in warm_gangs._idle]  # other tests' gangs among them
    assert (backend, pids) in [(gang.spec.backend, {location.pid for location in gang.locations}) for gang in idle]
    assert len(pids - {os.getpid()}) == workers
    assert [(rank["rank"], rank["size"]) for rank in ranks] == [(rank, workers) for rank in range(workers)]
    assert one.world_size == workers
    if workers == 1:
        ours.shutdown()  # those of two stay warm for the tests to come


@EVERY_BACKEND
def test_global_and_local_ranks(backend: str, tmp_path: Path) -> None:
    told = Tell(tmp_path, who)
    one = trainer(backend, callbacks=[told])
    one.fit(Boring(), loader())
    ranks = [{name: rank[name] for name in ("rank", "module", "local", "node")} for rank in told.heard()]
    assert ranks == [{"rank": rank, "module": rank, "local": rank, "node": 0} for rank in (0, 1)]
    assert (one.global_rank, one.local_rank, one.node_rank) == (0, 0, 0)


def holds(one: pl.Trainer, module: pl.LightningModule) -> Any:
    import ray

    strategy: Any = one.strategy
    return ray.get_runtime_context().get_assigned_resources() | {"told": strategy.num_cpus_per_worker}


@BACKENDS
def test_resource_override_of_the_cpus(backend: str, tmp_path: Path) -> None:
    told = Tell(tmp_path, holds)
    override = KINDS[backend](2, num_cpus_per_worker=2, resources_per_worker={"CPU": 0.5})
    trainer(override, callbacks=[told]).fit(Boring(), loader())
    assert [(rank["CPU"], rank["told"]) for rank in told.heard()] == [(0.5, 0.5)] * 2
    assert override.num_cpus_per_worker == 0.5


@EVERY_BACKEND
def test_resource_override_by_a_custom_resource(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    one = trainer(strategy(backend, resources_per_worker={"CPU": 0.5, "custom": 2}))
    with pytest.raises(errors.ResourceError, match=r"0\.5 CPU \+ 2 custom.*4 custom \(there are 0\)"):
        one.fit(Boring(), loader())
    (node,) = ray.nodes()
    node["Resources"]["custom"] = 4  # what is reserved on a cluster that has some
    monkeypatch.setattr(ray, "nodes", lambda: [node])
    asked: list[Any] = []

    def reserve(bundles: Any, **_: Any) -> Any:
        asked.extend(bundles)
        raise InterruptedError("that is all this test wants to know")

    monkeypatch.setattr("tunelight.gang.pool.placement_group", reserve)
    with pytest.raises(InterruptedError):
        one.fit(Boring(), loader())
    assert asked == [{"CPU": 0.5, "custom": 2}] * 2


def test_strategy_arguments_are_those_of_ray_lightning() -> None:
    theirs = ["num_workers", "num_cpus_per_worker", "use_gpu", "init_hook", "resources_per_worker"]
    for kind in KINDS.values():
        assert list(inspect.signature(kind).parameters)[:5] == theirs
    ddp = tl.RayStrategy(2, find_unused_parameters=True, gradient_as_bucket_view=True)
    assert ddp._ddp_kwargs == {"find_unused_parameters": True, "gradient_as_bucket_view": True}


def test_horovod_size_in_both_spellings() -> None:
    hosts = tl.HorovodRayStrategy(num_hosts=2, num_slots=3).workers
    assert (hosts.number, hosts.hosts) == (6, 2)
    assert tl.HorovodRayStrategy(num_workers=6).workers.number == 6
    with pytest.raises(errors.SettingsError, match="make 6"):
        tl.HorovodRayStrategy(num_workers=5, num_hosts=2, num_slots=3)


# --- GPUs (the workers' side of it has tests of its own, marked gpu) ---------------------------------------


@pytest.mark.parametrize("names", [("1", "10", "2"), ("GPU-b", "GPU-a", "GPU-c")], ids=["numbers", "uuids"])
def test_gpus_of_a_node_are_all_visible_to_each_of_its_workers(names: tuple[str, ...]) -> None:
    places = arrange([Location("node", "10.0.0.1", pid, "host", (name,)) for pid, name in enumerate(names)])
    everything = {place.gpus for _, place in places}
    assert everything == {tuple(sorted(names, key=lambda name: (len(name), name)))}
    for index, place in places:
        assert place.gpu is not None
        assert place.gpus[place.gpu] == names[index]


def test_gpus_shared_by_workers_train_over_gloo() -> None:
    with pytest.warns(UserWarning, match="which NCCL cannot do: they meet by gloo"):
        shared = tl.RayStrategy(2, use_gpu=True, resources_per_worker={"GPU": 0.5})
    assert shared.workers.gpus == 0.5
    assert GangSpec(Reservation(2, gpus_per_worker=0.5)).collectives == "gloo"
    assert GangSpec(Reservation(2, gpus_per_worker=1)).collectives == "nccl"


@EVERY_BACKEND
def test_gpu_workers_are_asked_for_from_a_cpu_head(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    one = trainer(strategy(backend, use_gpu=True), accelerator="auto")
    with pytest.raises(errors.ResourceError, match=r"0\.5 CPU \+ 1 GPU.*2 GPU \(there are 0\)"):
        one.fit(Boring(), loader())


# --- what reaches the workers -----------------------------------------------------------------------------


def hook(folder: Path) -> None:
    """Note that this process has not met the others yet, and leave a mark in it."""
    met = torch.distributed.is_initialized() or "MASTER_ADDR" in os.environ or "HOROVOD_RANK" in os.environ
    os.environ["PARITY_HOOK"] = "ran"
    note(folder, "hook", f"{os.getpid()} {'late' if met else 'before'}")


def mark(one: pl.Trainer, module: pl.LightningModule) -> Any:
    return os.getpid(), os.environ.get("PARITY_HOOK")


@BACKENDS
def test_init_hook_runs_on_every_worker_before_rendezvous(backend: str, tmp_path: Path) -> None:
    with strategy(backend, init_hook=partial(hook, tmp_path)) as ours:
        for _ in range(2):
            told = Tell(tmp_path, mark)
            trainer(ours, callbacks=[told]).fit(Boring(), loader())
            ranks = told.heard()
            assert [there for _, there in ranks] == ["ran", "ran"]
    assert lines(tmp_path, "hook") == sorted(f"{pid} before" for pid, _ in ranks)
    assert "PARITY_HOOK" not in os.environ


def environment(one: pl.Trainer, module: pl.LightningModule) -> Any:
    names = ("MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED", "PL_SEED_WORKERS")
    return {name: os.environ.get(name) for name in names}


@BACKENDS
def test_master_addr_and_port_reach_workers(backend: str, tmp_path: Path) -> None:
    told = Tell(tmp_path, environment)
    trainer(backend, callbacks=[told]).fit(Boring(), loader())
    first, second = told.heard()
    assert first == second
    assert first["MASTER_ADDR"] == "127.0.0.1"  # one node: nobody outside can reach the gang
    assert int(first["MASTER_PORT"]) > 0


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put seeds and flags of this process back."""
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    flags = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    yield
    torch.use_deterministic_algorithms(flags[0])
    torch.backends.cudnn.deterministic = flags[1]


@pytest.mark.usefixtures("seeded")
@EVERY_BACKEND
def test_pl_global_seed_reaches_workers(backend: str, tmp_path: Path) -> None:
    told = Tell(tmp_path, environment)
    trainer(backend, callbacks=[told]).fit(Boring(), loader())
    assert {rank["PL_GLOBAL_SEED"] for rank in told.heard()} == {None}
    pl.seed_everything(1234, workers=True, verbose=False)
    trainer(backend, callbacks=[told]).fit(Boring(), loader())
    assert {(rank["PL_GLOBAL_SEED"], rank["PL_SEED_WORKERS"]) for rank in told.heard()} == {("1234", "1")}


def flags(one: pl.Trainer, module: pl.LightningModule) -> Any:
    return torch.are_deterministic_algorithms_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG")


@pytest.mark.usefixtures("seeded")
@EVERY_BACKEND
def test_deterministic_reaches_workers_and_leaves_them(backend: str, tmp_path: Path) -> None:
    """Issue 213."""
    told = Tell(tmp_path, flags)
    trainer(backend, callbacks=[told], deterministic=True).fit(Boring(), loader())
    assert told.heard() == [[True, ":4096:8"]] * 2
    torch.use_deterministic_algorithms(False)
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG")
    trainer(backend, callbacks=[told]).fit(Boring(), loader())
    assert told.heard() == [[False, None]] * 2


class Noisy(Boring):
    """Draws from the generators that a seed is for."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        noise = torch.rand(()) + random.random()
        return super().training_step(batch, batch_idx) * noise


@pytest.mark.usefixtures("seeded")
@BACKENDS
def test_deterministic_runs_with_one_seed_are_equal(backend: str) -> None:
    found = []
    for seed in (5, 5, 6):
        pl.seed_everything(seed, workers=True, verbose=False)
        model = Noisy()
        trainer(backend, deterministic=True).fit(model, loader(shuffle=True, num_workers=0))
        found.append(weights(model))
    assert same(found[0], found[1], atol=0)
    assert not same(found[0], found[2])


class Drawing(Boring):
    """Keeps what the ranks have drawn, and the learning rate's factor that Lightning users take."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        numbers: Any = self.all_gather(torch.rand(()))
        self.drawn = numbers.tolist()
        self.factor = self.trainer.num_devices * self.trainer.num_nodes
        return super().training_step(batch, batch_idx)


@pytest.mark.usefixtures("seeded")
@EVERY_BACKEND
def test_ranks_draw_numbers_of_their_own_unless_the_code_seeds_them(backend: str) -> None:
    model = Drawing()
    trainer(backend).fit(model, loader())
    assert len(set(model.drawn)) == model.factor == 2
    pl.seed_everything(7, verbose=False)
    trainer(backend).fit(model, loader())
    assert len(set(model.drawn)) == 1
