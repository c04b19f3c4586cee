"""The seeds of what comes over a network: bodies, sums of skills, whole requests, repositories of a hub."""

from __future__ import annotations

import json
from typing import Any

from skillgraft.files import graft_file

from . import bundles
from .online import CACHED, HTTP, HUB
from .room import home
from .targets import CORPUS, put


def requests() -> None:
    sampling = {"max_tokens": 8, "temperature": 0.5, "top_p": 0.9, "stop": ["\n"], "seed": 1, "n": 2, "stream": True}
    message = {"role": "user", "content": "Hello"}
    bodies: dict[str, dict[str, Any]] = {
        "completion": {"model": "bash+0.5*french", "prompt": ["ls", "é"], **sampling, "logprobs": 2},
        "chat": {"model": "m", "skills": {"bash": 0.5}, "messages": [message], **sampling, "logprobs": True},
        "embeddings": {"model": "m", "input": [[1, 2], [3]], "encoding_format": "base64"},
        "classify": {"model": "sst2", "input": ["good", {"text": "bad"}], "task": "sst2"},
    }
    for name, asked in bodies.items():
        put("request", name, json.dumps(asked, ensure_ascii=False).encode())
    put("headers", "own-page", b"127.0.0.1:8000\nhttp://127.0.0.1:8000\nBearer 0123456789abcdef")
    put("headers", "allowed", b"[::1]:8000\nhttps://ours.example\nbearer 0123456789abcdef")
    put("names", "one", b"sst2")
    put("names", "sum", b"bash+-0.5*french + 1e-3*a.b_c-d")


def https() -> None:
    """Requests to the server: one of each path that takes a body, an upload, and others."""
    from tests.serve.serving import encoder, films

    plain = ("completion", "chat", "embeddings", "classify")
    bodies = {name: json.loads((CORPUS / "request" / name).read_bytes()) for name in plain}
    for asked in bodies.values():
        asked["model"] = "held"
    bodies["chat"].pop("skills")
    bodies["classify"] = {"model": "0.5*held", "input": ["a good film", {"text": "bad"}]}
    bodies["embeddings"]["input"] = ["good", [5, 6]]
    lines = {
        "completion": "POST /v1/completions", "chat": "POST /v1/chat/completions", "embeddings": "POST /v1/embeddings",
        "classify": "POST /v1/classify",
    }  # fmt: skip
    for name, asked in bodies.items():
        who = "writer" if name in ("completion", "chat") else "labeller"
        sent = json.dumps(asked).encode()
        put("http", name, bundles.pack({HTTP[0]: head(lines[name], who), HTTP[1]: sent}, HTTP))
    graft_file.save(films(encoder(home() / "labeller"), 2, share=0.01), home() / "films.safetensors")
    sent = (home() / "films.safetensors").read_bytes()
    put("http", "upload", bundles.pack({HTTP[0]: head("PUT /v1/skills/more", "labeller"), HTTP[2]: sent}, HTTP))
    for name, line in {
        "skills": "GET /v1/skills",
        "delete": "DELETE /v1/skills/held",
        "metrics": "GET /metrics?x=%20",
    }.items():
        put("http", name, bundles.pack({HTTP[0]: head(line, "writer")}, HTTP))


def head(line: str, who: str) -> bytes:
    origin = "host: 127.0.0.1:8000\norigin: http://127.0.0.1:8000\nauthorization: Bearer none\ncontent-type: application/json"
    return f"{line}\n{origin}\nuser-agent: {who}\n".encode()


def hub() -> None:
    files = {
        "name": b"owner/name@v1.0:skills/a.safetensors", "files.json": b'["README.md", "skills/a.safetensors"]',
        "skill.safetensors": (CORPUS / "graft" / "small").read_bytes(), f"{CACHED}/refs/main": b"a" * 40,
    }  # fmt: skip
    put("hub", "file", bundles.pack(files, HUB))
    put("hub", "newest", bundles.pack({**files, "name": b"hf:o.w-n_er/n"}, HUB))


ALL = (requests, https, hub)
