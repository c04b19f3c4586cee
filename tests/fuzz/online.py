"""What strangers send over a network: requests to the server, and what a repository of a hub holds."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote

from skillgraft.errors import InputError
from skillgraft.files import graft_file
from skillgraft.folders.hub import HubName, download, folder_at
from skillgraft.serve.guard import Guard, host_name
from skillgraft.serve.limits import Limits
from skillgraft.serve.names import from_mapping, parse, written
from skillgraft.serve.refusals import Refused
from skillgraft.serve.requests import chat, classification, completion, embeddings, parse_body
from skillgraft.values.graft import Graft

from .room import home

SKILL = "held"
HTTP = ("head", "body.json", "body.safetensors")
CACHED = "models--owner--name"
HUB = ("name", "files.json", "skill.safetensors", f"{CACHED}/refs/main")
_LINE = re.compile(rb"([A-Z]{3,7}) (/[!-~]*)")
_HEADER = re.compile(rb"([!#-'*+.^_`a-z|~0-9A-Z-]+):[ \t]*([ -~\t\x80-\xff]*)")


def read_request(folder: Path) -> None:
    """A body as each path of the server reads it; accepted by at least one."""
    refusals = []
    with _as_input():
        body = parse_body((folder / "body.json").read_bytes())
        for read in (completion, chat, embeddings, classification):
            try:
                read(body, Limits())
            except Refused as refused:
                refusals.append(refused)
        if len(refusals) == 4:
            raise refusals[0]


def read_names(folder: Path) -> None:
    """A sum of skills in words: what is written of it means the same sum."""
    text = (folder / "sum").read_bytes().decode(errors="replace")
    with _as_input():
        terms = parse(text)
        again = parse(written(terms))
        assert [name for name, _ in again] == [name for name, _ in terms]
        assert all(abs(a - b) <= 1e-5 * abs(b) for (_, a), (_, b) in zip(again, terms, strict=True)), text
        assert from_mapping(dict(terms)) == terms


def read_headers(folder: Path) -> None:
    """Host, Origin and Authorization, one a line: who is let in has named this server, and its key."""
    host, origin, key = (*(folder / "headers").read_bytes().decode("latin-1").split("\n"), "", "", "")[:3]
    guard = Guard.of("127.0.0.1", key="0123456789abcdef", allowed_hosts=["my.lan"], origins=["https://ours.example"])
    with _as_input():
        guard.check_host(host)
        guard.check_origin(origin or None, host)
        guard.check_key(key, "/v1/models")
    assert host_name(host) in ("127.0.0.1", "localhost", "::1", "my.lan")
    assert origin in ("", "https://ours.example") or origin.lower().partition("://")[2] == host.lower()
    assert key.partition(" ")[2].strip() == "0123456789abcdef"


@contextmanager
def _as_input() -> Iterator[None]:
    try:
        yield
    except Refused as refused:
        raise InputError(str(refused)) from refused


# The server: its whole application, asked as uvicorn would ask it


@dataclass(frozen=True)
class Served:
    """A server with one skill, and the numbers of its model."""

    service: Any
    app: Callable[..., Any]
    skill: Graft
    numbers: Mapping[str, Any]

    @classmethod
    def of(cls, base: Path, skill: Graft) -> Served:
        from skillgraft.serve.server import application
        from skillgraft.serve.service import Service

        limits = Limits(body_bytes=100_000, graft_bytes=1_000_000, input_rows=8, new_tokens=8, seconds=8.0)
        service = Service.open(base, [skill.info], limits=limits, name="base")
        service.start()
        app = application(service, Guard.of("127.0.0.1", key=None))
        return cls(service, app, skill, {k: v.clone() for k, v in service.model.state_dict().items()})

    async def as_it_was(self) -> None:
        """Its one skill is held again and no other, and the model has the numbers that it began with."""
        held = self.service.shelf.held
        if set(held) != {SKILL} or held[SKILL].digest != self.skill.digest:
            for name in list(held):
                await self.service.shelf.delete(name)
            await self.service.shelf.put(SKILL, self.skill)
            assert all((value == self.numbers[name]).all() for name, value in self.service.model.state_dict().items())


@cache
def servers() -> tuple[asyncio.AbstractEventLoop, Mapping[str, Served]]:
    """A loop, and two servers: one that writes and one that labels."""
    from tests.serve.serving import encoder, films, language_model, skill

    writer, labeller = language_model(home() / "writer"), encoder(home() / "encoder")
    made = {"writer": Served.of(writer, skill(writer, 1)), "labeller": Served.of(labeller, films(labeller, 1))}
    loop = asyncio.new_event_loop()
    for served in made.values():
        loop.run_until_complete(served.as_it_was())
    return loop, made


def read_http(folder: Path) -> None:
    """A request to the whole server. Whatever it asks, it is answered whole, and the server can be as it was."""
    loop, both = servers()
    body = next((path.read_bytes() for path in map(folder.__truediv__, HTTP[1:]) if path.exists()), b"")
    scope = scope_of((folder / HTTP[0]).read_bytes() if (folder / HTTP[0]).exists() else b"")
    served = both["writer" if b"writer" in dict(scope["headers"]).get(b"user-agent", b"") else "labeller"]
    status, headers, content = loop.run_until_complete(_asked(served.app, scope, body))
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert status not in (500, 503, 504), content
    assert str(home()).encode() not in content, "a path of this machine"
    loop.run_until_complete(served.as_it_was())
    if status >= 400:
        raise InputError(json.loads(content)["error"]["message"] if content else str(status))


def scope_of(head: bytes) -> dict[str, Any]:
    """A request's line and headers as an application sees them; what no HTTP server lets through is refused here."""
    line, *rest = head.split(b"\n")
    first, others = _LINE.fullmatch(line), [_HEADER.fullmatch(each) for each in rest if each]
    if first is None or not all(others):
        raise InputError("no HTTP")
    path, _, query = first[2].partition(b"?")
    headers = [(found[1].lower(), found[2].strip()) for found in others if found]
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
        "method": first[1].decode(), "path": unquote(path.decode()), "raw_path": path, "query_string": query,
        "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1),
    }  # fmt: skip


