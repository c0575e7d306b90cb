"""Which modules are installed, and not of a script's own code: those that another process may have ahead."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType

from tunelight.compat import replaced

_PYTHON = (
    *(str(Path(path).resolve()) for path in {*site.getsitepackages(), site.getusersitepackages()}),
    *(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""Folders of Python's own modules, and of those that pip installs."""
_OURS = str(Path(__file__).resolve().parents[1])
_OF_THE_START = {
    "__main__",
    "tunelight",
    "os",
    "site",
    "stat",
    "codecs",
    "encodings",
    "io",
    "abc",
    "posixpath",
    "genericpath",
}
"""What Python has imported before any script, and this package."""

_READ_LATER = (b"PL_", b"TUNELIGHT_")
"""How variables begin that no library reads when it is imported: Lightning notes its seed by them."""


@functools.cache
def _holds_libraries(folder: str) -> bool:
    """Tell whether pip has installed into a folder: it leaves a description of each distribution.

    An .egg-info is that of the sources of an editable installation, which change from trial to trial.
    """
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))  # noqa: PTH208 - quick
    except OSError:
        return False


def is_installed(file: str, folder: str) -> bool:
    """Tell whether a file is of an installed module: of Python, of its environment, or of libraries on PYTHONPATH.

    ``folder``: the script's folder, or that of the package that it is a part of, which may be installed itself.
    """
    path = str(Path(file).resolve())
    roots = (*_PYTHON, _OURS, *(str(Path(entry).resolve()) for entry in sys.path if entry and _holds_libraries(entry)))
    home = next((root for root in roots if path.startswith(f"{root}{os.sep}")), None)
    if home is None:
        return False
    return not (f"{folder}{os.sep}".startswith(f"{home}{os.sep}") and path.startswith(f"{folder}{os.sep}"))


class Imports:
    """What a script imports of installed modules, for the next processes of its trials to have from the beginning.

    Left out is what it imports once it has changed the environment, which libraries may read at their import.
    """

    def __init__(self) -> None:
        self._own = ""
        self._known = frozenset(sys.modules)
        self._then: frozenset[str] | None = None

    @contextlib.contextmanager
    def watched(self, folder: Path) -> Iterator[None]:
        """Notice meanwhile when code of the script itself, in its folder, changes the environment."""
        self._own = str(folder)
        put, unset = os.putenv, os.unsetenv

        def note(call: Callable[..., None], name: bytes, *value: bytes) -> None:
            if self._then is None and not name.startswith(_READ_LATER) and self._by_the_script(sys._getframe(2)):
                self._then = frozenset(sys.modules)
            call(name, *value)

        with replaced(os, putenv=functools.partial(note, put), unsetenv=functools.partial(note, unset)):
            yield

    def _by_the_script(self, frame: FrameType | None) -> bool:
        """Tell whether a frame was called by the script, and not while it imports a library."""
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith("<frozen importlib"):
                return False
            if not file.startswith("<") and not is_installed(file, self._own):
                return True
            frame = frame.f_back
        return False

    def found(self) -> dict[str, str]:
        """Return the modules and their files, in the order of their imports."""
        files = {}
        for name in [name for name in sys.modules if name not in self._known]:
            module = sys.modules[name]
            spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
            if spec is None or spec.name != name or not isinstance(file, str):
                continue
            if (self._then is None or name in self._then) and is_installed(file, self._own):
                files[name] = file
        return files


def version(modules: Mapping[str, str]) -> str:
    """Return a short name for modules as their files are now."""
    states: dict[str, tuple[int, int] | None] = dict.fromkeys(modules)
    for name, file in modules.items():
        with contextlib.suppress(OSError):  # inside an archive, or gone
            states[name] = (found := Path(file).stat()).st_mtime_ns, found.st_size
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]


current: Imports | None = None
"""Those of the script that this process runs, where it runs no other."""


def forget_shadowed(folder: Path) -> None:
    """Forget modules of which a folder, now the first on ``sys.path``, has its own: a new Python would find these."""
    shadowing = {path.stem: path for path in folder.glob("*.py")} | {
        path.parent.name: path for path in folder.glob("*/__init__.py")
    }
    for name in shadowing.keys() & sys.modules.keys() - _OF_THE_START:
        file = getattr(sys.modules[name], "__file__", None)
        if isinstance(file, str) and Path(file).resolve() != shadowing[name].resolve():
            for each in [each for each in sys.modules if f"{each}.".startswith(f"{name}.")]:
                del sys.modules[each]
