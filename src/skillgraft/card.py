"""What a grafted folder tells its readers: config.json and the model card."""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def write_config(source: Checkpoint, graft: Graft, folder: Path) -> None:
    """The base's config as it is; with tuned's architecture and labels where the graft brings them."""
    if not source.config:
        return
    if not changes_architecture(graft):
        (folder / "config.json").write_bytes((source.path / "config.json").read_bytes())
        return
    config = dict(source.config)
    config.update({key: graft.info[key] for key in ("architectures", "id2label") if key in graft.info})
    if "id2label" in graft.info:
        config["label2id"] = {label: int(key) for key, label in graft.info["id2label"].items()}
    write_json(folder / "config.json", config)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_card(source: Checkpoint, ledger: Ledger, folder: Path) -> None:
    """A model card that says which grafts made this folder; the base's own card is kept beside it."""
    original = source.path / CARD
    if original.is_file() and not (source.path / BASE_CARD).is_file() and not Ledger.read(source.path).applied:
        (folder / BASE_CARD).write_bytes(original.read_bytes())
    lines = ["---", f"base_model: {ledger.base}", "tags: [skillgraft]", "---", "", f"# {ledger.base}, grafted", ""]
    lines += [f"Made with skillgraft {versions().get('skillgraft', '')} from `{ledger.base}`. Grafts on it:", ""]
    lines += ["| graft | entries | scale | SHA-256 |", "|---|---|---|---|"]
    members = [member for layer in ledger.applied for member in layer.members]
    lines += [f"| {m.file} | {m.entries:,} | {m.scale:g} | `{m.digest[:16]}…` |" for m in members]
    (folder / CARD).write_text("\n".join(lines) + "\n", encoding="utf-8")


def restore_card(source: Checkpoint, rest: Ledger, folder: Path) -> None:
    """After a removal: the base's own card again, or a card of the grafts that stay on."""
    original = source.path / BASE_CARD
    if original.is_file():
        (folder / (BASE_CARD if rest.applied else CARD)).write_bytes(original.read_bytes())
    if rest.applied:
        write_card(source, rest, folder)
