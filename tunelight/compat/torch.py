"""What older versions of torch have in other places, or do not have.

``fully_shard`` and its kin are public in 2.6, and so are distributed tensors; before, both were there under
private names. Read in 2.4.0 and 2.13.0. A name is looked up when it is first asked for.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
from collections import defaultdict
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import socket

    import torch.distributed as dist
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
    from torch.distributed.tensor import DTensor, distribute_tensor


_FSDP: Final = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
_TENSOR: Final = ("torch.distributed.tensor", "torch.distributed._tensor")

PLACES: Final = {
    "DTensor": _TENSOR,
    "FSDPModule": _FSDP,
    "distribute_tensor": _TENSOR,
    "fully_shard": _FSDP,
    "register_fsdp_forward_method": _FSDP,
}
"""Each name, and the modules that may have it, the public one first."""


def store_on(listener: socket.socket, address: str, limit_s: float) -> dist.TCPStore:
    """Return a new ``TCPStore`` that listens by a socket, which it takes over.

    The store's default server, libuv, takes no socket before torch 2.8 ("does not support initialization with an
    listen fd", read in 2.4.0); the other server of those versions does.
    """
    import torch
    import torch.distributed as dist

    older = {"use_libuv": False} if torch.__version__ < "2.8" else {}  # torch compares it as a version
    port, timeout = int(listener.getsockname()[1]), timedelta(seconds=limit_s)
    return dist.TCPStore(
        address, port, is_master=True, wait_for_workers=False, timeout=timeout,
        master_listen_fd=listener.detach(), **older,
    )  # fmt: skip


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name of torch's when it is first asked for. Raises: AttributeError for one that is not here."""
        for place in PLACES.get(name, ()):
            if hasattr(module := import_module(place), name):
                value = globals()[name] = getattr(module, name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def compiled_graphs() -> int:
    """Return how many graphs torch.compile has made in this process. Read in 2.4.0 and 2.13.0."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


def recompile_limit() -> int | None:
    """Return how many versions of a function torch.compile makes; None while it is not imported. Read in 2.13.0."""
    config = sys.modules.get("torch._dynamo.config")
    return None if config is None else int(getattr(config, _limit_of(config)))


def set_recompile_limit(limit: int) -> None:
    """Let torch.compile make so many versions of a function, in this thread (2.13.0) or this process (2.4.0)."""
    config = sys.modules["torch._dynamo.config"]
    setattr(config, _limit_of(config), limit)


def _limit_of(config: Any) -> str:
    """Return the setting's name. Read in 2.4.0 (the older one) and 2.13.0."""
    return "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"


def versions() -> int | None:
    """Return how many versions the most compiled function has; None if this torch does not tell. Read in 2.13.0."""
    frames, loop = sys.modules.get("torch._dynamo.convert_frame"), sys.modules.get("torch._dynamo.eval_frame")
    try:
        codes = [ref() for ref in frames.input_codes.seen]  # type: ignore[union-attr]
        return max((len(loop._debug_get_cache_entry_list(code)) for code in codes if code is not None), default=0)  # type: ignore[union-attr]
    except AttributeError:
        return None


def forget_compiled() -> None:
    """Drop what torch.compile has made in this process. Read in 2.4.0 and 2.13.0."""
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()


def compile_processes() -> set[int]:
    """Return the ids of the processes that compile inductor's kernels, which torch starts once. Read in 2.13.0.

    ``_pool_set`` of ``torch._inductor.async_compile`` has a pool by a process of its own, or one of concurrent.futures.
    """
    found: set[int] = set()
    for pool in getattr(sys.modules.get("torch._inductor.async_compile"), "_pool_set", ()):
        if (process := getattr(pool, "process", None)) is not None:
            found.add(process.pid)
        found.update(getattr(pool, "_processes", None) or ())
    return found


def compile_threads() -> set[threading.Thread]:
    """Return the threads, as many as cores, in which inductor compiles and waits for kernels. Read in 2.13.0."""
    module: Any = sys.modules.get("torch._inductor.async_compile")
    if module is None or not module.AsyncCompile.pool.cache_info().currsize:  # or asking would make it
        return set()
    return set(module.AsyncCompile.pool()._threads)


def share_graph_trees(kept: tuple[Any, Any] | None) -> tuple[Any, Any] | None:
    """Let this thread record and run CUDA graphs in the trees ``kept``, or in new ones; return them.

    None until inductor is in use. ``torch.compile(mode="reduce-overhead")`` keeps its trees in thread-local storage,
    which other threads than autograd's do not inherit. Before 2.13 only the thread that imported ``cudagraph_trees``
    can run such graphs; from 2.13 on each thread has trees of its own, of which another one cannot free the memory.
    Read in 2.4.0 and 2.13.0.
    """
    import torch

    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return kept
    local, names = trees.local, ("tree_manager_containers", "tree_manager_locks")
    if kept is None and all(hasattr(local, name) for name in names):
        return tuple(getattr(local, name) for name in names)
    kept = kept or ({}, defaultdict(threading.Lock))
    for name, value in zip(names, kept, strict=True):
        setattr(local, name, value)
        torch._C._stash_obj_in_tls(name, value)  # for autograd's threads
    return kept


def abort_process_group() -> None:
    """End NCCL's part of the process groups of this process without its peers. Read in 2.13.0; 2.4.0 only destroys.

    ``destroy_process_group`` first waits for collectives that have begun, and a peer that is gone ends none.
    """
    from torch.distributed import distributed_c10d as c10d

    getattr(c10d, "_abort_process_group", c10d.destroy_process_group)()


def use_gpu(device: int) -> None:
    """Make a GPU the one that this thread uses where its code names none; CUDA is not initialised for it.

    ``_lazy_call`` of ``torch.cuda``, read in 2.4.0 and 2.13.0: what torch does right after it has initialised CUDA.
    """
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.set_device(device)
    else:
        torch.cuda._lazy_call(lambda: torch.cuda.set_device(device))


def flight_records() -> list[dict[str, Any]]:
    """Return the entries of torch's flight recorders: this process's last collectives, the oldest first.

    ``_dump_nccl_trace`` and ``_dump_fr_trace`` (which also has gloo's) of ``torch._C._distributed_c10d``, read in
    2.13. Both record 2,000 entries by default; builds and versions without them have none.
    """
    from torch._C import _distributed_c10d as c10d

    entries: list[dict[str, Any]] = []
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            entries += pickle.loads(dump()).get("entries", [])  # noqa: S301 - written by torch, in this process
    return entries


# --- Hugging Face's Accelerate, where training code uses it; names that it keeps private, as read in 1.15 ---


def forget_states() -> None:
    """Clear what Accelerate, where it is imported, keeps for the life of a process: ranks, precision, accumulation."""
    state = sys.modules.get("accelerate.state")
    for name in ("PartialState", "AcceleratorState", "GradientState") if state is not None else ():
        with contextlib.suppress(AttributeError, TypeError):  # another version, whose states stay as they are
            getattr(state, name)._reset_state()
