"""What is served: the opened base with its bank, its skills, and how requests become rows for the model.

    service = Service.open("minilm", {"sst2": graft}, limits=Limits())
    service.start()
    ticket = service.writing(ask, pick, deliver)      # to be given to service.engine.submit

One model answers everything. Which Auto class loads it follows from the base's architecture and from what the skills read: a
language model writes, and classifies by prompts; an encoder-decoder writes; an encoder gives embeddings, and classifies by a text
head, a classifier or a masked prompt.
"""

from __future__ import annotations

import base64
import copy
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from skillgraft.errors import InputError, did_you_mean
from skillgraft.live.bank import SkillBank
from skillgraft.opening.source import Source
from skillgraft.readouts.readout import Plan
from skillgraft.readouts.rows import pad_id, token_room
from skillgraft.readouts.words import without_eos
from skillgraft.serve.engine import Engine
from skillgraft.serve.limits import Limits
from skillgraft.serve.metrics import Metrics
from skillgraft.serve.questions import MOST_LABELS, Embedder, Question, probabilities, question_of
from skillgraft.serve.refusals import Refused
from skillgraft.serve.requests import Reading, TextOrIds, Writing
from skillgraft.serve.sampling import Sampler
from skillgraft.serve.skills import Pick, Shelf
from skillgraft.serve.texts import GrowingText
from skillgraft.serve.work import Event, ReadRow, Ticket, WriteRow
from skillgraft.task_model import open_plan

_CAUSAL, _PAIRED = ("ForCausalLM", "LMHeadModel"), ("ForConditionalGeneration",)
LOADERS: Mapping[str, Plan] = {
    "causal": Plan("AutoModelForCausalLM", lambda _model: (), head="stored"),
    "encoder-decoder": Plan("AutoModelForSeq2SeqLM", lambda _model: (), head="stored"),
    "linear": Plan("AutoModelForSequenceClassification", lambda _model: (), head="made"),
    "masked": Plan("AutoModelForMaskedLM", lambda _model: (), head="stored"),
    "text-head": Plan("AutoModel", lambda _model: (), head="unread"),
}
WRITING = ("causal", "encoder-decoder")
AUTO = "auto"
_CONTEXT = 4  # tokens of the prompt that are decoded along, so that spaces come out right
Deliver = Callable[[Event], None]


