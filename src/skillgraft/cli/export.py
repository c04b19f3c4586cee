"""skillgraft export"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import GraftFile, Json, Out
from skillgraft.errors import InputError, listed

if TYPE_CHECKING:
    from skillgraft.interop.low_rank import Adapter


class Format(StrEnum):
    """What a graft can become."""

    lora = "lora"
    supertuning = "supertuning"
    gguf_lora = "gguf-lora"
    patch = "patch"
    checkpoint = "checkpoint"


ADAPTERS = (Format.lora, Format.supertuning, Format.gguf_lora)


def run(
    graft: GraftFile,
    to: Annotated[
        Format,
        typer.Option(
            help="lora, supertuning: PEFT adapters; gguf-lora: for llama.cpp; patch: sparse update; checkpoint: a folder."
        ),
    ],
    out: Out,
    base: Annotated[
        Path | None,
        typer.Option(metavar="BASE", help="The base; only a patch can do without, under prefix-free names."),
    ] = None,
    drop: Annotated[
        bool, typer.Option("--drop", help="Adapters: leave out what they cannot hold, and say how much it was.")
    ] = False,
    max_rank: Annotated[
        int | None, typer.Option("--max-rank", help="lora, gguf-lora: refuse a rank above this.")
    ] = None,
    remainder: Annotated[
        bool, typer.Option("--remainder", help="lora: a second adapter in OUT/remainder, with which a merge is exact.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a graft for other programs.

    \b
    Examples
      skillgraft export skill.safetensors --to lora --base BASE --max-rank 512 -o adapter
      skillgraft export skill.safetensors --to patch --base BASE -o patch.safetensors
      skillgraft export skill.safetensors --to checkpoint --base BASE -o GRAFTED
    """
    from skillgraft.values.tails import tails_of

    if to not in ADAPTERS and drop:
        raise InputError(f"--drop is for adapters: a {to.value} holds everything")
    if max_rank is not None and to not in (Format.lora, Format.gguf_lora):
        raise InputError(f"--max-rank is for lora and gguf-lora: a {to.value} has no rank")
    if remainder and to is not Format.lora:
        raise InputError(f"--remainder is for lora, which PEFT merges: a {to.value} has none")
    if base is None and to is not Format.patch:
        raise InputError(f"a {to.value} needs the base that the graft goes on: add --base BASE")
    loaded = output.load_graft(graft)
    if to is not Format.checkpoint and (tails := tails_of(loaded.heads)):
        grown = listed([tail.tensor for tail in tails])
        raise InputError(f"{graft} appends rows to {grown}, which a {to.value} cannot carry: use --to checkpoint")
    facts: dict[str, Any] = {"out": str(out), "to": to.value, "entries": len(loaded), "heads": list(loaded.heads)}
    lines = [f"{out}: {len(loaded):,} entries as a {to.value}"]
    if to in ADAPTERS:
        assert base is not None
        made = _adapter(to, graft, base, out, drop=drop, max_rank=max_rank, remainder=remainder)
        facts |= _facts(made)
        lines = _lines(made, to)
    elif to is Format.patch:
        from skillgraft.interop.export import export_patch

        export_patch(loaded, out, base=base)
    else:
        from skillgraft.folders.apply import apply

        assert base is not None
        apply(base, graft, out=out)
    facts["digest"] = loaded.digest
    output.show(facts, as_json=json, lines=[*lines, *output.digest_lines({graft.name: loaded.digest})])


def _adapter(
    to: Format, graft: Path, base: Path, out: Path, *, drop: bool, max_rank: int | None, remainder: bool
) -> Adapter:
    from skillgraft.interop.gguf_lora import export_gguf_lora
    from skillgraft.interop.lora import export_lora
    from skillgraft.interop.supertuning import export_supertuning

    if to is Format.supertuning:
        return export_supertuning(graft, base, out, drop=drop)
    if to is Format.lora:
        return export_lora(graft, base, out, drop=drop, max_rank=max_rank, remainder=remainder)
    return export_gguf_lora(graft, base, out, drop=drop, max_rank=max_rank)


def _facts(made: Adapter) -> dict[str, Any]:
    return {
        "entries": made.entries, "rank": made.rank, "ranks": dict(made.ranks), "dropped": dict(made.dropped),
        "beyond_rank": made.beyond_rank, "kept_share": made.kept_share, "rounded": made.rounded,
        "remainder_rank": made.remainder_rank,
    }  # fmt: skip


def _lines(made: Adapter, to: Format) -> list[str]:
    rank = f", rank {made.rank} in {len(made.ranks)} modules" if made.ranks else ""
    lines = [f"{made.path}: {made.entries:,} entries as a {to.value}{rank}"]
    if made.remainder_rank:
        lines.append(
            f"{made.path}/remainder: rank {made.remainder_rank}; a merge of both gives the graft's own numbers"
        )
    if made.rounded:
        share = f"{made.rounded:,} entries ({made.rounded / made.entries:.2%})"
        lines.append(f"merged into the base, {share} differ from the graft's in their last bits")
    if made.dropped:
        parts = ", ".join(f"{count:,} in {kind}" for kind, count in made.dropped.items())
        lines.append(f"left out, for want of a form: {parts}")
    if made.beyond_rank:
        lines.append(
            f"left out, beyond the rank: {made.beyond_rank:,} entries ({made.kept_share:.1%} of ‖delta‖² stay)"
        )
    if made.heads:
        lines.append(f"heads that travel whole: {', '.join(made.heads)}")
    return lines
