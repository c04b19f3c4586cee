"""What grows with what: processor seconds and the highest anonymous memory of every folder verb, from 20 M entries up.

python benchmarks/scaling.py --workdir DIR --entries 20 100     (millions)

Synthetic bfloat16 models of a decoder's shapes, every command in a process of its own. Processor time (user and system), because
it says the same on a busy machine; memory is what RssAnon says. Prints the Markdown table of docs/scaling.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path

from folders import decoder, write_folder
from measuring import MEGABYTE
from peaks import peak_of_command

_VERBS = {
    "extract --density 1e-4": "extract base tuned --density 1e-4 -o small.safetensors",
    "extract, everything": "extract base tuned -o whole.safetensors",
    "extract --pack, small steps": "extract base still --pack -o packed.safetensors",
    "inspect, everything": "inspect whole.safetensors",
    "check, everything": "check base whole.safetensors",
    "apply, 1e-4": "apply base small.safetensors -o on-small",
    "apply, everything": "apply base whole.safetensors -o on",
    "apply, packed": "apply base packed.safetensors -o on-packed",
    "remove, everything": "remove on whole.safetensors -o off",
    "compare, two of everything": "compare whole.safetensors other.safetensors",
    "combine sum, two of everything": "combine whole.safetensors other.safetensors -o sum.safetensors",
    "combine ties, two of everything": "combine whole.safetensors other.safetensors --rule ties -o ties.safetensors",
}
_LEFT = ("on-small", "on-packed", "off", "sum.safetensors", "ties.safetensors")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--entries", type=int, nargs="+", default=[20, 100], metavar="MILLIONS")
    given = parser.parse_args()
    found = {millions: _measured(given.workdir, millions) for millions in given.entries}
    header = " | ".join(f"{millions} M" for millions in found)
    print(f"| verb | {header} |\n|---|{'---|' * len(found)}")
    for verb in _VERBS:
        cells = [f"{seconds:.1f} s, {peak:.0f} MB" for seconds, peak in (each[verb] for each in found.values())]
        print(f"| {verb} | {' | '.join(cells)} |")
    return 0


def _measured(workdir: Path, millions: int) -> dict[str, tuple[float, float]]:
    hidden = 512 if millions < 50 else 1024 if millions < 300 else 2048
    layout = decoder(4 * millions * MEGABYTE, hidden=hidden, vocabulary=8 * hidden)
    found = {}
    with tempfile.TemporaryDirectory(prefix="skillgraft-scaling-", dir=workdir) as name:
        folder = Path(name)
        write_folder(folder / "base", layout, dtype="BF16")
        write_folder(folder / "tuned", layout, tuned=True, dtype="BF16")
        write_folder(folder / "still", layout, tuned=True, dtype="BF16", movement=2e-6)
        write_folder(folder / "second", layout, tuned=True, dtype="BF16", seed=2)
        _run(folder, "extract base second -o other.safetensors")
        shutil.rmtree(folder / "second")
        for verb, words in _VERBS.items():
            found[verb] = _run(folder, words)
            print(f"{millions} M, {verb}: {found[verb]}", file=sys.stderr, flush=True)
            for left in (folder / each for each in _LEFT):
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    return found


def _run(folder: Path, words: str) -> tuple[float, float]:
    """Processor seconds and the highest anonymous memory in MB of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    here = Path.cwd()
    os.chdir(folder)
    try:
        peak = peak_of_command([str(Path(sys.executable).parent / "skillgraft"), *words.split()])
    finally:
        os.chdir(here)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peak


if __name__ == "__main__":
    sys.exit(main())
