"""How low a rank grafts have: for each density of the most moved entries of the matrices, the rank of their exact LoRA form.

    python examples/ranks.py MiniLM=BASE,TUNED MPNet=BASE,TUNED

Prints a Markdown table: median and largest rank over the matrices that the graft changes, the size of the adapter in float32
beside the graft's own bytes, and at how many entries a merge by PEFT in the base's format differs from the graft in the last bit.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from skillgraft import extract
from skillgraft.interop.low_rank import MatrixDelta
from skillgraft.values.cover import minimum_cover
from skillgraft.values.graft import Graft

DENSITIES = (1e-5, 1e-4, 1e-3, 1e-2)
_PER_ENTRY = 4  # bytes of an index, beside the two numbers


def row(name: str, density: float, graft: Graft) -> str:
    """One line of the table."""
    deltas = [MatrixDelta.of(graft, matrix) for matrix in graft.region]
    ranks = [minimum_cover(*delta.entries).rank for delta in deltas]
    adapter = sum(4 * rank * sum(delta.shape) for rank, delta in zip(ranks, deltas, strict=True))
    own = sum((_PER_ENTRY + 2 * graft.before[d.name].itemsize) * len(graft.before[d.name]) for d in deltas)
    missed = sum(int(delta.misses.sum()) for delta in deltas)
    cells = (
        f"{name}, {graft.before[deltas[0].name].dtype}", f"{density:g}", f"{len(graft):,}", f"{statistics.median(ranks):g}",
        str(max(ranks)), f"{adapter / 1e6:.1f} MB", f"{own / 1e6:.2f} MB", f"{missed:,} ({missed / len(graft):.2%})",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def table(models: Mapping[str, tuple[Path, Path]]) -> Iterator[str]:
    """The table of all models, each a base and a tuned folder."""
    yield "| model | density | entries | median rank | largest | adapter | graft | merged otherwise |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, (base, tuned) in models.items():
        for density in DENSITIES:
            yield row(name, density, extract(base, tuned, density=density, scope="matrices").without_heads())


def main(pairs: list[str]) -> None:
    """Print the table of the pairs on the command line."""
    named = (pair.partition("=") for pair in pairs)
    folders = {name: both.partition(",") for name, _, both in named}
    for line in table({name: (Path(base), Path(tuned)) for name, (base, _, tuned) in folders.items()}):
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
