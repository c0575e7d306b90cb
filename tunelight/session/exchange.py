"""Exchange of training states between running trials, at a boundary, through a store in memory.

Nothing here knows Ray or torch: the worker passes in the store, and the reporting callback an object that reads and
replaces the state of its Trainer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tunelight.messages import Adopt, Adopted, Offer, Offered

FETCH_LIMIT_S = 60.0
"""How long ranks wait for another trial's state; its head may be busy, or on a node that is gone."""


class Store(Protocol):
    """Holds a state between two trials."""

    def put(self, value: Any) -> Any:
        """Copy a state into the store and return a reference to it."""

    def get(self, reference: Any, timeout_s: float) -> Any:
        """Return the state that a reference leads to; None if nothing was offered. Raises: the store's errors."""


class Training(Protocol):
    """Reads and replaces the state of a training. Runs on: worker, every rank at the same boundary."""

    def give(self) -> Any | None:
        """Return the full state; the one of rank 0 is used."""

    def agree(self, yes: bool) -> bool:
        """Return whether ``yes`` is True on all ranks."""

    def take(self, state: Any, before: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
        """Load ``state``, and change the values of ``before`` to those of ``config``; return why not, if not."""


class Exchange:
    """One rank's side of offering and adopting. Runs on: worker."""

    def __init__(self, store: Store | None) -> None:
        self.training: Training | None = None
        """Set by the reporting callback; None if training code has none."""
        self.restored: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
        """Gives a configuration the objects of the search space."""
        self._store: Any = store  # without one nothing is offered or adopted

    def offer(self, offer: Offer, *, lead: bool) -> Offered:
        """Put the state at this boundary into the store. Called on every rank; the answer of ``lead`` is sent.

        If the store fails, training continues and the answer says why.
        """
        state = None if self.training is None else self.training.give()
        if not lead or state is None:
            return Offered(None, answers=offer.serial)
        try:
            return Offered(self._store.put(state), answers=offer.serial)
        except Exception as error:  # noqa: BLE001 - Ray's store fails in a dozen ways
            return Offered(None, why=f"{type(error).__name__}: {error}", answers=offer.serial)

    def adopt(self, adopt: Adopt, config: dict[str, Any]) -> Adopted:
        """Load another trial's state, and replace the contents of ``config`` by its configuration; or change nothing.

        Called on every rank: either all of them adopt, or none.
        """
        began = time.monotonic()
        if self.training is None:
            return Adopted("nothing of tunelight's reports from a Trainer there", answers=adopt.serial)
        state, why = None, "nothing was offered"
        if adopt.weights is not None:
            try:
                state = self._store.get(adopt.weights, FETCH_LIMIT_S)
            except Exception as error:  # noqa: BLE001 - Ray has a dozen errors for an object whose owner is gone
                why = f"what was offered is gone ({type(error).__name__})"
        if not self.training.agree(state is not None):
            why = why if state is None else "another rank could not get what was offered"
            return Adopted(why, answers=adopt.serial)
        new = self.restored(adopt.config)
        refused = self.training.take(state, config, new)
        if refused is None:
            config.clear()
            config.update(new)
        return Adopted(refused, time.monotonic() - began, adopt.serial)
