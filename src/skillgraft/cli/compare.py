"""skillgraft compare"""

from __future__ import annotations

from skillgraft.cli import output
from skillgraft.cli.arguments import GraftFiles, Json
from skillgraft.errors import InputError


def run(grafts: GraftFiles, json: Json = False) -> None:
    """Compare grafts pair by pair: coverage, jaccard and cosine.

    Row a, column b of the coverage: how much of b's region a's region contains.

    \b
    Example
      skillgraft compare sst2.safetensors mr.safetensors qnli.safetensors
    """
    from skillgraft.folders.compare import compare

    names = [path.stem for path in grafts]
    if len(set(names)) < len(names):
        names = [str(path) for path in grafts]
    if len(set(names)) < len(names):
        raise InputError("a graft is named twice; compare different files")
    with output.progress("comparing") as progress:
        facts = compare(dict(zip(names, grafts, strict=True)), progress=progress)
    lines: list[str] = []
    for measure in ("coverage", "jaccard", "cosine"):
        rows = [(name, *(f"{value:.3f}" for value in row)) for name, row in zip(names, facts[measure], strict=True)]
        lines += [*output.columns(rows, header=[measure, *names]), ""]
    lines += output.digest_lines(dict(zip(names, facts["digests"], strict=True)))
    output.show(facts, as_json=json, lines=lines)
