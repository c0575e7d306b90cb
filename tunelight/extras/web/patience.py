"""Connections that have something to say: those that send no request are closed."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

FIRST_S: Final = 3.0
"""How long a connection may take to send its first request."""
MOST: Final = 128
"""Open connections; of more, those are closed that wait for a request."""


class Patient(H11Protocol):
    """HTTP of uvicorn's, with an end to patience. Runs on: server."""

    def connection_made(self, transport: Any) -> None:
        """Take a connection; close those that say nothing where there are too many."""
        super().connection_made(transport)
        self.loop.call_later(FIRST_S, self._close_if_silent)
        if len(self.connections) > MOST:
            for other in [one for one in self.connections if isinstance(one, Patient) and one is not self]:
                if other.waits and len(self.connections) > MOST:
                    self.connections.discard(other)
                    other.transport.close()
        if len(self.connections) > 2 * MOST:
            self.connections.discard(self)
            transport.close()

    @property
    def waits(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _close_if_silent(self) -> None:
        transport: asyncio.Transport = self.transport
        if self.cycle is None and not transport.is_closing():
            transport.close()
