"""Grafts in other programs' formats.

`patch`: `<tensor>.indices` and `<tensor>.values` alone, the layout of sparse weight updates for serving engines: set these
entries of these tensors to these numbers. It has no `before`, so nothing can check or undo it: the graft stays the original.
"""

from __future__ import annotations

from pathlib import Path

from skillgraft.errors import WrongBase
from skillgraft.files import atomic
from skillgraft.files import tensors as tensor_file
from skillgraft.folders.apply import check
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import Array


def export_patch(graft: Graft, path: str | Path, *, base: str | Path | None = None) -> None:
    """Write a patch file. With `base`, which must be the graft's, tensors have the names of that folder; else prefix-free."""
    target = Path(path)
    atomic.check_target(target)
    raw = _names_in(base, graft) if base is not None else {name: name for name in (*graft.region, *graft.heads)}
    tensors: dict[str, Array] = {}
    for name, at in graft.region.sites.items():
        tensors[f"{raw[name]}.indices"] = at
        tensors[f"{raw[name]}.values"] = graft.written(name)
    for name, head in graft.heads.items():
        tensors[raw[name]] = head
    with atomic.new_file(target) as temporary:
        tensor_file.write(temporary, tensors, {"format": "pt"})


def _names_in(base: str | Path, graft: Graft) -> dict[str, str]:
    """What the base's folder calls the graft's tensors; heads that it lacks sit in or beside the body as they did in tuned."""
    report = check(base, graft)
    if not report.fits:
        raise WrongBase(report.problem)
    source = Checkpoint.open(base)
    inside = graft.info.get("body_heads", [])
    heads = {name: source.prefix + name if name in inside else name for name in graft.heads}
    return heads | {name: place.raw for name, place in source.places.items() if name in graft.before or name in heads}
