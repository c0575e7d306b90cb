"""Rooms that a sweep does without. The core imports each of them by `look_up`, at one place, and knows no other way."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple

from tunelight.errors import SettingsError


class OptionalRoom(NamedTuple):
    """Modules that can be taken out of the package together.

    Attributes:
        gives: what a user has by it.
        parts: its modules and packages, without ``tunelight.``.
        entry: the module that `look_up` imports; empty where only commands, the front door or a user's file name it.
    """

    gives: str
    parts: tuple[str, ...]
    entry: str = ""


_OF_REPORTING = "reporting.page", "reporting.sections", "reporting.comparison", "reporting.images"
OPTIONAL: Final = {
    "web": OptionalRoom("the live page", ("reporting.web", "cli.web"), "reporting.web.server"),
    "forks": OptionalRoom("forked workers", ("machine.forkserver",), "machine.forkserver.ready"),
    "formats": OptionalRoom(
        "search spaces of other programs", ("space.formats", "space.wandb", "space.wandb_domain"), "space.formats"
    ),
    "scripts": OptionalRoom("training scripts as they are", ("scripts",), "scripts.script"),
    "plan": OptionalRoom("plans", ("extras", "cli.planning")),
    "tuneup": OptionalRoom("measured settings", ("sweep.tuneup", "cli.tuning")),
    "zoo": OptionalRoom("the models of the shipped search spaces", ("zoo", "digits")),
    "commands": OptionalRoom("the command line", ("cli", "__main__", "sweep.check", "record.upkeep")),
    "auto": OptionalRoom(
        "searcher='auto'",
        ("searchers.auto", "searchers.surrogate", "searchers.encoding", "searchers.transfer"),
        "searchers.auto",
    ),
    "figures": OptionalRoom("figures of a sweep", ("results.figures",), "results.figures"),
    "report": OptionalRoom(
        "saved reports and comparisons",
        (*_OF_REPORTING, "results.logs", "cli.figures"),
    ),
    "export": OptionalRoom("exports of a trial", ("results.export", "results.formats"), "results.export"),
    "study": OptionalRoom("Optuna studies of a sweep", ("results.study",), "results.study"),
    "trackers": OptionalRoom("runs of experiment trackers", ("compat.trackers",), "compat.trackers"),
    "tensorboard": OptionalRoom("TensorBoard's files", ("reporting.tensorboard",), "reporting.tensorboard"),
    "remote": OptionalRoom(
        "fits outside of a sweep",
        ("lightning.remote", "lightning.transfer", "lightning.state.changes", "lightning.state.compiling"),
        "lightning.remote.driver",
    ),
    "widths": OptionalRoom("wide models with what narrow ones have found", ("lightning.widths",), "lightning.widths"),
    "data": OptionalRoom("datasets and caches", ("data",), "data.server"),
    "integrations": OptionalRoom("training loops of other libraries", ("integrations",)),
    "branches": OptionalRoom("branches of trials", ("sweep.branching",), "sweep.branching"),
    "plain": OptionalRoom("gangs in Ray Tune's own Tuner", ("trial.plain_tune",)),
    "mcp": OptionalRoom("`tunelight mcp`", ("cli.mcp", "cli.mcp_server", "cli.mcp_tools")),
    "reproduce": OptionalRoom("reproducing a trial", ("sweep.reproduce", "cli.reproduce")),
}


def look_up(name: str) -> Any:
    """Return the entry of an optional room; None where the room has been taken out."""
    entry = f"tunelight.{OPTIONAL[name].entry}"
    try:
        return import_module(entry)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{entry}.".startswith(f"{error.name}."):
            return None
        raise


def need(name: str) -> Any:
    """Return the entry of an optional room. Raises: SettingsError where the room has been taken out."""
    room = look_up(name)
    if room is None:
        parts = ", ".join(f"tunelight.{part}" for part in OPTIONAL[name].parts)
        raise SettingsError(f"This tunelight is without {OPTIONAL[name].gives} ({parts}). Install all of tunelight.")
    return room
