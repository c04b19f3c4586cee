"""Put grafts on model folders and take them off again: check, apply, remove.

    remove(apply(base, g), g) equals base, bit for bit.

Inputs are never modified; outputs appear complete or not at all. Before anything is written, the numbers at a graft's sites
must be the ones it was made for (`before`); the error tells a wrong base from a graft that is on already and from one that
overlaps another. Several grafts at once are applied as their sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.errors import (
    AlreadyApplied,
    FormatError,
    HeadConflict,
    InputError,
    NotApplied,
    Overlap,
    WrongBase,
    listed,
)
from skillgraft.files import atomic
from skillgraft.folders.beside import narrow_folder
from skillgraft.folders.chat import agreed_chat, check_chat, write_chat
from skillgraft.folders.checkpoint import Checkpoint, renamed
from skillgraft.folders.ledger import (
    BASE_CARD,
    CARD,
    LEDGER,
    Layer,
    Ledger,
    Member,
    agreed_settings,
    settings_of,
    write_card,
    write_config,
)
from skillgraft.folders.reach import Reach, joined, reach, refuse_unpermitted, refuse_what_cannot_be_undone
from skillgraft.folders.rewrite import Edit, copy_edited, fits_layout
from skillgraft.folders.undo import Kept, known, undone_tensors, write_undo
from skillgraft.folders.weight_files import refuse_adapters
from skillgraft.values.graft import Graft, GraftLike, graft_of, total
from skillgraft.values.info import versions
from skillgraft.values.numbers import Array, bits, same_bits
from skillgraft.values.region import Indices


def check_not_on(source: Checkpoint, graft: Graft, ledger: Ledger, *, file: str) -> None:
    """Raise if the folder lists the graft, at whatever scale it came on."""
    if graft.digest in ledger.digests:
        raise AlreadyApplied(f"{file} is on {source.path} already (see skillgraft.json); remove it first")


def check_fits(source: Checkpoint, graft: Graft, ledger: Ledger, *, file: str) -> None:
    """Raise unless the graft changes only what grafts may, its sites hold `before`, and no other graft's head is in its way."""
    refuse_unpermitted(source, graft, file=file)
    _check_sites(source, graft, ledger, file)
    check_chat(graft.info.get("chat", {}), file)
    for name, head in graft.heads.items():
        if name in ledger.heads and not same_bits(source.read(name), head):
            raise HeadConflict(
                f"{file} brings another {name} than {listed(ledger.files)} on {source.path}; "
                "apply them together to the base and choose whose to keep (--head G)"
            )


def differing(source: Checkpoint, graft: Graft) -> dict[str, int]:
    """Parameter → how many of its sites do not hold the graft's `before`; missing parameters count whole."""
    result = {}
    for name, at in graft.region.sites.items():
        foreign = source.shapes.get(name) != graft.region.scope.shapes[name]
        if foreign or source.dtypes[name] != graft.before[name].dtype:
            result[name] = len(at)
        else:
            differ = int((bits(source.at(name, at)) != bits(graft.before[name])).sum())
            if differ:
                result[name] = differ
    return result


def _check_sites(source: Checkpoint, graft: Graft, ledger: Ledger, file: str) -> None:
    """Raise unless the model's numbers at the sites are `before`, saying which of the possible reasons it is."""
    found = differing(source, graft)
    if not found:
        return
    for name in found:
        check_comparable(source, graft, name, file)
    name, count = max(found.items(), key=lambda item: item[1])
    if _holds_already(source, graft):
        raise AlreadyApplied(f"{source.path} holds the numbers of {file} already at all {len(graft)} sites")
    if ledger.applied:
        raise Overlap(
            f"{file} overlaps what is on {source.path} ({listed(ledger.files)}): {count} of {len(graft.before[name])} sites "
            f"differ in {name}; apply them together to the base instead: they are added up"
        )
    raise WrongBase(
        f"{source.path} is not the base of {file}: in {name} {count} of {len(graft.before[name])} sites hold other numbers "
        f"({sum(found.values())} of {len(graft)} in all); it was made for {_made_for(graft)}"
    )


def check_comparable(source: Checkpoint, graft: Graft, name: str, file: str) -> None:
    """Raise unless the model has this parameter in the graft's shape and format."""
    shape, dtype = graft.region.scope.shapes[name], graft.before[name].dtype
    if name not in source.shapes:
        raise WrongBase(f"{file} changes {name}, which {source.path} does not have; it was made for {_made_for(graft)}")
    if source.shapes[name] != shape:
        raise WrongBase(
            f"{name} is {list(source.shapes[name])} in {source.path}, {list(shape)} in {file}, "
            f"which was made for {_made_for(graft)}"
        )
    if source.dtypes[name] != dtype:
        raise WrongBase(
            f"{file} holds {dtype} numbers, {name} in {source.path} is {source.dtypes[name]}; "
            "use the base it was extracted from, or extract again from a pair in this format"
        )


