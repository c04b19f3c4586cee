"""Lift a skill out of a fine-tuned folder: base + tuned → Graft.

    apply(base, extract(base, tuned)) equals tuned, bit for bit.

Without a budget every entry whose bits differ is taken; with one, exactly that many of the scope, those that moved the
most. Heads travel whole. Nothing is skipped silently: what changed outside the scope is counted in the provenance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.errors import InputError, listed
from skillgraft.folders.chat import travelling_chat
from skillgraft.folders.checkpoint import Checkpoint, RoundedTensors, ShortenedTensors, Tensors, same_tensor
from skillgraft.folders.config import refuse_other_settings, travelling_settings
from skillgraft.folders.hub import folder_at
from skillgraft.folders.lora import LoraCheckpoint, is_plain_lora
from skillgraft.folders.movement import Progress, check_budget, count_of, most_moved, silent
from skillgraft.folders.patch import PatchCheckpoint, is_patch
from skillgraft.folders.reach import refuse_unpermitted
from skillgraft.folders.tokens import check_same_vocabulary
from skillgraft.folders.weight_files import SINGLE, refuse_adapters
from skillgraft.values.graft import Graft
from skillgraft.values.info import Info, versions
from skillgraft.values.names import in_layers, is_embedding, is_head
from skillgraft.values.numbers import Array, bits, is_float
from skillgraft.values.permitted import tail_problem
from skillgraft.values.region import Region, Scope
from skillgraft.values.stream import GraftStream, Mask, Stretch, Where, stretches_of, where_of, windows
from skillgraft.values.tails import tail_name, tails_of
from skillgraft.values.threads import SharedProgress, together

Tuned = Checkpoint | LoraCheckpoint | PatchCheckpoint


@dataclass(frozen=True)
class Pairing:
    """Which tensors of base and tuned are compared entry by entry, which travel whole, and which are gone."""

    shared: Mapping[str, tuple[int, ...]]
    whole: tuple[str, ...]
    removed: tuple[str, ...]
    longer: tuple[str, ...] = ()  # embeddings to which tuned appended rows; their shape here is the base's
    tails: Mapping[str, Array] = field(default_factory=dict)  # those rows, by the name that a graft has for them


def extract(
    base: str | Path,
    tuned: str | Path,
    *,
    density: float | None = None,
    entries: int | None = None,
    region: Region | None = None,
    scope: str | None = None,
    convert: bool = False,
    progress: Progress = silent,
) -> Graft:
    """The graft that turns the base folder into the tuned one: all of it, the most moved of the scope, or in `region`.

    `density` is a share of the scope, `entries` a count. `convert` rounds a tuned model of another number format to the
    base's. Scope: by default the transformer layers; without a budget whatever changed.
    """
    asked: dict[str, Any] = {"density": density, "entries": entries, "region": region, "scope": scope}
    stream = extracted(base, tuned, convert=convert, progress=progress, **asked)
    with stream.steady():
        graft = Graft.collected(stream)
    stream.check_unchanged()
    return graft


def extracted(
    base: str | Path,
    tuned: str | Path,
    *,
    density: float | None = None,
    entries: int | None = None,
    region: Region | None = None,
    scope: str | None = None,
    convert: bool = False,
    progress: Progress = silent,
) -> ExtractedStream:
    """`extract` as a stream: the sites are counted now, numbers are read from the two folders when they are asked for."""
    check_budget(density, entries)
    if region is not None and (density is not None or entries is not None):
        raise InputError("give a density, a number of entries or a region, one of them")
    before, after, source, pairing = opened_pair(base, tuned, convert=convert)
    count = partial(count_of, density=density, entries=entries) if density or entries else None
    with before.steady(), after.steady():
        chosen, outside = _choose(before, source, pairing, count=count, region=region, scope=scope, progress=progress)
        stream = _stream(before, after, source, pairing, chosen, outside)
    return stream.with_info(
        method="movement" if count is not None else "region" if region is not None else "difference",
        recipe={"density": density, "entries": entries, "scope": chosen.scope.label, "convert": convert},
    )


# From where to where a window is, which of its entries are taken, and base's and tuned's numbers there if they are read already.
Window = tuple[int, int, Where, tuple[Array, Array] | None]


@dataclass(frozen=True)
class Chosen:
    """Which entries are taken: how many of each parameter, and window by window where they are."""

    scope: Scope
    counts: Mapping[str, int]
    windows: Callable[[str], Iterator[Window]]

    @classmethod
    def of(cls, region: Region) -> Chosen:
        """The entries of a region."""

        def found(name: str) -> Iterator[Window]:
            at = region.sites[name]
            for each in stretches_of(at, at, at, math.prod(region.scope.shapes[name])):
                yield each.low, each.high, each.where, None

        return cls(region.scope, {name: len(at) for name, at in region.sites.items()}, found)


@dataclass(frozen=True, eq=False)
class ExtractedStream(GraftStream):
    """A graft that is read from two folders."""

    folders: tuple[Tuned, ...] = ()

    def check_unchanged(self) -> None:
        """Refuse folders that were written to since they were opened."""
        for folder in self.folders:
            folder.check_unchanged()

    @contextmanager
    def steady(self) -> Iterator[None]:
        """While everything is collected: both folders are mapped where that is safe; see `TensorFile.steady`."""
        with ExitStack() as folders:
            for folder in self.folders:
                folders.enter_context(folder.steady())
            yield


def _stream(
    before: Checkpoint, after: Tuned, source: Tensors, pairing: Pairing, chosen: Chosen, outside: Mapping[str, int]
) -> ExtractedStream:
    """The graft of the chosen entries. Heads are copied: they must outlive whatever becomes of tuned's files."""

    def stretches(name: str) -> Iterator[Stretch]:
        for low, high, where, read in chosen.windows(name):
            old, new = read or (before.flat(name, low, high), source.flat(name, low, high))
            yield Stretch(low, high, where, old[where], new[where])

    def places(name: str) -> Iterator[Stretch]:
        none = np.empty(0, np.float32)
        return (Stretch(low, high, where, none, none) for low, high, where, _ in chosen.windows(name))

    stream = ExtractedStream(
        chosen.scope,
        chosen.counts,
        {name: before.dtypes[name] for name in chosen.counts},
        stretches,
        heads={
            **{name: source.flat(name).reshape(source.shapes[name]).copy() for name in pairing.whole},
            **pairing.tails,
        },
        base_fingerprint=before.fingerprint,
        info=_provenance(before, after, pairing, outside),
        places=places,
        folders=(before, after),
    )
    refuse_other_settings(before.config, after.config, named=str(after.path))
    refuse_unpermitted(before, stream, file=str(after.path))
    return stream


