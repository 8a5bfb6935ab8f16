"""Requests must arrive: a connection that sends half of one, or nothing, is closed.

uvicorn waits for the rest of a request for ever, so that anybody could hold its connections open.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 5.0  # from a connection's start, or its last answer, to the end of the next request


class Impatient(H11Protocol):
    """uvicorn's HTTP protocol, with an end to waiting; h11 answers a request at a time."""

    seconds = SECONDS
    _ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop()  # the request is whole: from now on it is we who take time

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def _wait(self) -> None:
        self._stop()
        if not self.transport.is_closing():
            self._ending = self.loop.call_later(self.seconds, self._end)

    def _stop(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def _end(self) -> None:
        self.transport.close()
