"""The gang's process group, for scripts that make one by themselves, as under torchrun."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from tunelight.errors import StrategyError
from tunelight.session.session import Session


@contextlib.contextmanager
def joined_group(session: Session) -> Iterator[None]:
    """Let ``init_process_group`` return the gang's group, which is there already, and outlives the script.

    Another backend than the gang's is an error at that call.
    """
    init, destroy = dist.init_process_group, dist.destroy_process_group

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

    dist.init_process_group, dist.destroy_process_group = join, leave
    try:
        yield
    finally:
        dist.init_process_group, dist.destroy_process_group = init, destroy
