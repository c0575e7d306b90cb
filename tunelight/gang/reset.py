"""Resets a worker's process between two trials, so that the next trial starts as in a new process.

Reset: environment, working directory, random generators (seeded anew), default dtype and device,
deterministic, cudnn, matmul, attention and anomaly flags, thread count, the way tensors are shared, warning filters,
logging levels, handlers that log to files, child processes, threads, CUDA memory, cycles that hold a Trainer,
Accelerate's state, joblib's workers.
Not reset, since they cannot be known from outside: module globals, class attributes, monkey patches
(``reuse_gangs=False`` is for these).
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import psutil

from tunelight.compat.torch import compile_processes, compile_threads, forget_states, use_gpu
from tunelight.gang import script
from tunelight.machine.processes import has_children

_LOGGERS = ("", "torch", "pytorch_lightning", "lightning_fabric", "lightning", "lightning.pytorch", "lightning.fabric")
_THREAD_LIMIT_S = 1.0
_PROCESS_LIMIT_S = 1.0
"""How long a process may take to end by itself; then it is asked to, and after the same time killed."""
_LOKY = ("joblib.externals.loky.reusable_executor", "loky.reusable_executor")
_COLLECT_ALL_EVERY = 8
"""After how many trials cycles of older objects are freed too, such as those of a global that was replaced."""
_COLLECT_ALL_SHARE = 0.01
"""How much of a worker's time this may take: trials may be shorter than one such collection."""
_COLLECT_ALL_S = 0.3
"""How long the first one is taken to last, for torch's and Lightning's objects."""
_DAEMON_THREADS_LEFT = 16
"""How many idle daemon threads of libraries, such as a progress bar's monitor, may be left."""
_GPU_PART: Final = 0.05
"""The part of a worker's GPU memory that trials may leave allocated."""
_GPU_LEAST: Final = 512 * 2**20
"""What they may leave on a small GPU, in bytes."""


_ATTENTION: Final = (
    ("flash_sdp_enabled", "enable_flash_sdp"),
    ("mem_efficient_sdp_enabled", "enable_mem_efficient_sdp"),
    ("math_sdp_enabled", "enable_math_sdp"),
    ("cudnn_sdp_enabled", "enable_cudnn_sdp"),
    ("fp16_bf16_reduction_math_sdp_allowed", "allow_fp16_bf16_reduction_math_sdp"),
)
"""The switches of the kernels for attention in ``torch.backends.cuda``: what reads each, and what sets it."""
Flags = list[tuple[Callable[[], Any], Callable[[Any], Any]]]
UNREADABLE: Final = "unreadable"
"""What is read of a flag that torch refuses to read."""


def torch_flags() -> Flags:
    """Return (read, write) pairs for torch's process-wide settings.

    The older of two settings for the same thing comes first: torch refuses to read ``allow_tf32`` and the precision of
    matrix products once code has set ``fp32_precision`` (from 2.9 on).
    """
    import torch  # the head imports this package too

    def attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        return (lambda: getattr(owner, name), lambda value: setattr(owner, name, value))

    cuda, cudnn, matmul = torch.backends.cuda, torch.backends.cudnn, torch.backends.cuda.matmul

    def reduced_precision(kind: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        name = f"allow_{kind}_reduced_precision_reduction"
        if not hasattr(matmul, f"{name}_split_k"):  # torch 2.4 has no second part
            return attribute(matmul, name)
        both = (name, f"{name}_split_k")
        return (lambda: tuple(getattr(matmul, part) for part in both), lambda value: setattr(matmul, name, value))

    precise = [torch.backends, cudnn, getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None), matmul]
    return [
        (torch.get_default_dtype, torch.set_default_dtype),
        (
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda on: torch.use_deterministic_algorithms(on[0], warn_only=on[1]),
        ),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.is_anomaly_enabled, lambda on: torch.autograd.set_detect_anomaly(on, _anomaly_nan)),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy),
        attribute(cudnn, "enabled"),
        attribute(cudnn, "benchmark"),
        attribute(cudnn, "deterministic"),
        attribute(cudnn, "allow_tf32"),
        attribute(matmul, "allow_tf32"),
        reduced_precision("fp16"),
        reduced_precision("bf16"),
        *([attribute(matmul, "allow_fp16_accumulation")] if hasattr(matmul, "allow_fp16_accumulation") else []),
        *((getattr(cuda, read), getattr(cuda, write)) for read, write in _ATTENTION if hasattr(cuda, read)),
        attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
        *(attribute(owner, "fp32_precision") for owner in precise if hasattr(owner, "fp32_precision")),
    ]


