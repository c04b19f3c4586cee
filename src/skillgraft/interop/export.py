"""Grafts as patches: set these entries of these tensors to these numbers, as serving engines take sparse weight updates.

A patch file holds `<tensor>.indices` (flat) and `<tensor>.values` (absolute numbers, never NaN), and in its metadata the full
shape of every tensor. vLLM's `CheckpointWeightPatch(name, shape, dtype, values, indices)` takes exactly these; one call of it
takes sparse patches or dense ones, so whole tensors (heads) are in a file of their own beside it, `<name>.dense.safetensors`. A
patch has no `before`: nothing can check or undo it, and the graft stays the original. With the base at hand `extract BASE PATCH`
makes a graft of it again (`folders.patch`).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from skillgraft.errors import WrongBase
from skillgraft.files import atomic
from skillgraft.files import tensors as tensor_file
from skillgraft.folders.apply import check
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.patch import SHAPES, dense_file
from skillgraft.values import strict_json
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import Array


def export_patch(graft: Graft, path: str | Path, *, base: str | Path | None = None) -> None:
    """Write a patch file. With `base`, which must be the graft's, tensors have the names of that folder; else prefix-free."""
    target, dense = Path(path), dense_file(path)
    for file in (target, dense) if graft.heads else (target,):
        atomic.check_target(file)
    raw = _names_in(base, graft) if base is not None else {name: name for name in (*graft.region, *graft.heads)}
    tensors: dict[str, Array] = {}
    for name, at in graft.region.sites.items():
        tensors[f"{raw[name]}.indices"] = at
        tensors[f"{raw[name]}.values"] = graft.written(name)
    shapes = {raw[name]: list(graft.region.scope.shapes[name]) for name in graft.region}
    with ExitStack() as files:
        if graft.heads:
            heads = {raw[name]: head for name, head in graft.heads.items()}
            tensor_file.write(files.enter_context(atomic.new_file(dense)), heads, {"format": "pt"})
        metadata = {"format": "pt", SHAPES: strict_json.canonical(shapes), "graft": graft.digest}
        tensor_file.write(files.enter_context(atomic.new_file(target)), tensors, metadata)


def _names_in(base: str | Path, graft: Graft) -> dict[str, str]:
    """What the base's folder calls the graft's tensors; heads that it lacks sit in or beside the body as they did in tuned."""
    report = check(base, graft)
    if not report.fits:
        raise WrongBase(report.problem)
    source = Checkpoint.open(base)
    inside = graft.info.get("body_heads", [])
    heads = {name: source.prefix + name if name in inside else name for name in graft.heads}
    return heads | {name: place.raw for name, place in source.places.items() if name in graft.before or name in heads}
