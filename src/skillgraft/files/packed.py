"""Whole deltas, packed: the bits that base and tuned differ in, compressed. Format version 2; `docs/format.md` specifies it.

    save_packed(stream, "skill.safetensors")
    stream = open_stream("skill.safetensors").based(base)     # the same stretches, bit for bit

A packed graft holds no numbers, only `before` XOR `after`: with either the other is known, so it needs the base (or, to be taken
off, the tuned model) wherever numbers are asked for. The digests of `before` and `after` in every window prove that it is the
right one. Each window of a parameter is one zstd frame of its own, so it is read lazily and in any order.

Refused: scaled and arithmetic grafts, entries that did not change, and in files whatever does not fit exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from skillgraft.errors import FormatError, InputError, WrongBase, listed
from skillgraft.files import atomic
from skillgraft.files.tensors import Entry, TensorFile, copy_range, header_bytes, in_file, laid_out, write_at
from skillgraft.values.numbers import FLOATS, TAGS, Array, all_finite, bits
from skillgraft.values.stream import (
    EVERY,
    GraftStream,
    Held,
    Stretch,
    numbers_digests,
    where_of,
    windows,
)
from skillgraft.values.threads import SharedProgress, ahead

LEVEL = 3
XOR, TABLE, DIGESTS = "xor", "windows", "digests"
PARTS = (XOR, TABLE, DIGESTS)
DIGEST_BYTES = 64  # SHA-256 of before and of after at the sites of a window
Progress = Callable[[int, int], None]


def planes(numbers: Array) -> bytes:
    """The numbers' bytes, all lowest ones first, then all next ones: bytes of one kind compress better together."""
    whole = bits(np.ascontiguousarray(numbers))
    return b"".join((whole >> whole.dtype.type(8 * byte)).astype(np.uint8).tobytes() for byte in range(whole.itemsize))


def from_planes(data: bytes, dtype: np.dtype[Any]) -> Array:
    """The inverse of `planes`, as unsigned integers."""
    rows = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1)
    whole: Array = rows[0].astype(f"<u{dtype.itemsize}")
    for byte in range(1, dtype.itemsize):
        whole |= rows[byte].astype(whole.dtype) << whole.dtype.type(8 * byte)
    return whole


def save_packed(
    stream: GraftStream,
    path: str | Path,
    *,
    metadata: Mapping[str, str],
    progress: Progress | None = None,
    proved: Callable[[], None] = lambda: None,
) -> None:
    """Write an exact graft packed; the file appears complete or not at all. The same graft gives the same bytes."""
    if stream.form != "exact" or stream.scale != 1.0:
        raise InputError(
            f"only an exact graft at scale 1 can be packed, found the {stream.form} form at scale {stream.scale:g}; "
            "write it without --pack"
        )
    with atomic.new_file(Path(path)) as temporary:
        loose = temporary.with_name(f"{temporary.name}-windows")
        try:
            with loose.open("w+b") as frames:
                parts, lengths = _compressed(stream, frames, progress)
                proved()
                _put_together(temporary, stream, parts, lengths, frames, metadata)
        finally:
            loose.unlink(missing_ok=True)


def _compressed(
    stream: GraftStream, frames: BinaryIO, progress: Progress | None
) -> tuple[dict[str, Array], dict[str, int]]:
    """Every window's frame, one after the other in `frames`; the tables and digests, and each parameter's bytes."""
    parts: dict[str, Array] = {}
    lengths = {}
    tally = SharedProgress(progress, sum(map(stream.size, stream.counts)))
    for name in stream.counts:
        size, done = stream.size(name), 0
        starts = {low: place for place, (low, _) in enumerate(windows(size))}
        table, digests = np.zeros((len(starts), 2), np.int64), np.zeros((len(starts), DIGEST_BYTES), np.uint8)
        for low, high, entries, frame, digest in ahead(partial(_frame, name), stream.stretches(name)):
            frames.write(frame)
            place = starts[low]
            table[place], digests[place] = (len(frame), entries), np.frombuffer(digest, np.uint8)
            tally.add(high - done)
            done = high
        tally.add(size - done)
        parts[f"{name}.{TABLE}"], parts[f"{name}.{DIGESTS}"] = table, digests
        lengths[name] = int(table[:, 0].sum())
    frames.flush()
    return parts, lengths


