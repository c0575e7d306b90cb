"""Exchange: what one trial's ranks give another's at a boundary, both of them alive, through a store in memory.

A session knows neither Ray nor torch. The worker hands in the store, and the callback that reports hands in what can
give and take the state of its Trainer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from tunelight.messages import Adopt, Adopted, Offer, Offered

FETCH_LIMIT_S = 60.0
"""How long ranks wait for what another trial offered; its head may be busy, or on a node that is gone."""


class Store(Protocol):
    """Where a state lies between two trials."""

    def put(self, value: Any) -> Any:
        """Copy a state into the store; return a reference to it."""

    def get(self, reference: Any, timeout_s: float) -> Any:
        """Return what was offered under a reference; None where nothing was. Raises: what came in the way."""


class Training(Protocol):
    """What can give and take the state of a training. Runs on: worker, every rank at the same boundary."""

    def give(self) -> Any | None:
        """Return the whole state; rank 0's answer counts."""

    def agree(self, yes: bool) -> bool:
        """Return whether all ranks say yes."""

    def take(self, state: Any, before: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
        """Make ``state`` this training's own, and ``config`` of ``before``; return why nothing was changed, if so."""


class Memory:
    """A store within one process: the twin of Ray's."""

    def put(self, value: Any) -> Any:
        """Return the value: it is its own reference."""
        return value

    def get(self, reference: Any, timeout_s: float) -> Any:
        """Return what the reference is."""
        return reference


class Exchange:
    """One rank's side of offering and adopting. Runs on: worker."""

    def __init__(self, store: Store | None = None) -> None:
        self.training: Training | None = None
        """Set by the callback that reports; None where training code has none."""
        self._store = store or Memory()

    def offer(self, offer: Offer, *, lead: bool) -> Offered:
        """Give the state at this boundary, once. Called on every rank; the lead's answer is the gang's.

        A store that does not take it costs the offer and not the training; the answer says why.
        """
        state = None if self.training is None else self.training.give()
        if not lead or state is None:
            return Offered(None, answers=offer.serial)
        try:
            return Offered(self._store.put(state), answers=offer.serial)
        except Exception as error:  # noqa: BLE001 - Ray's store fails in a dozen ways
            return Offered(None, why=f"{type(error).__name__}: {error}", answers=offer.serial)

    def adopt(self, adopt: Adopt, config: dict[str, Any]) -> Adopted:
        """Take over what another trial offered, and turn ``config`` into the one that comes with it; or change nothing.

        Called on every rank: all of them adopt, or none.
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
        refused = self.training.take(state, config, adopt.config)
        if refused is None:
            config.clear()
            config.update(adopt.config)
        return Adopted(refused, time.monotonic() - began, adopt.serial)
