"""Lift a skill out of a fine-tuned folder: base + tuned → Graft.

    apply(base, extract(base, tuned)) equals tuned, bit for bit.

Without a budget every entry whose bits differ is taken; with one, exactly that many of the scope, those that moved the
most. Heads travel whole. Nothing is skipped silently: what changed outside the scope is counted in the provenance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.checkpoint import Checkpoint, Tensors, chunks, same_tensor, take
from skillgraft.dtypes import Array, bits, is_float, round_once
from skillgraft.errors import InputError, listed
from skillgraft.graft import Graft
from skillgraft.lora import LoraCheckpoint
from skillgraft.movement import Progress, most_moved, silent
from skillgraft.names import in_layers, is_embedding, is_head
from skillgraft.provenance import Info
from skillgraft.region import Region, Scope
from skillgraft.versions import versions
from skillgraft.vocabulary import check_same_vocabulary
from skillgraft.weight_files import SINGLE, refuse_adapters

Tuned = Checkpoint | LoraCheckpoint
# Items of config.json that travel by themselves, or that say nothing about what the model computes.
_APART = frozenset(
    {
        *("architectures", "id2label", "label2id", "num_labels"),
        *("_name_or_path", "_commit_hash", "transformers_version", "torch_dtype", "dtype", "use_cache"),
    }
)


@dataclass(frozen=True)
class Pairing:
    """Which tensors of base and tuned are compared entry by entry, which travel whole, and which are gone."""

    shared: Mapping[str, tuple[int, ...]]
    whole: tuple[str, ...]
    removed: tuple[str, ...]


def extract(
    base: str | Path,
    tuned: str | Path,
    *,
    budget: float | None = None,
    region: Region | None = None,
    scope: str | None = None,
    convert: bool = False,
    progress: Progress = silent,
) -> Graft:
    """The graft that turns the base folder into the tuned one: all of it, the top `budget` of the scope, or in `region`.

    `convert` rounds a tuned model of another number format to the base's. Scope: by default the transformer layers; without
    a budget whatever changed.
    """
    if budget is not None and region is not None:
        raise InputError("give a budget or a region, not both")
    refuse_adapters(base)
    before = Checkpoint.open(base)
    after = open_tuned(Path(tuned), before)
    check_same_vocabulary(before.path, after.path)
    pairing = pair(before, after)
    source = _in_one_format(before, after, pairing, convert=convert)
    chosen, outside = _choose(before, source, pairing, budget=budget, region=region, scope=scope, progress=progress)
    graft = Graft(
        chosen,
        {name: take(before, name, at) for name, at in chosen.sites.items()},
        {name: take(source, name, at) for name, at in chosen.sites.items()},
        # Copies: the graft must outlive whatever becomes of tuned's files.
        heads={name: after.read(name).copy() for name in pairing.whole},
        base_fingerprint=before.fingerprint,
        info=_provenance(before, after, pairing, outside).updated(
            method="movement" if budget is not None else "region" if region is not None else "difference",
            recipe={"budget": budget, "scope": chosen.scope.label, "convert": convert},
        ),
    )
    before.check_unchanged()
    after.check_unchanged()
    return graft


def open_tuned(path: Path, base: Checkpoint) -> Tuned:
    """A tuned model: a checkpoint folder, or a PEFT LoRA adapter of `base`. Bottleneck adapters have no delta: refused."""
    refuse_adapters(path)
    if (path / "adapter_config.json").is_file() and not (path / SINGLE).is_file():
        return LoraCheckpoint.open(path, base)
    return Checkpoint.open(path)


def pair(base: Checkpoint, tuned: Tuned) -> Pairing:
    """Match the tensors of both; a body tensor whose shape differs means another model and is refused."""
    twins = _common_twins(base, tuned)
    ours = base.shapes.keys() - (twins & tuned.shapes.keys())  # a copy that tuned does not store is one that it removed
    theirs = tuned.shapes.keys() - twins
    whole = set(theirs - ours)
    shared = {}
    reshaped = []
    for name in sorted(ours & theirs):
        if is_head(name) or not is_float(base.dtypes[name]):
            if not same_tensor(base, tuned, name):
                whole.add(name)
        elif base.shapes[name] != tuned.shapes[name]:
            reshaped.append(name)
        else:
            shared[name] = base.shapes[name]
    if reshaped:
        raise InputError(_why_reshaped(base, tuned, reshaped))
    if not any(in_layers(name) for name in shared) and any(in_layers(name) for name in ours):
        raise InputError(
            f"{base.path} and {tuned.path} share no transformer layer: {listed(sorted(ours - theirs), most=2)} here, "
            f"{listed(sorted(theirs - ours), most=2)} there; are they the same architecture?"
        )
    missing = sorted(name for name in ours - theirs if in_layers(name))
    extra = sorted(name for name in whole if in_layers(name) and name not in ours)
    if missing or extra:
        raise InputError(
            f"the layers differ: only {base.path} has {listed(missing) or 'nothing'}, only {tuned.path} has "
            f"{listed(extra) or 'nothing'}; a graft needs base and tuned of one architecture"
        )
    return Pairing(shared, tuple(sorted(whole)), tuple(sorted(ours - theirs)))


def _common_twins(base: Checkpoint, tuned: Tuned) -> set[str]:
    """Second copies of tied weights that neither side uses on its own: tied on each side that stores them."""
    names = base.twins.keys() | tuned.twins.keys()
    return {name for name in names if all(name in side.twins or name not in side.shapes for side in (base, tuned))}


def _why_reshaped(base: Checkpoint, tuned: Tuned, names: list[str]) -> str:
    longer = [name for name in names if base.shapes[name][1:] == tuned.shapes[name][1:]]
    name = next(filter(is_embedding, longer), names[0])
    shapes = f"{name} is {list(base.shapes[name])} in {base.path} and {list(tuned.shapes[name])} in {tuned.path}"
    if longer == names and is_embedding(name):
        return f"the embeddings' length changed: {shapes}; a graft needs base and tuned with one vocabulary"
    return f"{len(names)} tensors have another shape: {shapes}; these are different models"


@dataclass(frozen=True)
class _Converted:
    """Tuned's numbers rounded to the base's format as they are read."""

    tensors: Tensors
    dtypes: Mapping[str, np.dtype[Any]]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.tensors.shapes

    def flat(self, name: str, low: int = 0, high: int | None = None) -> Array:
        numbers = self.tensors.flat(name, low, high)
        if numbers.dtype == np.float64:
            return round_once(numbers, self.dtypes[name])
        with np.errstate(over="ignore"):  # what overflows is refused with the graft
            return numbers.astype(self.dtypes[name], copy=False)


def _in_one_format(base: Checkpoint, tuned: Tuned, pairing: Pairing, *, convert: bool) -> Tensors:
    differ = [name for name in pairing.shared if base.dtypes[name] != tuned.dtypes[name]]
    if differ and not convert:
        name = differ[0]
        raise InputError(
            f"{len(differ)} tensors are {base.dtypes[name]} in {base.path} and {tuned.dtypes[name]} in {tuned.path} "
            f"(first {name}); use a base of tuned's format, or --convert to round tuned to {base.dtypes[name]}"
        )
    return _Converted(tuned, {**tuned.dtypes, **base.dtypes}) if differ else tuned


def _choose(
    base: Checkpoint,
    tuned: Tensors,
    pairing: Pairing,
    *,
    budget: float | None,
    region: Region | None,
    scope: str | None,
    progress: Progress,
) -> tuple[Region, dict[str, int]]:
    """The region to take, and tensor → changed entries that are left out because the scope does not hold them."""
    if region is not None:
        foreign = sorted(n for n in region if pairing.shared.get(n) != region.scope.shapes[n])
        if foreign:
            raise InputError(
                f"the region is not of this model: {listed(foreign)} are missing here or have another shape"
            )
        return region, {}
    if budget is not None:
        within = Scope.select(scope or "layers", pairing.shared)
        chosen = most_moved(base, tuned, within, budget, progress=progress)
        rest = {name: _count_changed(base, tuned, name) for name in pairing.shared if name not in within.shapes}
        return chosen, {name: count for name, count in rest.items() if count}
    return _everything(base, tuned, pairing, scope=scope, progress=progress)


def _everything(
    base: Checkpoint, tuned: Tensors, pairing: Pairing, *, scope: str | None, progress: Progress
) -> tuple[Region, dict[str, int]]:
    everything = Scope.of("all", pairing.shared)
    sites = {}
    done = 0
    for name, shape in pairing.shared.items():
        sites[name] = _changed(base, tuned, name)
        done += math.prod(shape)
        progress(done, everything.size)
    if scope is None:
        inside = all(in_layers(name) for name, at in sites.items() if len(at))
        scope = "layers" if inside and any(map(in_layers, sites)) else "all"
    within = Scope.select(scope, pairing.shared)
    outside = {name: len(at) for name, at in sites.items() if name not in within.shapes and len(at)}
    return Region(within, {name: at for name, at in sites.items() if name in within.shapes}), outside


def _changed(base: Tensors, tuned: Tensors, name: str) -> Array:
    """The entries whose bits differ."""
    found = [low + np.flatnonzero(differ) for low, differ in _differences(base, tuned, name)]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _count_changed(base: Tensors, tuned: Tensors, name: str) -> int:
    """How many entries' bits differ; where they are is not kept."""
    return sum(int(np.count_nonzero(differ)) for _, differ in _differences(base, tuned, name))


