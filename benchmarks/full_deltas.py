"""Grafts of everything that a fine-tune changed, extracted, applied and packed, beside what moves as many bytes.

Two folders of bfloat16 numbers, a decoder's shapes, four shards. Whole: nearly every entry differs, so that the graft has the
bytes of both. Packed: small steps, after which most entries keep their bits. Peaks are anonymous memory of a process of its own,
its imports included. Everything is in the page cache; the disk's writing is waited for between jobs.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from folders import Layout, decoder, write_folder
from measuring import GIGABYTE, MEGABYTE, Figure, Measured, Settings, command, interleaved, median_ratio, work_folder
from peaks import peak_of
from skillgraft.files.graft_stream import open_stream, save_stream
from skillgraft.files.packed import LEVEL, planes
from skillgraft.folders.apply import apply
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extracted
from skillgraft.values.numbers import bits, widen
from skillgraft.values.stream import windows

_WHOLE, _PACKED, _TUNED, _STILL = "whole.safetensors", "packed.safetensors", "tuned", "still"


def measure(settings: Settings) -> Measured:
    """Ratios of time for whole grafts; the packed file's share and rates; peaks of all four jobs."""
    hidden, vocabulary = (512, 8_000) if settings.small else (2048, 32_000)
    layout = decoder(2 * settings.scaled(2 * GIGABYTE), hidden=hidden, vocabulary=vocabulary)  # counted in float32
    nbytes = layout.nbytes // 2
    with work_folder(settings, needed_bytes=7 * nbytes) as folder:
        base = write_folder(folder / "base", layout, dtype="BF16")
        write_folder(folder / _TUNED, layout, tuned=True, dtype="BF16")
        whole = {
            "extract": lambda: _extract(folder, _TUNED, _WHOLE),
            "subtract_and_write": lambda: _subtract_and_write(base, folder / _TUNED, folder / _WHOLE),
        }
        extracting = interleaved(whole, rounds=3, between=lambda: _fresh(folder / _WHOLE))
        _fresh(folder / _WHOLE)
        _extract(folder, _TUNED, _WHOLE)
        graft_bytes = (folder / _WHOLE).stat().st_size
        applying = interleaved(
            {
                "apply": lambda: _apply(folder, _WHOLE, sync=False),
                "cp_and_read": lambda: _copy_and_read(folder),
                "durable": lambda: _apply(folder, _WHOLE),
                "cp_sync_and_read": lambda: _copy_and_read(folder, durable=True),
            },
            rounds=3,
            between=lambda: _fresh(folder / "out"),
        )
        _fresh(folder / "out")
        peaks = {"apply": peak_of(_apply, folder, _WHOLE)}
        _fresh(folder / "out", folder / _WHOLE)
        peaks["extract"] = peak_of(_extract, folder, _TUNED, _WHOLE)
        _fresh(folder / _WHOLE, folder / _TUNED)
        packed = _packed(folder, layout)
    peaks |= packed.pop("peaks")
    return _measured(nbytes, graft_bytes, extracting, applying, peaks, packed)


def _packed(folder: Path, layout: Layout) -> dict[str, Any]:
    tuned = write_folder(folder / _STILL, layout, tuned=True, dtype="BF16", movement=2e-6)
    seconds = interleaved(
        {"extract": lambda: _extract(folder, _STILL, _PACKED), "zstd": lambda: _zstd_alone(folder)},
        rounds=3,
        between=lambda: _fresh(folder / _PACKED),
    )
    _fresh(folder / _PACKED)
    _extract(folder, _STILL, _PACKED)
    applied = interleaved({"apply": lambda: _apply(folder, _PACKED)}, rounds=3, between=lambda: _fresh(folder / "out"))
    changed = len(open_stream(folder / _PACKED)) / (layout.nbytes / 4)
    share = (folder / _PACKED).stat().st_size / sum(file.stat().st_size for file in tuned.glob("*.safetensors"))
    _fresh(folder / "out")
    peaks = {"apply_packed": peak_of(_apply, folder, _PACKED)}
    _fresh(folder / "out", folder / _PACKED)
    peaks["extract_packed"] = peak_of(_extract, folder, _STILL, _PACKED)
    return {"share": share, "changed": changed, "seconds": {**seconds, **applied}, "peaks": peaks}


