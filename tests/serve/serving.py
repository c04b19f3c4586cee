"""Tiny bases with skills, and a server over them on a free loopback port, in a thread of the tests' own process."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from skillgraft.files.graft_file import load, save
from skillgraft.folders.apply import apply
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.opening.source import silence
from skillgraft.serve.guard import Guard
from skillgraft.serve.limits import Limits
from skillgraft.serve.running import infos, listening
from skillgraft.serve.watching import Folder
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region, Scope
from tests.readouts.making import SMALL, byte_pieces, made, sentence_encoder
from tests.readouts.making import save as save_model

CHAT = "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }}\n{% endfor %}<assistant>"
FILMS = {
    "readout": "text-head", "scale": 20.0, "pooling": "mean", "input": "{text}", "max_length": 20,
    "descriptions": {"bad": ["a bad film"], "good": ["a good film"]},
}  # fmt: skip
PETS = {
    "readout": "text-head", "scale": 20.0, "pooling": "mean", "input": "{text_a} or {text_b}", "max_length": 20,
    "descriptions": {"cat": ["the cat"], "dog": ["the dog"], "mouse": ["the mouse", "quick mouse"]},
}  # fmt: skip
QUIET = Limits(seconds=20.0)


def language_model(folder: Path, **more: int) -> Path:
    """A Llama that writes, with a chat template; `more` are sizes of its own."""
    tokenizer = byte_pieces(wrapped=False)
    sizes = {"vocab_size": len(tokenizer), "num_key_value_heads": 1, "max_position_embeddings": 256}
    ids = {"bos_token_id": 0, "eos_token_id": 2}
    with silence():
        save_model(
            folder, made("LlamaForCausalLM", transformers.LlamaConfig(**sizes, **ids, **SMALL, **more)), tokenizer
        )
    (folder / "chat_template.jinja").write_text(CHAT)
    return folder


def encoder(folder: Path) -> Path:
    with silence():
        return sentence_encoder(folder)


def skill(base: Path, seed: int, *, share: float = 0.1, size: float = 0.5, **info: Any) -> Graft:
    """A graft that moves that share of the entries of every layer matrix, the same for the same seed."""
    checkpoint, draw = Checkpoint.open(base), np.random.default_rng(seed)
    names = [
        name
        for name in checkpoint.places
        if ".weight" in name and "layer" in name and not re.search("norm|relative", name.lower())
    ]
    before = {name: checkpoint.read(name) for name in names}
    sites = {name: np.flatnonzero(draw.random(array.size) < share).astype(np.int32) for name, array in before.items()}
    after = {name: array + size * draw.normal(size=array.shape).astype(array.dtype) for name, array in before.items()}
    region = Region(Scope.of("layers", {name: array.shape for name, array in before.items()}), sites)
    graft = Graft.between(before, after, region, base_fingerprint=checkpoint.fingerprint)
    return graft.with_info(**info) if info else graft


def films(base: Path, seed: int, **rest: Any) -> Graft:
    return skill(base, seed, task="films", labels=["bad", "good"], readout=FILMS, **rest)


def pets(base: Path, seed: int, **rest: Any) -> Graft:
    return skill(base, seed, task="pets", labels=["cat", "dog", "mouse"], readout=PETS, **rest)


def write_skills(folder: Path, grafts: Mapping[str, Graft]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, graft in grafts.items():
        save(graft, folder / f"{name}.safetensors", overwrite=True)
    return folder


@dataclass(eq=False)
class Running:
    """A server under way, its address, and the thread it runs in."""

    url: str
    service: Any
    folder: Folder
    server: Any
    thread: threading.Thread

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()


@contextmanager
def running(
    base: Path, skills: Path, *, limits: Limits = QUIET, guard: Guard | None = None, page: bool = False, **options: Any
) -> Iterator[Running]:
    """The server of that base and folder, as the command starts it, until the `with` ends."""
    import uvicorn

    from skillgraft.serve.server import application
    from skillgraft.serve.service import Service
    from skillgraft.serve.studio import studio_routes

    service = Service.open(base, infos(skills), limits=limits, name="base", **options)
    service.start()
    folder = Folder(skills, service.shelf, limits.graft_bytes)
    app = application(
        service, guard or Guard.of("127.0.0.1", key=None), folder=folder, more=studio_routes(service) if page else None
    )
    with listening("127.0.0.1", 0) as socket:
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="on", ws="none", timeout_graceful_shutdown=10
        )
        server = uvicorn.Server(config)

        async def serve() -> None:
            await folder.look()
            await server.serve(sockets=[socket])

        thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        thread.start()
        deadline = time.monotonic() + 60
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started
        run = Running(f"http://127.0.0.1:{socket.getsockname()[1]}", service, folder, server, thread)
        try:
            yield run
        finally:
            if thread.is_alive():
                run.stop()


def client(run: Running, key: str = "none") -> Any:
    """OpenAI's own client."""
    from openai import OpenAI

    return OpenAI(base_url=f"{run.url}/v1", api_key=key, max_retries=0, timeout=60)


def applied(writer: Running, base: Path, tmp_path: Path, model: str) -> Path:
    """The folder of a model name: the base with its skills, each times its scale."""
    if model == "base":
        return base
    tmp_path.mkdir(exist_ok=True)
    out = tmp_path / "applied"
    total = None
    for term in model.split("+"):
        scale, _, name = term.rpartition("*")
        graft = load(writer.folder.path / f"{name}.safetensors") * float(scale or 1)
        total = graft if total is None else total + graft
    assert total is not None
    save(total, tmp_path / "g.safetensors")
    apply(base, tmp_path / "g.safetensors", out=out)
    return out


@lru_cache(maxsize=1)
def _alone(folder: Path) -> tuple[Any, Any]:
    paired = transformers.AutoConfig.from_pretrained(folder).is_encoder_decoder
    loader = transformers.AutoModelForSeq2SeqLM if paired else transformers.AutoModelForCausalLM
    with silence():
        return loader.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)


def greedy(folder: Path, prompt: str, tokens: int) -> tuple[str, list[float]]:
    """What transformers' `generate` writes, and by how much each token's logit is above the next one's."""
    tokenizer = _alone(folder)[1]
    ids, margins = greedy_ids(folder, tokenizer(prompt)["input_ids"], tokens)
    return tokenizer.decode(ids, skip_special_tokens=True), margins


def greedy_ids(folder: Path, prompt: list[int], tokens: int) -> tuple[list[int], list[float]]:
    """The same from token ids to token ids."""
    ids, model = torch.tensor([prompt]), _alone(folder)[0]
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, output_logits=True,
        return_dict_in_generate=True, pad_token_id=0,
    )  # fmt: skip
    margins = [float(one[0].topk(2).values.diff().abs()) for one in found.logits]
    first = 1 if model.config.is_encoder_decoder else len(prompt)
    return found.sequences[0, first:].tolist(), margins


def parted(folder: Path, prompt: list[int], text: str, tokens: int) -> list[float]:
    """How far the two likeliest tokens were apart where a text leaves `generate`'s; nothing if it never does."""
    ids, margins = greedy_ids(folder, prompt, tokens)
    tokenizer = _alone(folder)[1]
    if tokenizer.decode(ids, skip_special_tokens=True) == text:
        return []
    for at in range(len(ids)):
        shown = tokenizer.decode(ids[: at + 1], skip_special_tokens=True).rstrip("\ufffd")
        if not text.startswith(shown):
            return [margins[at]]
    return [margins[-1]]