def _differences(base: Tensors, tuned: Tensors, name: str) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    for low, high in chunks(math.prod(base.shapes[name]), base.dtypes[name].itemsize):
        yield low, bits(base.flat(name, low, high)) != bits(tuned.flat(name, low, high))


def _provenance(base: Checkpoint, tuned: Tuned, pairing: Pairing, outside: Mapping[str, int]) -> Info:
    same = not pairing.whole and not pairing.removed and tuned.prefix == base.prefix
    under = [name for name in pairing.whole if tuned.prefix and tuned.under_prefix(name)]
    labels = _labels(tuned.config)
    return Info(
        base=base.name,
        tuned=tuned.name,
        # Without heads the graft fits under every architecture; with them it brings tuned's own.
        prefix=None if same else tuned.prefix,
        body_heads=under or None,
        removed=list(pairing.removed) or None,
        architectures=tuned.config.get("architectures"),
        id2label=labels,
        labels=list(labels.values()) if labels else None,
        num_labels=len(labels) if labels else None,
        config=_other_settings(base.config, tuned.config) or None,
        outside_scope=dict(outside) or None,
        versions=versions(),
    )


def _labels(config: Mapping[str, Any]) -> dict[str, str] | None:
    """Class number → label name, in order."""
    labels = config.get("id2label")
    if not isinstance(labels, dict) or not all(str(key).isdecimal() for key in labels):
        return None
    return {str(key): str(labels[key]) for key in sorted(labels, key=int)}


def _other_settings(base: Mapping[str, Any], tuned: Mapping[str, Any]) -> dict[str, Any]:
    """What tuned's config says otherwise than base's and a model's output can depend on (padding, tying, scaling …)."""
    return {key: value for key, value in tuned.items() if key not in _APART and (key not in base or base[key] != value)}
