"""What strangers may send to a server: bodies, headers, names, files. Each is answered or refused in words."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillgraft.errors import SkillgraftError
from skillgraft.serve import requests
from skillgraft.serve.guard import Guard
from skillgraft.serve.limits import Limits
from skillgraft.serve.questions import question_of
from skillgraft.serve.refusals import Refused
from tests.serve.serving import FILMS, Running, encoder, films, language_model, running, skill, write_skills

LIMITS = Limits(body_bytes=20_000, graft_bytes=200_000, queue_rows=64, new_tokens=8, seconds=20.0)
READERS = (requests.completion, requests.chat, requests.embeddings, requests.classification)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "model", "skills", "prompt", "messages", "input", "task", "max_tokens", "temperature", "top_p", "n", "stop", "seed",
    "logprobs", "top_logprobs", "stream", "stream_options", "encoding_format", "echo", "tools", "user",
)  # fmt: skip
bodies = st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=6)


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("attacked")
    base = language_model(folder / "base")
    with running(base, write_skills(folder / "skills", {"bash": skill(base, 1)}), limits=LIMITS) as run:
        yield run
        assert_well(run)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder(tmp_path_factory.mktemp("attacked") / "base")


def assert_well(run: Running) -> None:
    assert httpx.get(f"{run.url}/health").json() == {"status": "ok"}
    answer = httpx.post(
        f"{run.url}/v1/completions", json={"model": "bash", "prompt": "the", "max_tokens": 2}, timeout=30
    )
    assert answer.status_code == 200
    deadline = time.monotonic() + 10
    while run.service.engine._writing or run.service.engine._waiting:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_ours(answer: httpx.Response) -> bool:
    """A refusal in words, without a path of this machine or a traceback."""
    error = answer.json()["error"]
    return (
        bool(error["message"]) and bool(error["code"]) and "Traceback" not in answer.text and "/tmp" not in answer.text
    )


@given(st.sampled_from(READERS), bodies)
@settings(deadline=None, max_examples=200)
def test_any_body_is_read_or_refused(read: Any, body: dict[str, Any]) -> None:
    try:
        read(body, LIMITS)
    except Refused as refused:
        json.dumps(refused.body())


@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
@settings(deadline=None)
def test_any_bytes_are_parsed_or_refused(raw: bytes) -> None:
    try:
        assert isinstance(requests.parse_body(raw), dict)
    except Refused as refused:
        json.dumps(refused.body())


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"null", b"[]", b'"x"', b"{", b'{"model": NaN}', b'{"model": "a", "model": "b"}', b'{"model": "\\ud800"}', b"\xff",
        b'{"a":' * 3000, b'{"model": "bash", "prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"model": "bash", "prompt": "x", "temperature": 1e999}', b'{"model": "bash", "prompt": [[1, 999999999]]}',
        b'{"model": "bash", "prompt": []}', b'{"model": "bash", "prompt": [[]]}', b'{"model": "bash", "prompt": [1, "a"]}',
        b'{"model": "bash", "prompt": ""' + b"," * 3 + b"}", b'{"model": "bash", "prompt": [1], "n": 1000000}',
        b'{"model": {"$ne": 1}, "prompt": "x"}', b'{"model": "../../etc/passwd", "prompt": "x"}',
        b'{"model": "bash", "prompt": "x", "stop": [""]}', b'{"model": "bash", "prompt": "x", "__class__": 1}',
        b'{"model": "bash", "prompt": "x", "top_p": 1' + b"0" * 400 + b"}",  # a whole number that no float holds
    ],
    ids=range(23),
)  # fmt: skip
def test_bodies_that_are_refused(writer: Running, raw: bytes) -> None:
    answer = httpx.post(f"{writer.url}/v1/completions", content=raw, timeout=30)
    assert answer.status_code in (400, 404)
    assert is_ours(answer)


def test_a_body_that_is_too_large_is_refused_before_it_is_read(writer: Running) -> None:
    large = b'{"model": "bash", "prompt": "' + b"x" * 30_000 + b'"}'
    assert httpx.post(f"{writer.url}/v1/completions", content=large).json()["error"]["code"] == "body_too_large"

    def drops() -> Iterator[bytes]:
        yield from (b"x" * 1000 for _ in range(40))

    streamed = httpx.post(f"{writer.url}/v1/completions", content=drops())
    assert streamed.json()["error"]["code"] == "body_too_large"
    stated = raw(
        writer, b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999999999999\r\n\r\n"
    )
    assert b" 413 " in stated or b" 400 " in stated


def raw(run: Running, request: bytes) -> bytes:
    """What comes back for these very bytes."""
    host, _, port = run.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(request)
        connection.settimeout(5)
        try:
            return connection.recv(4096)
        except TimeoutError:
            return b""


@pytest.mark.parametrize(
    "request_line",
    [
        b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /v1/models HTTP/1.1\r\n\r\n",
        b"G\xc3\xa9T / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nzz\r\n",
        b"GET /v1/../v1/models/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"TRACE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=range(10),
)  # fmt: skip
def test_requests_that_are_none(writer: Running, request_line: bytes) -> None:
    status = raw(writer, request_line).split(b" ", 2)[1:2]
    assert status in ([], [b"400"], [b"403"], [b"404"], [b"405"], [b"431"]), status


@given(st.text(min_size=1, max_size=30))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_name_of_a_skill_is_taken_or_refused(writer: Running, name: str) -> None:
    from urllib.parse import quote

    try:
        quoted = quote(name, safe="")
    except UnicodeEncodeError:
        return
    answer = httpx.put(f"{writer.url}/v1/skills/{quoted}", content=b"no graft")
    assert answer.status_code in (400, 404, 405, 422)
    assert is_ours(answer)
    assert list(writer.service.shelf.held) == ["bash"]


@pytest.mark.parametrize("header", ["Authorization", "Origin", "Content-Type", "X-Forwarded-Host", "Accept-Encoding"])
def test_odd_headers_change_nothing(writer: Running, header: str) -> None:
    for value in (b"\xff", b"a" * 4000, b"null", b"Bearer \x80", b"{}", b"http://["):
        answer = httpx.get(f"{writer.url}/v1/models", headers={header: value})
        assert answer.status_code in (200, 403)


def test_uploaded_files_are_read_as_grafts_alone(writer: Running, tmp_path: Path) -> None:
    whole = (writer.folder.path / "bash.safetensors").read_bytes()
    draw = np.random.default_rng(0)
    for case in range(30):
        data = bytearray(whole[: draw.integers(1, len(whole))] if case % 2 else whole)
        for at in draw.integers(0, min(len(data), 4000), 8):
            data[at] = draw.integers(256)
        answer = httpx.put(f"{writer.url}/v1/skills/new", content=bytes(data), timeout=30)
        assert answer.status_code in (201, 200, 422)
        assert answer.status_code != 422 or is_ours(answer)
    for data in (b"", b"\x80\x04\x95", b"PK\x03\x04", (1 << 62).to_bytes(8, "little") + b"{}"):
        assert httpx.put(f"{writer.url}/v1/skills/other", content=data).status_code == 422
    assert httpx.put(f"{writer.url}/v1/skills/large", content=b"x" * 300_000).status_code == 413
    httpx.delete(f"{writer.url}/v1/skills/new")
    assert list(writer.service.shelf.held) == ["bash"]
    assert not list(tmp_path.iterdir())


settings_values = json_values | st.sampled_from(
    ["{text}", "{text} {mask}", "{{", "{a|limit:9}", "{a|join:,}", "\x1b[31m"]
)


@given(st.dictionaries(st.sampled_from([*FILMS, "words", "template", "first_label"]), settings_values))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_grafts_readout_is_used_or_refused(base: Path, readout: dict[str, Any]) -> None:
    """What a graft's file says about its question is data: whatever it is, there is a question or a reason."""
    source, model = opened(base)
    info = {"labels": ["bad", "good"], "readout": {**FILMS, **readout}}
    try:
        question = question_of(info, source, model, loader="AutoModel")
        question.encode(dict.fromkeys(question.fields, "the cat"))
    except (SkillgraftError, Refused):
        return