def is_adapter(path: Path) -> bool:
    """Whether the folder holds a PEFT adapter instead of a whole model."""
    return (path / "adapter_config.json").is_file() and not (path / SINGLE).is_file()


def open_tuned(path: Path, base: Checkpoint) -> Tuned:
    """A tuned model: a checkpoint folder, a PEFT adapter of `base`, or a patch of it. Bottleneck adapters have no delta: refused.

    A plain LoRA is computed as it is read; every other adapter is merged by PEFT itself, which loads the model.
    """
    path = folder_at(path)
    refuse_adapters(path)
    if is_patch(path):
        return PatchCheckpoint.open(path, base)
    if not is_adapter(path):
        return Checkpoint.open(path)
    if is_plain_lora(path):
        return LoraCheckpoint.open(path, base)
    from skillgraft.opening.adapters import merged

    return merged(path, base)


def check_pair(base: str | Path, tuned: str | Path, *, convert: bool = False) -> tuple[Checkpoint, Tensors, Graft]:
    """Base and tuned, compared by their headers and heads: another model, vocabulary or number format is refused.

    Gives the base, tuned's numbers in the base's formats, and the graft of tuned's heads alone with its provenance.
    """
    before, after, source, pairing = opened_pair(base, tuned, convert=convert)
    nothing = Chosen.of(Region(Scope.of("all", pairing.shared), {}))
    return before, source, Graft.collected(_stream(before, after, source, pairing, nothing, {}))


