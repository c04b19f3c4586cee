"""What a graft would change in a model besides the numbers at its sites, by name; and what no graft may change, refused.

    found = reach(source, graft)
    found.replaced, found.added, found.removed, found.config     # whole tensors, keys of config.json

`values.permitted` has the closed lists. Removal is proved on the names before anything is written: the copy's own names must
give the same body back, under the prefix that the ledger will note.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from skillgraft.errors import InputError, listed
from skillgraft.folders.checkpoint import Checkpoint, renamed
from skillgraft.folders.ledger import settings_of
from skillgraft.folders.tokens import tokens_of
from skillgraft.values.graft import Graft
from skillgraft.values.names import body_prefix
from skillgraft.values.numbers import Array, is_float
from skillgraft.values.permitted import key_problem, prefix_problem, removal_problem, tail_problem, whole_problem
from skillgraft.values.stream import GraftStream
from skillgraft.values.tails import Tail, tail_of, tails_of, vocabulary_size


@dataclass(frozen=True)
class Reach:
    """Whole tensors that a graft replaces, adds or takes away, and the keys of config.json that it sets."""

    replaced: tuple[str, ...] = ()
    appended: tuple[str, ...] = ()  # tails: rows after a tensor's last
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    chat: tuple[str, ...] = ()  # "template", and keys of generation_config.json

    def __bool__(self) -> bool:
        return bool(self.replaced or self.appended or self.added or self.removed or self.config or self.chat)

    def lines(self) -> list[str]:
        """A line for each kind of change that there is."""
        named = {"replaces": self.replaced, "adds": self.added, "takes away": self.removed}
        lines = [f"{verb} whole: {listed(names, most=20)}" for verb, names in named.items() if names]
        lines += [f"appends rows: {listed(self.appended, most=20)}"] if self.appended else []
        keys = {"sets in config.json": sorted(self.config), "sets of the chat": sorted(self.chat)}
        return [*lines, *(f"{what}: {listed(found, most=20)}" for what, found in keys.items() if found)]


def reach(source: Checkpoint, graft: Graft | GraftStream) -> Reach:
    """What the graft would change in this model besides its sites. A key that the config has so already is no change."""
    held = source.places.keys()
    return Reach(
        tuple(name for name in graft.heads if name in held),
        tuple(name for name in graft.heads if tail_of(name)),
        tuple(name for name in graft.heads if name not in held and not tail_of(name)),
        tuple(sorted({*graft.info.get("removed", [])} & held - graft.heads.keys())),
        {
            key: value
            for key, value in settings_of(graft).items()
            if key not in source.config or source.config[key] != value
        },
        _of_chat(graft),
    )


def _of_chat(graft: Graft | GraftStream) -> tuple[str, ...]:
    """What the graft brings of a chat: its template, keys of generation_config.json, new tokens and their roles."""
    chat = graft.info.get("chat", {})
    stops = chat.get("generation", {})
    return (
        *(["template"] if "template" in chat else []),
        *(sorted(map(str, stops)) if isinstance(stops, dict) else []),
        *(["tokens"] if "tokens" in chat else []),
        *(["roles"] if "roles" in chat else []),
    )


def in_words(graft: Graft | GraftStream) -> list[str]:
    """What the graft would change in a model and what it cannot, for a person who does not know its maker."""
    counts = graft.region.sites if isinstance(graft, Graft) else graft.counts
    sites = f"{len(graft):,} entries of {len(counts)} tensors" if len(graft) else "no entry of any tensor"
    heads = [f"{name} {list(head.shape)}" for name, head in graft.heads.items() if not tail_of(name)]
    tails = [
        f"{len(rows)} to {tail.tensor}, after row {tail.first - 1}" for tail, rows in tails_of(graft.heads).items()
    ]
    tokens = tokens_of(graft.info.get("chat", {}))
    prefix = f"names that begin with {graft.info.text('prefix')!r}" if graft.info.text("prefix") else ""
    kinds = {
        "bring whole": heads,
        "append rows": tails,
        "add tokens": [repr(token["content"])[:40] for token in tokens],
        "take away, where the model has them": sorted(map(str, graft.info.get("removed", []))),
        "set in config.json": [f"{key} = {reprlib.repr(value)}" for key, value in sorted(settings_of(graft).items())],
        "give the body": [prefix] if prefix else [],
        "set of the chat": list(_of_chat(graft)),
    }
    would = [f"would {verb}: {listed(found, most=20)}" for verb, found in kinds.items() if found]
    tokenizer = "a token that the base has" if tokens else "the tokenizer"
    sandbox = " outside the sandbox that chat templates run in" if "template" in _of_chat(graft) else ""
    cannot = (
        f"cannot: run code{sandbox}, touch another tensor, another key of config.json, {tokenizer} "
        "or any file outside the copy"
    )
    return [f"would change: {sites}", *would, *_refusals(graft), cannot]


def _refusals(graft: Graft | GraftStream) -> list[str]:
    """Why apply will refuse the graft whatever the model is, if it will."""
    heads = ((name, _named_problem(name, head)) for name, head in graft.heads.items())
    keys = ((key, key_problem(key, value)) for key, value in settings_of(graft).items())
    prefix = graft.info.text("prefix")
    found = [
        f"{name!r:.80} {problem}" for name, problem in (*heads, *keys, (prefix, prefix_problem(prefix))) if problem
    ]
    return [f"apply refuses it: {listed(found)}"] if found else []


def _named_problem(name: str, head: Array) -> str:
    """Why no model may get this head, or ""."""
    tail = tail_of(name)
    return (
        tail_problem(tail.tensor) if tail else whole_problem(name, held=False, whole_numbers=not is_float(head.dtype))
    )


def joined(every: Iterable[Reach]) -> Reach:
    """What several grafts change together."""
    found = list(every)
    return Reach(
        tuple(sorted({name for one in found for name in one.replaced})),
        tuple(sorted({name for one in found for name in one.appended})),
        tuple(sorted({name for one in found for name in one.added})),
        tuple(sorted({name for one in found for name in one.removed})),
        {key: value for one in found for key, value in one.config.items()},
        tuple(sorted({name for one in found for name in one.chat})),
    )


def refuse_unpermitted(source: Checkpoint, graft: Graft | GraftStream, *, file: str) -> None:
    """Raise if the graft would change what no graft may change: metadata has no power beside the closed lists."""
    refuse_other_tails(source, graft, file=file)
    for name, head in graft.heads.items():
        if tail_of(name) is None and (problem := _head_problem(source, name, head)):
            verb = "replace" if name in source.places else "add"
            raise InputError(f"{file} would {verb} {name!r:.200} whole, which {problem}; a graft may bring heads alone")
    for name in graft.info.get("removed", []):
        # The second copy of a tied tensor may go, and what counts instead of weighing.
        free = name not in source.places or name in source.twins or not is_float(source.dtypes[name])
        if not free and name not in graft.heads and (problem := removal_problem(name)):
            raise InputError(
                f"{file} would take away {name!r:.200}, which {problem}; a graft may take away heads alone"
            )
    for key, value in settings_of(graft).items():
        if problem := key_problem(key, value):
            raise InputError(
                f"{file} would set {key!r:.200} in config.json, which {problem}; use a graft made anew by extract"
            )
    if problem := prefix_problem(graft.info.text("prefix")):
        raise InputError(
            f"{file} would begin the names of the body with {graft.info.text('prefix')!r:.200}, which {problem}"
        )


def refuse_other_tails(source: Checkpoint, graft: Graft | GraftStream, *, file: str) -> None:
    """Raise unless the graft's new rows fit the model, all of one number, and make the size true that its config would say."""
    tails, size = tails_of(graft.heads), vocabulary_size(graft.heads)
    stated = graft.info.get("config", {}).get("vocab_size", size)
    if stated != size:
        found = f"they make {size}, not {stated!r:.40}" if size else "it brings none"
        raise InputError(f"{file} would set 'vocab_size' in config.json, which must be what its new rows make: {found}")
    for tail, rows in tails.items():
        if problem := _tail_problem(source, tail, rows):
            raise InputError(f"{file} would append rows to {tail.tensor!r:.200}, which {problem}")
        if tail.first + len(rows) != size:
            raise InputError(
                f"{file} would give {listed([t.tensor for t in tails])} different numbers of rows; a vocabulary has one size"
            )
    grown, before = {tail.tensor for tail in tails}, source.config.get("vocab_size")
    short = [
        name for name in _vocabularies(source, before) if name not in grown and source.twins.get(name) not in grown
    ]
    if tails and short:
        raise InputError(
            f"{file} appends rows to {listed(sorted(grown))}, but none to {listed(short)}: all must have as many"
        )


