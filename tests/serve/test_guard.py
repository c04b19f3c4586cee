"""Who may ask: hosts, origins and keys."""

from __future__ import annotations

from pathlib import Path

import httpx2 as httpx
import pytest

from skillgraft.errors import InputError
from skillgraft.serve.guard import Guard, host_name, read_key
from skillgraft.serve.refusals import Refused

from .serving import running

KEY = "0123456789abcdef-key"


def refused(guard: Guard, **request: str) -> str:
    """The code of the refusal, or "" where the request may come in."""
    host = request.get("host", "127.0.0.1:8000")
    try:
        guard.check_host(host)
        guard.check_origin(request.get("origin"), host)
        guard.check_key(request.get("key"), request.get("path", "/v1/models"))
    except Refused as error:
        return error.code
    return ""


@pytest.mark.parametrize(
    ("host", "code"),
    [("127.0.0.1:8000", ""), ("localhost", ""), ("LOCALHOST:1", ""), ("[::1]:8000", ""), ("evil.example", "host_not_allowed"),
     ("evil.example:8000", "host_not_allowed"), ("", "host_not_allowed"), ("127.0.0.1.evil.example", "host_not_allowed"),
     ("localhost,evil.example", "host_not_allowed"), ("user@evil.example", "host_not_allowed"), ("[::1", "host_not_allowed"),
     ("10.0.0.1", "host_not_allowed"), ("my.lan", "")],
)  # fmt: skip
def test_hosts(host: str, code: str) -> None:
    assert refused(Guard.of("127.0.0.1", key=None, allowed_hosts=["My.lan"]), host=host) == code


def test_a_server_for_all_addresses_is_called_by_a_number() -> None:
    guard = Guard.of("0.0.0.0", key=KEY)
    asked = {host: refused(guard, host=host, key=f"Bearer {KEY}") for host in ("192.168.1.7:8000", "evil.example")}
    assert asked == {"192.168.1.7:8000": "", "evil.example": "host_not_allowed"}


@pytest.mark.parametrize(
    ("origin", "code"),
    [("http://127.0.0.1:8000", ""), ("https://ours.example", ""), ("http://127.0.0.1:9000", "origin_not_allowed"),
     ("http://evil.example", "origin_not_allowed"), ("null", "origin_not_allowed"), ("file://", "origin_not_allowed"),
     ("http://127.0.0.1:8000.evil.example", "origin_not_allowed"), ("", "origin_not_allowed"),
     ("http://127.\t0.0.1:8000", "origin_not_allowed"),
     ("http://[", "origin_not_allowed"), ("http://[::1", "origin_not_allowed"), ("http://\u2100:8000", "origin_not_allowed")],
)  # fmt: skip
def test_origins(origin: str, code: str) -> None:
    assert refused(Guard.of("127.0.0.1", key=None, origins=["https://ours.example"]), origin=origin) == code


@pytest.mark.parametrize(
    ("given", "code"),
    [(f"Bearer {KEY}", ""), (f"bearer {KEY}", ""), (KEY, "invalid_api_key"), ("", "invalid_api_key"),
     (f"Basic {KEY}", "invalid_api_key"), (f"Bearer {KEY}x", "invalid_api_key"), ("Bearer é", "invalid_api_key")],
)  # fmt: skip
def test_keys(given: str, code: str) -> None:
    assert refused(Guard.of("127.0.0.1", key=KEY), key=given) == code


def test_what_needs_no_key() -> None:
    guard = Guard.of("127.0.0.1", key=KEY)
    assert {path: refused(guard, path=path) for path in ("/health", "/", "/metrics", "/v1/skills/x")} == {
        "/health": "", "/": "", "/metrics": "invalid_api_key", "/v1/skills/x": "invalid_api_key",
    }  # fmt: skip


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::", "my.host"])
def test_other_addresses_need_a_key_or_a_word(host: str) -> None:
    with pytest.raises(InputError, match="--no-auth"):
        Guard.of(host, key=None)
    assert Guard.of(host, key=None, no_auth=True).key is None
    assert Guard.of(host, key=KEY).key == KEY


def test_keys_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    assert (read_key(file, "other"), read_key(None, KEY), read_key(None, " ")) == (KEY, KEY, None)
    file.write_text("one\ntwo\n")
    with pytest.raises(InputError, match="found 2"):
        read_key(file, None)
    with pytest.raises(InputError, match="expected a text file"):
        read_key(tmp_path / "none", None)
    with pytest.raises(InputError, match="at least 16 characters"):
        Guard.of("127.0.0.1", key="short")
    with pytest.raises(InputError, match="exclude each other"):
        Guard.of("127.0.0.1", key=KEY, no_auth=True)


def test_host_names() -> None:
    assert [host_name(host) for host in ("A.b:80", "[::1]:80", "[", "x:y")] == ["a.b", "::1", "", "x"]


def test_a_guarded_server(encoder_base: Path, tmp_path: Path) -> None:
    guard = Guard.of("127.0.0.1", key=KEY, origins=["https://ours.example"])
    with running(encoder_base, tmp_path, guard=guard) as run:

        def ask(path: str = "/v1/models", method: str = "GET", **headers: str) -> httpx.Response:
            return httpx.request(method, run.url + path, headers=headers)

        bearer = {"Authorization": f"Bearer {KEY}"}
        assert ask().status_code == 401
        assert ask(**bearer).status_code == 200
        assert ask("/health").json() == {"status": "ok"}
        assert ask(**bearer, Host="evil.example").json()["error"]["code"] == "host_not_allowed"
        assert ask(**bearer, Origin="https://evil.example").status_code == 403
        allowed = ask(**bearer, Origin="https://ours.example")
        assert allowed.headers["access-control-allow-origin"] == "https://ours.example"
        assert ask(method="OPTIONS", Origin="https://ours.example").status_code == 204
        assert "default-src 'none'" in allowed.headers["content-security-policy"]
        assert "access-control-allow-origin" not in ask(**bearer).headers
