"""The model card of a graft on the hub: what it is of, how large, what it was measured to do, its licence, and how to use it.

Everything that comes out of the graft is escaped: a card is a page, and its head is YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from skillgraft.values.escaping import markdown, yaml
from skillgraft.values.graft import Graft

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def card(graft: Graft, name: str, *, file: str, licence: str | None = None) -> str:
    """README.md of the repository `name`, in which the graft is `file`."""
    base = graft.info.text("base") or "an unnamed base"
    skill = graft.info.text("task") or name.rpartition("/")[2]
    where = base if _HUB_NAME.fullmatch(base) else "BASE"
    there = name if file == "skill.safetensors" else f"{name}:{file}"
    return "\n".join(
        [
            *_head(base, licence),
            f"# {markdown(skill)}: a graft for {markdown(base)}",
            "",
            f"{len(graft):,} numbers ({graft.region.density:.2e} of `{markdown(graft.region.scope.label)}`) that put a skill on "
            f"{markdown(base)}, and take it off again bit for bit. Made with skillgraft.",
            "",
            "```python",
            "from skillgraft import apply  # pip install 'skillgraft[hub]'",
            "",
            f'apply("{where}", "{there}", out="grafted")',
            "```",
            "",
            "| | |",
            "|---|---|",
            *(f"| {markdown(key)} | {markdown(value)} |" for key, value in _facts(graft, base, licence).items()),
            "",
            *_scores(graft.info.get("scores", {})),
        ]
    )


def _head(base: str, licence: str | None) -> list[str]:
    """The YAML that the hub reads. A base that is a hub name links the two pages."""
    linked = [f"base_model: {yaml(base)}", "base_model_relation: adapter"] if _HUB_NAME.fullmatch(base) else []
    stated = [f"license: {yaml(licence)}"] if licence else []
    return ["---", "library_name: skillgraft", "tags: [skillgraft, graft]", *linked, *stated, "---", ""]


def _facts(graft: Graft, base: str, licence: str | None) -> dict[str, str]:
    found = {
        "base": base,
        "base fingerprint": graft.base_fingerprint,
        "graft digest (SHA-256)": graft.digest,
        "entries by kind": ", ".join(f"{kind} {count:,}" for kind, count in graft.region.by_kind().items() if count),
        "heads": ", ".join(graft.heads),
        "method": graft.info.text("method"),
        "scale": "" if graft.scale == 1.0 else f"{graft.scale:g}",
        "licence": licence or "not stated; the base's own licence applies to what is made with it",
    }
    return {key: value for key, value in found.items() if value}


def _scores(scores: Any) -> list[str]:
    """A table for each split that was measured: models down, figures across."""
    lines: list[str] = []
    for split, models in scores.items() if isinstance(scores, Mapping) else ():
        rows = (
            {name: row for name, row in models.items() if isinstance(row, Mapping)}
            if isinstance(models, Mapping)
            else {}
        )
        figures = sorted({key for row in rows.values() for key, value in row.items() if isinstance(value, int | float)})
        if figures:
            lines += [
                f"## Measured on {markdown(str(split))} rows",
                "",
                _row(["model", *figures]),
                "|---" * (len(figures) + 1) + "|",
            ]
            lines += [_row([name, *(_number(row.get(figure)) for figure in figures)]) for name, row in rows.items()]
            lines.append("")
    return lines


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(markdown(str(cell)) for cell in cells) + " |"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else ""
