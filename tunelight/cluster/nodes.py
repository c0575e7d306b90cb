"""Checks of a cluster's nodes, by a task on each that takes no CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunelight import stores
from tunelight.errors import last_line
from tunelight.machine.versions import ADVICE, differences, installed, node_name

ANSWER_LIMIT_S: Final = 20.0
"""How long a sweep's first trial waits for what all nodes have installed: a process has to start there."""


@dataclass(frozen=True)
class Here:
    """A node's answer about itself."""

    versions: Mapping[str, str | None]
    sees: bool | None
    """Whether the file in question is visible there (None: none was)."""


def here(file: str | None) -> Here:
    """Describe this node. Runs on: every node. Raises: OSError where a store's working folder cannot be made."""
    sees = None if file is None else Path(file).exists()
    if file is not None and (store := stores.store_of(file)):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        sees = store.stat(Path(file)) is not None
    return Here(installed(), sees)


def on_node(node_id: str) -> dict[str, Any]:
    """Return the options of an actor or task that runs on this node only, without resources."""
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}


class NodeCheck:
    """Checks while a sweep starts that all nodes can take part in it. Runs on: driver.

    The nodes are asked when it is made. The first look waits for their answers, so that no trial starts before; those
    that are later than that are read as they come.

    Args:
        file: a file that every node must see (None: there is none).
        lightning: the module of Lightning that the sweep trains with.
    """

    def __init__(self, file: Path | None, lightning: str) -> None:
        self._file, self._lightning = file, lightning
        self._patience_s = ANSWER_LIMIT_S
        mine = ray.get_runtime_context().get_node_id()
        self._asked = {
            ray.remote(here).options(**on_node(node["NodeID"]), max_retries=0).remote(
                None if file is None else str(file)
            ): node
            for node in ray.nodes()
            if node["Alive"] and node["NodeID"] != mine
        }  # fmt: skip
        self._versions: dict[str, Mapping[str, str | None]] = {"this one": installed()} if self._asked else {}

    def trouble(self) -> str | None:
        """Return what is wrong with the nodes that have answered by now, or None."""
        if not self._asked:
            return None
        done, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=self._patience_s)
        self._patience_s = 0.0
        for call in done:
            node = self._asked.pop(call)
            name = node_name(node["NodeManagerHostname"], node["NodeID"], node["NodeManagerAddress"])
            try:
                answer: Here = ray.get(call)
            except ray.exceptions.RayError as error:
                if isinstance(error, ray.exceptions.RayTaskError):
                    return f"The node {name} cannot take part: {last_line(error) or type(error).__name__}. {ADVICE}"
                continue  # the node or its worker is gone, which is no reason to end a sweep
            self._versions[name] = answer.versions
            if answer.sees is False:
                return (
                    f"The node {name} does not see {stores.shown(self._file or Path())}, which this one has just "
                    "written: checkpoints of trials there would lie on its own disk, where nobody finds them. Choose a "
                    "folder that all nodes share by storage= (NFS, say) or an object store, or give checkpoints=None "
                    "to go without any."
                )
        conflicts = differences(self._versions, self._lightning) if done else []
        return f"{' '.join(conflicts)} {ADVICE}" if conflicts else None
