"""The page on which a person tries skills: its files, and what it asks beside the server's own paths.

Everything the page loads comes from this package: no network, no build step. `/studio/skills` has what it draws: where each skill
lives (layer × kind) and how skills overlap.
"""

from __future__ import annotations

import asyncio
from importlib.resources import files
from itertools import combinations
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from skillgraft.serve.service import Service
from skillgraft.serve.skills import HeldSkill

_FILES = {
    "/": ("page.html", "text/html"),
    "/studio/style.css": ("style.css", "text/css"),
    "/studio/script.js": ("script.js", "text/javascript"),
    "/studio/charts.js": ("charts.js", "text/javascript"),
}
_MOST_COMPARED = 24  # of more skills than that, the overlaps of the first ones are shown


def studio_routes(service: Service) -> list[Route]:
    """The page, its files and its facts."""

    async def facts(_request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(_facts, service, tuple(service.shelf.held.values())))

    async def icon(_request: Request) -> Response:
        return Response(status_code=204)

    return [
        *(Route(path, _file(name, kind), methods=["GET"]) for path, (name, kind) in _FILES.items()),
        Route("/favicon.ico", icon, methods=["GET"]),
        Route("/studio/skills", facts, methods=["GET"]),
    ]


def _file(name: str, kind: str) -> Any:
    content = files("skillgraft.serve").joinpath("page", name).read_bytes()

    async def send(_request: Request) -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers={"Cache-Control": "no-cache"})

    return send


def _facts(service: Service, held: tuple[HeldSkill, ...]) -> dict[str, Any]:
    compared = held[:_MOST_COMPARED]
    overlaps = [
        {"a": one.name, "b": other.name, "jaccard": one.region.jaccard(other.region), "shared": len(one.region & other.region)}
        for one, other in combinations(compared, 2)
    ]  # fmt: skip
    return {
        "base": service.name,
        "writes": service.writes,
        "chats": service.writes and bool(service.source.tokenizer.chat_template),
        "skills": {each.name: _where(each) for each in held},
        "overlaps": overlaps,
    }


def _where(held: HeldSkill) -> dict[str, Any]:
    """Entries per layer and kind, and the room that there is."""
    taken, room = held.region.by_layer_and_kind(), held.region.scope.by_layer_and_kind()
    layers = list(held.region.by_layer())
    kinds = list(held.region.by_kind())
    return {
        "layers": [layer.rpartition(".")[2] if layer else "outside the layers" for layer in layers],
        "kinds": kinds,
        "taken": [[taken.get((layer, kind), 0) for kind in kinds] for layer in layers],
        "room": [[room.get((layer, kind), 0) for kind in kinds] for layer in layers],
    }
