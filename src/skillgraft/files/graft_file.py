"""Graft and region <-> one safetensors file. `docs/format.md` specifies it, byte for byte.

    load(save(g)) == g, and equal grafts give equal bytes.

For each parameter with entries: `<name>.indices` (or `<name>.bitmap` where that is smaller), `<name>.before`, and
`<name>.values` (exact form) or `<name>.delta` (arithmetic form); heads whole under `<name>.head`. Everything else is
string metadata. A region file has indices only. Everything is checked before any of it is used; nothing is repaired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from skillgraft.errors import FormatError, SkillgraftError, listed
from skillgraft.files import atomic
from skillgraft.files import tensors as tensor_file
from skillgraft.files.archives import ALWAYS_UNPACKED
from skillgraft.files.packed import PARTS as PACKED_PARTS
from skillgraft.files.packed import checked_formats, formats_of
from skillgraft.files.tensors import Entry, TensorFile, in_file, is_shape
from skillgraft.values import strict_json
from skillgraft.values.graft import Graft
from skillgraft.values.info import ITEMS, Info
from skillgraft.values.numbers import Array
from skillgraft.values.region import Indices, Region, Scope, index_dtype
from skillgraft.values.stream import GraftStream

T = TypeVar("T")
FORMAT_VERSION, PACKED_VERSION = "1", "2"
GRAFT, REGION = "skillgraft.graft", "skillgraft.region"
_MAX_HEADER_BYTES = 64_000_000
_STRETCH = 1 << 20  # bytes of a bitmap at a time
_TIMES_UNPACKED = 16
_PARTS = ("indices", "bitmap", "before", "values", "delta", "head")
FORMS = {"exact": "values", "arithmetic": "delta"}
_RESERVED = (
    "format",
    "format_version",
    "form",
    "scale",
    "base_fingerprint",
    "scope",
    "scope_shapes",
    "entries",
    "density",
)


def save(graft: Graft, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a graft; the file appears complete or not at all. An existing file is refused unless `overwrite`."""
    tensors: dict[str, Array] = {}
    for name, at in graft.region.sites.items():
        key, where = _encode(name, at, math.prod(graft.region.scope.shapes[name]))
        tensors[key] = where
        tensors[f"{name}.before"] = graft.before[name]
        tensors[f"{name}.{FORMS[graft.form]}"] = graft.change[name]
    tensors.update({f"{name}.head": head for name, head in graft.heads.items()})
    metadata = metadata_of(graft.stream())
    with atomic.new_file(Path(path), overwrite=overwrite) as temporary:
        tensor_file.write(temporary, tensors, metadata)


def save_region(
    region: Region, path: str | Path, *, base_fingerprint: str = "", info: Info | None = None, overwrite: bool = False
) -> None:
    """Write a region file: a graft file with indices only. An existing file is refused unless `overwrite`."""
    tensors = dict(_encode(n, at, math.prod(region.scope.shapes[n])) for n, at in region.sites.items())
    with atomic.new_file(Path(path), overwrite=overwrite) as temporary:
        tensor_file.write(
            temporary, tensors, _common(REGION, region.scope, len(region), base_fingerprint, info or Info())
        )


def load(path: str | Path) -> Graft:
    """Read a graft, or raise a FormatError that says what is wrong with the file."""
    return _edge(Path(path), _graft)


def load_region(path: str | Path) -> Region:
    """Read the region of a region file or of a graft file."""
    return _edge(Path(path), lambda file: _region(file, expected=(REGION, GRAFT)))


def is_region_file(path: str | Path) -> bool:
    """Whether a file is a region file (a graft file is not); the header alone tells."""
    return TensorFile.open(Path(path), max_header_bytes=_MAX_HEADER_BYTES).metadata.get("format") == REGION


def load_info(path: str | Path) -> tuple[str, Info]:
    """Base fingerprint and provenance of a graft or region file."""

    def read(file: TensorFile) -> tuple[str, Info]:
        check_kind(file, (GRAFT, REGION), packed=is_packed(file))
        return _fingerprint(file.metadata["base_fingerprint"]), _info(file)

    return _edge(Path(path), read)


def opened(path: Path) -> TensorFile:
    """A graft or region file's header, checked as that of a container."""
    return TensorFile.open(path, max_header_bytes=_MAX_HEADER_BYTES)