def refuse_new_rows(heads: Graft, tuned: str | Path) -> None:
    """Refuse rows that tuned appended where the base's own model is to be asked: it has no room for them, nor their tokens."""
    tails = [tail.tensor for tail in tails_of(heads.heads)]
    if tails:
        raise InputError(
            f"{tuned} appended rows to {listed(tails)} (new tokens), which the base's model has no room for: ask a base that has "
            "them. `skillgraft extract BASE TUNED --entries 1 -o rows.safetensors` and `skillgraft apply BASE "
            "rows.safetensors -o WITH-ROWS` make one; give WITH-ROWS in place of BASE"
        )


def opened_pair(base: str | Path, tuned: str | Path, *, convert: bool) -> tuple[Checkpoint, Tuned, Tensors, Pairing]:
    """Base, tuned as it lies on disk, tuned in the base's number formats, and how their tensors match."""
    refuse_adapters(base)
    before = Checkpoint.open(base)
    after = open_tuned(Path(tuned), before)
    check_same_vocabulary(before.path, after.path)
    pairing = pair(before, after)
    source = _in_one_format(before, after, pairing, convert=convert)
    changed = [name for name in pairing.whole if name not in before.shapes or not same_tensor(before, source, name)]
    tails = dict(_tail(before, source, name) for name in pairing.longer)
    if tails:
        source = ShortenedTensors(source, {**source.shapes, **{name: before.shapes[name] for name in pairing.longer}})
    return before, after, source, replace(pairing, whole=tuple(changed), tails=tails)


def _tail(base: Checkpoint, tuned: Tensors, name: str) -> tuple[str, Array]:
    """The rows that tuned has after the base's, and what a graft calls them."""
    old, new = base.shapes[name], tuned.shapes[name]
    return tail_name(name, old[0]), tuned.flat(name, math.prod(old)).reshape(-1, *new[1:]).copy()


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
    longer = tuple(name for name in reshaped if _is_longer(base, tuned, name))
    shared |= {name: base.shapes[name] for name in longer}
    if len(longer) < len(reshaped):
        raise InputError(_why_reshaped(base, tuned, [name for name in reshaped if name not in longer]))
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
    return Pairing(dict(sorted(shared.items())), tuple(sorted(whole)), tuple(sorted(ours - theirs)), longer)


def _is_longer(base: Checkpoint, tuned: Tuned, name: str) -> bool:
    """Whether tuned appended rows for new tokens: embeddings or an LM head, as long as each config says."""
    old, new = base.shapes[name], tuned.shapes[name]
    sizes = base.config.get("vocab_size"), tuned.config.get("vocab_size")
    return not tail_problem(name) and old[1:] == new[1:] and sizes == (old[0], new[0]) and old[0] < new[0]


def _common_twins(base: Checkpoint, tuned: Tuned) -> set[str]:
    """Second copies of tied weights that neither side uses on its own: tied on each side that stores them."""
    names = base.twins.keys() | tuned.twins.keys()
    return {name for name in names if all(name in side.twins or name not in side.shapes for side in (base, tuned))}


def _why_reshaped(base: Checkpoint, tuned: Tuned, names: list[str]) -> str:
    longer = [name for name in names if base.shapes[name][1:] == tuned.shapes[name][1:]]
    name = next(filter(is_embedding, longer), names[0])
    shapes = f"{name} is {list(base.shapes[name])} in {base.path} and {list(tuned.shapes[name])} in {tuned.path}"
    if longer == names and is_embedding(name):
        return (
            f"the embeddings' length changed: {shapes}; a graft needs base and tuned with one vocabulary, to which tuned may "
            "have appended tokens (then vocab_size in each config.json says how many there are)"
        )
    return f"{len(names)} tensors have another shape: {shapes}; these are different models"


