"""Trains programs by Lightning's own DDP, in processes with the variables of torchrun.

`python -m tests.differential.reference '{"wanted": [FOLDER], "one": [FOLDER]}'`: each folder holds a program; its
outcome goes to `wanted` in it, with two processes, and to `one` with one. DDP is asked for one process, too: it
shuffles where a plain process does not, whose outcome goes to `process`. The processes are forks of this one, so that a
program that fails costs no new imports.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from tests.differential.observe import maker, observed
from tunelight.compat.lightning import DDPStrategy

SIZES: Final = {"wanted": 2, "one": 1, "process": 1}
"""The folder of an outcome -> how many processes train."""
LIMIT_S: Final = 60.0
"""How long one program may take."""


class Reference(DDPStrategy):
    """Lightning's DDP, which is made anew where parameters were unfrozen: else its ranks train those apart."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        wrapped: Any = self.model
        trained = [one.requires_grad for one in wrapped.parameters()]
        before, self.trained = getattr(self, "trained", trained), trained
        if trained != before:
            del wrapped.reducer, wrapped.logger
            self.model = self._setup_model(wrapped.module)


def load(folder: Path) -> ModuleType:
    """Import a folder's program, as the module beside a script that it is."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(f"program_{folder.name}")


def main(reference: str, folders: Sequence[Path]) -> None:
    """Train programs; one that ends its processes, or does not end, has an outcome that says so."""
    while left := _left(reference, folders):
        _start(reference, left)
        if len(_left(reference, folders)) == len(left):
            (left[0] / reference).mkdir(exist_ok=True)
            (left[0] / reference / "died.txt").touch()
            (left[0] / reference / "done-0").touch()


def _left(reference: str, folders: Sequence[Path]) -> list[Path]:
    return [folder for folder in folders if not (folder / reference / "done-0").exists()]


def _start(reference: str, folders: Sequence[Path]) -> None:
    """Train programs in new processes, up to the first that fails on a rank: its ranks may disagree then."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    ranks = []
    for rank in range(SIZES[reference]):
        pid = os.fork()
        if pid == 0:
            try:
                _train(reference, folders, rank, port)
            finally:
                os._exit(0)
        ranks.append(pid)
    count, until = len(_left(reference, folders)), time.monotonic() + LIMIT_S
    while ranks:
        ranks = [pid for pid in ranks if os.waitpid(pid, os.WNOHANG) == (0, 0)]
        if (now := len(_left(reference, folders))) < count:
            count, until = now, time.monotonic() + LIMIT_S
        if time.monotonic() > until:
            for pid in ranks:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _train(reference: str, folders: Sequence[Path], rank: int, port: int) -> None:
    world = str(SIZES[reference])
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "differential",
    }  # fmt: skip
    torch.set_num_threads(1)

    def strategy(unused: bool) -> dict[str, Any]:
        ddp = Reference(find_unused_parameters=unused, timeout=timedelta(seconds=20))
        return {"devices": 1} if reference == "process" else {"strategy": ddp, "devices": SIZES[reference]}

    for folder in folders:
        wanted = folder / reference
        wanted.mkdir(exist_ok=True)
        raised = observed(load(folder).main, maker(wanted, strategy), wanted, lambda: rank)
        Path(wanted, f"done-{rank}").touch()
        if raised is not None:
            return


if __name__ == "__main__":
    for name, programs in json.loads(sys.argv[1]).items():
        main(name, [Path(one) for one in programs])
    os._exit(0)  # what its forks shared may wait for them at the interpreter's end
