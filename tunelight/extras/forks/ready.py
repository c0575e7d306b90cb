"""Says where workers are forked in place of being started, and starts the server ahead of the first of them.

The server imports this before it forks: a fork of it has to be fit to be Ray's worker.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tunelight.compat import replaced
from tunelight.extras.forks import setup_worker

VARIABLE = "TUNELIGHT_FORK"
"""Set to 0, it lets Ray start each worker as a new Python."""
_FIRST = ("torch", "torch.distributed", "numpy", "pandas", "pyarrow", "cloudpickle", "fsspec")
_LATER = (
    "tunelight.extras.forks.ready:import_for_forks",
    "ray",
    "ray.tune",
    "ray._private.node",
    "tunelight.trial.trainable",
    "tunelight.gang.worker",
    "tunelight.lightning.callbacks",
    "tunelight.lightning.strategies",
)


def possible() -> bool:
    """Tell whether workers can be forked on this machine, and are to be."""
    return sys.platform == "linux" and os.environ.get(VARIABLE) != "0"


@dataclass(frozen=True)
class ForkServer:
    """The servers of one Ray, on each of its nodes.

    Attributes:
        modules: what is imported before a worker is forked, beside torch: the package of Lightning in use.
        threads: how many threads a worker's libraries use, which they decide when they are imported.
        folder: this user's own, and nobody else's; the servers make it.
        setup_worker: in place of Ray's own script of this name, which imports Ray.
    """

    modules: tuple[str, ...] = ()
    threads: int = 1
    folder: str = field(default_factory=lambda: f"/tmp/tunelight-{os.geteuid()}-{secrets.token_hex(4)}")  # noqa: S108 - a socket's path has to be short, and is refused unless the folder is this user's alone
    setup_worker: ClassVar[Path] = Path(setup_worker.__file__)

    @property
    def _launcher(self) -> list[str]:
        python = [sys.executable, *setup_worker.PYTHON_OPTIONS, setup_worker.__file__]
        modules = ",".join([*_FIRST, *self.modules]), ",".join(_LATER)
        return [*python, self.folder, str(self.threads), *modules]

    @property
    def py_executable(self) -> str:
        """What Ray runs in Python's place to start a worker: a field of ``runtime_env``."""
        return shlex.join(self._launcher)

    def start(self, variables: Mapping[str, str]) -> None:
        """Let this machine's server begin to import, with variables that workers will have; does not wait for it."""
        begin(self.py_executable, {**os.environ, **variables})

    def remove(self) -> None:
        """Delete this machine's folder, once Ray has ended; servers end by themselves."""
        shutil.rmtree(self.folder, ignore_errors=True)


def begin(py_executable: str, environ: Mapping[str, str]) -> None:
    """Let this machine's server begin to import, if workers with that field are forked, in their environment."""
    null = subprocess.DEVNULL
    if setup_worker.__file__ in (command := shlex.split(py_executable)):
        subprocess.run(command, env=environ, stdin=null, stdout=null, stderr=null, check=False)


def import_for_forks(import_the_rest: Callable[[], object]) -> str | None:
    """Import Ray and ``the_rest`` in a process that will fork; return why its forks would not do, or None.

    Ray draws an ID for each class of actors that is defined, in C++. That seeds a generator, which all forks would go
    on with: they would be workers of the same IDs. So these IDs are drawn in Python meanwhile. Read in ``ray.actor`` of
    2.43.0 and 2.60.0.
    """
    import ray.actor

    real = ray.actor.ActorClassID

    class DrawnInPython:
        @staticmethod
        def from_random() -> Any:
            return real(os.urandom(real.size()))

    with replaced(ray.actor, ActorClassID=DrawnInPython):
        import_the_rest()
    return "forks would draw the same IDs" if _id_of_a_fork() == _id_of_a_fork() else None


def _id_of_a_fork() -> bytes:
    """Return the ID that a fork of this process draws first. Read in 2.60.0."""
    import ray

    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(theirs, ray.NodeID.from_random().binary())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        drawn = answer.read()
    with contextlib.suppress(ChildProcessError):  # a handler of SIGCHLD was first
        os.waitpid(pid, 0)
    return drawn
