"""Who may ask: the Host and Origin of a request, and its key; checked before anything else is read of it.

A page that a browser shows from elsewhere cannot use a server on loopback: its Origin is refused, and so is a Host that is not
this server's (a name that was made to point here). Any address but loopback needs a key, or an explicit word that none is wanted.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from skillgraft.errors import InputError
from skillgraft.serve.refusals import Refused, shown

KEY_VARIABLE = "SKILLGRAFT_API_KEY"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_SHORTEST_KEY = 16
# The page, its files and the sign of life need no key: they hold nothing of the user's.
OPEN_PATHS = ("/health", "/", "/studio/script.js", "/studio/charts.js", "/studio/style.css", "/favicon.ico")


@dataclass(frozen=True)
class Guard:
    """`hosts` None allows any address that is written as numbers, and no name."""

    hosts: frozenset[str] | None
    origins: frozenset[str] = frozenset()
    key: str | None = None

    @classmethod
    def of(
        cls,
        host: str,
        *,
        key: str | None,
        no_auth: bool = False,
        allowed_hosts: Collection[str] = (),
        origins: Collection[str] = (),
    ) -> Guard:
        """The guard of a server that listens on `host`."""
        if key is not None and len(key) < _SHORTEST_KEY:
            raise InputError(f"an API key has at least {_SHORTEST_KEY} characters; found {len(key)}")
        if key is not None and no_auth:
            raise InputError("--no-auth and a key exclude each other: leave one out")
        if not is_loopback(host) and key is None and not no_auth:
            raise InputError(
                f"{host} can be reached from other machines: give a key (--api-key FILE, or {KEY_VARIABLE} in the "
                "environment), or say --no-auth"
            )
        every = ipaddress.ip_address(host).is_unspecified if _is_address(host) else False
        named = frozenset(name.lower() for name in (host, *_LOOPBACK_NAMES, *allowed_hosts))
        return cls(None if every and not allowed_hosts else named, frozenset(origins), key)

    def check_host(self, host: str) -> None:
        name = host_name(host)
        if name in _LOOPBACK_NAMES or (_is_address(name) if self.hosts is None else name in self.hosts):
            return
        raise Refused(403, "host_not_allowed", f"the Host {shown(host)} is not this server's; see --allow-host")

    def check_origin(self, origin: str | None, host: str) -> None:
        """A browser names the page that asks: it must come from this server, or be allowed."""
        if origin is None or origin in self.origins:
            return
        own = [f"{scheme}://{host}".lower() for scheme in ("http", "https")]
        if (
            origin.lower() not in own
        ):  # letter by letter: what parsers pass over in an address, nobody sends in good faith
            raise Refused(403, "origin_not_allowed", f"pages of {shown(origin)} may not ask here; see --allow-origin")

    def check_key(self, authorization: str | None, path: str) -> None:
        if self.key is None or path in OPEN_PATHS:
            return
        scheme, _, given = (authorization or "").partition(" ")
        # Compared as bytes, in a time that does not tell how many of them were right.
        right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self.key.encode("utf-8"))
        if scheme.lower() != "bearer" or not right:
            raise Refused(
                401, "invalid_api_key", "this server needs its key: Authorization: Bearer …",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip


def read_key(file: Path | None, environment: str | None) -> str | None:
    """The key in that file, else the one in the environment; never one from the command line, which others can see."""
    if file is None:
        return environment.strip() if environment and environment.strip() else None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"--api-key {file}: expected a text file that holds the key: {error}") from None
    if not key or "\n" in key:
        raise InputError(f"--api-key {file}: expected one line with the key; found {len(key.splitlines())}")
    return key


def is_loopback(host: str) -> bool:
    return host.lower() == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def host_name(host: str) -> str:
    """The name of a Host header, without its port; IPv6 without brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
