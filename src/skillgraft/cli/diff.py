"""skillgraft diff"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from skillgraft.cli import output
from skillgraft.cli.arguments import TABLES, Base, Convert, Json, ScopeName, TablesAsked, Tuned, sharing
from skillgraft.errors import listed

if TYPE_CHECKING:
    from skillgraft.folders.diff import Change, Diff


@sharing(tables=TABLES)
def run(
    base: Base,
    tuned: Tuned,
    scope: ScopeName = "layers",
    convert: Convert = False,
    json: Json = False,
    *,
    tables: TablesAsked,
) -> None:
    """Show what a fine-tune changed, by layer and kind.

    Nothing is written. Below it, what `extract` would take: entries, the file's size, and how much of the change they hold.

    \b
    Example
      skillgraft diff BASE TUNED
    """
    from skillgraft.folders.diff import diff

    output.check_tables(tables)
    with output.progress("comparing") as progress:
        found = diff(base, tuned, scope=scope, convert=convert, progress=progress)
    if any(tables.values()):
        from skillgraft.report.score_sheets import diff_sheets
        from skillgraft.report.table_files import write_tables

        write_tables(diff_sheets(found), tables)
    output.show(found.facts, as_json=json, lines=list(_lines(found)))


def _lines(found: Diff) -> Iterator[str]:
    whole = found.whole
    yield (
        f"{found.base} -> {found.tuned}: {whole.changed:,} of {whole.entries:,} entries of {found.scope!r} changed "
        f"({_percent(whole.changed, whole.entries)}), norm {whole.norm:.4g} ({_relative(whole)} of the base's)"
    )
    layers = {layer or "outside the layers": change for layer, change in found.by_layer().items()}
    tables = {"by kind": found.by_kind(), "by layer": layers, "outside the scope": found.outside}
    for title, changes in tables.items():
        if changes:
            yield from ("", *_table(title, changes))
    yield ""
    named = {"heads that differ": found.heads, "tensors added": found.added, "tensors removed": found.removed}
    for title, names in {**named, "config keys that differ": tuple(found.config)}.items():
        if names:
            yield f"{title}: {listed(names, most=8)}"
    rows = [
        (f"  {top.density:g}", f"{top.entries:,}", output.human_bytes(top.bytes), f"{100 * top.share:.1f}%")
        for top in found.top
    ]
    yield from output.columns(rows, header=["extract would take at density", "entries", "size about", "of ‖delta‖²"])


def _table(title: str, changes: Mapping[str, Change]) -> list[str]:
    rows = [
        (f"  {name}", f"{c.changed:,}", _percent(c.changed, c.entries), f"{c.norm:.4g}", _relative(c))
        for name, c in changes.items()
    ]
    return output.columns(rows, header=[title, "changed", "", "norm", "relative"])


def _percent(count: int, entries: int) -> str:
    return f"{100 * count / entries:.1f}%" if entries else "0.0%"


def _relative(change: Change) -> str:
    return "-" if change.relative is None else f"{change.relative:.2e}"
