"""A load generator of ours: a server in a process of its own on loopback, and clients that ask it over connections kept open.

Bounded in count and time: so many clients, so many requests or seconds, one server, which is always ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from folders import random_sites
from skillgraft.errors import RunError
from skillgraft.files.graft_file import save
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region, Scope

_START_SECONDS = 300


@dataclass(frozen=True)
class Answer:
    """A status and the object that came with it."""

    status: int
    body: Mapping[str, Any]
    seconds: float


class Client:
    """One connection, kept open; HTTP/1.1 as this server speaks it, and nothing else."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """One request and its whole answer; a stream's events are read to the end and given as a list."""
        began = time.perf_counter()
        await self.send(method, path, body)
        status, headers = await self.head()
        raw = await self._body(headers)
        found = _events(raw) if b"text/event-stream" in headers.get(b"content-type", b"") else json.loads(raw or b"{}")
        return Answer(status, found, time.perf_counter() - began)

    async def send(self, method: str, path: str, body: Any = None) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        await self._writer.drain()

    async def head(self) -> tuple[int, dict[bytes, bytes]]:
        assert self._reader is not None
        lines = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, value in headers.items()}

    async def _body(self, headers: Mapping[bytes, bytes]) -> bytes:
        assert self._reader is not None
        if b"content-length" in headers:
            return await self._reader.readexactly(int(headers[b"content-length"]))
        raw = b""
        while size := int(await self._reader.readline(), 16):
            raw += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return raw


def _events(raw: bytes) -> Any:
    return [json.loads(part[6:]) for part in raw.split(b"\n\n") if part and part != b"data: [DONE]"]


@dataclass(frozen=True)
class Server:
    """A server under way."""

    process: subprocess.Popen[str]
    port: int

    @property
    def megabytes(self) -> float:
        """What it has in memory now."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


@contextmanager
def server(base: Path, skills: Path, log: Path, *options: str, threads: int = 1) -> Iterator[Server]:
    """`skillgraft serve` on a free port; it is ended with SIGTERM, and must end in peace."""
    command = [sys.executable, "-m", "skillgraft", "serve", str(base), "--skills", str(skills), "--port", "0", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, "--name", "base", *options], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RunError(f"the server did not start: {log.read_text()[-500:]}")
        yield Server(process, int(json.loads(line)["url"].rpartition(":")[2]))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def made_up_skill(base: Path, seed: int, *, entries: int, size: float, **info: Any) -> Graft:
    """A graft of random sites of the layers, always the same for a seed; large enough to change answers."""
    checkpoint = Checkpoint.open(base)
    scope = Scope.select("layers", checkpoint.shapes)
    region = Region(scope, random_sites(scope, entries, seed=seed))
    draw = np.random.default_rng(seed)
    before = {name: checkpoint.read(name).reshape(-1)[at] for name, at in region.sites.items()}
    after = {name: (old + size * draw.normal(size=old.shape)).astype(old.dtype) for name, old in before.items()}
    graft = Graft(region, before, after, base_fingerprint=checkpoint.fingerprint)
    return graft.with_info(**info) if info else graft


def write_skill(graft: Graft, folder: Path, name: str) -> bytes:
    """The graft as a file of the folder, and the file's bytes."""
    path = folder / f"{name}.safetensors"
    save(graft, path, overwrite=True)
    return path.read_bytes()
