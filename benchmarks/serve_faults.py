"""The server under load and faults: no wrong skill ever answers, nothing breaks, and memory stays flat.

python benchmarks/serve_faults.py --seconds 180                    labels, on MiniLM
python benchmarks/serve_faults.py --seconds 180 --base SmolLM2     texts

The model runs in float32, so that a right answer is told from a wrong one and not from another order of sums.

32 clients ask for base, skills and sums while skills are put, replaced and deleted, corrupt files and grafts of another base come
into the folder, clients vanish in the middle of an answer, and bursts overflow the queue. Every answer is compared with what its
own digests answer one at a time, with `grafted`. At the end SIGTERM comes under load. A text that parts from the
expected one where the two likeliest tokens are nearer than rounding is counted as a tie.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from load import Answer, Client, Server, made_up_skill, server, write_skill
from minilm import minilm_folder
from serve import INFO
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.live.grafted import grafted
from skillgraft.opening.source import Source
from skillgraft.serve.questions import question_of
from skillgraft.serve.service import LOADERS, kind_of
from skillgraft.task_model import open_plan
from skillgraft.values.graft import Graft
from skillgraft.values.region import Scope

CLIENTS, GRAFTS, NAMES = 32, 6, ("a", "b", "c", "d")
TEXTS = ("the film was fine", "nobody knew why the story had to end", "two hours too long , and the music is worse")
TOKENS, VANISHING = 12, 0.05
DTYPE = "float32"
PATIENCE = 600  # seconds: a machine that is busy with other things is no fault of the server
CLOSE, TIE, FLAT = 1e-3, 1e-3, 1.05
Key = tuple[tuple[str, float], ...]  # digests and scales


@dataclass
class Seen:
    """What happened."""

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    megabytes: list[tuple[float, float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    answered: list[tuple[Mapping[str, Any], str]] = field(default_factory=list)  # compared when the server has stopped


class Expected:
    """What the base with each sum of grafts answers about each text, found one at a time."""

    def __init__(self, base: Path, grafts: Sequence[Graft]) -> None:
        source = Source.of(base)
        self.writes = kind_of(source, [dict(graft.info) for graft in grafts], "auto") == "causal"
        plan = LOADERS["causal" if self.writes else "text-head"]
        self.model, _ = open_plan(source, plan, dtype=DTYPE, device="cpu")
        self.source, self.grafts = source, {graft.digest: graft for graft in grafts}
        self.question = None if self.writes else question_of(grafts[0].info, source, self.model, loader="AutoModel")
        self._found: dict[tuple[Key, str], Any] = {}

    def of(self, key: Key, text: str) -> Any:
        if (key, text) not in self._found:
            parts = [scale * self.grafts[digest] for digest, scale in key]
            graft = sum(parts[1:], parts[0]) if parts else None
            with torch.no_grad():
                if graft is None:
                    self._found[key, text] = self._answer(text)
                else:
                    with grafted(self.model, graft):
                        self._found[key, text] = self._answer(text)
        return self._found[key, text]

    def _answer(self, text: str) -> Any:
        if self.question is not None:
            readout = self.question.readout
            scores = readout.scores(self.model, readout.collate([self.question.encode(text)]))[0]
            return torch.softmax(scores.double(), -1).tolist()
        ids = torch.tensor([self.source.tokenizer(text)["input_ids"]])
        model: Any = self.model
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS, output_logits=True,
            return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
        margin = min(float(one[0].topk(2).values.diff().abs()) for one in found.logits)
        return self.source.tokenizer.decode(found.sequences[0, ids.shape[1] :], skip_special_tokens=True), margin

    def verdict(self, body: Mapping[str, Any], text: str) -> str:
        """ "right", "tie" or "wrong"."""
        key = tuple(sorted((made["digest"], made["scale"]) for made in body["skills"]))
        expected = self.of(key, text)
        if not self.writes:
            found = list(body["data"][0]["probabilities"].values())
            return "right" if np.allclose(found, expected, atol=CLOSE) else "wrong"
        if body["choices"][0]["text"] == expected[0]:
            return "right"
        return "tie" if expected[1] < TIE else "wrong"


class Faults:
    """Everybody who asks the server, and everybody who disturbs it."""

    def __init__(
        self, running: Server, expected: Expected, folder: Path, files: Mapping[str, bytes], until: float
    ) -> None:
        self.running, self.expected, self.folder, self.files, self.until = running, expected, folder, files, until
        self.seen, self.random, self.stopping = Seen(), random.Random(0), False

    async def run(self) -> None:
        disturbing = [asyncio.create_task(work()) for work in (self._churn, self._bursts, self._watch)]
        asking = [asyncio.create_task(self._client()) for _ in range(CLIENTS)]
        await asyncio.sleep(max(0.0, self.until - time.monotonic()))
        self.stopping = True
        self.running.process.terminate()  # under load
        await asyncio.gather(*asking, *disturbing)
        self.seen.answers["exit code " + str(await asyncio.to_thread(self.running.process.wait, PATIENCE))] += 1

    async def _client(self) -> None:
        async with Client(self.running.port) as client:
            while not self.stopping:
                try:
                    await self._once(client)
                except (OSError, asyncio.IncompleteReadError) as error:
                    client.close()
                    if not self.stopping:
                        self.seen.wrong.append(f"a connection broke: {error!r}")
                        await asyncio.sleep(0.1)

    async def _once(self, client: Client) -> None:
        model, text = self._model(), self.random.choice(TEXTS)
        path, body = self._request(model, text)
        if self.random.random() < VANISHING:
            await client.send("POST", path, {**body, **({"stream": True} if self.expected.writes else {})})
            await asyncio.sleep(self.random.random() * 0.2)
            client.close()
            self.seen.answers["vanished"] += 1
            return
        answer = await client.ask("POST", path, body)
        self.seen.seconds.append(answer.seconds)
        self._check(answer, model, text)

    def _check(self, answer: Answer, model: str, text: str) -> None:
        kind = str(answer.status)
        if answer.status == 200:
            named = [made["name"] for made in answer.body["skills"]]
            asked = [] if model == "base" else [term.rpartition("*")[2] for term in model.split("+")]
            kind = "wrong" if named != asked else "answered"
            self.seen.answered.append((answer.body, text))
        self.seen.answers[kind] += 1
        allowed = {200, 429, *((503,) if self.stopping else ()), *((404,) if model != "base" else ())}
        if kind == "wrong" or answer.status not in allowed:
            self.seen.wrong.append(f"{model}, {text!r}: {answer.status} {json.dumps(answer.body)[:300]}")

    def _model(self) -> str:
        one, other = self.random.sample(NAMES, 2)
        return self.random.choice(["base", one, other, f"{one}+0.5*{other}"])

    def _request(self, model: str, text: str) -> tuple[str, dict[str, Any]]:
        if self.expected.writes:
            return "/v1/completions", {"model": model, "prompt": text, "max_tokens": TOKENS, "temperature": 0}
        return "/v1/classify", {"model": model, "input": text, "task": "fixed"}

    async def _churn(self) -> None:
        """Skills come, change and go, by request and in the folder; what does not fit is refused."""
        async with Client(self.running.port) as client:
            while not self.stopping:
                name, (digest, file) = self.random.choice(NAMES), self.random.choice(list(self.files.items()))
                path = self.folder / f"{name}.safetensors"
                moves = {
                    "put": lambda name=name, file=file: client.ask("PUT", f"/v1/skills/{name}", file),
                    "delete": lambda name=name: client.ask("DELETE", f"/v1/skills/{name}"),
                    "corrupt put": lambda name=name, file=file: client.ask(
                        "PUT", f"/v1/skills/{name}", file[: len(file) // 2]
                    ),
                }
                move = self.random.choice([*moves, "put", "file", "corrupt file", "file goes"])
                if move in moves:
                    answer = await moves[move]()
                    wanted = {"put": (200, 201), "delete": (200, 404), "corrupt put": (422,)}[move]
                    allowed = (*wanted, 422) if digest == "alien" else wanted
                    if answer.status not in allowed and not self.stopping:
                        self.seen.wrong.append(f"{move}: {answer.status} {json.dumps(answer.body)[:300]}")
                elif move == "file goes":
                    path.unlink(missing_ok=True)
                else:
                    path.write_bytes(file if move == "file" else file[:-7])
                self.seen.answers[move] += 1
                await asyncio.sleep(0.2)

    async def _bursts(self) -> None:
        """More rows at once than may wait."""
        while not self.stopping:
            await asyncio.sleep(5)
            if self.stopping:
                return
            path, body = self._request("base", TEXTS[0])
            key = "prompt" if self.expected.writes else "input"
            clients = [Client(self.running.port) for _ in range(24)]
            asked = [client.ask("POST", path, {**body, key: [TEXTS[0]] * 8}) for client in clients]
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                kind = str(answer.status) if isinstance(answer, Answer) else "broken"
                self.seen.answers[f"burst {kind}"] += 1
                if kind not in ("200", "429") and not self.stopping:
                    self.seen.wrong.append(f"a burst was answered {answer}")
            for client in clients:
                client.close()

    async def _watch(self) -> None:
        began = time.monotonic()
        while not self.stopping:
            self.seen.megabytes.append((time.monotonic() - began, self.running.megabytes))
            await asyncio.sleep(1)


def run(base: Path, work: Path, *, seconds: float, size: float, log: Path) -> tuple[Seen, dict[str, Any]]:
    """What was seen, and a summary of it."""
    writes = kind_of(Source.of(base), [INFO], "auto") == "causal"
    info: dict[str, Any] = {} if writes else INFO
    entries = max(1000, Scope.select("layers", Checkpoint.open(base).shapes).size // 10_000)
    grafts = [made_up_skill(base, seed, entries=entries, size=size, **info) for seed in range(GRAFTS)]
    skills = work / "skills"
    skills.mkdir()
    files = {graft.digest: write_skill(graft, work, "graft") for graft in grafts}
    alien = {name: numbers + np.asarray(1, numbers.dtype) for name, numbers in grafts[0].before.items()}
    files["alien"] = write_skill(
        Graft(grafts[0].region, alien, grafts[0].change, base_fingerprint="0" * 64), work, "graft"
    )
    for name, graft in zip((*NAMES, "fixed"), grafts, strict=False):
        write_skill(graft, skills, name)
    expected = Expected(base, grafts)
    options = ("--max-queue-rows", "100", "--dtype", DTYPE, "--max-seconds", str(PATIENCE))
    with server(base, skills, log, *options) as running:
        faults = Faults(running, expected, skills, files, time.monotonic() + seconds)
        asyncio.run(faults.run())
    seen = faults.seen
    for body, text in seen.answered:
        verdict = expected.verdict(body, text)
        seen.answers[verdict] += 1
        if verdict == "wrong":
            seen.wrong.append(f"{text!r}: {json.dumps(body)[:300]}")
    middle = [megabytes for at, megabytes in seen.megabytes if at > min(60, seconds / 3)]
    third = max(1, len(middle) // 3)
    growth = float(np.median(middle[-third:]) / np.median(middle[:third])) if middle else 1.0
    return seen, {
        "answers": dict(sorted(seen.answers.items())),
        "wrong": seen.wrong[:10],
        "p50_ms": round(1000 * float(np.median(seen.seconds))) if seen.seconds else None,
        "megabytes": [round(value) for value in (middle[0], middle[-1])] if middle else None,
        "growth": round(growth, 3),
        "log": [line for line in log.read_text().splitlines() if "is not held" not in line][-5:],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Load and faults on the server, every answer checked.")
    parser.add_argument("--base", type=Path, default=None, help="a model folder (default: MiniLM, for labels)")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--size", type=float, default=0.3, help="how far made-up skills move an entry")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _, summary = run(
            given.base or minilm_folder(), work, seconds=given.seconds, size=given.size, log=work / "log.txt"
        )
    print(json.dumps(summary, indent=2, ensure_ascii=False))
    calm = not summary["wrong"] and summary["growth"] <= FLAT and "exit code 0" in summary["answers"]
    return 0 if calm else 1


if __name__ == "__main__":
    sys.exit(main())
