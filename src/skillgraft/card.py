"""What a grafted folder tells its readers: config.json and the model card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skillgraft.checkpoint import Checkpoint
from skillgraft.graft import Graft
from skillgraft.ledger import Ledger
from skillgraft.versions import versions

CARD, BASE_CARD = "README.md", "README.base.md"


def changes_architecture(graft: Graft) -> bool:
    """Whether a graft brings heads, takes tensors away or renames the body, so that the config must follow."""
    return bool(graft.heads or "prefix" in graft.info or "removed" in graft.info)


def settings_of(graft: Graft) -> dict[str, Any]:
    """The keys of config.json that a graft sets: what tuned set otherwise than base, and the architecture that its heads need."""
    settings = dict(graft.info.get("config", {}))
    if changes_architecture(graft):
        settings |= {key: graft.info[key] for key in ("architectures", "id2label") if key in graft.info}
    if "id2label" in settings:
        settings["label2id"] = {label: int(key) for key, label in settings["id2label"].items()}
    return settings


def agreed_settings(grafts: Sequence[Graft]) -> dict[str, Any]:
    """The settings of several grafts, without those on which they disagree."""
    every = [settings_of(graft) for graft in grafts]
    return {
        key: value for mine in every for key, value in mine.items() if all(o.get(key, value) == value for o in every)
    }


def write_config(ledger: Ledger, folder: Path) -> None:
    """The base's config.json with what the layers set over it; the base's own text where that changes nothing."""
    if not ledger.base_config:
        return
    before = json.loads(ledger.base_config)
    after = dict(before)
    for layer in ledger.applied:
        after.update(layer.settings)
    text = ledger.base_config if after == before else json.dumps(after, indent=2, ensure_ascii=False) + "\n"
    (folder / "config.json").write_bytes(text.encode())


def write_card(source: Checkpoint, ledger: Ledger, folder: Path) -> None:
    """A model card that says which grafts made this folder, the base's own beside it; the base's again when none is on."""
    original = source.path / BASE_CARD if (source.path / BASE_CARD).is_file() else source.path / CARD
    own = original.is_file() and (original.name == BASE_CARD or not Ledger.of(source).applied)
    if own:
        (folder / (BASE_CARD if ledger.applied else CARD)).write_bytes(original.read_bytes())
    if not ledger.applied:
        return
    lines = ["---", f"base_model: {ledger.base}", "tags: [skillgraft]", "---", "", f"# {ledger.base}, grafted", ""]
    lines += [f"Made with skillgraft {versions().get('skillgraft', '')} from `{ledger.base}`. Grafts on it:", ""]
    lines += ["| graft | entries | scale | SHA-256 |", "|---|---|---|---|"]
    members = [member for layer in ledger.applied for member in layer.members]
    lines += [f"| {m.file} | {m.entries:,} | {m.scale:g} | `{m.digest[:16]}…` |" for m in members]
    (folder / CARD).write_text("\n".join(lines) + "\n", encoding="utf-8")