def _in_one_format(base: Checkpoint, tuned: Tuned, pairing: Pairing, *, convert: bool) -> Tensors:
    differ = [name for name in pairing.shared if base.dtypes[name] != tuned.dtypes[name]]
    if differ and not convert:
        name = differ[0]
        raise InputError(
            f"{len(differ)} tensors are {base.dtypes[name]} in {base.path} and {tuned.dtypes[name]} in {tuned.path} "
            f"(first {name}); use a base of tuned's format, or --convert to round tuned to {base.dtypes[name]}"
        )
    if not convert:
        return tuned
    # A head that only tuned has gets the base's usual format.
    floats = [name for name, dtype in tuned.dtypes.items() if is_float(dtype)]
    return RoundedTensors(tuned, {**tuned.dtypes, **{name: base.dtypes.get(name, base.format) for name in floats}})


def _choose(
    base: Checkpoint,
    tuned: Tensors,
    pairing: Pairing,
    *,
    count: Callable[[Scope], int] | None,
    region: Region | None,
    scope: str | None,
    progress: Progress,
) -> tuple[Chosen, dict[str, int]]:
    """The entries to take, and tensor → changed entries that are left out because the scope does not hold them."""
    if region is not None:
        foreign = sorted(n for n in region if pairing.shared.get(n) != region.scope.shapes[n])
        if foreign:
            raise InputError(
                f"the region is not of this model: {listed(foreign)} are missing here or have another shape"
            )
        return Chosen.of(region), {}
    if count is not None:
        within = Scope.select(scope or "layers", pairing.shared)
        chosen = most_moved(base, tuned, within, count(within), progress=progress)
        return Chosen.of(chosen), changed_outside(base, tuned, pairing.shared, within)
    return _everything(base, tuned, pairing, scope=scope, progress=progress)


def _everything(
    base: Checkpoint, tuned: Tensors, pairing: Pairing, *, scope: str | None, progress: Progress
) -> tuple[Chosen, dict[str, int]]:
    everything = Scope.of("all", pairing.shared)
    counts = _changed(base, tuned, pairing.shared, SharedProgress(progress, everything.size))
    changed = {name: count for name, count in sorted(counts.items()) if count}
    if scope is None:
        scope = "layers" if all(map(in_layers, changed)) and any(map(in_layers, counts)) else "all"
    within = Scope.select(scope, pairing.shared)
    outside = {name: count for name, count in changed.items() if name not in within.shapes}

    def found(name: str) -> Iterator[Window]:
        for low, high, differ, read in _differences(base, tuned, name):
            if differ.any():
                yield low, high, where_of(differ), read

    return Chosen(within, {name: count for name, count in changed.items() if name in within.shapes}, found), outside


def changed_outside(base: Tensors, tuned: Tensors, shared: Iterable[str], scope: Scope) -> dict[str, int]:
    """Tensor → entries whose bits differ though the scope does not hold them; where they are is not kept."""
    rest = [name for name in shared if name not in scope.shapes]
    return {name: count for name, count in _changed(base, tuned, rest, SharedProgress(None, 0)).items() if count}


def _changed(base: Tensors, tuned: Tensors, names: Iterable[str], tally: SharedProgress) -> dict[str, int]:
    """Tensor → how many of its entries have other bits."""

    def count(name: str) -> tuple[str, int]:
        found = sum(int(np.count_nonzero(differ)) for _, _, differ, _ in _differences(base, tuned, name))
        tally.add(math.prod(base.shapes[name]))
        return name, found

    return dict(together(count, names))


def _differences(base: Tensors, tuned: Tensors, name: str) -> Iterator[tuple[int, int, Mask, tuple[Array, Array]]]:
    """Window by window where the bits differ, and the numbers of both."""
    for low, high in windows(math.prod(base.shapes[name])):
        old, new = base.flat(name, low, high), tuned.flat(name, low, high)
        yield low, high, bits(old) != bits(new), (old, new)


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
        config=travelling_settings(base.config, tuned.config) or None,
        chat=travelling_chat(base.path, tuned.path),
        outside_scope=dict(outside) or None,
        versions=versions(),
    )


def _labels(config: Mapping[str, Any]) -> dict[str, str] | None:
    """Class number → label name, in order."""
    labels = config.get("id2label")
    if not isinstance(labels, dict) or not all(str(key).isdecimal() for key in labels):
        return None
    return {str(key): str(labels[key]) for key in sorted(labels, key=int)}
