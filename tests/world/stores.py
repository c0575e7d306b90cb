"""An object store on the world's time: what S3 promises, and what may become of a request.

A request arrives whatever becomes of its sender meanwhile; its answer may be late, or lost: then it is sent again, as
by S3's clients. Whoever reads gets the newest object that arrived. All nodes have one working folder for the files of
the store, as where homes are shared; it is lost with the cluster.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import io
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

from tests.world import kernel as kernels
from tests.world.kernel import BEGAN, Kernel, Wait

PROTOCOL = "world"
URL = f"{PROTOCOL}://bucket/sweeps"
_TRIES = 5
"""How often a client asks before it raises."""


class Answer(Wait):
    """An answer of the store, for which a thread waits."""

    value: Any = None
    error: OSError | None = None


class Bucket:
    """The objects of one world: name -> contents and time. ``fails_until``, ``loses_until``: faults end then."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.fails_until = self.loses_until = -1.0
        self.slow = 1.0
        self._thread = threading.get_ident()

    def ask(self, request: Callable[[], Any], *, changes: bool = False) -> Any:
        """Send a request, and wait for its answer. Raises: OSError where the store gives none."""
        kernel = self.kernel
        if kernel.current is None:  # who looks at it from outside of the world
            return request()
        if _by_pyarrow() or threading.get_ident() != self._thread:
            if kernel.now < self.fails_until:
                raise OSError(errno.EIO, "503 Slow Down")
            return request()
        if changes:
            kernel.here.changes()
        for number in range(1, _TRIES + 1):
            answer = Answer(kernel)
            kernel.after(kernel.cut_s(kernel.here) + self._latency_s(), partial(self._arrive, request, answer))
            answer.wait()
            if answer.error is None:
                return answer.value
            if answer.error.errno != errno.EIO or number == _TRIES:
                raise answer.error
            kernel.sleep(0.2 * 2**number)
        raise AssertionError("not reached")

    def _arrive(self, request: Callable[[], Any], answer: Answer) -> None:
        """Do what is asked for, if it is, and answer."""
        try:
            if self.kernel.now < self.fails_until:
                raise OSError(errno.EIO, "503 Slow Down")
            answer.value = request()
            if self.kernel.now < self.loses_until and self.kernel.rng.random() < 0.3:
                raise OSError(errno.EIO, "the connection was reset")
        except OSError as error:
            answer.error = error
        self.kernel.after(self._latency_s(), answer.end)

    def _latency_s(self) -> float:
        return self.kernel.rng.uniform(0.002, 0.04) * self.slow

    # -- what it does once a request has arrived

    def put(self, name: str, data: bytes, *, create: bool) -> None:
        """Store an object. Raises: FileExistsError."""
        if create and name in self.objects:
            raise FileExistsError(errno.EEXIST, "412 Precondition Failed", name)
        self.objects[name] = data, BEGAN + self.kernel.now

    def entry(self, name: str) -> dict[str, Any]:
        """Return what is known of an object, or of a folder. Raises: FileNotFoundError."""
        if name in self.objects:
            data, at = self.objects[name]
            return {
                "name": name, "type": "file", "size": len(data),
                "LastModified": dt.datetime.fromtimestamp(at, dt.UTC),
            }  # fmt: skip
        if any(other.startswith(f"{name}/") for other in self.objects):
            return {"name": name, "type": "directory", "size": 0}
        raise FileNotFoundError(errno.ENOENT, "404 Not Found", name)

    def below(self, folder: str) -> list[dict[str, Any]]:
        """Return the entries of all objects below a folder."""
        return [self.entry(name) for name in sorted(self.objects) if name.startswith(f"{folder}/")]

    def listed(self, folder: str) -> list[dict[str, Any]]:
        """Return the entries right in a folder."""
        inner = {f"{folder}/{one['name'][len(folder) + 1 :].partition('/')[0]}" for one in self.below(folder)}
        if not inner:
            self.entry(folder)
        return [self.entry(name) for name in sorted(inner)]

    def get(self, name: str) -> bytes:
        """Return an object. Raises: FileNotFoundError."""
        if name not in self.objects:
            raise FileNotFoundError(errno.ENOENT, "404 Not Found", name)
        return self.objects[name][0]

    def remove(self, name: str) -> None:
        """Delete an object, or all below a folder. Raises: FileNotFoundError."""
        names = [other for other in self.objects if other == name or other.startswith(f"{name}/")]
        if not names:
            raise FileNotFoundError(errno.ENOENT, "404 Not Found", name)
        for other in names:
            del self.objects[other]

    def copied_to(self, folder: Path) -> None:
        """Write all objects below a folder."""
        for name, (data, _) in self.objects.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _by_pyarrow() -> bool:
    """Tell whether pyarrow asks, for Tune, within which nothing of the world can wait."""
    frame = sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        if frame.f_code.co_filename.endswith("pyarrow/fs.py"):
            return True
    return False


class BucketFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """fsspec's view of the bucket of the world that runs."""

    protocol = PROTOCOL
    root_marker = ""
    cachable = False

    @property
    def _bucket(self) -> Bucket:
        bucket: Bucket = kernels.running().bucket
        return bucket

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        entry: dict[str, Any] = self._bucket.ask(lambda: self._bucket.entry(self._strip_protocol(path)))
        return entry

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        found = self._bucket.ask(lambda: self._bucket.listed(self._strip_protocol(path)))
        return found if detail else [one["name"] for one in found]

    def find(self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, **_: Any) -> Any:
        found = self._bucket.ask(lambda: self._bucket.below(self._strip_protocol(path)))
        return {one["name"]: one for one in found} if detail else [one["name"] for one in found]

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        data: bytes = self._bucket.ask(lambda: self._bucket.get(self._strip_protocol(path)))
        return data[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        put = partial(self._bucket.put, self._strip_protocol(path), bytes(value), create=mode == "create")
        self._bucket.ask(put, changes=True)

    def put_file(self, lpath: str, rpath: str, *_: Any, **__: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def get_file(self, rpath: str, lpath: str, *_: Any, **__: Any) -> None:
        Path(lpath).write_bytes(self.cat_file(rpath))

    def rm(self, path: str, recursive: bool = False, maxdepth: Any = None) -> None:
        self._bucket.ask(lambda: self._bucket.remove(self._strip_protocol(path)), changes=True)

    def _open(self, path: str, mode: str = "rb", *_: Any, **__: Any) -> Any:
        return io.BytesIO(self.cat_file(path)) if "r" in mode else _Written(self, path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: a store has no folders."""


class _Written(io.BytesIO):
    """A file that becomes an object once it is closed."""

    def __init__(self, system: BucketFileSystem, path: str) -> None:
        super().__init__()
        self._system, self._path = system, path

    def close(self) -> None:
        if not self.closed:
            self._system.pipe_file(self._path, self.getvalue())
        super().close()


class NodeLock:
    """As ``filelock.FileLock``, among the processes of the world."""

    def __init__(self, path: Any, **_: Any) -> None:
        self._name = str(path)

    def acquire(self, timeout: float, poll_interval: float) -> None:
        from filelock import Timeout

        kernel = kernels.running()
        lock = kernel.locks.setdefault(self._name, kernels.Lock(kernel, again=False))
        end = kernel.now + timeout
        while not lock.acquire(timeout=poll_interval):  # its owner may have died meanwhile
            if kernel.now > end:
                raise Timeout(self._name)

    def release(self) -> None:
        kernels.running().locks[self._name].release()


@contextlib.contextmanager
def stored(kernel: Kernel, cache: Path) -> Iterator[None]:
    """Let a sweep keep its files in the bucket of the kernel's world, and work in a folder of it."""
    from unittest import mock

    import filelock

    from tunelight.stores import paths

    fsspec.register_implementation(PROTOCOL, f"{__name__}.{BucketFileSystem.__name__}", clobber=True)
    with mock.patch.object(paths, "_cache", return_value=cache), mock.patch.object(filelock, "FileLock", NodeLock):
        yield
