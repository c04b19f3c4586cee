"""What a server allows: `Limits`, each with a default and an error of its own."""

from __future__ import annotations

from dataclasses import dataclass, fields

from skillgraft.errors import InputError


@dataclass(frozen=True)
class Limits:
    """`batch_rows` share one forward pass; `queue_rows` may wait; a request has `seconds`."""

    body_bytes: int = 1_000_000
    graft_bytes: int = 256_000_000
    queue_rows: int = 512
    batch_rows: int = 32
    batch_tokens: int = 8192
    input_rows: int = 256
    new_tokens: int = 1024
    seconds: float = 120.0
    skills: int = 1000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise InputError(f"--max-{field.name.replace('_', '-')} must be above 0; found {value}")
