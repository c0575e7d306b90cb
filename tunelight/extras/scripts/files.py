"""What a script's trials write beside it: named once where they write the same, refused where one reads another's."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tunelight.errors import ScriptError, first_of
from tunelight.session.session import Session

VARIABLE: Final = "TUNELIGHT_TRIAL_DIR"
"""The environment variable that holds the trial's folder."""
_WAYS: Final = (
    "Let each trial have its own: by an option of the script for it, with '${trial_dir}' as its value (in args= or the "
    f"search space); by the variable {VARIABLE} in the script, which holds the trial's folder; or"
)
FILE: Final = "written.jsonl"
"""What trials note of their files, in the sweep's folder."""
_MOST: Final = 5_000
"""How many entries of a folder are looked at."""
_NAMES: Final = 200
_TRIALS: Final = 20
"""How many trials note the names of what they have written: the others do the same."""
_MEANT: Final = frozenset({"__pycache__", "joblib", "mlruns", "wandb"})
"""Folders that several processes are meant to write into."""
_PEOPLES: Final = frozenset({
    ".cfg", ".csv", ".ini", ".ipynb", ".json", ".log", ".md", ".out", ".py", ".sh", ".so",
    ".toml", ".txt", ".yaml", ".yml",
})  # fmt: skip
"""Endings of files that a person, or a shell, may write meanwhile: they count where a trial was seen to open them."""
_STATES: Final = frozenset({
    "", ".bin", ".ckpt", ".h5", ".joblib", ".keras", ".npz", ".pickle", ".pkl", ".pt", ".pth", ".safetensors", ".tar",
})  # fmt: skip
"""Endings of files of weights. What else a trial writes while it trains may be a cache, or a list of results."""

_watch: Watch | None = None
_hooked = False


@contextlib.contextmanager
def files_watched(session: Session, folder: Path) -> Iterator[None]:
    """Watch what a trial reads and writes in its working directory and in the script's ``folder``. Runs on: worker.

    The block raises ScriptError where it opens, before it trains, weights that another trial of the sweep, which has
    ended, wrote in its training. What each writes is noted for the driver.
    """
    global _watch, _hooked  # noqa: PLW0603 - as the process's hook is
    from torch.optim.optimizer import register_optimizer_step_post_hook

    watch = Watch(session, (Path.cwd(), folder.resolve()))
    if not _hooked:
        sys.addaudithook(_hear)  # for the life of the process
        _hooked = True
    step = register_optimizer_step_post_hook(lambda *_: watch.trains())
    _watch = watch
    try:
        yield
    finally:
        _watch = None
        step.remove()
        watch.end()


def _hear(event: str, args: tuple[Any, ...]) -> None:
    """Hand on which files this process opens and renames."""
    if _watch is None or event not in ("open", "os.rename"):
        return
    if event == "open":
        _watch.opened(args[0], args[2])
    else:
        _watch.opened(args[1], os.O_WRONLY)


def read(file: Path) -> list[dict[str, Any]]:
    """Return what trials have noted at their ends: their id, and which files each has written."""
    lines: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line))
    return lines


def overwritten(lines: list[dict[str, Any]]) -> str:
    """Return a note that names the files that more than one trial has written, and the ways out; empty for none."""
    written: dict[str, dict[str, tuple[float, int, bool]]] = {}  # of each trial as Watch.end notes it
    for line in lines:
        for file, seen in line.get("files", {}).items():
            written.setdefault(file, {})[line["trial"]] = seen
    again = [
        os.path.relpath(file)
        for file, seen in sorted(written.items())
        if len({changed for changed, *_ in seen.values()}) > 1 or sum(opened > 0 for _, opened, *_ in seen.values()) > 1
    ]
    return (
        f"More than one trial has written {first_of(again)}: each overwrites or mixes with what the others wrote. "
        f"{_WAYS}, where they only must not meet, by one trial at a time (max_concurrent=1)."
        if again
        else ""
    )


def overwritten_callback(folder: Path, note: Callable[[str], object]) -> Any:
    """Return a callback for Tune that notes once which files several trials of a sweep have written.

    Runs on: driver.
    """
    from ray.tune import Callback

    class Overwritten(Callback):  # type: ignore[misc,unused-ignore]
        said = False

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            if not self.said and (text := overwritten(read(folder / FILE))):
                self.said = True
                note(text)

    return Overwritten()