def _vocabularies(source: Checkpoint, size: Any) -> list[str]:
    """The model's tensors with a row for each token."""
    return [name for name, shape in source.shapes.items() if shape[:1] == (size,) and not tail_problem(name)]


def _tail_problem(source: Checkpoint, tail: Tail, rows: Array) -> str:
    """Why this model may not get these rows, or ""."""
    name, stated = tail.tensor, source.config.get("vocab_size")
    if problem := tail_problem(name):
        return problem
    if name not in source.places:
        return f"{source.path} does not have"
    shape = source.shapes[name]
    if rows.ndim != len(shape) or rows.shape[1:] != shape[1:] or not len(rows):
        return f"has the shape {list(shape)} in {source.path}; the rows have {list(rows.shape)}"
    if rows.dtype != source.dtypes[name]:
        return f"holds {source.dtypes[name]} numbers in {source.path}; the rows hold {rows.dtype}"
    if shape[0] != tail.first:
        return (
            f"has {shape[0]} rows in {source.path}; the new ones are to follow row {tail.first - 1}: of another base?"
        )
    if stated != tail.first:
        return f"has {tail.first} rows, while config.json of {source.path} says vocab_size {stated!r:.40}"
    return ""


def _head_problem(source: Checkpoint, name: str, head: Array) -> str:
    held, whole_numbers = name in source.places, not is_float(head.dtype)
    if held and whole_numbers and not is_float(source.dtypes[name]):
        return ""  # a buffer: it counts, it does not weigh
    return whole_problem(name, held=held, whole_numbers=whole_numbers)


def refuse_what_cannot_be_undone(
    source: Checkpoint, *, prefix: str, added: Iterable[str], dropped: frozenset[str], file: str
) -> None:
    """Raise unless the copy's names are unique, give the same body under `prefix`, and become the old names again."""
    kept = {
        name: renamed(place.raw, source.prefix, prefix) for name, place in source.places.items() if name not in dropped
    }
    names = [*kept.values(), *added]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InputError(f"{file} would give two tensors one name ({listed(twice)}), which no reader could tell apart")
    changed = [
        name
        for name, raw in kept.items()
        if raw.removeprefix(prefix) != name or renamed(raw, prefix, source.prefix) != source.places[name].raw
    ]
    short = Counter(name.removeprefix(prefix) for name in names)
    if body_prefix(names) != prefix or changed or any(count > 1 for count in short.values()):
        raise InputError(
            f"{file} could not be taken off again: with the prefix {prefix!r} and its whole tensors the names of "
            f"{source.path} could not be told apart ({listed(changed) or listed(sorted(short - Counter(set(short))))}); "
            "use a graft made by extract"
        )