@dataclass(eq=False)
class Service:
    """`kind` is a key of LOADERS. `embedder` is None for a model that writes; `answering` is the tokenizer for answers."""

    name: str
    source: Source
    model: nn.Module
    kind: str
    engine: Engine
    shelf: Shelf
    limits: Limits
    metrics: Metrics
    embedder: Embedder | None
    answering: Any
    room: int
    vocabulary: int

    @classmethod
    def open(
        cls,
        base: str | Path,
        infos: Iterable[Mapping[str, Any]] = (),
        *,
        name: str | None = None,
        readout: str = AUTO,
        limits: Limits = Limits(),
        dtype: str | None = None,
        device: str | None = None,
    ) -> Service:
        """Load the base. `infos` are what the first skills record about themselves: they decide how it is loaded."""
        source, known = Source.of(base), list(infos)
        kind = kind_of(source, known, readout)
        model, fresh = open_plan(source, _plan(kind, source, known), dtype=dtype, device=device)
        tokenizer, metrics = source.tokenizer, Metrics()
        bank = SkillBank(model)
        engine = Engine(model, bank, limits, ends=_ends(model, tokenizer), pad_id=pad_id(tokenizer), metrics=metrics)

        def ask(info: Mapping[str, Any]) -> Question:
            return question_of(info, source, model, loader=LOADERS[kind].loader)

        called = name or Path(source.name).resolve().name
        own = None if fresh else _own(source, kind, ask)
        shelf = Shelf(called, engine, bank, limits.skills, lambda graft: ask(graft.info), own, has_head=not fresh)
        metrics.gauge("skills", "Skills held.", lambda: len(shelf.held))
        embedder = None if kind in WRITING else Embedder.of(source)
        words: Any = model.get_input_embeddings()  # type: ignore[operator]
        return cls(
            called, source, model, kind, engine, shelf, limits, metrics, embedder, copy.deepcopy(tokenizer),
            token_room(source), int(words.num_embeddings),
        )  # fmt: skip

    @property
    def writes(self) -> bool:
        return self.kind in WRITING

    @property
    def fingerprint(self) -> str:
        checkpoint = self.source.checkpoint
        return f"skillgraft-{checkpoint.fingerprint[:16]}" if checkpoint else "skillgraft"

    def start(self) -> None:
        self.engine.start()

    def writing(self, ask: Writing, pick: Pick, deliver: Deliver) -> Ticket:
        """The request's texts, `n` of each prompt."""
        if not self.writes:
            raise Refused(400, "cannot_write", f"{self.name!r} is no language model: it writes nothing", "model")
        rows = ask.n * max(1, len(ask.prompts))
        return Ticket(rows, partial(self._prompts, ask, pick), deliver)

    def classifying(self, ask: Reading, pick: Pick, question: Question, deliver: Deliver) -> Ticket:
        """One row per input; its values are the probabilities of the labels."""

        def values(output: Tensor) -> tuple[float, ...]:
            return tuple(probabilities(question.scores(output)))

        def prepare(ticket: Ticket) -> list[ReadRow]:
            return [
                ReadRow(ticket, row, pick.spec, question.reader, question.readout, question.encode(item), values)
                for row, item in enumerate(ask.inputs)
            ]

        return Ticket(len(ask.inputs), prepare, deliver)

    def embedding(self, ask: Reading, pick: Pick, deliver: Deliver) -> Ticket:
        """One row per input; its values are the vector."""
        embedder = self.embedder
        if embedder is None:
            raise Refused(400, "cannot_embed", f"{self.name!r} writes texts; embeddings are an encoder's", "model")

        def prepare(ticket: Ticket) -> list[ReadRow]:
            return [
                ReadRow(
                    ticket, row, pick.spec, "embedding", embedder, embedder.encode(self._as_text(item)),
                    lambda output: tuple(output.tolist()),
                )
                for row, item in enumerate(ask.inputs)
            ]  # fmt: skip

        return Ticket(len(ask.inputs), prepare, deliver)

    def _prompts(self, ask: Writing, pick: Pick, ticket: Ticket) -> list[WriteRow]:
        prompts = [self._ids(prompt) for prompt in ask.prompts] if ask.prompts else [self._chat(ask.messages)]
        return [
            self._row(ask, pick, ticket, ids, row, place % ask.n)
            for row, (ids, place) in enumerate((ids, place) for ids in prompts for place in range(ask.n))
        ]

    def _row(self, ask: Writing, pick: Pick, ticket: Ticket, ids: Sequence[int], row: int, draw: int) -> WriteRow:
        seed = ask.sampling.seed
        sampling = replace(ask.sampling, seed=None if seed is None else seed + draw) if draw else ask.sampling
        context = list(ids[-_CONTEXT:]) if self.kind == "causal" else []  # a decoder's text begins by itself
        text = GrowingText(self.source.tokenizer, ask.stop, context)
        most = self._room_for(ids, ask)
        return WriteRow(ticket, row, pick.spec, ids, text, Sampler(sampling), most, ask.stream)

    def _room_for(self, ids: Sequence[int], ask: Writing) -> int:
        """How many tokens may be written after a prompt."""
        allowed = min(self.room, self.limits.batch_tokens)
        if not ids:
            raise Refused(
                400, "invalid_value", "the prompt is empty, and this model has no token to begin with", "prompt"
            )
        left = allowed - len(ids)
        if self.kind != "causal" and left >= 0:  # prompt and answer stand apart
            left = allowed
        if left < (ask.most or 1):
            raise Refused(
                400, "context_length_exceeded",
                f"the prompt's {len(ids)} tokens and {ask.most or 1} new ones are more than {allowed}", "max_tokens",
            )  # fmt: skip
        return ask.most or min(left, self.limits.new_tokens)

    def _ids(self, prompt: TextOrIds) -> list[int]:
        tokenizer = self.source.tokenizer
        if not isinstance(prompt, str):
            if max(prompt) >= self.vocabulary:
                raise Refused(
                    400, "invalid_value", f"token ids are below {self.vocabulary}; found {max(prompt)}", "prompt"
                )
            return list(prompt)
        ids = list(tokenizer(prompt, verbose=False)["input_ids"])
        if self.kind == "causal":  # an encoder is given whole texts, with their ends
            ids = without_eos(ids, tokenizer.eos_token_id)
        return ids or [token for token in (tokenizer.bos_token_id,) if token is not None]

    def _chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        tokenizer = self.source.tokenizer
        if not tokenizer.chat_template:
            raise Refused(
                400, "no_chat_template", f"{self.name!r} has no chat template; use /v1/completions", "messages"
            )
        try:
            text = tokenizer.apply_chat_template([*map(dict, messages)], tokenize=False, add_generation_prompt=True)
        except Exception as error:  # the template is a program of the model's own, which may refuse messages
            raise Refused(
                400, "chat_template", f"the model's chat template refuses: {str(error)[:200]}", "messages"
            ) from None
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _as_text(self, item: TextOrIds) -> str:
        """Clients that tokenise themselves send ids; they are read back, so that special tokens are ours."""
        if isinstance(item, str):
            return item
        if max(item) >= self.vocabulary:
            raise Refused(400, "invalid_value", f"token ids are below {self.vocabulary}; found {max(item)}", "input")
        text: str = self.source.tokenizer.decode(item, skip_special_tokens=True)
        return text