class Watch:
    """The files of one trial, and what ``written.jsonl`` in the sweep's folder tells of the others'."""

    def __init__(self, session: Session, folders: tuple[Path, ...]) -> None:
        self._trial, self._lead = session.context.trial_id, session.context.rank == 0
        sweep = Path(session.context.trial_dir).absolute().parent
        self._file = sweep / FILE
        self._folders = [str(folder) for folder in dict.fromkeys(folders)]
        apart = sweep if any(folder.is_relative_to(sweep.parent) for folder in folders) else sweep.parent
        self._apart = str(apart)
        self._wrote: Counter[str] = Counter()
        self._process = os.getpid()
        self._before = self._times()
        weights, its_own = set[str](), dict[str, float]()
        for line in read(self._file):
            for file, (changed, _, in_training) in line.get("files", {}).items():
                if line["trial"] == self._trial:
                    its_own[file] = changed
                elif in_training and Path(file).suffix in _STATES:
                    weights.add(file)
        self._anothers = {
            file: changed for file, changed in self._before.items() if file in weights and changed != its_own.get(file)
        }
        """Weights that are there, and that another trial has written last, with the times of that."""
        self._prepared: dict[str, float] | None = None
        """When files were changed that were there at the first step of training."""

    def trains(self) -> None:
        """Take a step of an optimizer: what is written from now on is no preparation of data."""
        if self._prepared is None:
            self._prepared = self._times() if self._lead else {}

    def opened(self, path: Any, flags: int) -> None:
        """Take a file that the process opens. Raises: ScriptError for another trial's state, before this one trains."""
        if not isinstance(path, str | bytes | os.PathLike) or (file := self._inside(os.fsdecode(path))) is None:
            return
        if flags & (os.O_WRONLY | os.O_RDWR):
            self._wrote[file] += 1
        elif self._is_anothers(file):
            raise ScriptError(
                f"{os.path.relpath(file)} was written by another trial of this sweep while it trained, and trial "
                f"{self._trial} reads it before it trains: it would go on from another trial's state, under its own "
                f"hyperparameters. {_WAYS} by one trial at a time (max_concurrent=1) that deletes it at its end."
            )

    def end(self) -> None:
        """Note what the trial has written: when, how often it was seen to, and whether in its training."""
        if not self._lead or len(read(self._file)) >= _TRIALS:
            return
        prepared, times = self._prepared, self._times()
        files = {
            file: (changed, self._wrote[file], prepared is not None and changed != prepared.get(file))
            for file, changed in times.items()
            if changed != self._before.get(file) and (self._wrote[file] or Path(file).suffix not in _PEOPLES)
        }
        with contextlib.suppress(OSError), self._file.open("a") as lines:
            lines.write(f"{json.dumps({'trial': self._trial, 'files': dict(list(files.items())[:_NAMES])})}\n")

    def _is_anothers(self, file: str) -> bool:
        """Tell whether this trial would begin with another one's weights. Loaders' processes are forks: none begins."""
        if self._prepared is not None or file not in self._anothers or os.getpid() != self._process:
            return False
        return Path(file).stat().st_mtime == self._anothers[file]

    def _inside(self, path: str) -> str | None:
        """Return a path's absolute form; None for one outside of the folders, hidden, or of the sweep's own."""
        file = os.path.abspath(path)  # noqa: PTH100 - each file that the process opens comes here
        for folder in self._folders:
            if file.startswith(f"{folder}{os.sep}") and not file.startswith(f"{self._apart}{os.sep}"):
                parts = Path(file[len(folder) + 1 :]).parts
                return None if any(part[0] == "." or part in _MEANT for part in parts) else file
        return None

    def _times(self) -> dict[str, float]:
        """Return when the files of the folders were changed, at most ``_MOST`` of each, the nearest first."""
        times: dict[str, float] = {}
        for top in self._folders:
            folders, seen = deque([top]), 0
            while folders and seen < _MOST:
                with contextlib.suppress(OSError), os.scandir(folders.popleft()) as entries:
                    for entry in entries:
                        seen += 1
                        left_out = entry.name[0] == "." or entry.name in _MEANT or entry.path == self._apart
                        if left_out or entry.is_symlink() or seen > _MOST:
                            continue
                        if entry.is_dir():
                            folders.append(entry.path)
                        elif not entry.name.endswith((".lock", ".db")):
                            times[entry.path] = entry.stat().st_mtime
        return times
