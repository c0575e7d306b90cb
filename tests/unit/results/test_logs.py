"""The end of a trial's log."""

from __future__ import annotations

from pathlib import Path

from tunelight.extras.report.sections import log_end


def test_it_is_the_last_lines(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("".join(f"line {number}\n" for number in range(100)))
    assert log_end(tmp_path, lines=3) == "line 97\nline 98\nline 99"


def test_long_lines_are_cut_to_bytes_and_half_a_letter_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("ä" * 5000, encoding="utf-8")
    assert log_end(tmp_path, size=101) == "ä" * 50


def test_it_is_empty_without_a_log(tmp_path: Path) -> None:
    assert log_end(tmp_path) == ""
    assert log_end(tmp_path / "no folder") == ""


def test_passwords_in_addresses_are_masked_also_where_the_text_is_cut(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(f"{'x' * 60}\nconnect to https://me:hunter2@host/db")
    for size in range(5, 60):
        assert "hunter2" not in log_end(tmp_path, size=size)


def test_bytes_that_are_no_text_do_not_hide_the_rest(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"\xff\xfe\nafter")
    assert log_end(tmp_path).endswith("after")
