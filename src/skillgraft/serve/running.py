"""From a base and a folder of skills to a server that listens, until it is told to stop.

    with listening("127.0.0.1", 0) as socket:
        run(Settings(base="minilm", skills=Path("skills")), socket, on_ready=print)

Everything that can be wrong with arguments and files is refused before the model is loaded, which takes seconds. SIGINT and
SIGTERM finish what is under way; new connections are no longer taken.
"""

from __future__ import annotations

import asyncio
import signal
import socket as sockets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from skillgraft.errors import InputError, RunError, SkillgraftError
from skillgraft.files.graft_file import load_info
from skillgraft.serve.guard import Guard
from skillgraft.serve.limits import Limits
from skillgraft.serve.watching import Folder, stamps
from skillgraft.values.graft import Graft

EXTRA = "serving needs the packages starlette and uvicorn: pip install 'skillgraft[serve]'"


@dataclass(frozen=True)
class Settings:
    """What is served, and to whom. `page` adds the studio."""

    base: str
    skills: Path
    guard: Guard
    limits: Limits = field(default_factory=Limits)
    name: str | None = None
    readout: str = "auto"
    dtype: str | None = None
    device: str | None = None
    page: bool = False
    vllm: Path | None = None
    vllm_options: tuple[str, ...] = ()


@contextmanager
def listening(host: str, port: int) -> Iterator[sockets.socket]:
    """A socket that is bound before anything is loaded: a port that is taken is known at once. Port 0 finds a free one."""
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    with sockets.socket(family, sockets.SOCK_STREAM) as socket:
        socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        try:
            socket.bind((host, port))
        except (OSError, OverflowError) as error:
            words = getattr(error, "strerror", None) or error
            raise InputError(
                f"cannot listen on {host}:{port}: {words}; choose another --port (0 finds a free one)"
            ) from None
        yield socket


def check_installed() -> None:
    """The extra `serve`, or one line that says how to get it."""
    if not all(map(find_spec, ("starlette", "uvicorn"))):
        raise InputError(EXTRA)


def infos(folder: Path) -> list[dict[str, Any]]:
    """What the folder's grafts record about themselves, from their headers alone; unreadable ones are reported later."""
    found = []
    for file in stamps(folder):
        try:
            found.append(dict(load_info(folder / file)[1]))
        except SkillgraftError:
            continue
    return found


def run(settings: Settings, socket: sockets.socket, *, on_ready: Callable[[dict[str, Any]], None]) -> None:
    """Serve until SIGINT or SIGTERM. `on_ready` gets what a person or a program wants to know: address, base, skills."""
    import uvicorn

    from skillgraft.serve.server import application

    limits = settings.limits
    with tempfile.TemporaryDirectory(prefix="skillgraft-") as work:
        service, more = _vllm(settings, Path(work)) if settings.vllm else _own(settings)
        folder = Folder(settings.skills, service.shelf, limits.graft_bytes)
        app = application(service, settings.guard, folder=folder, **more)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="on", server_header=False, ws="none", timeout_keep_alive=60,
            timeout_graceful_shutdown=int(limits.seconds) + 1, proxy_headers=False,
        )  # fmt: skip
        server = uvicorn.Server(config)
        # uvicorn would raise the signal again once it has stopped, and a stop that was asked for would look like a crash.
        server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
        asyncio.run(_serve(server, folder, socket, lambda: on_ready(_facts(service, folder, socket))))
        if not server.started:
            raise RunError("the server could not start; its log says why")


def _own(settings: Settings) -> tuple[Any, dict[str, Any]]:
    """Our own engine, and what it adds to the application."""
    from skillgraft.serve.service import Service
    from skillgraft.serve.studio import studio_routes

    service = Service.open(
        settings.base, infos(settings.skills), name=settings.name, readout=settings.readout, limits=settings.limits,
        dtype=settings.dtype, device=settings.device,
    )  # fmt: skip
    service.start()
    return service, {"more": studio_routes(service) if settings.page else None}


def _vllm(settings: Settings, work: Path) -> tuple[Any, dict[str, Any]]:
    """vLLM with the grafts of the folder, and the paths that lead to it."""
    from skillgraft.serve.vllm import VllmPaths, VllmService

    assert settings.vllm is not None
    grafts = []
    for file in stamps(settings.skills):
        with suppress(SkillgraftError):  # the folder reports it
            grafts.append(Graft.load(settings.skills / file))
    service = VllmService.open(
        settings.base, grafts, work, python=settings.vllm, name=settings.name, limits=settings.limits,
        options=settings.vllm_options,
    )  # fmt: skip
    return service, {"paths": VllmPaths}


async def _serve(server: Any, folder: Folder, socket: sockets.socket, on_ready: Callable[[], None]) -> None:
    await folder.look()
    _on_signals(server.handle_exit)
    serving = asyncio.create_task(server.serve(sockets=[socket]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        on_ready()
    await serving


def _on_signals(end: Callable[[int, Any], None]) -> None:
    """End cleanly on SIGINT and SIGTERM; where the event loop takes no signals (Windows), as Python itself does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            asyncio.get_running_loop().add_signal_handler(number, end, number, None)
        except NotImplementedError:
            signal.signal(number, end)


def _facts(service: Any, folder: Folder, socket: sockets.socket) -> dict[str, Any]:
    host, port, *_rest = socket.getsockname()
    shown = f"[{host}]" if ":" in host else host
    return {
        "url": f"http://{shown}:{port}",
        "base": service.name,
        "writes": service.writes,
        "skills": sorted(service.shelf.held),
        "refused": folder.refused,
    }
