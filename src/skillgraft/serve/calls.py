"""One request's conversation with the model's thread: its events, its deadline, and the client that may go away.

    async with Call(service.engine, request, seconds=120) as call:
        call.submit(service.embedding(ask, pick, call.deliver))
        async for event in call.events(rows): …

However it ends (answered, refused, out of time, client gone, cancelled), the ticket is let go and its rows leave the batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from skillgraft.serve.engine import Engine
from skillgraft.serve.refusals import Refused
from skillgraft.serve.skills import refusal_of
from skillgraft.serve.work import Event, Failed, ReadOut, TextPiece, Ticket


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Call:
    """`receive` is the request's own channel, which says when the client leaves; None where the response watches it."""

    def __init__(self, engine: Engine, receive: Any, *, seconds: float) -> None:
        self._engine, self._receive, self._seconds = engine, receive, seconds
        self._deadline = time.monotonic() + seconds
        self._events: asyncio.Queue[Event | ClientGone] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._ticket: Ticket | None = None
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._ticket is not None:
            self._ticket.gone = True
        if self._watching is not None:
            self._watching.cancel()

    def deliver(self, event: Event) -> None:
        """Called on the model's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def submit(self, ticket: Ticket) -> None:
        self._engine.submit(ticket)
        self._ticket = ticket
        if self._receive is not None:
            self._watching = asyncio.create_task(self._watch())

    async def next(self) -> ReadOut | TextPiece:
        """The next event, or the error that it is."""
        try:
            event = await asyncio.wait_for(self._events.get(), max(0.0, self._deadline - time.monotonic()))
        except TimeoutError:
            raise too_late(self._seconds) from None
        if isinstance(event, ClientGone):
            raise event
        if isinstance(event, Failed):
            refused = refusal_of(event.error)
            raise refused from None if refused is event.error else event.error
        return event

    async def ends(self, rows: int) -> AsyncIterator[ReadOut | TextPiece]:
        """Events until each of the rows has had its last."""
        left = rows
        while left:
            event = await self.next()
            left -= isinstance(event, ReadOut) or bool(event.finish)
            yield event

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._events.put_nowait(ClientGone())


def too_late(seconds: float) -> Refused:
    """A request that took longer than it may."""
    return Refused(504, "timeout", f"not finished within {seconds:g} s, the most a request may take; ask for less")
