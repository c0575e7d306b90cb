"""Atomic writes: all of a file or none of it, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunelight.stores import write_atomically


@pytest.mark.parametrize(("data", "there"), [("né", "né".encode()), (b"\0", b"\0"), (memoryview(b"ab"), b"ab")])
@pytest.mark.parametrize("sync", [False, True])
def test_what_is_written_replaces_what_was_there(
    tmp_path: Path, data: str | bytes | memoryview, there: bytes, sync: bool
) -> None:
    path = tmp_path / "file"
    path.write_text("old, and longer")
    write_atomically(path, data, sync=sync)
    assert path.read_bytes() == there
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_atomically(path, 1)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_no_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "gone" / "file", b"")
