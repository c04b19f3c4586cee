"""vLLM as the engine of a language model: every graft as its exact LoRA, names, sums, digests and refusals as ours.

    service = VllmService.start("SmolLM2", infos, python="vllm/bin/python", work=folder)

vLLM's own server runs as a process of its own on loopback, behind ours; several GPUs, continuous batching and its prefix cache
are its business. A skill is an adapter under a key of ours, a sum of skills one that is made when it is first asked for. A graft
whose sites have no LoRA form (biases, norms, embeddings), or whose rank is above what vLLM was started with, is refused by name.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from skillgraft.errors import InputError, RunError
from skillgraft.interop.lora import export_lora, export_nothing
from skillgraft.opening.source import Source
from skillgraft.serve.answers import DONE, sse
from skillgraft.serve.calls import ClientGone, too_late
from skillgraft.serve.limits import Limits
from skillgraft.serve.metrics import Metrics
from skillgraft.serve.questions import Question
from skillgraft.serve.refusals import Refused
from skillgraft.serve.requests import Writing
from skillgraft.serve.server import Paths, Streamed, headers_of, made
from skillgraft.serve.service import kind_of
from skillgraft.serve.skills import Pick, Shelf
from skillgraft.serve.upstream import Upstream
from skillgraft.values.graft import Graft, total

T = TypeVar("T")
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM can be started with
_START_SECONDS = 900.0
_SUMS_KEPT = 64
_BASE, _NOTHING = "base", "nothing"  # what vLLM calls the base and an adapter that adds 0; our names never reach it
_AT_ONCE = 4  # adapters in one batch


@dataclass(eq=False)
class Vllm:
    """The process, its adapters, and the one thread on which they come and go. A `SkillBank` as the shelf sees it."""

    base: str
    work: Path
    upstream: Upstream
    process: subprocess.Popen[bytes]
    rank: int
    _grafts: dict[str, Graft] = field(default_factory=dict)
    _sums: OrderedDict[tuple[tuple[str, float], ...], str] = field(default_factory=OrderedDict)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "adapters"))

    @classmethod
    def start(cls, base: str, work: Path, *, python: Path, rank: int, options: Sequence[str] = ()) -> Vllm:
        """vLLM's server on a free port of loopback, with a key that only we know; back when it answers."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        key = secrets.token_hex(16)
        words = [
            str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", base, "--served-model-name", _BASE,
            "--host", "127.0.0.1", "--port", str(port), "--enable-lora", "--max-lora-rank", str(rank),
            "--max-loras", str(_AT_ONCE), *options,
        ]  # fmt: skip
        environment = {**os.environ, "VLLM_API_KEY": key, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
        environment.pop("PYTHONPATH", None)  # its packages are its own
        with (work / "vllm.log").open("wb") as log:
            process = subprocess.Popen(words, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        vllm = cls(base, work, Upstream(port, key), process, rank)
        try:
            vllm._wait()
            export_nothing(base, work / _NOTHING)
            vllm._take(_NOTHING, work / _NOTHING)
        except BaseException:
            process.kill()
            raise
        return vllm

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def run(self, call: Callable[[], T]) -> Future[T]:
        return self._thread.submit(call)

    def stop(self) -> None:
        self._thread.shutdown()
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def add(self, name: str, graft: Graft) -> None:
        self._load(name, graft)
        self._grafts[name] = graft

    def remove(self, name: str) -> None:
        del self._grafts[name]
        for key in [key for key in self._sums if any(name == part for part, _ in key)]:
            self._unload(self._sums.pop(key))
        self._unload(name)

    def adapter(self, pick: Pick) -> str:
        """vLLM's name of what answers a request; an adapter of the sum is made if there is none yet.

        The base answers with an adapter that adds 0: without one, a row beside others' adapters may be given theirs.
        """
        key = tuple((held.key, scale) for held, scale in pick.terms)
        if not key:
            return _NOTHING
        if len(key) == 1 and key[0][1] == 1.0:
            return key[0][0]
        if key not in self._sums:
            name = f"sum-{secrets.token_hex(8)}"
            self._load(name, total([scale * self._grafts[term] for term, scale in key]))
            self._sums[key] = name
            if len(self._sums) > _SUMS_KEPT:
                self._unload(self._sums.popitem(last=False)[1])
        self._sums.move_to_end(key)
        return self._sums[key]

    def _load(self, name: str, graft: Graft) -> None:
        folder = self.work / name.replace(":", "-")
        export_lora(graft, self.base, folder)
        rank = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["r"]
        if rank > self.rank:
            shutil.rmtree(folder)
            raise InputError(
                f"its exact LoRA has rank {rank}, and vLLM was started with --max-lora-rank {self.rank}: start with it in the "
                f"folder (vLLM takes up to {RANKS[-1]}), or search it with `localize --max-rank`"
            )
        self._take(name, folder)

    def _take(self, name: str, folder: Path) -> None:
        status, body = self._tell("load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        if status != 200:
            raise InputError(f"vLLM does not take its LoRA: {body[:300].decode('utf-8', 'replace')}")

    def _unload(self, name: str) -> None:
        self._tell("unload_lora_adapter", {"lora_name": name})
        shutil.rmtree(self.work / name.replace(":", "-"), ignore_errors=True)

    def _tell(self, what: str, body: dict[str, Any]) -> tuple[int, bytes]:
        return asyncio.run(self.upstream.whole("POST", f"/v1/{what}", body))

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if not self.alive:
                lines = (self.work / "vllm.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise RunError(f"vLLM ended while it started: {lines[-1] if lines else 'it wrote nothing'}")
            try:
                if asyncio.run(self.upstream.whole("GET", "/health"))[0] == 200:
                    return
            except (OSError, asyncio.IncompleteReadError):
                pass
            time.sleep(0.5)
        raise RunError(f"vLLM did not answer within {_START_SECONDS:g} s")


@dataclass(eq=False)
class VllmService:
    """What `Paths` needs of a service, with vLLM behind it."""

    name: str
    source: Source
    engine: Vllm
    shelf: Shelf
    limits: Limits
    metrics: Metrics
    writes: bool = True

    @classmethod
    def open(
        cls, base: str, grafts: Sequence[Graft], work: Path, *, python: Path, name: str | None, limits: Limits,
        options: Sequence[str] = (),
    ) -> VllmService:  # fmt: skip
        """Start vLLM with room for the grafts that are there already, and for sums of two of them."""
        source = Source.of(base)
        if kind_of(source, [], "auto") != "causal" or source.folder is None:
            raise InputError(f"{base}: vLLM serves language models here; expected the local folder of one")
        if not python.is_file():
            raise InputError(
                f"--vllm-python {python}: there is no such program; expected the Python of vLLM's environment"
            )
        rank = rank_for([_rank(graft, base, work / f"first-{index}") for index, graft in enumerate(grafts)])
        vllm = Vllm.start(str(source.folder), work, python=python, rank=rank, options=options)
        called = name or Path(source.name).resolve().name
        shelf = Shelf(called, vllm, vllm, limits.skills, _no_question)
        metrics = Metrics()
        metrics.gauge("skills", "Skills held.", lambda: len(shelf.held))
        return cls(called, source, vllm, shelf, limits, metrics)


class VllmPaths(Paths):
    """The same paths; texts are vLLM's."""

    async def embeddings(self, _request: Request) -> Response:
        raise Refused(400, "cannot_embed", "embeddings are an encoder's; vLLM writes texts here", "model")

    async def classify(self, _request: Request) -> Response:
        raise Refused(
            400, "cannot_classify", "labels are given by our own engine: serve without --engine vllm", "model"
        )

    async def _write(self, request: Request, ask: Writing, shape: Any, /) -> Response:
        vllm: Any = self.service.engine
        with ExitStack() as stack:
            pick = stack.enter_context(self.service.shelf.pick(ask.model, ask.skills))
            adapter = await asyncio.wrap_future(vllm.run(lambda: vllm.adapter(pick)))
            path = "/v1/chat/completions" if shape == "chat" else "/v1/completions"
            body = _body(ask, shape, adapter, self.service.limits)
            if not ask.stream:
                asked = vllm.upstream.whole("POST", path, body)
                status, raw = await _in_time(request, asked, self.service.limits.seconds)
                answer = _parsed(status, raw)
                return made(pick, {**answer, "model": pick.model})
            stream = _relayed(vllm.upstream, path, body, pick)
            first = await _in_time(request, anext(stream), self.service.limits.seconds)
            return Streamed(_with(first, stream), headers=headers_of(pick), stack=stack.pop_all())


def rank_for(ranks: Sequence[int]) -> int:
    """What vLLM is started with: room for the largest skill, and for a sum with another one where it has the room."""
    largest = max(ranks, default=8)
    fitting = [rank for rank in RANKS if rank >= min(2 * largest, RANKS[-1])]
    return fitting[0]


def _rank(graft: Graft, base: str, folder: Path) -> int:
    """The rank of a graft's LoRA; 0 where it has none, which is reported when it is held."""
    try:
        export_lora(graft, base, folder)
    except InputError:
        return 0
    rank = int(json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["r"])
    shutil.rmtree(folder)
    return rank


def _no_question(_graft: Graft) -> Question:
    raise InputError("labels are given by our own engine, not by vLLM")


def _body(ask: Writing, shape: str, adapter: str, limits: Limits) -> dict[str, Any]:
    """The request as vLLM gets it: read and checked by us, under its own name of the adapter."""
    sampling = ask.sampling
    body: dict[str, Any] = {
        "model": adapter, "max_tokens": ask.most or limits.new_tokens, "temperature": sampling.temperature,
        "top_p": sampling.top_p, "n": ask.n, "stop": list(ask.stop), "stream": ask.stream,
    }  # fmt: skip
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if ask.stream:
        body["stream_options"] = {"include_usage": ask.usage}
    if shape == "chat":
        logprobs = {} if sampling.top_logprobs is None else {"logprobs": True, "top_logprobs": sampling.top_logprobs}
        return {**body, "messages": list(ask.messages), **logprobs}
    prompts = [prompt if isinstance(prompt, str) else list(prompt) for prompt in ask.prompts]
    return {**body, "prompt": prompts if len(prompts) > 1 else prompts[0], "logprobs": sampling.top_logprobs}


def _parsed(status: int, raw: bytes) -> dict[str, Any]:
    """vLLM's answer, or its refusal in our shape."""
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = {}
    if status == 200 and isinstance(answer, dict):
        return answer
    error = answer.get("error", answer) if isinstance(answer, dict) else {}
    message = str(error.get("message", "vLLM gave no reason"))[:500] if isinstance(error, dict) else str(error)[:500]
    raise Refused(status if 400 <= status < 500 else 502, "vllm", f"vLLM: {message}")


async def _relayed(upstream: Upstream, path: str, body: dict[str, Any], pick: Pick) -> AsyncIterator[bytes]:
    """vLLM's events under our names, each with the grafts that made it."""
    async with upstream.ask("POST", path, body) as (status, chunks):
        if status != 200:
            _parsed(status, b"".join([chunk async for chunk in chunks]))
        open_ = b""
        async for chunk in chunks:
            *events, open_ = (open_ + chunk).split(b"\n\n")
            for event in events:
                data = event.removeprefix(b"data: ")
                if data == b"[DONE]":
                    yield DONE
                elif data:
                    yield sse({**json.loads(data), "model": pick.model, "skills": pick.made_by()})


async def _in_time(request: Request, asked: Awaitable[T], seconds: float) -> T:
    """What vLLM answers, unless the client goes or time runs out: then the connection is closed, which frees vLLM's row."""
    answering = asyncio.ensure_future(asked)
    watching = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({answering, watching}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        raise ClientGone if watching.done() else too_late(seconds)
    finally:
        answering.cancel()
        watching.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _with(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for each in rest:
        yield each
