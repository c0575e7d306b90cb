"""Processes of a driver that runs in another process."""

from __future__ import annotations

import psutil


def family(pid: int) -> list[psutil.Process]:
    """Return a driver's processes: its children, and the workers that a server has forked for the Ray it started."""
    logs = f"_{pid}/logs/"  # the name of Ray's session ends with the id of who started it
    workers = [one for one in psutil.process_iter(["name", "open_files"]) if one.info["name"].startswith("ray::")]
    forked = [one for one in workers if any(logs in file.path for file in one.info["open_files"] or ())]
    return list({*psutil.Process(pid).children(recursive=True), *forked})


def over(members: list[psutil.Process]) -> bool:
    """Tell whether all have ended; who inherited them may not have collected them yet."""
    return not any(member.is_running() and member.status() != psutil.STATUS_ZOMBIE for member in members)
