"""A starter: what `tunelight init` writes into an empty folder, to be changed piece by piece."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tunelight.compat.lightning import flavour
from tunelight.errors import StorageError

FILES: Final = ("train.py", "space.yaml", "README.md")


def write_starter(folder: str | os.PathLike[str]) -> list[Path]:
    """Write the starter's files into ``folder``, which is made if need be; return their paths.

    The code imports the package of Lightning that this process works with.

    Raises: StorageError where one of them exists already (then none is written), or the folder cannot be written.
    """
    target = Path(folder)
    present = [name for name in FILES if (target / name).exists()]
    if present:
        raise StorageError(
            f"{target.absolute()} holds {', '.join(present)} already, and nothing is overwritten. Choose an empty "
            "folder: tunelight init my-sweep"
        )
    written = []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            path = target / name
            with path.open("x", encoding="utf-8") as stream:
                text = (Path(__file__).parent / name).read_text(encoding="utf-8")
                stream.write(text.replace("pytorch_lightning", flavour()))  # its code imports Lightning in two places
            written.append(path)
    except OSError as error:
        raise StorageError(
            f"{target.absolute()} cannot be written: {error.strerror or error}. Choose another folder."
        ) from error
    return written


def write_space(script: Path) -> Path:
    """Write a space.yaml for a script, beside it, with domains for its options; return its path.

    Raises: StorageError where there is one already or it cannot be written; SettingsError where the script's options
    cannot be read.
    """
    path = script.absolute().parent / "space.yaml"
    again = f"{path} exists already, and nothing is overwritten. Rename it, and run this again."
    if path.exists():
        raise StorageError(again)
    from tunelight.extras.scripts.script import draft

    text = draft(script)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise StorageError(again) from error
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}.") from error
    return path