def kind_of(source: Source, infos: Iterable[Mapping[str, Any]], readout: str) -> str:
    """How the base is loaded, before its weights are: by the option, its architecture, or what the skills read."""
    if readout != AUTO:
        if readout not in LOADERS:
            raise InputError(f"unknown readout {readout!r}: {did_you_mean(readout, (AUTO, *LOADERS))}")
        return readout
    architecture = str((source.settings.get("architectures") or [""])[0])
    if source.settings.get("is_encoder_decoder"):
        if not architecture.endswith(_PAIRED):
            raise InputError(
                f"{source.name} is an encoder-decoder whose architecture is {architecture or 'not stated'}; the server runs "
                f"those that write ({_PAIRED[0]}); use SkillBank from Python"
            )
        return "encoder-decoder"
    if source.gguf or architecture.endswith(_CAUSAL):
        return "causal"
    if architecture.endswith("Classification"):
        return "linear"
    asked = [str(info["readout"].get("readout")) for info in infos if isinstance(info.get("readout"), Mapping)]
    found = [kind for kind in dict.fromkeys(asked) if kind in LOADERS and kind != "causal"]
    if len(found) > 1:
        raise InputError(
            f"the skills read {' and '.join(found)}, and one model answers by one of them: choose with --readout, "
            "and serve the others by themselves"
        )
    if found:
        return found[0]
    return "masked" if architecture.endswith("ForMaskedLM") else "text-head"


def _plan(kind: str, source: Source, infos: Sequence[Mapping[str, Any]]) -> Plan:
    """How the model is loaded: a classifier that the base lacks is as large as that of the first skill that brings one."""
    counts = [info["num_labels"] for info in infos if isinstance(info.get("num_labels"), int)]
    if kind != "linear" or _is_classifier(source) or not counts:
        return LOADERS[kind]
    if not 1 < counts[0] <= MOST_LABELS:
        raise InputError(f"a classifier has 2 to {MOST_LABELS} classes; the first skill records {counts[0]}")
    return replace(LOADERS[kind], config={"num_labels": counts[0], "pad_token_id": pad_id(source.tokenizer)})


def _is_classifier(source: Source) -> bool:
    return str((source.settings.get("architectures") or [""])[0]).endswith("Classification")


def as_base64(values: Sequence[float]) -> str:
    """A vector as OpenAI's clients ask for it: little-endian float32."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode("ascii")


def _own(source: Source, kind: str, ask: Callable[[Mapping[str, Any]], Question]) -> Question | None:
    """What a base that is a classifier classifies by itself."""
    if kind != "linear" or not _is_classifier(source):
        return None
    return ask({"labels": list(source.config.id2label.values()), "task": "base"})


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a text, as `generate` takes them."""
    stated = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = tokenizer.eos_token_id if stated is None else stated
    return frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])
