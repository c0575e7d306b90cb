"""What users of ray_lightning rely on, or were hurt by, and no differential program shows.

Issue numbers are those of that repository. Training itself (fits, evaluations, metrics, samplers, loggers, precisions,
several optimizers, streams) is compared with Lightning's DDP by the programs of tests/differential, for each backend.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook

import tunelight as tl
from tests.integration.test_strategies import Small, data, trainer
from tunelight import errors
from tunelight.compat.lightning import pl

with warnings.catch_warnings():  # torch compiles a part of its distributed optimizers in a way that it deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_gangs")]  # a port: run by make test-full

KINDS: dict[str, Any] = {"ddp": tl.RayStrategy, "horovod": tl.HorovodRayStrategy, "sharded": tl.RayShardedStrategy}
BACKENDS = pytest.mark.parametrize("backend", KINDS)


def strategy(backend: str, num_workers: int = 2, **settings: Any) -> Any:
    """Return a strategy whose workers hold half a CPU each: gangs of all backends stay warm on the session's four."""
    return KINDS[backend](num_workers, **{"num_cpus_per_worker": 0.5, **settings})


class Tell(pl.Callback):
    """Writes what ``look`` finds on each rank when training starts to a file of the rank's own, as JSON."""

    def __init__(self, folder: Path, look: Callable[[pl.Trainer, pl.LightningModule], Any]) -> None:
        self.folder = folder
        self.look = look

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        (self.folder / f"rank-{trainer.global_rank}.json").write_text(json.dumps(self.look(trainer, pl_module)))

    def heard(self) -> list[Any]:
        """Return what each rank has told, by rank."""
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob("rank-*.json"))]


def note(folder: Path, name: str, line: object) -> None:
    """Append a line to a file that several processes write."""
    with (folder / name).open("a") as file:
        file.write(f"{line}\n")


def lines(folder: Path, name: str) -> list[str]:
    """Return the lines that ranks have appended to a file, sorted."""
    file = folder / name
    return sorted(file.read_text().splitlines()) if file.exists() else []


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the seeds and flags of this process back."""
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    torch.use_deterministic_algorithms(False)


def surroundings(one: pl.Trainer, module: pl.LightningModule) -> Any:
    import ray

    names = ("MASTER_ADDR", "PL_GLOBAL_SEED", "PL_SEED_WORKERS", "CUBLAS_WORKSPACE_CONFIG", "PARITY_HOOK")
    return {
        "rank": [one.global_rank, module.global_rank, one.local_rank, one.node_rank, one.world_size],
        "cpus": ray.get_runtime_context().get_assigned_resources()["CPU"],
        "pid": os.getpid(),
        **{name: os.environ.get(name) for name in names},
    }


def hook(folder: Path) -> None:
    """Note that this process has not met the others yet, and leave a mark in it."""
    met = torch.distributed.is_initialized() or "MASTER_ADDR" in os.environ or "HOROVOD_RANK" in os.environ
    os.environ["PARITY_HOOK"] = "ran"
    note(folder, "hook", f"{os.getpid()} {'late' if met else 'before'}")


@pytest.mark.usefixtures("seeded")
@BACKENDS
def test_ranks_resources_hooks_seeds_and_flags_reach_the_workers(backend: str, tmp_path: Path) -> None:
    """Issue 213, too: what `deterministic=True` sets on a worker has left it by the next fit."""
    settings = {"num_cpus_per_worker": 2, "resources_per_worker": {"CPU": 0.5}, "init_hook": partial(hook, tmp_path)}
    told = Tell(tmp_path, surroundings)
    with KINDS[backend](2, **settings) as ours:
        trainer(ours, callbacks=[told]).fit(Small(), data())
        first = told.heard()
        pl.seed_everything(1234, workers=True, verbose=False)
        trainer(ours, callbacks=[told], deterministic=True).fit(Small(), data())
        second = told.heard()
        torch.use_deterministic_algorithms(False)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG")
        trainer(ours, callbacks=[told]).fit(Small(), data())
        third = told.heard()
    assert [rank["rank"] for rank in first] == [[rank, rank, rank, 0, 2] for rank in (0, 1)]
    assert [(rank["cpus"], rank["MASTER_ADDR"]) for rank in first] == [(0.5, "127.0.0.1")] * 2
    seeds = [[rank["PL_GLOBAL_SEED"] for rank in run] for run in (first, second)]
    assert seeds == [[None] * 2, ["1234"] * 2]
    configured = [{rank["CUBLAS_WORKSPACE_CONFIG"] for rank in run} for run in (first, second, third)]
    assert configured == [{None}, {":4096:8"}, {None}]
    assert {rank["PARITY_HOOK"] for run in (first, second, third) for rank in run} == {"ran"}
    assert lines(tmp_path, "hook") == sorted(f"{rank['pid']} before" for rank in first)
    assert "PARITY_HOOK" not in os.environ


class Prepared(pl.LightningDataModule):
    """Notes which process prepares and sets up."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def prepare_data(self) -> None:
        note(self.folder, "prepared", os.getpid())

    def setup(self, stage: str) -> None:
        assert (self.folder / "prepared").exists()
        note(self.folder, "set up", os.getpid())

    def train_dataloader(self) -> Any:
        return data()


