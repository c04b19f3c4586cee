"""The shapes of answers, as OpenAI's clients read them; each also says which graft digests and scales made it.

WrittenAnswer(service, pick, ask, "chat").whole(pieces)      # the object of a chat that is not streamed
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from skillgraft.serve.requests import Writing
from skillgraft.serve.sampling import ChosenToken
from skillgraft.serve.service import Service
from skillgraft.serve.skills import Pick
from skillgraft.serve.work import TextPiece

DONE = b"data: [DONE]\n\n"


def sse(value: Mapping[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode("utf-8") + b"\n\n"


@dataclass(eq=False)
class WrittenAnswer:
    """The answer to one request for text: whole, or chunk by chunk."""

    service: Service
    pick: Pick
    ask: Writing
    shape: Literal["chat", "text"]
    _id: str = ""
    _created: int = 0
    _offsets: dict[int, int] = field(default_factory=dict)
    _tokens: dict[int, int] = field(default_factory=dict)
    _prompts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._id = f"{'chatcmpl' if self.shape == 'chat' else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def whole(self, pieces: Sequence[TextPiece]) -> dict[str, Any]:
        """One object with every choice."""
        choices = [self._choice(piece, whole=True) for piece in sorted(pieces, key=lambda piece: piece.row)]
        kind = "chat.completion" if self.shape == "chat" else "text_completion"
        return {**self._head(kind), "choices": choices, "usage": self._usage(), "skills": self.pick.made_by()}

    def opening(self) -> Iterator[dict[str, Any]]:
        """What comes before the first text of a stream: who answers, and in a chat the role."""
        if self.shape == "chat":
            roles = [
                {"index": row, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
                for row in range(self.ask.n)
            ]
            yield {**self._head(self._chunk_kind), "choices": roles, "skills": self.pick.made_by()}

    def chunk(self, piece: TextPiece) -> dict[str, Any]:
        """A piece of one choice; the last one says again who made it."""
        made = {"skills": self.pick.made_by()} if piece.finish or self.shape == "text" else {}
        return {**self._head(self._chunk_kind), "choices": [self._choice(piece, whole=False)], **made}

    def closing(self) -> Iterator[dict[str, Any]]:
        """What comes after the last text: the counts, if they were asked for."""
        if self.ask.usage:
            yield {**self._head(self._chunk_kind), "choices": [], "usage": self._usage()}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.shape == "chat" else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self.pick.model,
            "system_fingerprint": self.service.fingerprint,
        }

    def _choice(self, piece: TextPiece, *, whole: bool) -> dict[str, Any]:
        self._tokens[piece.row] = self._tokens.get(piece.row, 0) + piece.tokens
        self._prompts[piece.row // self.ask.n] = piece.prompt_tokens
        rest = {"index": piece.row, "logprobs": self._logprobs(piece), "finish_reason": piece.finish or None}
        if self.shape == "text":
            return {"text": piece.text, **rest}
        if whole:
            return {"message": {"role": "assistant", "content": piece.text, "refusal": None}, **rest}
        return {"delta": {"content": piece.text} if piece.text else {}, **rest}

    def _usage(self) -> dict[str, int]:
        prompt, written = sum(self._prompts.values()), sum(self._tokens.values())
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    def _logprobs(self, piece: TextPiece) -> dict[str, Any] | None:
        if self.ask.sampling.top_logprobs is None:
            return None
        if self.shape == "chat":
            return {"content": [self._chat_token(choice) for choice in piece.choices], "refusal": None}
        tokens = [self._token(choice.token) for choice in piece.choices]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets.get(piece.row, 0))
            self._offsets[piece.row] = offsets[-1] + len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [choice.logprob for choice in piece.choices],
            "top_logprobs": [{self._token(token): value for token, value in choice.top} for choice in piece.choices],
            "text_offset": offsets,
        }

    def _chat_token(self, choice: ChosenToken) -> dict[str, Any]:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            text = self._token(token)
            # The bytes of a token that is a part of a character are not to be had from its text.
            return {
                "token": text,
                "logprob": logprob,
                "bytes": None if "\ufffd" in text else list(text.encode("utf-8")),
            }

        return {**entry(choice.token, choice.logprob), "top_logprobs": [entry(*each) for each in choice.top]}

    def _token(self, token: int) -> str:
        text: str = self.service.answering.decode([token], clean_up_tokenization_spaces=False)
        return text