async def _asked(app: Callable[..., Any], scope: dict[str, Any], body: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    parts, started, sent = [], [], asyncio.Event()

    async def receive() -> dict[str, Any]:
        if sent.is_set():
            await asyncio.Event().wait()  # the client stays until it is answered
        sent.set()
        return {"type": "http.request", "body": body}

    async def send(message: dict[str, Any]) -> None:
        started.append(message) if message["type"] == "http.response.start" else parts.append(message["body"])

    await app(scope, receive, send)
    assert len(started) == 1
    return started[0]["status"], dict(started[0]["headers"]), b"".join(parts)


# The hub: its library gives what a repository holds


def read_hub(folder: Path) -> None:
    """A name, what the hub lists under it, and the graft there. What is downloaded is that graft and nothing else."""
    text = (folder / HUB[0]).read_bytes().decode(errors="replace") if (folder / HUB[0]).exists() else ""
    if (folder / CACHED).exists():
        (folder / CACHED / "snapshots" / ("a" * 40)).mkdir(parents=True)
        assert folder_at(folder / CACHED).parent == folder / CACHED / "snapshots"
    source, out = folder / HUB[2], home() / "downloaded.safetensors"
    out.unlink(missing_ok=True)
    name = HubName.of(text if text.startswith("hf:") else f"hf:{text}")
    assert name is not None
    assert HubName.of(f"hf:{name}") == name
    try:
        with _library(_listed(folder / HUB[1]), source):
            found = download(text, out)
    except BaseException:
        assert not out.exists()
        raise
    assert out.read_bytes() == source.read_bytes()
    assert graft_file.load(out) == found


def _listed(file: Path) -> list[str]:
    """What a hub lists is texts: huggingface_hub has seen to that."""
    try:
        names = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


@contextmanager
def _library(files: list[str], source: Path) -> Iterator[None]:
    import huggingface_hub
    from huggingface_hub import errors

    def fetched(_name: str, file: str, **_: Any) -> str:
        if file not in files or not source.exists():
            raise errors.LocalEntryNotFoundError(file)
        return str(source)

    with ExitStack() as stack:
        listing = mock.Mock(return_value=mock.Mock(list_repo_files=lambda *_, **__: files))
        for name, stub in (("HfApi", listing), ("hf_hub_download", fetched)):
            stack.enter_context(mock.patch.object(huggingface_hub, name, stub))
        stack.enter_context(mock.patch("skillgraft.folders.hub._offline", return_value=False))
        yield
