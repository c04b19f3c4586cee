"""Whether a graft can go on a model folder: the numbers at its sites must be the ones it was made for (`before`).

The error tells apart a wrong base, a graft that is on already, one that overlaps another, and a clash of heads.
"""

from __future__ import annotations

from skillgraft.checkpoint import Checkpoint, Tensors
from skillgraft.dtypes import bits, same_bits
from skillgraft.errors import AlreadyApplied, HeadConflict, Overlap, WrongBase, listed
from skillgraft.graft import Graft
from skillgraft.ledger import Ledger


def check_not_on(source: Checkpoint, graft: Graft, ledger: Ledger, *, file: str) -> None:
    """Raise if the folder lists the graft, at whatever scale it came on."""
    if graft.digest in ledger.digests:
        raise AlreadyApplied(f"{file} is on {source.path} already (see skillgraft.json); remove it first")


def check_fits(source: Checkpoint, graft: Graft, ledger: Ledger, *, file: str) -> None:
    """Raise unless the numbers at the graft's sites are its `before` and no other graft's head is in its way."""
    _check_sites(source, graft, ledger, file)
    for name, head in graft.heads.items():
        if name in ledger.heads and not same_bits(source.read(name), head):
            raise HeadConflict(
                f"{file} brings another {name} than {listed(ledger.files)} on {source.path}; "
                "apply them together to the base and choose whose to keep (--head G)"
            )


def differing(source: Tensors, graft: Graft) -> dict[str, int]:
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


def _holds_already(source: Tensors, graft: Graft) -> bool:
    return all((bits(source.flat(n)[at]) == bits(graft.written(n))).all() for n, at in graft.region.sites.items())