def _edge(path: Path, read: Callable[[TensorFile], T]) -> T:
    """Deep code raises the fact; here the file's name is added, once."""
    file = opened(path)
    try:
        return read(file)
    except SkillgraftError as error:  # also what a Region or Graft says when it refuses the file's content
        raise in_file(path, error) from None


def metadata_of(graft: GraftStream) -> dict[str, str]:
    """What a graft's file says in its header beside the tensors."""
    return {
        **_common(GRAFT, graft.scope, len(graft), graft.base_fingerprint, graft.info),
        "form": graft.form,
        "scale": repr(graft.scale),
    }


def packed_metadata_of(graft: GraftStream) -> dict[str, str]:
    """The same for a packed graft."""
    formats = strict_json.canonical(formats_of(graft))
    return {**metadata_of(graft), "format_version": PACKED_VERSION, "formats": formats}


def _common(kind: str, scope: Scope, entries: int, fingerprint: str, info: Info) -> dict[str, str]:
    return {
        **info.texts,
        "format": kind,
        "format_version": FORMAT_VERSION,
        "base_fingerprint": _fingerprint(fingerprint),
        "scope": scope.label,
        "scope_shapes": strict_json.canonical({name: list(shape) for name, shape in scope.shapes.items()}),
        "entries": str(entries),
        "density": repr(entries / scope.size if scope.size else 0.0),
    }


def _encode(name: str, at: Indices, size: int) -> tuple[str, Array]:
    """Indices, or a bitmap (one bit an entry, lowest bit first) where that takes fewer bytes."""
    if (size + 7) // 8 >= at.nbytes:
        return f"{name}.indices", at
    flags = np.zeros(size, np.uint8)
    flags[at] = 1
    return f"{name}.bitmap", np.packbits(flags, bitorder="little")


@dataclass(frozen=True)
class Header:
    """What a graft file's header says, checked; `names` are the parameters that have entries."""

    names: tuple[str, ...]
    scope: Scope
    form: Literal["exact", "arithmetic"]
    scale: float
    heads: Mapping[str, Array]
    base_fingerprint: str
    info: Info


def checked_header(file: TensorFile) -> Header:
    """The header of a graft file, and its heads; the numbers are left to whoever reads them."""
    scope, names = _listed(file, expected=(GRAFT,))
    form, stems = file.metadata["form"], _stems(file)
    if form not in FORMS:
        raise FormatError(f"form must be one of {', '.join(FORMS)}, found {form[:40]!r}")
    for other in FORMS.keys() - {form}:
        if stems[FORMS[other]]:
            raise FormatError(f"the form is {form}, found {FORMS[other]} for {listed(sorted(stems[FORMS[other]]))}")
    for part in ("before", FORMS[form]):
        odd = sorted(stems[part] ^ names)
        if odd:
            raise FormatError(
                f"{part}: its parameters are not those that have indices; only one side has {listed(odd)}"
            )
    return _header(file, scope, names, stems["head"])


def _header(file: TensorFile, scope: Scope, names: set[str], heads: set[str]) -> Header:
    return Header(
        tuple(sorted(names)),
        scope,
        "exact" if file.metadata["form"] == "exact" else "arithmetic",
        _scale(file.metadata["scale"]),
        {name: _read(file, f"{name}.head") for name in sorted(heads)},  # they are shown in this order
        _fingerprint(file.metadata["base_fingerprint"]),
        _info(file),
    )


def _graft(file: TensorFile) -> Graft:
    region, header = _region(file, expected=(GRAFT,)), checked_header(file)
    return Graft(
        region,
        {name: _read(file, f"{name}.before") for name in header.names},
        {name: _read(file, f"{name}.{FORMS[header.form]}") for name in header.names},
        form=header.form,
        scale=header.scale,
        heads=header.heads,
        base_fingerprint=header.base_fingerprint,
        info=header.info,
    )


def _region(file: TensorFile, *, expected: tuple[str, ...]) -> Region:
    scope, names = _listed(file, expected=expected)
    sites = {name: _decode(file, name, math.prod(scope.shapes[name])) for name in names}
    if any(len(at) == 0 for at in sites.values()):
        raise FormatError(f"{listed(sorted(n for n, at in sites.items() if len(at) == 0))}: listed without entries")
    region = Region(scope, sites)
    check_counts(file, len(region), region.density)
    return region


