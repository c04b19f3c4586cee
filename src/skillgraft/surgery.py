"""Put grafts on model folders and take them off again: check, apply, remove.

    remove(apply(base, g), g) equals base, bit for bit.

Inputs are never modified; outputs appear complete or not at all. Before anything is written, the numbers at a graft's sites
must be the ones it was made for (`before`); the error tells a wrong base from a graft that is on already and from one that
overlaps another. Several grafts at once are applied as their sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft import atomic
from skillgraft.card import BASE_CARD, CARD, changes_architecture, restore_card, write_card, write_config, write_json
from skillgraft.checkpoint import Checkpoint, Tensors
from skillgraft.dtypes import Array, bits
from skillgraft.errors import AlreadyApplied, InputError, NotApplied, Overlap, WrongBase, listed
from skillgraft.graft import Graft, total
from skillgraft.ledger import Layer, Ledger, Member, keep_undo, undone_tensors, write_undo
from skillgraft.region import Indices
from skillgraft.rewrite import Edit, copy_edited
from skillgraft.versions import versions


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
    problem = ""
    try:
        _check_sites(source, graft, Ledger.read(source.path), "the graft")
    except InputError as error:
        problem = str(error)
    differing = {} if not problem else _differing(source, graft)
    same = source.fingerprint == graft.base_fingerprint
    return CheckReport(not problem, same, len(graft), differing, problem)


def apply(
    base: str | Path, grafts: Sequence[Named], out: str | Path, *, scale: float = 1.0, head: Graft | None = None
) -> Outcome:
    """Write a copy of the base folder with the grafts on it: one as it is, several as their sum, each times `scale`.

    Where the grafts bring different heads of one name, `head` says whose are taken.
    """
    if not grafts:
        raise InputError("apply needs at least one graft, found none")
    target = Path(out)
    atomic.check_target(target)
    source = Checkpoint.open(base)
    ledger = Ledger.read(source.path)
    whole = total([scale * named.graft for named in grafts], head=head)  # refuses what cannot be combined
    for named in grafts:
        _check_not_on(named, ledger, source)
        _check_sites(source, scale * named.graft, ledger, named.file)
    groups = _overlapping(grafts)
    layers = tuple(_layer(source, group, whole, scale) for group in groups)
    edit = _edit(source, [total([scale * n.graft.without_heads() for n in group]) for group in groups], whole)
    with atomic.new_folder(target) as folder:
        left_out = copy_edited(source, folder, edit, skip=["config.json", CARD])
        write_config(source, whole, folder)
        write_undo(source, layers, folder)
        after = Ledger(
            ledger.base or source.name,
            ledger.base_fingerprint or source.fingerprint,
            (*ledger.applied, *layers),
            ledger.made,
        )
        after.write(folder, versions=versions())
        write_card(source, after, folder)
    return Outcome(target, len(whole), tuple(edit.add), tuple(left_out))


def remove(folder: str | Path, grafts: Sequence[Named], out: str | Path) -> Outcome:
    """Write a copy of a grafted folder without these grafts: the saved old numbers go back, nothing is subtracted."""
    target = Path(out)
    atomic.check_target(target)
    source = Checkpoint.open(folder)
    ledger = Ledger.read(source.path)
    given = {named.graft.digest: named for named in grafts}
    for named in grafts:
        _check_listed(named, ledger, source)
    layers = tuple(layer for layer in ledger.applied if layer.digests & given.keys())
    sums = [_sum_on(layer, given, source) for layer in layers]
    edit, config = _undo_edit(source, layers, sums)
    rest = ledger.minus(layers)
    with atomic.new_folder(target) as copy:
        left_out = copy_edited(source, copy, edit, skip=["config.json", CARD, BASE_CARD])
        if source.config:
            write_json(copy / "config.json", config)
        restore_card(source, rest, copy)
        if rest.applied or rest.made:
            rest.write(copy, versions=versions())
        keep_undo(source, rest, copy)
    return Outcome(target, sum(map(len, sums)), tuple(edit.add), tuple(left_out))


# Checks


def _check_not_on(named: Named, ledger: Ledger, source: Checkpoint) -> None:
    if any(named.graft.digest in layer.digests for layer in ledger.applied):
        raise AlreadyApplied(f"{named.file} is on {source.path} already (see skillgraft.json); remove it first")


def _differing(source: Tensors, graft: Graft) -> dict[str, int]:
    """Parameter → how many of its sites do not hold the graft's `before`; missing parameters count whole."""
    result = {}
    for name, at in graft.region.sites.items():
        foreign = source.shapes.get(name) != graft.region.scope.shapes[name]
        if foreign or source.dtypes[name] != graft.before[name].dtype:
            result[name] = len(at)
        else:
            differ = int((bits(source.flat(name)[at]) != bits(graft.before[name])).sum())
            if differ:
                result[name] = differ
    return result


