"""The server with and without skills: 32 clients that ask for labels, each request another skill, beside the same server's base.

Both kinds of request go to one server in turns, a block of requests each, so that both see the same noise of the machine. MiniLM,
made-up skills of 10⁻⁴ of its layers, texts of about 32 tokens. The clients are in this process, the server in one of its own.
Beside them stands the load in which all requests name one skill.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch

from load import Client, Server, made_up_skill, server, write_skill
from measuring import MEGABYTE, Figure, Measured, Settings, command, work_folder
from minilm import minilm_folder

CLIENTS, SKILLS, REQUESTS = 32, 32, 320
READOUT = {
    "readout": "text-head", "scale": 20.0, "pooling": "mean", "input": "{text}", "max_length": 64,
    "descriptions": {"negative": ["a bad film"], "positive": ["a good film"]},
}  # fmt: skip
INFO = {"task": "films", "labels": ["negative", "positive"], "readout": READOUT}
TEXT = "the film was long and the actors were fine but nobody in the audience knew why the story had to end like that after all"


def measure(settings: Settings) -> Measured:
    """p50 and throughput: with skills, as a multiple of the same server without."""
    with work_folder(settings, needed_bytes=100 * MEGABYTE) as folder:
        base, skills = minilm_folder(), folder / "skills"
        skills.mkdir()
        for seed in range(SKILLS):
            write_skill(made_up_skill(base, seed, entries=1065, size=0.05, **INFO), skills, f"s{seed}")
        with server(base, skills, folder / "log.txt", threads=min(2, torch.get_num_threads())) as running:
            found = asyncio.run(_rounds(running, settings))
    p50 = {name: statistics.median(seconds) for name, (seconds, _) in found.items()}
    rate = {name: len(seconds) / elapsed for name, (seconds, elapsed) in found.items()}
    words = {name: f"{rate[name]:.0f} requests/s, p50 {1000 * p50[name]:.0f} ms" for name in found}
    beside = f"{words['skills']}; without skills {words['base']}; one skill for all {words['one']}"
    figures = {
        "p50": Figure(p50["skills"] / p50["base"], beside),
        "throughput": Figure(rate["skills"] / rate["base"], beside),
    }
    return Measured(figures, {"p50_ms": {k: 1000 * v for k, v in p50.items()}, "requests_per_second": rate})


async def _rounds(running: Server, settings: Settings) -> dict[str, tuple[list[float], float]]:
    """Seconds of every request, and of all of them together, by kind; the first round warms up."""
    kinds: dict[str, Sequence[dict[str, Any]]] = {
        "base": [{"model": "base", "task": "s0"}],
        "one": [{"model": "s0"}],
        "skills": [{"model": f"s{number}"} for number in range(SKILLS)],
    }
    found: dict[str, tuple[list[float], float]] = {}
    for turn in range(1 + settings.rounds):
        for name, bodies in kinds.items():
            began = time.perf_counter()
            seconds = await _block(running, bodies, settings.scaled(REQUESTS) if turn else CLIENTS)
            elapsed = time.perf_counter() - began
            if turn:
                before, already = found.get(name, ([], 0.0))
                found[name] = [*before, *seconds], already + elapsed
    return found


async def _block(running: Server, bodies: Sequence[dict[str, Any]], requests: int) -> list[float]:
    seconds: list[float] = []
    numbers = count()

    async def client() -> None:
        async with Client(running.port) as asking:
            while (number := next(numbers)) < requests:
                body = {**bodies[number % len(bodies)], "input": f"{TEXT} {number}"}
                answer = await asking.ask("POST", "/v1/classify", body)
                assert answer.status == 200, answer.body
                seconds.append(answer.seconds)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return seconds


if __name__ == "__main__":
    command("serve", measure)