_anomaly_nan = True


def read_flags(flags: Flags) -> list[Any]:
    """Return the flags' values; UNREADABLE for one that torch refuses to read."""
    return [_read(read) for read, _ in flags]


def write_flags(flags: Flags, values: list[Any]) -> None:
    """Set the flags that differ from ``values``, which :func:`read_flags` returned; what it could not read stays."""
    for (read, write), value in zip(flags, values, strict=True):
        if value != UNREADABLE and _read(read) != value:
            write(value)


def _read(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RuntimeError:
        return UNREADABLE


class GpuMemory:
    """What a worker may use of its GPU's memory, and what its trials leave there. Runs on: worker, in their thread.

    What a trial puts into a global or a library's cache stays in a warm worker, and would take the memory of the next.
    The limit counts from the first trial, so that many small leaks reach it as well. It does not initialise CUDA,
    except for a trial on a part of a GPU.

    Args:
        share: the part of a GPU that Ray gave the worker; 1 or more is no limit.
        cuda: the module ``torch.cuda``, or what stands for it.
    """

    def __init__(self, share: float = 1.0, cuda: Any = None) -> None:
        import torch

        self._share = min(1.0, float(share)) or 1.0
        self._cuda = torch.cuda if cuda is None else cuda
        self._device: int | None = None
        self._before: int | None = None
        """Bytes that were allocated before the first trial, such as by ``init_hook``."""
        self._reserved_before = 0
        """Bytes that torch had reserved then, allocated or not."""

    def begin(self, device: int | None) -> None:
        """Prepare a trial on ``device`` (None: on CPUs): allow its process the worker's part of the GPU, and no less.

        torch's allocator has one limit for each process and device, which an earlier trial's code may have changed. A
        smaller one that ``init_hook`` has set stays, where torch can tell it.
        """
        self._device = device
        if device is None:
            return
        used = self._cuda.is_initialized()
        if used and self._before is None and hasattr(self._cuda, "get_per_process_memory_fraction"):
            self._share = min(self._share, self._cuda.get_per_process_memory_fraction(device))
        if used or (self._share < 1 and self._cuda.is_available()):
            self._cuda.set_per_process_memory_fraction(self._share, device)
        if self._before is None:
            self._before = self._cuda.memory_allocated(device) if used else 0
            self._reserved_before = self._cuda.memory_reserved(device) if used else 0

    def left(self, drop: Callable[[], object] | None) -> tuple[str, ...]:
        """Free what is cached; return what is still allocated, where that is more than the limit.

        Where more is in use, CUDA graphs included, ``drop`` is called, which frees what is kept from trial to trial,
        and garbage of any age is collected: a new process would have nothing of that either. With None, nothing is
        looked for: a driver's job leaves the states of its optimizers where they are, for the driver to ask for.

        An error of CUDA, such as a device-side assert, is returned as well: each later call of the process would raise
        it again.
        """
        if not self._cuda.is_initialized():
            return ()
        try:
            self._cuda.synchronize(self._device)
        except RuntimeError as error:
            message = str(error).partition("\n")[0]
            return (f"an error of CUDA, which ends only with the process: {message}",)
        self._cuda.empty_cache()
        if drop is None or self._device is None or self._before is None:
            return ()
        limit = max(_GPU_PART * self._share * self._cuda.get_device_properties(self._device).total_memory, _GPU_LEAST)
        # CUDA graphs hold memory, for their next replay, that torch does not count as allocated.
        if self._cuda.memory_reserved(self._device) - self._reserved_before <= limit:
            return ()
        drop()
        gc.unfreeze()
        gc.collect()
        self._cuda.empty_cache()
        growth = int(self._cuda.memory_allocated(self._device)) - self._before
        if growth <= limit:
            return ()
        return (f"{_size(growth)} allocated on its GPU, more than the limit of {_size(limit)}",)


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


class CleanState:
    """The state of this process before its first trial, which it restores after each. Runs on: worker."""

    def __init__(self, gpu_memory: GpuMemory) -> None:
        self._gpu_memory = gpu_memory
        self._flags = torch_flags()
        self._values = read_flags(self._flags)
        self._environ = dict(os.environ)
        self._filters = list(warnings.filters)
        self._levels = {name: logging.getLogger(name).level for name in _LOGGERS}
        self._handlers = list(logging.getLogger().handlers)
        self._threads: set[threading.Thread] = set()
        self._files: set[tuple[logging.FileHandler, logging.Logger]] = set()
        self._children: set[int] = set()
        self._trials = 0
        """How many trials there were since older objects were collected."""
        self._collect_all_from = time.monotonic() + _COLLECT_ALL_S / _COLLECT_ALL_SHARE

    def remember_environment(self) -> None:
        """Remember the environment as it is now, with the gang's interface set in it."""
        self._environ = dict(os.environ)

    def freeze(self) -> None:
        """Let collections scan only objects made from now on, so that one takes a millisecond.

        Call it before anything of a trial is made: a cycle with a frozen object, such as its session, would stay.
        """
        if self._trials:
            gc.collect()  # what the clean-up of the last one still used
        gc.freeze()

    def begin(self, seed: int | None, cwd: str, environ: dict[str, str], gpu: int | None) -> None:
        """Prepare a trial: remember running threads and processes, seed all generators, set the environment.

        ``gpu``: the device that the trial trains on; None for CPUs.
        """
        self._threads, self._files = set(threading.enumerate()), _file_handlers()
        self._children = {child.pid for child in _children()}
        os.environ.update(environ)
        with suppress(OSError):  # another node need not have the driver's folder
            os.chdir(cwd)
        if gpu:  # where a process sees several, each thread would use the first one
            use_gpu(gpu)
        self._gpu_memory.begin(gpu)
        if seed is not None:
            _seed(seed)

    def restore(self, drop: Callable[[], object] | None) -> tuple[str, ...]:
        """Reset the process after a trial; return what could not be reset, which makes the worker unfit.

        ``drop``: see :meth:`GpuMemory.left`.
        """
        import torch

        _end_executors()
        script.end()
        write_flags(self._flags, self._values)
        torch.set_default_device(None)
        forget_states()
        for name in os.environ.keys() - self._environ.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in self._environ.items() if os.environ.get(name) != value})
        warnings.filters[:] = self._filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
        for handler, logger in _file_handlers() - self._files:
            logger.removeHandler(handler)
            handler.close()
        logging.getLogger().handlers[:] = self._handlers
        sys.last_exc = sys.last_value = sys.last_traceback = None  # type: ignore[attr-defined]
        self._collect()  # with its owner, a loader's or a manager's process ends
        left = (*self._processes_left(), *self._threads_left())  # what ends a moment later frees what it has on a GPU
        return (*left, *self._gpu_memory.left(drop))

    def _collect(self) -> None:
        """Free the cycles that this trial has made; now and then also those of what was there before it."""
        self._trials += 1
        began = time.monotonic()
        if self._trials < _COLLECT_ALL_EVERY or began < self._collect_all_from:
            gc.collect()
            return
        gc.unfreeze()
        gc.collect()
        now, self._trials = time.monotonic(), 0
        self._collect_all_from = now + (now - began) / _COLLECT_ALL_SHARE

    def _processes_left(self) -> tuple[str, ...]:
        """End the processes that the trial has left, and say which these were.

        What has used them may still be in a global of some module, and would fail in the next trial.
        """
        ours = [child for child in _children() if child.pid not in self._children]
        left = psutil.wait_procs(ours, timeout=_PROCESS_LIMIT_S)[1]
        known = {process.pid: process.name for process in multiprocessing.active_children()}
        names = sorted(f"{known.get(child.pid) or _name(child)} ({child.pid})" for child in left)
        for end in (psutil.Process.terminate, psutil.Process.kill):
            for child in left:
                with suppress(psutil.Error):
                    end(child)
            left = psutil.wait_procs(left, timeout=_PROCESS_LIMIT_S)[1]
        return (f"processes still running after the trial: {', '.join(names)}",) if names else ()

    def _threads_left(self) -> tuple[str, ...]:
        deadline = time.monotonic() + _THREAD_LIMIT_S
        mine = threading.current_thread()
        ours = {mine, *compile_threads()}
        extra = [t for t in threading.enumerate() if t not in self._threads and t not in ours]
        for thread in extra:
            if not thread.daemon:
                thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [t.name for t in extra if t.is_alive() and not t.daemon]
        if stuck:
            return (f"threads still running after the trial: {', '.join(sorted(stuck))}",)
        daemons = [t for t in threading.enumerate() if t.daemon and t not in ours]
        if len(daemons) > _DAEMON_THREADS_LEFT:
            return (f"{len(daemons)} daemon threads, which have piled up over its trials",)
        return ()


