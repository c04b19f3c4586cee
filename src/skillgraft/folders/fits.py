"""Whether a graft fits a model: the numbers at its sites must be those it was made for, and if they are not, why.

Read stretch by stretch; the error tells a wrong base from a graft that is on already and from one that overlaps another.
"""

from __future__ import annotations

from itertools import islice
from typing import NoReturn

import numpy as np

from skillgraft.errors import AlreadyApplied, HeadConflict, Overlap, WrongBase, listed
from skillgraft.folders.chat import check_chat
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.ledger import Ledger
from skillgraft.folders.reach import refuse_unpermitted
from skillgraft.folders.tokens import check_new
from skillgraft.values.numbers import Array, bits, same_bits
from skillgraft.values.region import Shape
from skillgraft.values.stream import GraftStream, Stretch
from skillgraft.values.tails import tail_of, vocabulary_size


def check_not_on(source: Checkpoint, graft: GraftStream, ledger: Ledger, *, file: str) -> None:
    """Raise if the folder lists the graft, at whatever scale it came on."""
    if ledger.digests and graft.digest in ledger.digests:
        raise AlreadyApplied(f"{file} is on {source.path} already (see skillgraft.json); remove it first")


def check_fits(source: Checkpoint, graft: GraftStream, ledger: Ledger, *, file: str, most: int | None = None) -> None:
    """Raise unless the graft changes only what grafts may, its sites hold `before`, and no other graft's head is in its way.

    Of each parameter the first `most` stretches are looked at, or all.
    """
    refuse_unpermitted(source, graft, file=file)
    if differing(source, graft, ledger, most=most):
        raise_misfit(source, graft, ledger, file)
    chat = graft.info.get("chat", {})
    check_chat(chat, file)
    size = vocabulary_size(graft.heads) or source.config.get("vocab_size")
    check_new(source.path, chat, rows=size if isinstance(size, int) else None, file=file)
    for name, head in graft.heads.items():
        if name in ledger.heads and not same_bits(source.read(name), head):
            raise HeadConflict(
                f"{file} brings another {name} than {listed(ledger.files)} on {source.path}; "
                "apply them together to the base and choose whose to keep (--head G)"
            )


def own_shape(source: Checkpoint, ledger: Ledger, name: str) -> Shape | None:
    """A tensor's shape without the rows that grafts appended; None where the model has none of that name."""
    shape = source.shapes.get(name)
    first = next((tail.first for head in ledger.heads if (tail := tail_of(head)) and tail.tensor == name), None)
    return shape if shape is None or first is None else (first, *shape[1:])


def differing(source: Checkpoint, graft: GraftStream, ledger: Ledger, *, most: int | None = None) -> dict[str, int]:
    """Parameter → how many of its sites do not hold the graft's `before`; missing parameters count whole."""
    result = {}
    for name, count in graft.counts.items():
        foreign = own_shape(source, ledger, name) != graft.scope.shapes[name]
        if foreign or source.dtypes[name] != graft.formats[name]:
            result[name] = count
        else:
            differ = sum(differ_at(source, name, each, each.before) for each in islice(graft.stretches(name), most))
            if differ:
                result[name] = differ
    return result


def differ_at(source: Checkpoint, name: str, stretch: Stretch, numbers: Array) -> int:
    """At how many of a stretch's sites the model holds other numbers."""
    few = 32 * len(stretch) < stretch.high - stretch.low
    here = source.at(name, stretch.sites) if few else source.flat(name, stretch.low, stretch.high)[stretch.where]
    return int(np.count_nonzero(bits(here) != bits(numbers)))


def raise_misfit(source: Checkpoint, graft: GraftStream, ledger: Ledger, file: str) -> NoReturn:
    """The model's numbers at the sites are not `before`: say which of the possible reasons it is."""
    found = differing(source, graft, ledger)
    for name in found:
        check_comparable(source, graft, name, file, ledger)
    name, count = max(found.items(), key=lambda item: item[1])
    if _holds_already(source, graft):
        raise AlreadyApplied(f"{source.path} holds the numbers of {file} already at all {len(graft)} sites")
    if ledger.applied:
        raise Overlap(
            f"{file} overlaps what is on {source.path} ({listed(ledger.files)}): {count} of {graft.counts[name]} sites "
            f"differ in {name}; apply them together to the base instead: they are added up"
        )
    raise WrongBase(
        f"{source.path} is not the base of {file}: in {name} {count} of {graft.counts[name]} sites hold other numbers "
        f"({sum(found.values())} of {len(graft)} in all); it was made for {_made_for(graft)}"
    )


def check_comparable(source: Checkpoint, graft: GraftStream, name: str, file: str, ledger: Ledger) -> None:
    """Raise unless the model has this parameter in the graft's shape and format."""
    shape, dtype = graft.scope.shapes[name], graft.formats[name]
    if name not in source.shapes:
        raise WrongBase(f"{file} changes {name}, which {source.path} does not have; it was made for {_made_for(graft)}")
    if own_shape(source, ledger, name) != shape:
        raise WrongBase(
            f"{name} is {list(source.shapes[name])} in {source.path}, {list(shape)} in {file}, "
            f"which was made for {_made_for(graft)}"
        )
    if source.dtypes[name] != dtype:
        raise WrongBase(
            f"{file} holds {dtype} numbers, {name} in {source.path} is {source.dtypes[name]}; "
            "use the base it was extracted from, or extract again from a pair in this format"
        )


def _made_for(graft: GraftStream) -> str:
    return f"{graft.info.text('base') or 'an unnamed base'} (fingerprint {graft.base_fingerprint[:12]}…)"


def _holds_already(source: Checkpoint, graft: GraftStream) -> bool:
    return all(
        not differ_at(source, name, stretch, graft.written(name, stretch))
        for name in graft.counts
        for stretch in graft.stretches(name)
    )