@BACKENDS
def test_data_is_prepared_once_on_a_worker_before_any_rank_sets_up(backend: str, tmp_path: Path) -> None:
    """Issue 130."""
    told = Tell(tmp_path, lambda one, module: os.getpid())
    trainer(strategy(backend), callbacks=[told]).fit(Small(), datamodule=Prepared(tmp_path))
    ranks = told.heard()
    assert lines(tmp_path, "prepared") == [str(ranks[0])]
    assert lines(tmp_path, "set up") == sorted(map(str, ranks))


# --- what Lightning's own tests check of its DDP strategy ---------------------------------------------------


class Sharing(Small):
    """Shards its optimizer's states over the ranks."""

    def configure_optimizers(self) -> Any:
        return ZeroRedundancyOptimizer(self.parameters(), optimizer_class=torch.optim.Adam, lr=0.1)


def test_a_checkpoint_of_an_optimizer_that_is_sharded_over_the_ranks_is_whole(tmp_path: Path) -> None:
    model, one = Sharing(), trainer(strategy("ddp"))
    one.fit(model, data())
    one.save_checkpoint(tmp_path / "whole.ckpt")
    assert torch.equal(Small.load_from_checkpoint(tmp_path / "whole.ckpt").layer.weight, model.layer.weight)
    (state,) = torch.load(tmp_path / "whole.ckpt", weights_only=True)["optimizer_states"]
    assert sorted(state["state"]) == [0, 1]  # weight and bias, each of which one rank has
    trainer(strategy("ddp"), max_epochs=2).fit(Sharing(), data(), ckpt_path=tmp_path / "whole.ckpt")


def _averaging() -> Any:
    state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=None, start_localSGD_iter=8)
    hook = post_localSGD_hook.post_localSGD_hook
    return strategy("ddp", ddp_comm_state=state, ddp_comm_hook=hook, model_averaging_period=4)


def test_hooks_of_ddp_s_communication_reach_the_workers(tmp_path: Path) -> None:
    """Lightning registers a hook where gradients are on a GPU; the averaging of weights runs everywhere."""
    told = Tell(tmp_path, lambda one, _: type(getattr(one.strategy, "_model_averager", None)).__name__)
    compressed = strategy("ddp", ddp_comm_hook=default_hooks.fp16_compress_hook)
    for ours, averager in ((compressed, "NoneType"), (_averaging(), "PeriodicModelAverager")):
        trainer(ours, callbacks=[told]).fit(Small(), data())
        assert told.heard() == [averager] * 2
    with pytest.raises(ValueError, match="model averaging cannot work with a distributed optimizer"):
        trainer(_averaging()).fit(Sharing(), data())


def noting(folder: Path, graph: Any, _inputs: Any) -> Any:
    """Be a backend of torch.compile that notes which process compiles, and runs what it is given as it is."""
    note(folder, "compiled", os.getpid())
    return graph.forward


class Silent(Small):
    """Logs nothing: torch 2.13 cannot compile Lightning's log, nor in one process. Its optimizer has no state."""

    def log(self, *given: Any, **more: Any) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_compiled_model_is_compiled_on_the_workers(tmp_path: Path) -> None:
    plain, model = Silent(), Silent()
    plain.load_state_dict(model.state_dict())
    one, again = trainer(strategy("ddp")), trainer(strategy("ddp"), max_epochs=2)
    compiled: Any = torch.compile(model, backend=partial(noting, tmp_path))
    for _ in range(2):  # and again, with what the first run left
        one.fit(compiled, data(32, 16))
        one.fit_loop.max_epochs = 2
    again.fit(plain, data(32, 16))
    assert torch.allclose(model.layer.weight, plain.layer.weight, atol=1e-6)
    processes = set(lines(tmp_path, "compiled"))
    assert len(processes) == 2
    assert str(os.getpid()) not in processes


class Unused(Small):
    """Has a layer that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)


class Leaving(Small):
    """Ends its process's program where it is set up."""

    def setup(self, stage: str) -> None:
        raise SystemExit(3)


def test_mistakes_are_errors_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    advice = r"strategy=tl\.RayStrategy\(find_unused_parameters=True\)"
    with pytest.raises(RuntimeError, match=advice):
        trainer(strategy("ddp")).fit(Unused(), data())
    with pytest.raises(errors.WorkerFailedError, match=r"rank [01] on .*: SystemExit: 3"):
        trainer(strategy("ddp")).fit(Leaving(), data())
    for backend in ("glo", "cpu:glo,cuda:nccl"):
        with pytest.raises(errors.StrategyError, match=r"no process_group_backend='glo'.* Did you mean 'gloo'\?"):
            trainer(strategy("ddp", process_group_backend=backend)).fit(Small(), data())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(errors.ResourceError, match=r"0\.5 CPU \+ 1 GPU.*2 GPU \(there are 0\)"):
        trainer(strategy("ddp", use_gpu=True), accelerator="auto").fit(Small(), data())