def _frame(name: str, stretch: Stretch) -> tuple[int, int, int, bytes, bytes]:
    """What is written of a window: from where to where it is, its entries, the frame of their bits, and their digests."""
    import zstandard

    compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True)  # threads may not share one
    frame = compressor.compress(planes(_difference(name, stretch)))
    return stretch.low, stretch.high, len(stretch), frame, numbers_digests(stretch)


def _difference(name: str, stretch: Stretch) -> Array:
    """The XOR of a whole window, 0 where nothing changed."""
    for numbers in (stretch.before, stretch.change):
        if not all_finite(numbers):
            raise InputError(f"{name}: {int((~np.isfinite(numbers)).sum())} numbers are NaN or infinite")
    changed = bits(stretch.before) ^ bits(stretch.change)
    if not changed.all():
        raise InputError(
            f"{name}: {int((changed == 0).sum())} entries of the graft did not change, and a packed graft has none such; "
            "write it without --pack"
        )
    whole = np.zeros(stretch.high - stretch.low, changed.dtype)
    whole[stretch.where] = changed
    return whole


def _put_together(
    path: Path,
    stream: GraftStream,
    parts: Mapping[str, Array],
    lengths: Mapping[str, int],
    frames: BinaryIO,
    metadata: Mapping[str, str],
) -> None:
    arrays = {**parts, **{f"{name}.head": head for name, head in stream.heads.items()}}
    shapes = {key: (array.dtype, array.shape) for key, array in arrays.items()}
    shapes |= {f"{name}.{XOR}": (np.dtype(np.uint8), (length,)) for name, length in lengths.items()}
    entries = {entry.name: entry for entry in laid_out(shapes)}
    header = header_bytes(list(entries.values()), metadata)
    with path.open("wb") as file:
        write_at(file.fileno(), memoryview(header), 0)
        for key, array in arrays.items():
            write_at(
                file.fileno(),
                np.ascontiguousarray(array.reshape(-1)).view(np.uint8).data,
                len(header) + entries[key].start,
            )
        start = 0
        for name, length in lengths.items():
            copy_range(frames, file.fileno(), start, length, len(header) + entries[f"{name}.{XOR}"].start)
            start += length


def formats_of(stream: GraftStream) -> dict[str, str]:
    """Parameter → the tag of its number format: frames alone do not tell."""
    return {name: TAGS[dtype] for name, dtype in stream.formats.items()}


def checked_formats(found: Any, names: set[str]) -> dict[str, np.dtype[Any]]:
    """The formats that a file's metadata tell, one for each parameter with entries."""
    if not isinstance(found, dict) or found.keys() != names or not all(tag in FLOATS for tag in found.values()):
        raise FormatError(f"formats must map each of the {len(names)} parameters to one of {', '.join(FLOATS)}")
    return {name: FLOATS[found[name]] for name in sorted(names)}


@dataclass(frozen=True)
class Packed:
    """A packed graft's file: where each window's frame lies, checked against the header; no frame is read yet."""

    file: TensorFile
    tables: Mapping[str, Array]
    formats: Mapping[str, np.dtype[Any]]
    sizes: Mapping[str, int]

    @classmethod
    def open(cls, file: TensorFile, formats: Mapping[str, np.dtype[Any]], sizes: Mapping[str, int]) -> Packed:
        """Read the tables of windows, and refuse what cannot be."""
        tables = {}
        with file.reading() as read:
            for name in formats:
                count = len(list(windows(sizes[name])))
                _expect(file, f"{name}.{TABLE}", "I64", (count, 2))
                _expect(file, f"{name}.{DIGESTS}", "U8", (count, DIGEST_BYTES))
                table = read(f"{name}.{TABLE}", 0, 2 * count).reshape(count, 2)
                tables[name] = _checked_table(file, name, table, sizes[name])
        return cls(file, tables, formats, sizes)

    @property
    def counts(self) -> dict[str, int]:
        return {name: int(table[:, 1].sum()) for name, table in self.tables.items()}

    def stream(self, about: GraftStream) -> GraftStream:
        """The graft as a stream without numbers; `based` gives it those."""
        return replace(
            about,
            stretches=partial(_no_numbers, self.file.path),
            places=lambda name: self._stretches(name, None, "before"),
            based_on=lambda tensors, held: self._based(about, tensors, held),
        )

    def _based(self, about: GraftStream, tensors: Any, held: Held) -> GraftStream:
        foreign = [
            name
            for name, dtype in self.formats.items()
            if tensors.shapes.get(name) != about.scope.shapes[name] or tensors.dtypes[name] != dtype
        ]
        if foreign:
            raise WrongBase(
                f"{self.file.path} was made for another base: {listed(foreign)} are missing there, or have another shape "
                "or number format"
            )
        return replace(about, stretches=lambda name: self._stretches(name, tensors, held))

    def _stretches(self, name: str, tensors: Any, held: Held) -> Iterator[Stretch]:
        """The stretches of a parameter, with their numbers where there are `tensors` that hold `before` or `after`."""
        import zstandard

        decompress, start = zstandard.ZstdDecompressor().decompress, 0
        dtype, none = self.formats[name], np.empty(0, np.float32)
        try:
            with self.file.reading() as read:
                for place, (low, high) in enumerate(windows(self.sizes[name])):
                    length, sites = map(int, self.tables[name][place])
                    if not length:
                        continue
                    frame = read(f"{name}.{XOR}", start, start + length).tobytes()
                    start += length
                    digests = read(f"{name}.{DIGESTS}", DIGEST_BYTES * place, DIGEST_BYTES * (place + 1)).tobytes()
                    xor = _unpacked(name, frame, high - low, dtype, decompress)
                    mask = xor != 0
                    if int(np.count_nonzero(mask)) != sites:
                        raise FormatError(
                            f"{name}: a window has {np.count_nonzero(mask)} sites, its table says {sites}"
                        )
                    where = EVERY if sites == high - low else where_of(mask)
                    if tensors is None:
                        yield Stretch(low, high, where, none, none, digests)
                        continue
                    here = bits(tensors.flat(name, low, high))[where]
                    there = (here ^ xor[where]).view(dtype)
                    pair = (here.view(dtype), there) if held == "before" else (there, here.view(dtype))
                    stretch = Stretch(low, high, where, *pair, digests)
                    _prove(self.file.path, name, stretch, held)
                    yield stretch
        except FormatError as error:
            raise in_file(self.file.path, error) from None