def check_counts(file: TensorFile, entries: int, density: float) -> None:
    """Refuse metadata that do not say what the tensors hold."""
    for key, true in (("entries", str(entries)), ("density", repr(density))):
        if file.metadata[key] != true:
            raise FormatError(f"the metadata says {key} {file.metadata[key][:40]!r}, the tensors hold {true}")


def _listed(file: TensorFile, *, expected: tuple[str, ...]) -> tuple[Scope, set[str]]:
    """The scope, and the parameters that have indices or a bitmap; which parts there are is checked."""
    check_kind(file, expected)
    scope = _scope(file.metadata)
    stems = _stems(file)
    twice = stems["indices"] & stems["bitmap"]
    if twice:
        raise FormatError(f"{listed(sorted(twice))}: both indices and a bitmap")
    foreign = sorted((stems["indices"] | stems["bitmap"]) - scope.shapes.keys())
    if foreign:
        raise FormatError(f"{listed(foreign)}: not in the file's own scope")
    parts = {part for part in _PARTS if stems[part]} - {"indices", "bitmap"}
    allowed = {"head", "before", *FORMS.values()} if file.metadata["format"] == GRAFT else set()
    if parts - allowed:
        raise FormatError(f"a region file holds indices only, found also {listed(sorted(parts))}")
    return scope, stems["indices"] | stems["bitmap"]


def is_packed(file: TensorFile) -> bool:
    """Whether the file holds a packed graft: `packed` reads those."""
    return file.metadata.get("format") == GRAFT and file.metadata.get("format_version") == PACKED_VERSION


def check_kind(file: TensorFile, expected: tuple[str, ...], *, packed: bool = False) -> None:
    """Refuse what is no graft or region file of a known version, metadata that lack something and unknown ones."""
    kind, version = file.metadata.get("format"), file.metadata.get("format_version")
    if kind not in (GRAFT, REGION):
        raise FormatError("not a graft: its metadata has no skillgraft format; make one with `skillgraft extract`")
    if kind not in expected:
        raise FormatError(f"expected a {expected[0]} file, found a {kind} file")
    if is_packed(file) and not packed:
        raise FormatError(
            "packed (format version 2): it holds no numbers of its own, but the bits that change in its base's; unpack it "
            "first: skillgraft combine G --base BASE -o OUT"
        )
    if version != FORMAT_VERSION and not packed:
        raise FormatError(
            f"format version {str(version)[:20]!r}, this skillgraft reads versions {FORMAT_VERSION} and {PACKED_VERSION}; "
            "update it"
        )
    needed = set(_RESERVED) - ({"form", "scale"} if kind == REGION else set()) | ({"formats"} if packed else set())
    missing, unknown = needed - file.metadata.keys(), file.metadata.keys() - needed - ITEMS.keys()
    if missing or unknown:
        what = "lacks" if missing else "has unknown items"
        raise FormatError(f"the metadata {what}: {listed(sorted(key[:40] for key in missing or unknown))}")


def packed_header(file: TensorFile) -> tuple[Header, dict[str, np.dtype[Any]]]:
    """The header of a packed graft, its heads, and the number formats of its parameters."""
    check_kind(file, (GRAFT,), packed=True)
    stems = _stems(file, (*PACKED_PARTS, "head"))
    for part in PACKED_PARTS[1:]:
        odd = sorted(stems[part] ^ stems[PACKED_PARTS[0]])
        if odd:
            raise FormatError(
                f"{part}: its parameters are not those with {PACKED_PARTS[0]}; only one side has {listed(odd)}"
            )
    scope, names = _scope(file.metadata), stems[PACKED_PARTS[0]]
    if names - scope.shapes.keys():
        raise FormatError(f"{listed(sorted(names - scope.shapes.keys()))}: not in the file's own scope")
    if (file.metadata["form"], file.metadata["scale"]) != ("exact", "1.0"):
        raise FormatError("a packed graft has the exact form and scale 1.0")
    try:
        formats = checked_formats(strict_json.parse(file.metadata["formats"]), names)
    except ValueError as error:
        raise FormatError(f"formats is not valid JSON: {error}") from None
    return _header(file, scope, names, stems["head"]), formats


