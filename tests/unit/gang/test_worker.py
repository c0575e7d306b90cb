"""A worker in this process, which is a gang of one: how its trials end, and what each leaves behind."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import cloudpickle
import pytest
import torch
import torch.distributed as dist

import tunelight as tl
from tests.kit import tasks
from tunelight.compat.lightning import pl
from tunelight.gang.meeting import torch_group
from tunelight.gang.meeting.group import Meeting
from tunelight.gang.meeting.rendezvous import Rendezvous
from tunelight.gang.reset import CleanState, GpuMemory
from tunelight.gang.worker import Compiled, GangWorker, TrialBox
from tunelight.messages import CACHE_VARIABLE, Continue, Ended, Place
from tunelight.session.session import report
from tunelight.session.task import Home

HERE = "127.0.0.1"


def worker_of_one(memory: GpuMemory, *, gpu: int | None = None) -> Any:
    """Return a worker that has met as the only rank."""
    worker: Any = object.__new__(GangWorker)  # its constructor asks Ray
    worker._gpu_memory = memory
    worker._clean, worker._compiled, worker._rendezvous = CleanState(memory), Compiled(), Rendezvous()
    worker._place, worker._thread, worker._left = None, None, ()
    worker._session = worker._writing = None
    ports = worker.host(HERE, "gloo", (1,))
    worker.join(Meeting(HERE, ports[0], "gloo", (1,), ports[1], 60.0), Place(0, 1, 0, 1, 0, HERE, gpu=gpu))
    return worker


def begin(worker: Any, train: Callable[..., object], serial: int, folder: Path, *, job: bool = False) -> TrialBox:
    """Start a trial on it; return its events."""
    box = TrialBox(serial)
    box.mailbox.put(Continue(None))
    train_and_start = tasks.trial(
        folder / "t", cloudpickle.dumps(train), "t", seed=0, home=Home(str(folder)), serial=serial, until=None, job=job
    )
    worker._trial = box
    worker._thread = threading.Thread(target=worker._run, args=(*train_and_start, box))
    worker._thread.start()
    return box


def error_of(box: TrialBox, limit_s: float = 60.0) -> Any:
    """Return the error of a trial, or None, as soon as it ends."""
    while not isinstance(event := box.events.get(timeout=limit_s), Ended):
        pass
    return event.error


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a worker changes of its process within the test."""
    monkeypatch.setattr(os, "environ", os.environ | {CACHE_VARIABLE: str(tmp_path)})
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])  # where a trial looks for trackers
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def worker(place: None) -> Iterator[Any]:
    one = worker_of_one(GpuMemory())
    yield one
    one.leave()


def test_the_error_of_a_rank_is_told_before_nccl_has_ended_its_connections(worker, tmp_path, monkeypatch) -> None:
    """They may end only once the head, by this error, has ended the other ranks of the node."""
    told = threading.Event()

    def abort() -> None:
        assert told.wait(60)
        dist.destroy_process_group()

    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(torch_group, "abort_process_group", abort)
    monkeypatch.setattr(torch_group, "_ABORT_LIMIT_S", 60)

    def train(config: Any) -> None:
        raise RuntimeError("CUDA out of memory")

    error = error_of(begin(worker, train, 1, tmp_path), 20)  # not after the limit
    assert error.message == "CUDA out of memory"
    assert not error.secondary
    told.set()
    assert worker.leave() == ()


def test_a_trial_begins_with_its_own_rank_and_train_objects_may_have_any_attribute(worker: Any, tmp_path: Path) -> None:
    import torchmetrics
    from lightning_utilities.core.rank_zero import rank_zero_only

    for one in (rank_zero_only, torchmetrics.utilities.prints.rank_zero_only):
        vars(one)["rank"] = 1  # of an earlier trial

    class Train:
        restored = train = False

        def __call__(self, config: Any) -> None:
            from lightning_utilities.core import rank_zero

            assert [vars(one.rank_zero_only)["rank"] for one in (rank_zero, torchmetrics.utilities.prints)] == [0, 0]
            tl.report({"loss": 1.0})

    assert error_of(begin(worker, Train(), 1, tmp_path)) is None


