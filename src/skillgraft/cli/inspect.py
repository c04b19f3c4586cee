"""skillgraft inspect"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Json
from skillgraft.errors import listed


def run(
    file: Annotated[Path, typer.Argument(metavar="G", help="A graft or region file.")],
    json: Json = False,
) -> None:
    """Show what a graft or region file holds and how it was made.

    \b
    Examples
      skillgraft inspect skill.safetensors
      skillgraft inspect skill.safetensors --json
    """
    from skillgraft.files.graft_file import is_region_file, load_info, load_region
    from skillgraft.files.graft_stream import open_stream
    from skillgraft.folders.reach import in_words

    facts: dict[str, Any] = {"file": str(file), "bytes": file.stat().st_size if file.exists() else 0}
    if is_region_file(file):
        fingerprint, info = load_info(file)
        facts |= {**load_region(file).describe(), "base_fingerprint": fingerprint, "made": dict(info)}
    else:
        graft = open_stream(file)
        facts |= {**graft.describe(), "in_words": in_words(graft)}
    output.show(facts, as_json=json, lines=_lines(facts))


def _lines(facts: dict[str, Any]) -> list[str]:
    entries, made = facts["entries"], facts["made"]
    lines = [
        f"{facts['file']}: {entries:,} entries, density {facts['density']:.2e} of {facts['scope']!r} "
        f"({facts['scope_entries']:,} entries), {output.human_bytes(facts['bytes'])}"
    ]
    if "form" in facts:
        norm = "packed: norm unknown without the base" if facts["packed"] else f"norm {facts['norm']:.4g}"
        lines.append(f"{facts['form']} form, scale {facts['scale']:g}, {norm}")
    lines += _chat(made.get("chat", {}))
    lines.append(f"base {made.get('base', 'unnamed')}, fingerprint {facts['base_fingerprint'][:16]}…")
    if "digest" in facts:
        lines += [f"digest {facts['digest']}", "", "in a model it", *(f"  {line}" for line in facts["in_words"])]
    for title, counts in (("by kind", facts["by_kind"]), ("by layer", facts["by_layer"])):
        lines += ["", title, *output.columns([("  " + k, f"{n:,}", _share(n, entries)) for k, n in counts.items()])]
    kept = {key: value for key, value in made.items() if key not in ("base", "versions")}
    lines += ["", "made", *(f"  {key}: {_short(value)}" for key, value in kept.items())]
    return lines


def _chat(chat: dict[str, Any]) -> list[str]:
    """What a graft says about talking to the model: the size of its chat template, the tokens after which it stops, new ones."""
    from skillgraft.folders.tokens import tokens_of

    template = (
        [f"chat template: {len(chat['template']):,} characters: {chat['template']!r:.100}"]
        if "template" in chat
        else []
    )
    stops = ", ".join(f"{key} {value}" for key, value in chat.get("generation", {}).items())
    tokens = [f"{token['content']!r:.40} ({token['id']})" for token in tokens_of(chat)]
    roles = ", ".join(f"{role} {text!r:.40}" for role, text in dict(chat.get("roles", {})).items())
    named = {"generation": stops, f"new tokens, {len(tokens):,}": listed(tokens, most=20), "tokenizer": roles}
    return [*template, *(f"{what}: {found}" for what, found in named.items() if found)]


def _short(value: Any) -> str:
    """A line's worth of an item; --json has all of it."""
    text = str(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _share(count: int, entries: int) -> str:
    return f"{100 * count / entries:.1f}%" if entries else "0.0%"