def _file_handlers() -> set[tuple[logging.FileHandler, logging.Logger]]:
    """Return what writes a log to a file, and for which logger."""
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    found = [(h, logger) for logger in loggers if isinstance(logger, logging.Logger) for h in logger.handlers]
    return {(handler, logger) for handler, logger in found if isinstance(handler, logging.FileHandler)}


def _end_executors() -> None:
    """End the workers that joblib keeps for its next call, which starts others: these have the trial's environment."""
    for name in _LOKY:
        executor = getattr(sys.modules.get(name), "_executor", None)
        if executor is not None:
            executor.shutdown(wait=True, kill_workers=True)


def _children() -> list[psutil.Process]:
    """Return this process's children and theirs, without helpers that are for the process's whole life.

    Inductor waits without a limit for a process of its own that is gone, and each new kernel needs one.
    """
    if not has_children():
        return []  # psutil would look at every process of the machine
    compilers = compile_processes()
    found = []
    for child in psutil.Process().children(recursive=True):  # a parent comes before its children
        with suppress(psutil.Error):
            if child.pid in compilers or child.ppid() in compilers:
                compilers.add(child.pid)
            elif not _is_helper(child):
                found.append(child)
    return found


def _is_helper(child: psutil.Process) -> bool:
    """Tell whether a process is one that a library starts once, and that all its later work needs.

    These are the trackers and the server for forks of multiprocessing and of its relatives (multiprocess, loky), and
    the manager of tensors that are shared by files. What the server has forked has its command line, too.
    """
    command = child.cmdline()
    if command and os.path.basename(command[0]) == "torch_shm_manager":  # noqa: PTH119 - no path
        return True
    code = command[command.index("-c") + 1] if "-c" in command[:-1] else ""
    return "resource_tracker import main" in code or ("forkserver import main" in code and child.ppid() == os.getpid())


def _name(child: psutil.Process) -> str:
    try:
        return child.name()
    except psutil.Error:
        return "one that has ended since"


def _seed(seed: int) -> None:
    """Seed Python, NumPy and torch, and Lightning's DataLoader workers by its variables."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator is what training code uses
    torch.manual_seed(seed)
    os.environ["PL_GLOBAL_SEED"] = str(seed)
    os.environ["PL_SEED_WORKERS"] = "1"
