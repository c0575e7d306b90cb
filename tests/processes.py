"""Processes of a driver that runs in another process."""

from __future__ import annotations

import psutil


def family(pid: int) -> list[psutil.Process]:
    """Return a driver's processes: its children, and the workers that a server has forked for it."""
    driver = psutil.Process(pid)
    since = driver.create_time()
    forked = [one for one in psutil.process_iter() if one.name().startswith("ray::") and one.create_time() > since]
    return list({*driver.children(recursive=True), *forked})


def over(members: list[psutil.Process]) -> bool:
    """Tell whether all have ended; who inherited them may not have collected them yet."""
    return not any(member.is_running() and member.status() != psutil.STATUS_ZOMBIE for member in members)
