"""The edge of the server: every request is guarded, counted and timed, and every answer carries safe headers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from skillgraft.serve.guard import Guard
from skillgraft.serve.metrics import Metrics
from skillgraft.serve.refusals import Refused

_PATHS = (
    "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/classify", "/v1/models", "/v1/skills", "/health",
    "/metrics", "/studio",
)  # fmt: skip
_HEADER_BYTES = 32_000
# The page loads nothing from elsewhere and is shown in no frame; what is answered is what it says it is.
_SAFE = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


class Edge:
    """An ASGI application around another."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], guard: Guard, metrics: Metrics) -> None:
        self.app, self.guard, self.metrics = app, guard, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        headers = _headers(scope)
        origin = headers.get("origin")

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {**_SAFE, **(self._cors(origin) if origin in self.guard.origins else {})}
                message = {**message, "headers": [*message["headers"], *_encoded(own)]}
            await send(message)

        try:
            refused = self._refused(scope, headers)
            if refused is not None:
                await JSONResponse(refused.body(), refused.status, headers=dict(refused.headers))(
                    scope, receive, sending
                )
            elif scope["method"] == "OPTIONS" and origin in self.guard.origins:
                await Response(status_code=204)(scope, receive, sending)
            else:
                await self.app(scope, receive, sending)
        finally:
            self.metrics.request(_path(scope["path"]), status, seconds=time.perf_counter() - began)

    def _refused(self, scope: Scope, headers: dict[str, str]) -> Refused | None:
        host = headers.get("host", "")
        try:
            size = sum(len(name) + len(value) for name, value in scope["headers"])
            if size > _HEADER_BYTES:
                raise Refused(
                    431, "headers_too_large", f"the headers have {size:,} bytes; at most {_HEADER_BYTES:,} are taken"
                )
            self.guard.check_host(host)
            self.guard.check_origin(headers.get("origin"), host)
            if scope["method"] != "OPTIONS":
                self.guard.check_key(headers.get("authorization"), scope["path"])
        except Refused as refused:
            return refused
        return None

    @staticmethod
    def _cors(origin: str | None) -> dict[str, str]:
        return {
            "access-control-allow-origin": origin or "",
            "access-control-allow-headers": "authorization, content-type",
            "access-control-allow-methods": "GET, POST, PUT, DELETE",
            "vary": "origin",
        }


def _headers(scope: MutableMapping[str, Any]) -> dict[str, str]:
    """By lower-case name. A header that stands twice is joined, so that neither of two hosts passes for the other."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def _path(path: str) -> str:
    """The path as a metric's label: one of ours, never what a client made up."""
    return next((known for known in _PATHS if path == known or path.startswith(f"{known}/")), "other")
