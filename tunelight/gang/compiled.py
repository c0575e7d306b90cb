"""What torch.compile has compiled in a worker: it stays from trial to trial, and takes nothing from the next one.

torch counts the compiled versions of a function in the whole process, and runs a ninth uncompiled. A warm worker would
so train its fifth width of a model eagerly, where a new process would compile it. Here each trial may add as many
versions as a new process, whatever earlier trials have left; what has been compiled is dropped where it becomes much.
"""

from __future__ import annotations

from typing import Final

from tunelight.compat.torch import (
    compiled_graphs,
    forget_compiled,
    recompile_limit,
    set_recompile_limit,
    share_graph_trees,
    versions,
)

KEPT: Final = 64
"""How many graphs stay: each call of a function tries its versions one after another."""


class Compiled:
    """The graphs of one worker. ``begin`` and ``end`` are called in the trial's thread, for which torch counts."""

    def __init__(self) -> None:
        self._limit: int | None = None
        """What torch allows by itself, once that is known."""
        self._before = compiled_graphs()
        self._dropped_at = self._before
        self._trees = share_graph_trees(None)
        """CUDA graphs: those of ``mode="reduce-overhead"``."""

    def begin(self) -> None:
        """Give a trial the room that it would have in a new process."""
        self._trees = share_graph_trees(self._trees)
        self._before = compiled_graphs()
        if (found := recompile_limit()) is None:
            return  # nothing was compiled in this process yet
        if self._limit is None:
            self._limit = found
        set_recompile_limit(self._limit + self._before - self._dropped_at)

    def drop(self) -> None:
        """Drop all graphs, and the memory that they hold on a GPU. Call it between two trials."""
        if recompile_limit() is not None:
            forget_compiled()
            self._dropped_at = compiled_graphs()

    def end(self) -> str:
        """Return what is worth a line of the trial's log, and drop graphs if there are many."""
        self._trees = share_graph_trees(self._trees)
        now, limit = compiled_graphs(), self._limit
        made, there = now - self._before, self._before - self._dropped_at
        said = f"torch.compile made {made} graph{'s' * (made != 1)}" if made else ""
        if said and there:
            said += f", beside {there} of earlier trials"
        full = limit is not None and (versions() or 0) >= limit + there  # torch runs that function eagerly from now on
        if full or now - self._dropped_at > KEPT:
            self.drop()
            said = f"{said}; all are dropped after this trial" if said else ""
        return said
