"""Grafts in other programs' formats.

`patch`: `<tensor>.indices` and `<tensor>.values` alone, the layout of sparse weight updates for serving engines: set these
entries of these tensors to these numbers. It has no `before`, so nothing can check or undo it: the graft stays the original.
"""

from __future__ import annotations

from pathlib import Path

from skillgraft import atomic, tensor_file
from skillgraft.checkpoint import Checkpoint
from skillgraft.dtypes import Array
from skillgraft.errors import InputError, listed
from skillgraft.graft import Graft


def export_patch(graft: Graft, path: str | Path, *, base: str | Path | None = None) -> None:
    """Write a patch file. With `base`, tensors have the names of that folder; otherwise prefix-free ones."""
    raw = {name: name for name in (*graft.region, *graft.heads)}
    if base is not None:
        places = Checkpoint.open(base).places
        missing = [name for name in graft.region if name not in places]
        if missing:
            raise InputError(f"{base} has no {listed(missing)}; it is not this graft's base")
        raw |= {name: place.raw for name, place in places.items() if name in raw}
    tensors: dict[str, Array] = {}
    for name, at in graft.region.sites.items():
        tensors[f"{raw[name]}.indices"] = at
        tensors[f"{raw[name]}.values"] = graft.written(name)
    for name, head in graft.heads.items():
        tensors[raw[name]] = head
    with atomic.new_file(Path(path)) as temporary:
        tensor_file.write(temporary, tensors, {"format": "pt"})
