"""Requests to another server on loopback: HTTP/1.1 as uvicorn speaks it, one connection a request, bodies as they come.

    async with Upstream(port, key).ask("POST", "/v1/completions", body) as (status, chunks):
        async for chunk in chunks: …

Leaving the block closes the connection, which is how the other server learns that nobody waits any more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

_LONGEST_LINE = 1 << 16


@dataclass(frozen=True)
class Upstream:
    """Where the other server listens, and the key that it wants."""

    port: int
    key: str

    @asynccontextmanager
    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=_LONGEST_LINE)
        try:
            data = b"" if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8")
            head = (
                f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {self.key}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode("latin-1") + data)
            await writer.drain()
            lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            headers = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
            yield int(lines[0].split()[1]), _chunks(reader, headers)
        finally:
            writer.close()

    async def whole(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """The status and all of the body."""
        async with self.ask(method, path, body) as (status, chunks):
            return status, b"".join([chunk async for chunk in chunks])


async def _chunks(reader: asyncio.StreamReader, headers: Mapping[bytes, bytes]) -> AsyncIterator[bytes]:
    if headers.get(b"transfer-encoding") != b"chunked":
        yield await reader.readexactly(int(headers.get(b"content-length", b"0")))
        return
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