_OPENED: dict[Path, Any] = {}


def opened(base: Path) -> Any:
    from skillgraft.opening.source import Source
    from skillgraft.serve.service import LOADERS
    from skillgraft.task_model import open_plan

    if base not in _OPENED:
        source = Source.of(base)
        _OPENED[base] = source, open_plan(source, LOADERS["text-head"], device="cpu")[0]
    return _OPENED[base]


def test_what_a_file_says_never_reaches_a_header_or_a_terminal(base: Path, tmp_path: Path) -> None:
    evil = films(base, 1).with_info(task="\x1b[31mred\r\nX-Evil: 1", method="<script>")
    with running(base, write_skills(tmp_path / "skills", {"films": evil})) as run:
        answer = httpx.post(f"{run.url}/v1/classify", json={"model": "films", "input": "x"}, timeout=30)
        assert "x-evil" not in answer.headers
        assert "\x1b" not in httpx.get(f"{run.url}/v1/skills").text


def test_a_flood_is_refused_with_a_time_to_come_back(base: Path, tmp_path: Path) -> None:
    skills = write_skills(tmp_path / "skills", {"films": films(base, 1)})
    body = {"model": "films", "input": ["the cat"] * 8}
    with running(base, skills, limits=Limits(queue_rows=10)) as run:
        busy = threading.Event()
        run.service.engine.run(busy.wait)
        first = threading.Thread(target=lambda: httpx.post(f"{run.url}/v1/classify", json=body, timeout=60))
        first.start()
        while not run.service.engine._waiting:
            time.sleep(0.001)
        flooded = httpx.post(f"{run.url}/v1/classify", json=body, timeout=60)
        busy.set()
        first.join()
        assert (flooded.status_code, flooded.headers["retry-after"]) == (429, "1")
        assert "8 rows wait and at most 10 may" in flooded.json()["error"]["message"]
        assert httpx.post(f"{run.url}/v1/classify", json=body, timeout=60).status_code == 200


def test_a_request_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    base = language_model(tmp_path / "base")
    (tmp_path / "skills").mkdir()
    with running(base, tmp_path / "skills", limits=Limits(seconds=0.05)) as run:
        body = {"model": "base", "prompt": ["the"] * 8, "max_tokens": 240}
        answer = httpx.post(f"{run.url}/v1/completions", json=body, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")


def test_a_key_is_compared_as_a_whole(base: Path, tmp_path: Path) -> None:
    key = "k" * 40
    with running(base, tmp_path, guard=Guard.of("127.0.0.1", key=key)) as run:
        for given_key in ("", key[:-1], key + "k", key.upper(), "\x00" * 40, "%6b" * 40):
            answer = raw(
                run,
                b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
                + given_key.encode()
                + b"\r\n\r\n",
            )
            assert answer.split(b" ", 2)[1] in (b"401", b"400")