def _made_for(graft: Graft) -> str:
    return f"{graft.info.text('base') or 'an unnamed base'} (fingerprint {graft.base_fingerprint[:12]}…)"


def _holds_already(source: Checkpoint, graft: Graft) -> bool:
    return all((bits(source.at(n, at)) == bits(graft.written(n))).all() for n, at in graft.region.sites.items())


@dataclass(frozen=True)
class Named:
    """A graft and what to call it in messages and in the ledger, where that is not its file's own name."""

    graft: Graft
    file: str


def _named(grafts: Sequence[GraftLike | Named], verb: str) -> list[Named]:
    """Grafts with what their files are called; one that has no file is called after its task or its tuned model."""
    if not grafts:
        raise InputError(f"{verb} needs at least one graft, found none")
    return [each if isinstance(each, Named) else Named(graft_of(each), _called(each)) for each in grafts]


def _called(graft: GraftLike) -> str:
    if not isinstance(graft, Graft):
        return Path(graft).name
    return graft.info.text("task") or graft.info.text("tuned") or "the graft"


@dataclass(frozen=True)
class WrittenFolder:
    """What was written: how many entries and whole tensors changed, which weights in other formats were left out; and what is
    on the folder now, by file and digest."""

    path: Path
    entries: int
    whole: tuple[str, ...]
    left_out: tuple[str, ...]
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckReport:
    """Whether a graft fits a base: everything that `apply` would check; and what it would change besides its sites."""

    fits: bool
    same_fingerprint: bool
    entries: int
    differing: Mapping[str, int]
    problem: str
    reach: Reach


def check(base: str | Path, *grafts: GraftLike | Named, strict: bool = False) -> CheckReport:
    """Compare grafts with a base, reading headers and sites only. Never raises for a misfit; says what is wrong.

    Several are checked as `apply` would put them on: together. `strict` wants a graft that changes nothing but its sites.
    """
    given = _named(grafts, "check")
    source = Checkpoint.open(base)
    ledger = Ledger.of(source)
    problem = ""
    try:
        for named in given:
            check_not_on(source, named.graft, ledger, file=named.file)
            check_fits(source, named.graft, ledger, file=named.file)
        whole = total([named.graft for named in given])  # refuses what cannot be combined
        layers = _layers(given, whole, ledger, [named.graft for named in given], scale=1.0)
        _edited_names(source, ledger.plus(layers), whole, layers, [named.graft for named in given])
    except InputError as error:
        problem = str(error)
    found: dict[str, int] = {}
    for named in given if problem else ():
        for name, count in differing(source, named.graft).items():
            found[name] = found.get(name, 0) + count
    same = all(source.fingerprint == named.graft.base_fingerprint for named in given)
    changes = joined(reach(source, named.graft) for named in given)
    if strict and changes and not problem:
        problem = f"{listed([named.file for named in given])} changes more than its sites: {'; '.join(changes.lines())}"
    return CheckReport(not problem, same, sum(len(named.graft) for named in given), found, problem, changes)


def apply(
    base: str | Path,
    *grafts: GraftLike | Named,
    out: str | Path,
    scale: float = 1.0,
    head: GraftLike | None = None,
    sync: bool = True,
) -> WrittenFolder:
    """Write a copy of the base folder with the grafts on it: one as it is, several as their sum, each times `scale`.

    Where the grafts bring different heads of one name, `head` says whose are taken. Without `sync` the output is not forced to
    the disk before it gets its name.
    """
    chosen = None if head is None else graft_of(head)
    return _apply(base, _named(grafts, "apply"), Path(out), scale=scale, head=chosen, sync=sync)


def _apply(
    base: str | Path, grafts: Sequence[Named], out: Path, *, scale: float, head: Graft | None, sync: bool
) -> WrittenFolder:
    source = _open_for(base, out)
    before = Ledger.of(source)
    _check_head(grafts, head)
    whole = total([_times(named.graft, scale) for named in grafts], head=head)  # refuses what cannot be combined
    for named in grafts:
        check_not_on(source, named.graft, before, file=named.file)
        check_fits(source, _times(named.graft, scale), before, file=named.file)
    deciding = [head] if head else [named.graft for named in grafts]
    layers = _layers(grafts, whole, before, deciding, scale=scale)
    after = before.plus(layers)
    add, drop = _edited_names(source, after, whole, layers, deciding)
    sums = [total([_times(named.graft.without_heads(), scale) for named in group]) for group in _overlapping(grafts)]
    edit = Edit(after.prefix, _numbers(source, sums, Graft.written), add, drop)
    left_out = _write(source, before, after, edit, out, sync=sync)
    return WrittenFolder(out, len(whole), tuple(edit.add), left_out, after.digest_of)