@pytest.mark.parametrize("strategy", ["auto", "the gang's"])
def test_a_keyboard_interrupt_in_training_code_is_the_trial_s_error(worker: Any, tmp_path: Path, strategy: str) -> None:
    class Enough(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            raise KeyboardInterrupt("enough")

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            print("heard of", type(exception).__name__)  # noqa: T201 - read in the trial's log

    def train(config: Any) -> None:
        pl.Trainer(
            accelerator="cpu", max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            callbacks=[Enough()], strategy="auto" if strategy == "auto" else tl.RayStrategy(),
        ).fit(import_module(f"{pl.__name__}.demos.boring_classes").BoringModel())  # fmt: skip

    error = error_of(begin(worker, train, 1, tmp_path))
    assert (error.type_name, error.message) == ("KeyboardInterrupt", "enough")
    assert "heard of KeyboardInterrupt" in (tmp_path / "t" / "log.txt").read_text()


def test_a_log_file_that_a_trial_opens_is_closed_at_its_end(worker: Any, tmp_path: Path) -> None:
    def train(config: Any) -> None:
        logger = logging.getLogger("tests.named")
        logger.addHandler(logging.FileHandler("mine.log"))
        logger.warning("trained")
        logging.getLogger().addHandler(logging.FileHandler("root.log"))

    for serial in (1, 2):
        error_of(begin(worker, train, serial, tmp_path))
        worker._thread.join()
        assert worker._left == ()
        assert logging.getLogger("tests.named").handlers == []
        files = (one for one in logging.getLogger().handlers if isinstance(one, logging.FileHandler))
        assert "root.log" not in {Path(one.baseFilename).name for one in files}
    assert (tmp_path / "mine.log").read_text() == "trained\ntrained\n"


@pytest.mark.parametrize("said", ["context has already been set", "'Net' is already registered in MODELS"])
def test_an_error_of_a_call_that_works_once_in_a_process_says_that_workers_are_reused(worker, tmp_path, said) -> None:
    def train(config: Any) -> None:
        raise RuntimeError(said)

    assert error_of(begin(worker, train, 1, tmp_path)).message == said
    worker._reused = True  # as ``start`` notes of a worker that has had the task
    assert "reuse_gangs=False gives each trial new ones" in error_of(begin(worker, train, 2, tmp_path)).message


GB = 10**9
DROP = SimpleNamespace  # a call without effect


class Cuda:
    """A GPU of 16 GB: what is allocated on it, and what the process asked of it."""

    def __init__(self, total: int = 16 * GB, *, used: bool = True) -> None:
        self.total, self.used, self.allocated = total, used, 0
        self.graphs = 0
        """What CUDA graphs hold for their next replay."""
        self.asked: list[Any] = []
        self.broken = ""
        self.fraction = 1.0

    def is_initialized(self) -> bool:
        return self.used

    def is_available(self) -> bool:
        return True

    def memory_allocated(self, device: int) -> int:
        self.asked.append(("memory", device))
        self.used = True
        return self.allocated

    def memory_reserved(self, device: int) -> int:
        return self.memory_allocated(device) + self.graphs

    def get_device_properties(self, device: int) -> Any:
        return SimpleNamespace(total_memory=self.total)

    def synchronize(self, device: int) -> None:
        if self.broken:
            raise RuntimeError(f"CUDA error: {self.broken}\nFor debugging consider ...")

    def empty_cache(self) -> None:
        self.synchronize(0)
        self.asked.append("empty")

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        self.asked.append(("fraction", fraction, device))
        self.used, self.fraction = True, fraction

    def get_per_process_memory_fraction(self, device: int) -> float:
        return self.fraction


@pytest.mark.parametrize(
    ("total", "share", "before", "left", "unfit"),
    [(16, 1, 0, [0.7], False), (16, 1, 0, [0.9], True), (6, 1, 0, [0.5], False), (6, 1, 0, [0.6], True),
     (80, 0.5, 0, [1.9], False), (80, 0.5, 0, [2.1], True), (16, 1, 10, [0.5], False), (16, 1, 10, [1.0], True),
     (16, 1, 0, [0.16] * 5, False), (16, 1, 0, [0.16] * 6, True)],
)  # fmt: skip
def test_trials_may_leave_together_a_twentieth_of_the_worker_s_part_of_the_gpu_or_512_mb_beyond_what_was_there(
    total: int, share: float, before: int, left: list[float], unfit: bool
) -> None:
    cuda = Cuda(total * GB)
    cuda.allocated = before * GB
    watched, found = GpuMemory(share, cuda), list[bool]()
    for part in left:
        watched.begin(0)
        cuda.allocated += int(part * GB)
        found.append(bool(watched.left(DROP)))
    assert found == [False] * (len(left) - 1) + [unfit]


def test_graphs_that_hold_much_memory_are_dropped_and_nothing_is_where_nothing_leaks() -> None:
    cuda = Cuda()
    dropped: list[int] = []

    def drop() -> None:
        dropped.append(cuda.graphs)
        cuda.graphs = 0

    watched = GpuMemory(1, cuda)
    for held in (GB // 2, 2 * GB):
        watched.begin(0)
        cuda.graphs = held
        assert watched.left(drop) == ()
    assert dropped == [2 * GB]
    watched.begin(0)
    cuda.asked.clear()
    assert watched.left(lambda: pytest.fail("dropped")) == ()
    assert cuda.asked == ["empty", ("memory", 0)], "nothing is searched either"


def test_garbage_of_earlier_trials_and_what_is_kept_on_purpose_goes_before_the_worker_does() -> None:
    cuda = Cuda()

    class Freed:
        def __del__(self) -> None:
            cuda.allocated -= GB

    watched = GpuMemory(1, cuda)
    watched.begin(0)
    cycle: Any = Freed()
    cycle.itself = cycle
    gc.freeze()  # as at the start of the next trial, whose collections do not see it
    del cycle
    cuda.allocated = 3 * GB

    def drop() -> None:
        cuda.allocated -= 2 * GB

    try:
        assert watched.left(drop) == ()
    finally:
        gc.unfreeze()
    assert cuda.allocated == 0


@pytest.mark.parametrize("drop", [DROP, None])
def test_an_error_that_cuda_does_not_get_over_makes_the_worker_unfit(drop: Any) -> None:
    cuda = Cuda()
    gpu = GpuMemory(1, cuda)
    gpu.begin(0)
    assert gpu.left(drop) == ()
    cuda.broken = "device-side assert triggered"
    assert gpu.left(drop) == (
        "an error of CUDA, which ends only with the process: CUDA error: device-side assert triggered",
    )


@pytest.mark.parametrize(("share", "device"), [(1.0, 0), (1.0, None), (0.5, None), (0.0, None)])
def test_a_process_that_does_not_use_cuda_is_left_alone(share: float, device: int | None) -> None:
    cuda = Cuda(used=False)
    watched = GpuMemory(share, cuda)
    watched.begin(device)
    assert watched.left(DROP) == ()
    assert not cuda.used
    assert cuda.asked == []
    watched.begin(device)
    cuda.used, cuda.allocated = device is not None, 2 * GB  # by the trial: it counts from nothing
    assert bool(watched.left(DROP)) is cuda.used
    if not torch.cuda.is_available():  # a build of torch for CPUs beside a Ray that counts GPUs
        built = GpuMemory(share, torch.cuda)
        built.begin(device)
        assert built.left(DROP) == ()


@pytest.mark.parametrize(
    ("share", "hook", "allowed"), [(0.5, None, 0.5), (1.0, None, 1.0), (1.0, 0.3, 0.3), (0.2, 0.3, 0.2)]
)
def test_each_trial_has_its_worker_s_part_of_the_gpu_whatever_an_earlier_one_set(share, hook, allowed) -> None:
    """A smaller limit of ``init_hook``, on a GPU that other programs use, stays."""
    cuda = Cuda(used=hook is not None)
    if hook is not None:
        cuda.set_per_process_memory_fraction(hook, 3)
    watched = GpuMemory(share, cuda)
    for _ in range(2):
        watched.begin(3)
        assert cuda.fraction == allowed
        cuda.set_per_process_memory_fraction(0.1, 3)  # the training code
        watched.left(DROP)
    assert {asked[2] for asked in cuda.asked if asked[0] == "fraction"} == {3}


class Live(Cuda):
    """A GPU on which each tensor that is alive counts as one gigabyte."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: list[weakref.ref[torch.Tensor]] = []

    def tensor(self) -> torch.Tensor:
        made = torch.zeros(1)
        self.alive.append(weakref.ref(made))
        return made

    def memory_allocated(self, device: int) -> int:
        return GB * sum(one() is not None for one in self.alive)


def of_user() -> Any:
    return sys.modules["models_of_mine"]


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a module of the user's, with the GPU."""
    made: Any = ModuleType("models_of_mine")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    made.cuda = Live()
    yield made
    vars(made).clear()


@pytest.fixture
def trial(mine: Any, place: None, tmp_path: Path) -> Iterator[Callable[..., tuple[str, ...]]]:
    """Return a function that trains a trial, and returns what that left behind."""
    worker = worker_of_one(GpuMemory(1, mine.cuda), gpu=0)
    serials = itertools.count(1)

    def run(train: Callable[..., object], *, job: bool = False, told: str = "") -> tuple[str, ...]:
        def trains(config: Any) -> None:
            train(config)
            report({"loss": 1.0})

        box = begin(worker, trains, next(serials), tmp_path, job=job)
        worker._thread.join(60)
        error = error_of(box)
        assert (error is not None) is (train.__name__ == "fails")
        assert error is None or told in error.message
        return tuple(worker._left)

    yield run
    worker.leave()
    gc.unfreeze()


def test_a_clean_up_or_an_end_that_fails_costs_the_worker_and_not_the_trial_whose_failure_is_told(trial, monkeypatch):
    def trains(config: Any) -> None:
        warnings.filters = tuple(warnings.filters)

    def fails(config: Any) -> None:
        raise ValueError("no such lr")

    monkeypatch.setattr(warnings, "filters", list(warnings.filters))
    (left,) = trial(trains)
    assert left.startswith("a clean-up that failed: TypeError")
    monkeypatch.setattr(warnings, "filters", list(warnings.filters))
    monkeypatch.setattr(GangWorker, "_end_runs", mock.Mock(side_effect=OSError("no way to the tracker")))
    (left,) = trial(fails, told="no such lr")
    assert left == "an end that failed: OSError: no way to the tracker"


def test_threads_that_wait_for_kernels_to_compile_are_no_leak(trial: Any) -> None:
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.pool.cache_clear()

    def trains(config: Any) -> None:
        from torch._inductor import config as inductor
        from torch._inductor.async_compile import AsyncCompile

        inductor.compile_threads = 24  # in this thread
        together = threading.Barrier(24)
        list(AsyncCompile.pool().map(lambda _: together.wait(30), range(24)))

    assert trial(trains) == ()
    AsyncCompile.pool().shutdown()
    AsyncCompile.pool.cache_clear()


def test_a_trial_that_keeps_a_model_in_a_global_makes_the_worker_unfit_and_a_driver_s_job_does_not(trial: Any) -> None:
    def trains(config: Any) -> None:
        of_user().MODEL = of_user().cuda.tensor()

    assert trial(trains, job=True) == ()
    (left,) = trial(trains)
    assert left == "1.0 GB allocated on its GPU, more than the limit of 800.0 MB"


def test_an_error_that_is_kept_keeps_no_tensor_of_the_code_that_raised_it(trial: Any, mine: Any) -> None:
    def fails(config: Any) -> None:
        mine = of_user()

        def step() -> None:
            batch = mine.cuda.tensor()
            raise ValueError(batch.shape)

        loss = mine.cuda.tensor()
        try:
            step()
        except ValueError as error:
            sys.last_value = mine.SEEN = error  # as notebooks and debuggers do
            mine.RAISED = RuntimeError(loss.shape)
            raise mine.RAISED from error

    assert trial(fails) == ()
    assert mine.cuda.memory_allocated(0) == 0


def test_a_global_that_each_trial_replaces_counts_once_although_it_is_a_cycle(trial: Any, mine: Any) -> None:
    """Garbage that an earlier trial made is not seen by the collections of a later one."""
    mine.cuda.get_device_properties = lambda device: SimpleNamespace(total_memory=30 * GB)

    def trains(config: Any) -> None:
        mine = of_user()
        model: Any = [mine.cuda.tensor()]
        model.append(model)
        mine.MODEL = model

    for _ in range(4):
        assert trial(trains) == ()
    assert mine.cuda.memory_allocated(0) == GB
