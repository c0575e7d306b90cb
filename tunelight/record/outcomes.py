"""The states of a trial: one row each, with all that the package says of it or decides by it.

A new way to end is one row of :data:`OUTCOMES`, and whatever decides that a trial has ended so
(``policies.classify`` for errors).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Outcome:
    """One state of a trial. States are counted and listed in the order of the table."""

    name: str
    """As the record has it."""
    verb: str = ""
    """How the trial ended: "trial 3 ran out of memory". Empty for states that are no end."""
    counted: str = ""
    """In a count of trials: "3 stopped early". Empty: the verb."""
    failed: bool = False
    """A trial that ended so is never the best of its sweep."""
    raised: bool = False
    """It ended by an exception, which has a type and is shown as a fault."""
    blames_config: bool = False
    """Another attempt at the same configuration would end the same way, and searchers avoid ones like it."""
    style: str = ""
    """In the terminal, for rich."""
    colour: str = "#888888"
    """In figures and reports; distinct also in print and for most people with a colour vision deficiency."""

    @property
    def terminal(self) -> bool:
        """Tell whether a trial in this state has ended."""
        return bool(self.verb)


PENDING: Final = "PENDING"
RUNNING: Final = "RUNNING"
PAUSED: Final = "PAUSED"
FINISHED: Final = "FINISHED"
"""Ended by itself."""
STOPPED: Final = "STOPPED"
"""Ended early, by the scheduler."""
DIVERGED: Final = "DIVERGED"
"""Its metric became NaN or infinite, or exploded."""
OOM: Final = "OOM"
"""Ran out of memory."""
ERROR: Final = "ERROR"
INTERRUPTED: Final = "INTERRUPTED"
"""Cut off with its sweep."""

OUTCOMES: Final = {
    outcome.name: outcome
    for outcome in (
        Outcome(PENDING, colour="#9a9a9a"),
        Outcome(RUNNING, counted="running", style="green", colour="#e0a030"),
        Outcome(PAUSED, counted="paused", style="yellow", colour="#b9a44c"),
        Outcome(FINISHED, "finished", colour="#2a9d6f"),
        Outcome(STOPPED, "stopped", "stopped early", style="dim", colour="#6c8ebf"),
        Outcome(DIVERGED, "diverged", failed=True, blames_config=True, style="magenta", colour="#c2549d"),
        Outcome(
            OOM, "ran out of memory", failed=True, raised=True, blames_config=True, style="magenta", colour="#8f4a2b"
        ),
        Outcome(ERROR, "failed", failed=True, raised=True, style="red", colour="#d1495b"),
        Outcome(INTERRUPTED, "was interrupted", "interrupted", style="yellow", colour="#9a7fbf"),
    )
}

STATES: Final = tuple(OUTCOMES)
VERBS: Final = {name: outcome.verb for name, outcome in OUTCOMES.items() if outcome.terminal}
TERMINAL: Final = frozenset(VERBS)
FAILED: Final = frozenset(name for name, outcome in OUTCOMES.items() if outcome.failed)
INFEASIBLE: Final = frozenset(name for name, outcome in OUTCOMES.items() if outcome.blames_config)
"""Ends that blame the trial's configuration."""