def remove(folder: str | Path, *grafts: GraftLike | Named, out: str | Path, sync: bool = True) -> WrittenFolder:
    """Write a copy of a grafted folder without these grafts: the saved old numbers go back, nothing is subtracted."""
    given = {named.graft.digest: named for named in _named(grafts, "remove")}
    source = _open_for(folder, Path(out))
    before = Ledger.of(source)
    for named in given.values():
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
    left_out = _write(source, before, after, edit, Path(out), sync=sync)
    return WrittenFolder(Path(out), sum(map(len, sums)), tuple(edit.add), left_out, after.digest_of)


def _open_for(folder: str | Path, target: Path) -> Checkpoint:
    """The input of a run, once it is clear that its output can be written."""
    atomic.check_target(target)
    refuse_adapters(folder)
    source = Checkpoint.open(folder)
    if target.resolve().is_relative_to(source.path.resolve()):
        raise InputError(f"{target} lies inside {source.path}, which stays as it is; choose an output outside it")
    return source


def _write(
    source: Checkpoint, before: Ledger, after: Ledger, edit: Edit, target: Path, *, sync: bool
) -> tuple[str, ...]:
    """The output folder, whole or not at all; returns what was left out."""
    kept = Kept.of(source, before)
    if not after.applied:
        restored = replace(edit, layouts=kept.headers)
        fits = bool(kept.headers) and fits_layout(source, restored)
        edit, kept = (restored, kept) if fits else (edit, kept.without_layout())
    with atomic.new_folder(target, sync=sync) as folder:
        narrow_folder(folder, like=source.path)
        copied = copy_edited(source, folder, edit, skip=["config.json", CARD, BASE_CARD])
        write_config(after, folder, like=source.path)
        if any(layer.chat for layer in (*before.applied, *after.applied)):
            write_chat(after.base_chat, [layer.chat for layer in after.applied], folder)
        if after.applied:
            write_undo(source, before, after, folder, kept=kept.with_headers(copied.old_headers))
        else:
            kept.write_files(folder, like=source)
        after.write(folder, versions=versions(), like=known(source, LEDGER))
        write_card(source, after, folder)
        _read_back(folder, edit, after)
    return copied.left_out


def _read_back(folder: Path, edit: Edit, after: Ledger) -> None:
    """What was written is opened as everybody will open it, before it gets its name."""
    written = Checkpoint.open(folder)
    if written.prefix != edit.prefix or Ledger.of(written).applied != after.applied:
        raise FormatError(
            f"{folder} would not be read as what was written: the prefix {written.prefix!r}, not {edit.prefix!r}"
        )


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
        differ = int((bits(source.at(name, at)) != bits(on.written(name))).sum())
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
    prefixes = {graft.info["prefix"] for graft in grafts if "prefix" in graft.info}
    return prefixes.pop() if len(prefixes) == 1 else None


def _layers(
    grafts: Sequence[Named], whole: Graft, before: Ledger, deciding: Sequence[Graft], *, scale: float
) -> list[Layer]:
    """What the ledger notes: a layer for each group of grafts that overlap."""
    settings, prefix = agreed_settings(deciding), _agreed_prefix(deciding)
    return [
        _layer(group, whole, before, deciding, settings=settings, prefix=prefix, scale=scale)
        for group in _overlapping(grafts)
    ]


def _edited_names(
    source: Checkpoint, after: Ledger, whole: Graft, layers: Sequence[Layer], deciding: Sequence[Graft]
) -> tuple[dict[str, Array], frozenset[str]]:
    """Whole tensors by their names in the copy, and the base's that go; proved to come off again by their names alone."""
    add = {_raw_head(source, name, after.prefix, deciding): head for name, head in whole.heads.items()}
    drop = frozenset({*whole.heads, *(name for layer in layers for name in layer.removed)} & source.places.keys())
    files = listed([member.file for layer in layers for member in layer.members])
    if len(add) < len(whole.heads):
        raise InputError(f"{files} would give two whole tensors one name, which no reader could tell apart")
    refuse_what_cannot_be_undone(source, prefix=after.prefix, added=add, dropped=drop, file=files)
    return add, drop


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
        agreed_chat(mine),
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
