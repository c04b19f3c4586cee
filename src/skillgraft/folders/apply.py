"""Put grafts on model folders and take them off again: check, apply, remove.

    remove(apply(base, g), g) equals base, bit for bit.

Inputs are never modified; outputs appear complete or not at all. Before anything is written, the numbers at a graft's sites
must be the ones it was made for (`before`); the error tells a wrong base from a graft that is on already and from one that
overlaps another. Several grafts at once are applied as their sum. Grafts are read stretch by stretch: first the beginning of
every parameter, so that a wrong base is known at once; then everything, proved as it is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from skillgraft.errors import FormatError, InputError, NotApplied, Overlap, WrongBase, listed
from skillgraft.files import atomic
from skillgraft.folders.beside import narrow_folder
from skillgraft.folders.chat import agreed_chat, write_chat
from skillgraft.folders.checkpoint import Checkpoint, renamed
from skillgraft.folders.fits import (
    check_comparable,
    check_fits,
    check_not_on,
    differ_at,
    differing,
    raise_misfit,
)
from skillgraft.folders.given import GivenGraft, Named, as_given, based, own_tensors, scaled_grafts
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
from skillgraft.folders.movement import Progress, silent
from skillgraft.folders.reach import Reach, joined, reach, refuse_what_cannot_be_undone
from skillgraft.folders.rewrite import Edit, NewNumbers, copy_edited, fits_layout
from skillgraft.folders.tokens import OWN, refuse_kept_names, write_tokens
from skillgraft.folders.undo import Kept, known, undone_tensors, write_undo
from skillgraft.folders.weight_files import refuse_adapters
from skillgraft.values.graft import Graft, GraftLike, heads_alone, stream_of, total
from skillgraft.values.info import versions
from skillgraft.values.joining import share_entries, summed
from skillgraft.values.naming import Scales
from skillgraft.values.numbers import Array
from skillgraft.values.stream import Digest, GraftStream, Stretch
from skillgraft.values.tails import tail_of, tails_of


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


def check(base: str | Path, *grafts: GraftLike | Named[Any], strict: bool = False) -> CheckReport:
    """Compare grafts with a base, reading headers and sites only. Never raises for a misfit; says what is wrong.

    Several are checked as `apply` would put them on: together. `strict` wants a graft that changes nothing but its sites.
    """
    given = as_given(grafts, "check")
    packed = [named.graft for named in given if named.graft.packed]
    source = Checkpoint.open(base)
    ledger = Ledger.of(source)
    problem = ""
    try:
        given = based(given, source, ledger)
        for named in given:
            check_not_on(source, named.graft, ledger, file=named.file)
            check_fits(source, named.graft, ledger, file=named.file)
        whole = _frame([named.graft for named in given])  # refuses what cannot be combined
        layers = _layers(_overlapping(given), whole, ledger, [named.graft for named in given])
        _edited_names(source, ledger.plus(layers), whole, layers, [named.graft for named in given])
    except InputError as error:
        problem = str(error)
    found: dict[str, int] = {}
    for named in given if problem and not packed else ():  # a packed one knows whether a window fits, not which sites
        for name, count in differing(source, named.graft, ledger).items():
            found[name] = found.get(name, 0) + count
    same = all(source.fingerprint == named.graft.base_fingerprint for named in given)
    changes = joined(reach(source, named.graft) for named in given)
    if strict and changes and not problem:
        problem = f"{listed([named.file for named in given])} changes more than its sites: {'; '.join(changes.lines())}"
    return CheckReport(not problem, same, sum(len(named.graft) for named in given), found, problem, changes)


def apply(
    base: str | Path,
    *grafts: GraftLike | Named[Any],
    out: str | Path,
    scale: Scales = 1.0,
    head: GraftLike | None = None,
    sync: bool = True,
    progress: Progress = silent,
) -> WrittenFolder:
    """Write a copy of the base folder with the grafts on it: one as it is, several as their sum, each times `scale`.

    `scale` is a number for all, or a scale for some by name: {"films": 0.5} for films.safetensors, the others at 1.
    Where the grafts bring different heads of one name, `head` says whose are taken. Without `sync` the output is not forced to
    the disk before it gets its name.
    """
    chosen = None if head is None else stream_of(head)
    given = scaled_grafts(as_given(grafts, "apply"), scale)
    return _apply(base, given, Path(out), head=chosen, sync=sync, progress=progress)


def _apply(
    base: str | Path,
    grafts: Sequence[GivenGraft],
    out: Path,
    *,
    head: GraftStream | None,
    sync: bool,
    progress: Progress,
) -> WrittenFolder:
    source = _open_for(base, out)
    before = Ledger.of(source)
    grafts = based(grafts, source, before)
    deciding = [named.graft for named in grafts] if head is None else [_head_of(grafts, head)]
    whole = _frame([named.scaled for named in grafts], head)
    for named in grafts:
        check_not_on(source, named.graft, before, file=named.file)
        check_fits(source, named.graft, before, file=named.file, most=1)
    groups = _overlapping(grafts)
    layers = _layers(groups, whole, before, deciding)
    after = before.plus(layers)
    add, drop = _edited_names(source, after, whole, layers, deciding)
    tails = _tails(source, whole)
    digests = [Digest() for _ in grafts]
    sums = [
        summed([g.scale * digests[g.place].watching(_proved(source, g, before)) for g in group]) for group in groups
    ]
    edit = Edit(
        after.prefix,
        _numbers(
            source, [sum_.without_heads() for sum_ in sums], lambda sum_, name, stretch: sum_.written(name, stretch)
        ),
        add,
        drop,
        {name: source.shapes[name][0] + len(rows) for name, rows in tails.items()},
        tails,
    )

    def ledger() -> Ledger:
        """Known in full once every graft was read to its end."""
        found = [digests[named.place].of(named.graft) for named in grafts]
        return before.plus(layer.sealed(found) for layer in layers)

    left_out = _write(source, before, after, edit, out, ledger=ledger, sync=sync, progress=progress)
    return WrittenFolder(out, sum(map(len, sums)), (*edit.add, *edit.tails), left_out, ledger().digest_of)


def _tails(source: Checkpoint, whole: Graft) -> dict[str, Array]:
    """Tensor → the rows that it gets. The copy of a tied tensor that the files store beside it gets the same."""
    tails = {tail.tensor: rows for tail, rows in tails_of(whole.heads).items()}
    return {**{twin: tails[name] for twin, name in source.twins.items() if name in tails}, **tails}


def _rows_without(source: Checkpoint, heads: Iterable[str]) -> dict[str, int]:
    """Tensor → how many rows it has once the tails among these heads are off."""
    rows = {tail.tensor: tail.first for name in heads if (tail := tail_of(name))}
    for name, first in rows.items():
        shape = source.shapes.get(name, ())
        if not shape or not 0 < first < shape[0]:
            raise FormatError(
                f"{source.path}: skillgraft.json says that {name} got rows after {first}; it has {list(shape)}"
            )
    return {**{twin: rows[name] for twin, name in source.twins.items() if name in rows}, **rows}


def _frame(grafts: Sequence[GraftStream], head: GraftStream | None = None) -> Graft:
    """The sum of the grafts without its entries: scope, heads, provenance. Grafts that do not go together are refused."""
    return total([heads_alone(graft) for graft in grafts], head=None if head is None else heads_alone(head))


def _proved(source: Checkpoint, named: GivenGraft, ledger: Ledger) -> GraftStream:
    """The graft, each stretch of which is compared with the model as it is read. A packed one proves itself, by its digests."""
    if named.proved:
        return named.graft

    def stretches(name: str) -> Iterator[Stretch]:
        for stretch in named.graft.stretches(name):
            if differ_at(source, name, stretch, stretch.before):
                raise_misfit(source, named.graft, ledger, named.file)
            yield stretch

    return replace(named.graft, stretches=stretches)


def remove(
    folder: str | Path, *grafts: GraftLike | Named[Any], out: str | Path, sync: bool = True, progress: Progress = silent
) -> WrittenFolder:
    """Write a copy of a grafted folder without these grafts: the saved old numbers go back, nothing is subtracted."""
    given = {named.graft.digest: named for named in as_given(grafts, "remove")}
    source = _open_for(folder, Path(out))
    before = Ledger.of(source)
    for digest, named in given.items():
        if digest not in before.digests:
            on = listed(before.files) or "nothing"
            raise NotApplied(f"{named.file} is not on {source.path}; skillgraft.json lists {on}")
    layers = [layer for layer in before.applied if layer.digests & given.keys()]
    sums = [_sum_on(layer, given, source) for layer in layers]
    after = before.minus(layers)
    edit = Edit(
        after.prefix,
        _numbers(source, sums, lambda _sum, _name, stretch: stretch.before),
        undone_tensors(source, before, after),
        (before.heads - after.heads) & source.places.keys(),
        _rows_without(source, before.heads - after.heads),
    )
    left_out = _write(source, before, after, edit, Path(out), ledger=lambda: after, sync=sync, progress=progress)
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
    source: Checkpoint,
    before: Ledger,
    after: Ledger,
    edit: Edit,
    target: Path,
    *,
    ledger: Callable[[], Ledger],
    sync: bool,
    progress: Progress,
) -> tuple[str, ...]:
    """The output folder, whole or not at all; returns what was left out."""
    kept = Kept.of(source, before)
    if not after.applied:
        restored = replace(edit, layouts=kept.headers)
        fits = bool(kept.headers) and fits_layout(source, restored)
        edit, kept = (restored, kept) if fits else (edit, kept.without_layout())
    tokens = any("tokens" in layer.chat for layer in (*before.applied, *after.applied))
    if not any("tokens" in layer.chat for layer in before.applied) and tokens:
        refuse_kept_names(source.path)
    skip = ["config.json", CARD, BASE_CARD, *(OWN if tokens else ())]
    with atomic.new_folder(target, sync=sync) as folder:
        narrow_folder(folder, like=source.path)
        copied = copy_edited(source, folder, edit, skip=skip, progress=progress)
        after = ledger()
        if tokens:
            write_tokens(source.path, [layer.chat for layer in after.applied], folder)
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


def _sum_on(layer: Layer, given: Mapping[str, GivenGraft], source: Checkpoint) -> GraftStream:
    """What this layer wrote; that it still stands there is proved as it is read."""
    absent = [member.file for member in layer.members if member.digest not in given]
    files = listed([member.file for member in layer.members])
    if absent:
        present = listed([member.file for member in layer.members if member.digest in given])
        raise Overlap(
            f"{present} overlaps {listed(absent)} on {source.path}: they come off only together; name all of them"
        )
    packed = [given[member.digest].file for member in layer.members if given[member.digest].graft.packed]
    if packed and (len(layer.members) > 1 or layer.members[0].scale != 1.0):
        raise InputError(
            f"{listed(packed)} is packed, and came on {source.path} scaled or as a part of a sum: the base's numbers cannot "
            "be told from these; unpack it with `skillgraft combine G --base BASE -o OUT` and take that off"
        )
    own = own_tensors(source, Ledger.of(source))
    grafts = [given[member.digest].graft.based(own, "after") for member in layer.members]
    on = summed([member.scale * graft.without_heads() for member, graft in zip(layer.members, grafts, strict=True)])
    for name in on.counts:
        check_comparable(source, on, name, files, Ledger.of(source))

    def proved(name: str) -> Iterator[Stretch]:
        for stretch in on.stretches(name):
            if differ_at(source, name, stretch, on.written(name, stretch)):
                differ = sum(differ_at(source, name, each, on.written(name, each)) for each in on.stretches(name))
                raise WrongBase(
                    f"{source.path} was changed after the graft came on: {differ} of {on.counts[name]} sites differ in "
                    f"{name}; start from a copy that nobody edited"
                )
            yield stretch

    return replace(on, stretches=proved)


def _head_of(grafts: Sequence[GivenGraft], head: GraftStream) -> GraftStream:
    """The one of the grafts whose head was chosen."""
    found = next((named.graft for named in grafts if named.graft.digest == head.digest), None)
    if found is None:
        raise InputError(
            f"the head to take must be that of one of the grafts: {listed([named.file for named in grafts])}"
        )
    return found


def _overlapping(grafts: Sequence[GivenGraft]) -> list[list[GivenGraft]]:
    """Grafts in groups that share no entry with each other."""
    groups: list[list[GivenGraft]] = []
    for named in grafts:
        touching = [g for g in groups if any(share_entries(named.graft, other.graft) for other in g)]
        merged = [other for group in touching for other in group] + [named]
        groups = [group for group in groups if group not in touching] + [merged]
    return groups


def _agreed_prefix(grafts: Sequence[GraftStream]) -> str | None:
    """What the body's names begin with under the grafts' architecture, if they say one thing."""
    prefixes = {graft.info["prefix"] for graft in grafts if "prefix" in graft.info}
    return prefixes.pop() if len(prefixes) == 1 else None


def _layers(
    groups: Sequence[Sequence[GivenGraft]],
    whole: Graft,
    before: Ledger,
    deciding: Sequence[GraftStream],
) -> list[Layer]:
    """What the ledger notes: a layer for each group of grafts that overlap."""
    settings, prefix = agreed_settings(deciding), _agreed_prefix(deciding)
    return [_layer(group, whole, before, deciding, settings=settings, prefix=prefix) for group in groups]


def _edited_names(
    source: Checkpoint, after: Ledger, whole: Graft, layers: Sequence[Layer], deciding: Sequence[GraftStream]
) -> tuple[dict[str, Array], frozenset[str]]:
    """Whole tensors by their names in the copy, and the base's that go; proved to come off again by their names alone."""
    heads = {name: head for name, head in whole.heads.items() if tail_of(name) is None}
    add = {_raw_head(source, name, after.prefix, deciding): head for name, head in heads.items()}
    drop = frozenset({*heads, *(name for layer in layers for name in layer.removed)} & source.places.keys())
    files = listed([member.file for layer in layers for member in layer.members])
    if len(add) < len(heads):
        raise InputError(f"{files} would give two whole tensors one name, which no reader could tell apart")
    refuse_what_cannot_be_undone(source, prefix=after.prefix, added=add, dropped=drop, file=files)
    return add, drop