def _measured(
    nbytes: int, graft_bytes: int, extracting: Any, applying: Any, peaks: dict[str, Any], packed: dict[str, Any]
) -> Measured:
    def rate(job: str) -> float:
        return nbytes / MEGABYTE / statistics.median(packed["seconds"][job])

    def times(found: dict[str, list[float]]) -> str:
        return ", ".join(f"{name} {statistics.median(each):.2f} s" for name, each in found.items())

    size = f"{nbytes / GIGABYTE:.2f} GB of bfloat16, graft {graft_bytes / GIGABYTE:.2f} GB"
    extract_ratio = median_ratio(extracting["extract"], extracting["subtract_and_write"])
    apply_ratio = median_ratio(applying["apply"], applying["cp_and_read"])
    durable_ratio = median_ratio(applying["durable"], applying["cp_sync_and_read"])
    most = max(peaks.values(), key=lambda peak: peak.peak)
    figures = {
        "extract": Figure(extract_ratio, f"{times(extracting)} ({size})"),
        "apply": Figure(apply_ratio, times(applying)),
        "durable": Figure(durable_ratio, "SHA-256 of the graft's numbers is most of it"),
        "peak": Figure(most.peak, ", ".join(f"{job} {peak.peak:.0f} MB" for job, peak in peaks.items())),
        "packed_share": Figure(packed["share"], f"{100 * packed['changed']:.0f} % of the entries changed"),
        "packed_extract": Figure(rate("extract"), f"zstd alone on the same planes {rate('zstd'):.0f} MB/s"),
        "packed_apply": Figure(rate("apply"), ""),
    }
    details = {"extracting": extracting, "applying": applying, "packed": packed, "bytes": nbytes}
    return Measured(figures, {**details, "peaks": {job: vars(peak) for job, peak in peaks.items()}})


def _fresh(*paths: Path) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    os.sync()


def _extract(folder: Path, tuned: str, out: str) -> None:
    stream = extracted(folder / "base", folder / tuned)
    with stream.steady():
        save_stream(stream, folder / out, pack=out == _PACKED, proved=stream.check_unchanged)


def _apply(folder: Path, graft: str, *, sync: bool = True) -> None:
    apply(folder / "base", folder / graft, out=folder / "out", sync=sync)


def _subtract_and_write(base: Path, tuned: Path, out: Path) -> None:
    """Both folders read and subtracted, and as many bytes written as the graft has, the way that a file is written."""
    before, after = Checkpoint.open(base), Checkpoint.open(tuned)
    with out.open("wb") as file:
        for name in before.shapes:
            size = int(np.prod(before.shapes[name]))
            for low, high in windows(size):
                old, new = before.flat(name, low, high), after.flat(name, low, high)
                np.subtract(widen(new), widen(old))
                file.write(bits(old).data)
                file.write(bits(new).data)
        file.flush()
        os.fsync(file.fileno())  # as a graft file is


def _copy_and_read(folder: Path, *, durable: bool = False) -> None:
    subprocess.run(["cp", "-r", str(folder / "base"), str(folder / "out")], check=True)
    if durable:
        subprocess.run(["sync", "-f", str(folder / "out")], check=True)
    with (folder / _WHOLE).open("rb", buffering=0) as file:
        room = bytearray(1 << 20)
        while file.readinto(room):
            pass


def _zstd_alone(folder: Path) -> None:
    import zstandard

    compress = zstandard.ZstdCompressor(level=LEVEL).compress
    before, after = Checkpoint.open(folder / "base"), Checkpoint.open(folder / _STILL)
    for name in before.shapes:
        for low, high in windows(int(np.prod(before.shapes[name]))):
            compress(planes(bits(before.flat(name, low, high)) ^ bits(after.flat(name, low, high))))


if __name__ == "__main__":
    command("full_deltas", measure)