def _no_numbers(path: Path, _name: str) -> Iterator[Stretch]:
    raise InputError(
        f"{path} is packed: it holds no numbers of its own, but the bits that change in the base's; name the base "
        "(--base BASE), or write the graft whole with `skillgraft combine G --base BASE -o OUT`"
    )


def _prove(path: Path, name: str, stretch: Stretch, held: Held) -> None:
    """Raise unless the numbers that came of the model are those that the graft was made of."""
    found = numbers_digests(stretch)
    if found != stretch.digests:
        whose = "base" if held == "before" else "model"
        raise WrongBase(
            f"{path} was made for another {whose}: its numbers in {name} from entry {stretch.low:,} on are others "
            "(their digest differs)"
        )
    if not (all_finite(stretch.before) and all_finite(stretch.change)):
        raise FormatError(f"{name}: numbers are NaN or infinite")


def _unpacked(name: str, frame: bytes, entries: int, dtype: np.dtype[Any], decompress: Callable[..., bytes]) -> Array:
    import zstandard

    wanted = entries * dtype.itemsize
    try:
        if zstandard.frame_content_size(frame) != wanted:  # before anything is unpacked: a frame may promise terabytes
            raise FormatError(f"{name}: a window's frame promises other than its {wanted} bytes")
        data = decompress(frame, max_output_size=wanted, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"{name}: a window's frame is damaged ({error})") from None
    if len(data) != wanted:
        raise FormatError(f"{name}: a window's frame holds {len(data)} bytes, expected {wanted}")
    return from_planes(data, dtype)


def _checked_table(file: TensorFile, name: str, table: Array, size: int) -> Array:
    lengths, sites = table[:, 0], table[:, 1]
    most = np.array([high - low for low, high in windows(size)])
    held = file.entries[f"{name}.{XOR}"]
    _expect(file, held.name, "U8", (held.size,))
    if (lengths < 0).any() or (sites < 0).any() or (sites > most).any() or ((lengths > 0) != (sites > 0)).any():
        raise FormatError(f"{name}.{TABLE}: impossible lengths or numbers of sites")
    if (lengths > held.size).any() or int(lengths.sum()) != held.size:
        raise FormatError(f"{name}.{TABLE}: frames of {int(lengths.sum())} bytes, {name}.{XOR} has {held.size}")
    if not sites.any():
        raise FormatError(f"{name}: listed without entries")
    return table


def _expect(file: TensorFile, key: str, tag: str, shape: tuple[int, ...]) -> None:
    entry: Entry = file.entries[key]
    if entry.tag != tag or entry.shape != shape:
        raise FormatError(f"{key}: expected {tag} {list(shape)}, found {entry.tag} {list(entry.shape)}")