def _layer(
    group: Sequence[GivenGraft],
    whole: Graft,
    before: Ledger,
    deciding: Sequence[GraftStream],
    *,
    settings: Mapping[str, Any],
    prefix: str | None,
) -> Layer:
    """What the ledger notes about one group: enough to take it off again, whatever else comes and goes.

    The members' digests are known when they have been read, and come in then.
    """
    members = tuple(Member(str(named.place), named.file, named.scale, len(named.graft)) for named in group)
    mine = [named.graft for named in group if any(named.graft is graft for graft in deciding)]
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


def _raw_head(source: Checkpoint, name: str, prefix: str, deciding: Sequence[GraftStream]) -> str:
    """What a head is called in the output: under the body's prefix if tuned, or else the base, had it there."""
    if any(name in graft.info.get("body_heads", []) for graft in deciding):
        return prefix + name
    return renamed(source.places[name].raw, source.prefix, prefix) if name in source.places else name


def _numbers(
    source: Checkpoint, sums: Sequence[GraftStream], numbers: Callable[[GraftStream, str, Stretch], Array]
) -> dict[str, NewNumbers]:
    """Name → what goes there, of several disjoint grafts one after the other.

    A tied copy that the files store beside a parameter changes with it, unless the graft treats it on its own.
    """
    copies: dict[str, list[str]] = defaultdict(list)
    for twin, name in source.twins.items():
        copies[name].append(twin)
    pieces: dict[str, list[tuple[int, Callable[[], Iterator[tuple[Stretch, Array]]]]]] = defaultdict(list)
    for graft in sums:
        for name, count in graft.counts.items():
            twins = [twin for twin in copies[name] if twin not in graft.scope.shapes]
            for target in (name, *twins):
                pieces[target].append((count, partial(_changes, graft, name, numbers)))
    return {name: NewNumbers(sum(n for n, _ in found), [each for _, each in found]) for name, found in pieces.items()}


def _changes(
    graft: GraftStream, name: str, numbers: Callable[[GraftStream, str, Stretch], Array]
) -> Iterator[tuple[Stretch, Array]]:
    return ((stretch, numbers(graft, name, stretch)) for stretch in graft.stretches(name))
