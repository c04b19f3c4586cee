"""Put grafts on model folders and take them off again: check, apply, remove.

    remove(apply(base, g), g) equals base, bit for bit.

Inputs are never modified; outputs appear complete or not at all. Before anything is written, the numbers at a graft's sites
must be the ones it was made for (`before`); the error tells a wrong base from a graft that is on already and from one that
overlaps another. Several grafts at once are applied as their sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft import atomic
from skillgraft.card import BASE_CARD, CARD, agreed_settings, settings_of, write_card, write_config
from skillgraft.checkpoint import Checkpoint, renamed
from skillgraft.dtypes import Array, bits
from skillgraft.errors import InputError, NotApplied, Overlap, WrongBase, listed
from skillgraft.fit import check_comparable, check_fits, check_not_on, differing
from skillgraft.graft import Graft, total
from skillgraft.ledger import Layer, Ledger, Member, undone_tensors, write_undo
from skillgraft.region import Indices
from skillgraft.rewrite import Edit, copy_edited
from skillgraft.versions import versions
from skillgraft.weight_files import refuse_adapters


@dataclass(frozen=True)
class Named:
    """A graft and what its file is called, for messages and for the ledger."""

    graft: Graft
    file: str


@dataclass(frozen=True)
class Outcome:
    """What was written: how many entries and whole tensors changed, and which weights in other formats were left out."""

    path: Path
    entries: int
    whole: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class CheckReport:
    """Whether a graft fits a base: everything that `apply` would check."""

    fits: bool
    same_fingerprint: bool
    entries: int
    differing: Mapping[str, int]
    problem: str


def check(base: str | Path, graft: Graft) -> CheckReport:
    """Compare a graft with a base, reading headers and sites only. Never raises for a misfit; says what is wrong."""
    source = Checkpoint.open(base)
    ledger = Ledger.of(source)
    problem = ""
    try:
        check_not_on(source, graft, ledger, file="the graft")
        check_fits(source, graft, ledger, file="the graft")
    except InputError as error:
        problem = str(error)
    found = {} if not problem else differing(source, graft)
    same = source.fingerprint == graft.base_fingerprint
    return CheckReport(not problem, same, len(graft), found, problem)


def apply(
    base: str | Path, grafts: Sequence[Named], out: str | Path, *, scale: float = 1.0, head: Graft | None = None
) -> Outcome:
    """Write a copy of the base folder with the grafts on it: one as it is, several as their sum, each times `scale`.

    Where the grafts bring different heads of one name, `head` says whose are taken.
    """
    if not grafts:
        raise InputError("apply needs at least one graft, found none")
    source = _open_for(base, Path(out))
    before = Ledger.of(source)
    _check_head(grafts, head)
    whole = total([_times(named.graft, scale) for named in grafts], head=head)  # refuses what cannot be combined
    for named in grafts:
        check_not_on(source, named.graft, before, file=named.file)
        check_fits(source, _times(named.graft, scale), before, file=named.file)
    deciding = [head] if head else [named.graft for named in grafts]
    settings, prefix = agreed_settings(deciding), _agreed_prefix(deciding)
    groups = _overlapping(grafts)
    layers = [_layer(group, whole, before, deciding, settings=settings, prefix=prefix, scale=scale) for group in groups]
    after = before.plus(layers)
    sums = [total([_times(named.graft.without_heads(), scale) for named in group]) for group in groups]
    edit = Edit(
        after.prefix,
        _numbers(source, sums, Graft.written),
        {_raw_head(source, name, after.prefix, deciding): head for name, head in whole.heads.items()},
        frozenset({*whole.heads, *(name for layer in layers for name in layer.removed)} & source.places.keys()),
    )
    left_out = _write(source, before, after, edit, Path(out))
    return Outcome(Path(out), len(whole), tuple(edit.add), left_out)


def remove(folder: str | Path, grafts: Sequence[Named], out: str | Path) -> Outcome:
    """Write a copy of a grafted folder without these grafts: the saved old numbers go back, nothing is subtracted."""
    if not grafts:
        raise InputError("remove needs at least one graft, found none")
    source = _open_for(folder, Path(out))
    before = Ledger.of(source)
    given = {named.graft.digest: named for named in grafts}
    for named in grafts:
        if named.graft.digest not in before.digests:
            on = listed(before.files) or "nothing"
            raise NotApplied(f"{named.file} is not on {source.path}; skillgraft.json lists {on}")
    layers = [layer for layer in before.applied if layer.digests & given.keys()]
    sums = [_sum_on(layer, given, source) for layer in layers]
    after = before.minus(layers)
    edit = Edit(
        after.prefix,
        _numbers(source, sums, lambda graft, name: graft.before[name]),
        undone_tensors(source, before, after),
        (before.heads - after.heads) & source.places.keys(),
    )
    left_out = _write(source, before, after, edit, Path(out))
    return Outcome(Path(out), sum(map(len, sums)), tuple(edit.add), left_out)


def _open_for(folder: str | Path, target: Path) -> Checkpoint:
    """The input of a run, once it is clear that its output can be written."""
    atomic.check_target(target)
    refuse_adapters(folder)
    source = Checkpoint.open(folder)
    if target.resolve().is_relative_to(source.path.resolve()):
        raise InputError(f"{target} lies inside {source.path}, which stays as it is; choose an output outside it")
    return source


def _write(source: Checkpoint, before: Ledger, after: Ledger, edit: Edit, target: Path) -> tuple[str, ...]:
    """The output folder, whole or not at all; returns what was left out."""
    with atomic.new_folder(target) as folder:
        left_out = copy_edited(source, folder, edit, skip=["config.json", CARD, BASE_CARD])
        write_config(after, folder)
        write_undo(source, before, after, folder)
        after.write(folder, versions=versions())
        write_card(source, after, folder)
    return tuple(left_out)


def _sum_on(layer: Layer, given: Mapping[str, Named], source: Checkpoint) -> Graft:
    """What this layer wrote, after proving that it still stands there."""
    absent = [member.file for member in layer.members if member.digest not in given]
    if absent:
        present = listed([member.file for member in layer.members if member.digest in given])
        raise Overlap(
            f"{present} overlaps {listed(absent)} on {source.path}: they come off only together; name all of them"
        )
    on = total([_times(given[member.digest].graft.without_heads(), member.scale) for member in layer.members])
    for name, at in on.region.sites.items():
        check_comparable(source, on, name, listed([member.file for member in layer.members]))
        differ = int((bits(source.flat(name)[at]) != bits(on.written(name))).sum())
        if differ:
            raise WrongBase(
                f"{source.path} was changed after the graft came on: {differ} of {len(at)} sites differ in {name}; "
                "start from a copy that nobody edited"
            )
    return on


def _times(graft: Graft, scale: float) -> Graft:
    """scale · graft; the graft itself at 1, because a product is checked and hashed anew."""
    return graft if scale == 1.0 else scale * graft


def _check_head(grafts: Sequence[Named], head: Graft | None) -> None:
    if head is not None and all(named.graft.digest != head.digest for named in grafts):
        raise InputError(
            f"the head to take must be that of one of the grafts: {listed([named.file for named in grafts])}"
        )


def _overlapping(grafts: Sequence[Named]) -> list[list[Named]]:
    """Grafts in groups that share no entry with each other."""
    groups: list[list[Named]] = []
    for named in grafts:
        touching = [g for g in groups if any(not named.graft.region.isdisjoint(other.graft.region) for other in g)]
        merged = [other for group in touching for other in group] + [named]
        groups = [group for group in groups if group not in touching] + [merged]
    return groups


def _agreed_prefix(grafts: Sequence[Graft]) -> str | None:
    """What the body's names begin with under the grafts' architecture, if they say one thing."""
    said = {graft.info["prefix"] for graft in grafts if "prefix" in graft.info}
    return said.pop() if len(said) == 1 else None


def _layer(
    group: Sequence[Named],
    whole: Graft,
    before: Ledger,
    deciding: Sequence[Graft],
    *,
    settings: Mapping[str, Any],
    prefix: str | None,
    scale: float,
) -> Layer:
    """What the ledger notes about one group: enough to take it off again, whatever else comes and goes."""
    members = tuple(Member(named.graft.digest, named.file, scale, len(named.graft)) for named in group)
    decides = {graft.digest for graft in deciding}
    mine = [named.graft for named in group if named.graft.digest in decides]
    heads = {name for graft in mine for name in graft.heads}
    removed = {name for graft in mine for name in graft.info.get("removed", [])} - whole.heads.keys() - before.heads
    sets = {key for graft in mine for key in settings_of(graft)} & settings.keys()
    says = any("prefix" in graft.info for graft in mine)
    return Layer(
        members,
        tuple(sorted(heads)),
        tuple(sorted(removed)),
        prefix if says else None,
        {key: settings[key] for key in sorted(sets)},
    )


def _raw_head(source: Checkpoint, name: str, prefix: str, deciding: Sequence[Graft]) -> str:
    """What a head is called in the output: under the body's prefix if tuned, or else the base, had it there."""
    if any(name in graft.info.get("body_heads", []) for graft in deciding):
        return prefix + name
    return renamed(source.places[name].raw, source.prefix, prefix) if name in source.places else name


def _numbers(
    source: Checkpoint, sums: Sequence[Graft], numbers: Callable[[Graft, str], Array]
) -> dict[str, tuple[Indices, Array]]:
    """Name → (sorted sites, numbers), those of several disjoint grafts put together.

    A tied copy that the files store beside a parameter changes with it, unless the graft treats it on its own.
    """
    copies: dict[str, list[str]] = defaultdict(list)
    for twin, name in source.twins.items():
        copies[name].append(twin)
    pieces: dict[str, list[tuple[Indices, Array]]] = defaultdict(list)
    for graft in sums:
        for name, at in graft.region.sites.items():
            twins = [twin for twin in copies[name] if twin not in graft.region.scope.shapes]
            for target in (name, *twins):
                pieces[target].append((at, numbers(graft, name)))
    return {name: found[0] if len(found) == 1 else _merged(found) for name, found in pieces.items()}


def _merged(pieces: Sequence[tuple[Indices, Array]]) -> tuple[Indices, Array]:
    at = np.concatenate([sites for sites, _ in pieces])
    order = np.argsort(at, kind="stable")
    return at[order], np.concatenate([numbers for _, numbers in pieces])[order]