def _check_sites(source: Checkpoint, graft: Graft, ledger: Ledger, file: str) -> None:
    """Raise unless the model's numbers at the sites are `before`, saying which of the possible reasons it is."""
    differing = _differing(source, graft)
    if not differing:
        return
    name, count = max(differing.items(), key=lambda item: item[1])
    if name not in source.shapes:
        raise WrongBase(f"{file} changes {name}, which {source.path} does not have; it was made for {_made_for(graft)}")
    if source.shapes[name] != graft.region.scope.shapes[name]:
        raise WrongBase(
            f"{name} is {list(source.shapes[name])} in {source.path}, {list(graft.region.scope.shapes[name])} in {file}, "
            f"which was made for {_made_for(graft)}"
        )
    if source.dtypes[name] != graft.before[name].dtype:
        raise WrongBase(
            f"{file} holds {graft.before[name].dtype} numbers, {name} in {source.path} is {source.dtypes[name]}; "
            "use the base it was extracted from, or extract again from a pair in this format"
        )
    if _holds_already(source, graft):
        raise AlreadyApplied(f"{source.path} holds the numbers of {file} already at all {len(graft)} sites")
    if ledger.applied:
        on = listed([member.file for layer in ledger.applied for member in layer.members])
        raise Overlap(
            f"{file} overlaps what is on {source.path} ({on}): {count} of {len(graft.before[name])} sites differ in {name}; "
            "apply them together to the base instead: they are added up"
        )
    raise WrongBase(
        f"{source.path} is not the base of {file}: in {name} {count} of {len(graft.before[name])} sites hold other numbers "
        f"({sum(differing.values())} of {len(graft)} in all); it was made for {_made_for(graft)}"
    )


def _made_for(graft: Graft) -> str:
    return f"{graft.info.text('base') or 'an unnamed base'} (fingerprint {graft.base_fingerprint[:12]}…)"


def _holds_already(source: Tensors, graft: Graft) -> bool:
    return all((bits(source.flat(n)[at]) == bits(graft.written(n))).all() for n, at in graft.region.sites.items())


def _check_listed(named: Named, ledger: Ledger, source: Checkpoint) -> None:
    if not any(named.graft.digest in layer.digests for layer in ledger.applied):
        on = listed([member.file for layer in ledger.applied for member in layer.members]) or "nothing"
        raise NotApplied(f"{named.file} is not on {source.path}; skillgraft.json lists {on}")


def _sum_on(layer: Layer, given: Mapping[str, Named], source: Checkpoint) -> Graft:
    """What this layer wrote, after proving that it still stands there."""
    absent = [member.file for member in layer.members if member.digest not in given]
    if absent:
        present = listed([member.file for member in layer.members if member.digest in given])
        raise Overlap(
            f"{present} overlaps {listed(absent)} on {source.path}: they come off only together; name all of them"
        )
    on = total([member.scale * given[member.digest].graft.without_heads() for member in layer.members])
    for name, at in on.region.sites.items():
        differ = int((bits(source.flat(name)[at]) != bits(on.written(name))).sum())
        if differ:
            raise WrongBase(
                f"{source.path} was changed after the graft came on: {differ} of {len(at)} sites differ in {name}"
            )
    return on


# What to write


def _overlapping(grafts: Sequence[Named]) -> list[list[Named]]:
    """Grafts in groups that share no entry and no head with each other."""
    groups: list[list[Named]] = []
    for named in grafts:
        touching = [group for group in groups if any(_touch(named.graft, other.graft) for other in group)]
        merged = [other for group in touching for other in group] + [named]
        groups = [group for group in groups if group not in touching] + [merged]
    return groups


def _touch(a: Graft, b: Graft) -> bool:
    return not a.region.isdisjoint(b.region) or bool(a.heads.keys() & b.heads.keys())


def _layer(source: Checkpoint, group: Sequence[Named], whole: Graft, scale: float) -> Layer:
    """What the ledger notes about one group: enough to take it off again."""
    members = tuple(Member(named.graft.digest, named.file, scale, len(named.graft)) for named in group)
    heads = tuple(sorted({name for named in group for name in named.graft.heads if name in whole.heads}))
    removed = tuple(sorted({n for named in group for n in named.graft.info.get("removed", []) if n in source.places}))
    prefix = source.prefix if whole.info.get("prefix", source.prefix) != source.prefix else None
    return Layer(members, heads, removed, prefix, dict(source.config) if changes_architecture(whole) else None)


def _edit(source: Checkpoint, sums: Sequence[Graft], whole: Graft) -> Edit:
    numbers = _scattered((name, at, graft.written(name)) for graft in sums for name, at in graft.region.sites.items())
    prefix = whole.info.get("prefix", source.prefix)
    inside = set(whole.info.get("body_heads", []))
    add = {_raw_head(source, name, prefix, inside): head for name, head in whole.heads.items()}
    gone = {*whole.info.get("removed", []), *whole.heads}
    return Edit(prefix, numbers, add, frozenset(gone & source.places.keys()))


def _raw_head(source: Checkpoint, name: str, prefix: str, inside: set[str]) -> str:
    """What a head is called in the output: under the body's prefix if tuned, or else the base, had it there."""
    under = name in inside or (name in source.places and source.places[name].raw == source.prefix + name)
    return prefix + name if under else name


def _undo_edit(source: Checkpoint, layers: Sequence[Layer], sums: Sequence[Graft]) -> tuple[Edit, Mapping[str, Any]]:
    """The edit that takes layers off, and the config that stood there before the first of them."""
    numbers = _scattered((name, at, graft.before[name]) for graft in sums for name, at in graft.region.sites.items())
    prefix, config = source.prefix, source.config
    for layer in reversed(layers):
        prefix = prefix if layer.prefix is None else layer.prefix
        config = config if layer.config is None else layer.config
    back = undone_tensors(source, layers)
    return Edit(prefix, numbers, back, frozenset(name for layer in layers for name in layer.heads)), config


def _scattered(parts: Iterable[tuple[str, Indices, Array]]) -> dict[str, tuple[Indices, Array]]:
    """Disjoint pieces of one parameter put together: name → (indices, numbers)."""
    pieces: dict[str, list[tuple[Indices, Array]]] = defaultdict(list)
    for name, at, numbers in parts:
        pieces[name].append((at, numbers))
    return {
        name: found[0]
        if len(found) == 1
        else (np.concatenate([at for at, _ in found]), np.concatenate([n for _, n in found]))
        for name, found in pieces.items()
    }
