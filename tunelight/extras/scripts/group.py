"""The gang's process group, for scripts that make one by themselves, as under torchrun."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import multiprocessing

from tunelight.errors import StrategyError
from tunelight.session.session import Session


@contextlib.contextmanager
def joined_group(session: Session) -> Iterator[None]:
    """Let ``init_process_group`` return the gang's group, which is there already, and outlives the script.

    Another backend than the gang's is an error at that call, and in a gang of several ranks so are processes that each
    of them would start to train with.
    """
    init, destroy, spawn = dist.init_process_group, dist.destroy_process_group, multiprocessing.spawn

    def join(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        if not dist.is_initialized():
            init(backend, *args, **kwargs)
            return
        ours = dist.get_backend()
        asked = "" if backend is None else str(backend).lower()
        if ours not in asked and asked:
            raise StrategyError(
                f"init_process_group({str(backend)!r}): the trial's workers are connected by {ours} already. Leave the "
                f"backend out, or say {ours!r}{' where there are no GPUs' if ours == 'gloo' else ''}."
            )
        session.note(
            f"init_process_group joins the trial's own process group ({ours}); its other arguments do not count."
        )

    def leave(group: Any = None) -> None:
        if group not in (None, dist.group.WORLD):
            destroy(group)

    def refuse(*_: Any, **__: Any) -> None:
        raise StrategyError(
            f"torch.multiprocessing.spawn would start processes in each of the trial's {session.context.world_size} "
            "workers. Give the sweep workers=1, with the CPUs or GPUs that they need; or let the script train one rank "
            "in each process, as under torchrun."
        )

    dist.init_process_group, dist.destroy_process_group = join, leave
    if session.context.world_size > 1:
        multiprocessing.spawn = refuse
    try:
        yield
    finally:
        dist.init_process_group, dist.destroy_process_group = init, destroy
        multiprocessing.spawn = spawn