def _stems(file: TensorFile, parts: tuple[str, ...] = _PARTS) -> dict[str, set[str]]:
    """Part → the parameter names that have it. A tensor with another ending is refused."""
    stems: dict[str, set[str]] = {part: set() for part in parts}
    for name in file.entries:
        stem, _, part = name.rpartition(".")
        if part not in stems or not stem:
            raise FormatError(f"unexpected tensor {name[:80]!r}; its ending must be one of {', '.join(parts)}")
        stems[part].add(stem)
    return stems


def _decode(file: TensorFile, name: str, size: int) -> Array:
    """The indices as the file has them; `Region` proves that they are sorted, unique and in range."""
    if f"{name}.indices" in file.entries:
        entry = file.entries[f"{name}.indices"]
        if entry.tag not in ("I32", "I64") or len(entry.shape) != 1:
            raise FormatError(f"{name}.indices: expected one row of I32 or I64, found {entry.tag} {list(entry.shape)}")
        return _read(file, entry.name)
    entry = file.entries[f"{name}.bitmap"]
    expected = (size + 7) // 8
    if entry.tag != "U8" or entry.shape != (expected,):
        raise FormatError(f"{name}.bitmap: expected U8 [{expected}], found {entry.tag} {list(entry.shape)}")
    return _unpacked(file, entry, name, size)


def _unpacked(file: TensorFile, entry: Entry, name: str, size: int) -> Array:
    """The set bits of a bitmap as indices, stretch by stretch. How many there are is known before room is made for them."""
    stretches = [(low, min(low + _STRETCH, entry.size)) for low in range(0, entry.size, _STRETCH)]
    count = sum(int(np.bitwise_count(file.flat(entry.name, low, high)).sum(dtype=np.int64)) for low, high in stretches)
    before = file.entries.get(f"{name}.before")
    if before is not None and before.shape != (count,):
        raise FormatError(f"{name}.bitmap: {count:,} entries, {name}.before has the shape {list(before.shape)}")
    index = index_dtype(size)
    if before is None and count * index.itemsize > max(ALWAYS_UNPACKED, _TIMES_UNPACKED * entry.nbytes):
        raise FormatError(
            f"{name}.bitmap: {count:,} entries would take {count * index.itemsize:,} bytes of memory, the most that is read from "
            f"{entry.nbytes:,} is {max(ALWAYS_UNPACKED, _TIMES_UNPACKED * entry.nbytes):,}"
        )
    found, done = np.empty(count, index), 0
    for low, high in stretches:
        at = np.flatnonzero(np.unpackbits(file.flat(entry.name, low, high), bitorder="little"))
        found[done : done + len(at)] = at + low * 8
        done += len(at)
    if count and int(found[-1]) >= size:
        raise FormatError(f"{name}.bitmap: bits beyond the {size} entries are set")
    found.flags.writeable = False
    return found


def _read(file: TensorFile, name: str) -> Array:
    """In memory of its own: a graft must outlive whatever becomes of its file."""
    return file.read(name)


def _scope(metadata: Mapping[str, str]) -> Scope:
    label = metadata["scope"]
    try:
        shapes = strict_json.parse(metadata["scope_shapes"])
    except ValueError as error:
        raise FormatError(f"scope_shapes is not valid JSON: {error}") from None
    if not isinstance(shapes, dict):
        raise FormatError("scope_shapes must map parameter names to shapes")
    wrong = sorted(name for name, shape in shapes.items() if not is_shape(shape))
    if wrong:
        raise FormatError(f"scope_shapes: {listed(wrong)}: not a list of possible sizes")
    return Scope.of(label, shapes)


def _fingerprint(fingerprint: str) -> str:
    if fingerprint and (len(fingerprint) != 64 or not set(fingerprint) <= set("0123456789abcdef")):
        raise FormatError(f"base_fingerprint must be 64 hexadecimal digits, found {fingerprint[:70]!r}")
    return fingerprint


def _info(file: TensorFile) -> Info:
    own = {*_RESERVED, *({"formats"} if is_packed(file) else ())}
    return Info.from_texts({key: text for key, text in file.metadata.items() if key not in own})


def _scale(text: str) -> float:
    """The number; `1`, `+0.5` or `1_0`, which Python reads too, are not how it writes them."""
    with suppress(ValueError):
        if repr(float(text)) == text:
            return float(text)
    raise FormatError(f"scale must be a number as Python writes it, such as 0.5, found {text[:40]!r}")
