"""The paths of the server: OpenAI's, our own `/v1/classify` and `/v1/skills`, and what operators look at.

    app = application(service, guard, skills=Path("skills"))

Bodies are read up to their limits, errors have one shape, and every answer names the graft digests and scales that made it: in
its field `skills` and in the header `X-Skillgraft-Skills`.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from skillgraft.errors import SkillgraftError
from skillgraft.serve import requests
from skillgraft.serve.answers import DONE, WrittenAnswer, sse
from skillgraft.serve.calls import Call, ClientGone
from skillgraft.serve.edge import Edge
from skillgraft.serve.guard import Guard
from skillgraft.serve.names import checked_name
from skillgraft.serve.refusals import Refused
from skillgraft.serve.requests import Body, Reading, Writing
from skillgraft.serve.service import Service, as_base64
from skillgraft.serve.skills import HeldSkill, Pick, refusal_of
from skillgraft.serve.watching import Folder
from skillgraft.serve.work import ReadOut, TextPiece
from skillgraft.values.graft import Graft

SKILLS_HEADER = "X-Skillgraft-Skills"
CLIENT_CLOSED = 499  # nobody reads it; the metrics count it
_UPLOADS_AT_ONCE = 2
_log = logging.getLogger("skillgraft.serve")


class Paths:
    """The handlers of one service."""

    def __init__(self, service: Service, folder: Folder | None) -> None:
        self.service, self.folder = service, folder
        self._started = int(time.time())
        self._uploads = asyncio.Semaphore(_UPLOADS_AT_ONCE)

    def routes(self) -> list[Route]:
        return [
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.model, methods=["GET"]),
            Route("/v1/skills", self.skills, methods=["GET"]),
            Route("/v1/skills/{name}", self.put, methods=["PUT"]),
            Route("/v1/skills/{name}", self.delete, methods=["DELETE"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/v1/classify", self.classify, methods=["POST"]),
        ]

    async def health(self, _request: Request) -> Response:
        alive = self.service.engine.alive
        return JSONResponse({"status": "ok" if alive else "the model's thread ended"}, 200 if alive else 503)

    async def metrics(self, _request: Request) -> Response:
        return PlainTextResponse(self.service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(self, _request: Request) -> Response:
        shelf = self.service.shelf
        data = [self._as_model(shelf.base, None), *(self._as_model(name, held) for name, held in shelf.held.items())]
        return JSONResponse({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        with self.service.shelf.pick(request.path_params["name"]) as pick:
            held = pick.terms[0][0] if len(pick.terms) == 1 else None
            return JSONResponse({**self._as_model(pick.model, held), "skills": pick.made_by()})

    async def skills(self, _request: Request) -> Response:
        held = [self._as_skill(held) for held in self.service.shelf.held.values()]
        refused = [{"file": file, "why": why} for file, why in (self.folder.refused if self.folder else {}).items()]
        return JSONResponse({"base": self.service.shelf.base, "skills": held, "refused": refused})

    async def put(self, request: Request) -> Response:
        name = checked_name(request.path_params["name"])
        async with self._uploads:
            graft = await self._uploaded(request, name)
            try:
                new = await self.service.shelf.put(name, graft)
            except SkillgraftError as error:
                raise Refused(422, "graft_refused", str(error), "name") from None
        return JSONResponse(self._as_skill(self.service.shelf.held[name]), 201 if new else 200)

    async def delete(self, request: Request) -> Response:
        name = checked_name(request.path_params["name"])
        await self.service.shelf.delete(name)
        return JSONResponse({"id": name, "object": "skill", "deleted": True})

    async def completions(self, request: Request) -> Response:
        ask = requests.completion(await self._body(request), self.service.limits)
        return await self._write(request, ask, "text")

    async def chat(self, request: Request) -> Response:
        ask = requests.chat(await self._body(request), self.service.limits)
        return await self._write(request, ask, "chat")

    async def embeddings(self, request: Request) -> Response:
        ask = requests.embeddings(await self._body(request), self.service.limits)
        with self.service.shelf.pick(ask.model, ask.skills) as pick:
            rows = await self._read(request, ask, pick, self.service.embedding)
        data = [
            {"object": "embedding", "index": row.row, "embedding": as_base64(row.values) if ask.base64 else row.values}
            for row in rows
        ]
        return made(pick, {"object": "list", "data": data, "model": pick.model, "usage": _read_usage(rows)})

    async def classify(self, request: Request) -> Response:
        ask = requests.classification(await self._body(request), self.service.limits)
        with self.service.shelf.pick(ask.model, ask.skills) as pick:
            question = self.service.shelf.question(pick, ask.task)
            rows = await self._read(
                request, ask, pick,
                lambda ask, pick, deliver: self.service.classifying(ask, pick, question, deliver),
            )  # fmt: skip
        data = [
            {
                "index": row.row,
                "label": max(zip(row.values, question.labels, strict=True), key=lambda each: each[0])[1],
                "probabilities": dict(zip(question.labels, row.values, strict=True)),
            }
            for row in rows
        ]
        return made(pick, {"object": "list", "data": data, "model": pick.model, "usage": _read_usage(rows)})

    async def _read(self, request: Request, ask: Reading, pick: Pick, ticket: Callable[..., Any]) -> list[ReadOut]:
        async with Call(self.service.engine, request.receive, seconds=self.service.limits.seconds) as call:
            call.submit(ticket(ask, pick, call.deliver))
            rows = [cast(ReadOut, event) async for event in call.ends(len(ask.inputs))]
        return sorted(rows, key=lambda row: row.row)

    async def _write(self, request: Request, ask: Writing, shape: Any, /) -> Response:
        with ExitStack() as stack:
            pick = stack.enter_context(self.service.shelf.pick(ask.model, ask.skills))
            answer = WrittenAnswer(self.service, pick, ask, shape)
            call = Call(
                self.service.engine, None if ask.stream else request.receive, seconds=self.service.limits.seconds
            )
            stack.callback(call.close)
            ticket = self.service.writing(ask, pick, call.deliver)
            call.submit(ticket)
            if not ask.stream:
                return made(pick, answer.whole([cast(TextPiece, event) async for event in call.ends(ticket.rows)]))
            first = cast(
                TextPiece, await call.next()
            )  # what is refused is refused with its status, before a stream begins
            stream = _stream(call, answer, first, ticket.rows)
            return Streamed(stream, headers=headers_of(pick), stack=stack.pop_all())

    async def _body(self, request: Request) -> Body:
        raw = bytearray()
        async for chunk in _chunks(request, self.service.limits.body_bytes):
            raw += chunk
        return requests.parse_body(bytes(raw))

    async def _uploaded(self, request: Request, name: str) -> Graft:
        """The graft in the body, by way of a file: a graft is read from a file, with everything checked."""
        with tempfile.TemporaryDirectory(prefix="skillgraft-") as folder:
            file = Path(folder) / f"{name}.safetensors"
            with file.open("wb") as writing:
                async for chunk in _chunks(request, self.service.limits.graft_bytes):
                    writing.write(chunk)
            try:
                return await asyncio.to_thread(Graft.load, file)
            except SkillgraftError as error:
                raise Refused(422, "graft_refused", str(error).replace(f"{folder}/", ""), "name") from None

    def _as_model(self, name: str, held: HeldSkill | None) -> dict[str, Any]:
        model = {"id": name, "object": "model", "created": self._started, "owned_by": "skillgraft"}
        return model if held is None else {**model, "parent": self.service.shelf.base, "digest": held.digest}

    def _as_skill(self, held: HeldSkill) -> dict[str, Any]:
        question = held.question
        asked = {"labels": question.labels, "fields": question.fields} if question else {"why_not": held.why_not}
        return {
            "id": held.name, "object": "skill", "digest": held.digest, "origin": held.origin, **held.facts,
            "classifies": question is not None, **asked,
        }  # fmt: skip


class Streamed(StreamingResponse):
    """A stream of events whose end, whatever it is, lets go of what it held."""

    def __init__(self, content: AsyncIterator[bytes], *, headers: Mapping[str, str], stack: ExitStack) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache", **headers})
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._stack:
            await super().__call__(scope, receive, send)


async def _stream(call: Call, answer: WrittenAnswer, first: TextPiece, rows: int) -> AsyncIterator[bytes]:
    for opening in answer.opening():
        yield sse(opening)
    yield sse(answer.chunk(first))
    try:
        async for event in call.ends(rows - bool(first.finish)):
            yield sse(answer.chunk(cast(TextPiece, event)))
    except (Refused, SkillgraftError) as error:  # the status has gone out already
        yield sse(refusal_of(error).body())
        return
    for closing in answer.closing():
        yield sse(closing)
    yield DONE


async def _chunks(request: Request, most: int) -> AsyncIterator[bytes]:
    """The body, refused as soon as it is longer than allowed, even where it does not say how long it is."""

    def too_long(found: object) -> Refused:
        return Refused(413, "body_too_large", f"the body has {found} bytes; at most {most:,} are taken")

    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated[:20]) > most:
        raise too_long(stated[:20])
    seen = 0
    async for chunk in request.stream():
        seen += len(chunk)
        if seen > most:
            raise too_long(f"{seen:,} or more")
        yield chunk


def made(pick: Pick, answer: dict[str, Any]) -> Response:
    """An answer with the grafts that made it."""
    return JSONResponse({**answer, "skills": pick.made_by()}, headers=headers_of(pick))


def headers_of(pick: Pick) -> dict[str, str]:
    return {SKILLS_HEADER: pick.header}


def _read_usage(rows: list[ReadOut]) -> dict[str, int]:
    tokens = sum(row.tokens for row in rows)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


async def _refused(_request: Request, error: Exception) -> Response:
    refused = refusal_of(error)
    return JSONResponse(refused.body(), refused.status, headers=dict(refused.headers))


async def _broken(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return await _refused(request, error)


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED)


async def _http(_request: Request, error: Any) -> Response:
    code = {404: "no_such_path", 405: "wrong_method"}.get(error.status_code, "http_error")
    words = {404: "there is no such path; see docs/serving.md", 405: "this path takes another method"}
    refused = Refused(error.status_code, code, words.get(error.status_code, str(error.detail)))
    return JSONResponse(refused.body(), refused.status, headers=error.headers)


def application(
    service: Service,
    guard: Guard,
    *,
    folder: Folder | None = None,
    more: list[Route] | None = None,
    paths: type[Paths] = Paths,
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """The whole server as an ASGI application; `more` are the studio's paths, `paths` those of another engine."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(folder.watch()) if folder else None
        yield
        if watching:
            watching.cancel()
        await asyncio.to_thread(service.engine.stop)

    from starlette.exceptions import HTTPException

    app = Starlette(
        routes=[*paths(service, folder).routes(), *(more or [])],
        lifespan=lifespan,
        exception_handlers={
            Refused: _refused, SkillgraftError: _refused, ClientGone: _gone, HTTPException: _http, Exception: _broken,
        },
    )  # fmt: skip
    return Edge(app, guard, service.metrics)
