"""skillgraft compare"""

from __future__ import annotations

from skillgraft.cli import naming, output
from skillgraft.cli.arguments import TABLES, Json, NamedGrafts, TablesAsked, sharing


@sharing(tables=TABLES)
def run(grafts: NamedGrafts, json: Json = False, *, tables: TablesAsked) -> None:
    """Compare grafts pair by pair: coverage, jaccard and cosine.

    Row a, column b of the coverage: how much of b's region a's region contains.

    \b
    Examples
      skillgraft compare sst2.safetensors mr.safetensors qnli.safetensors
      skillgraft compare before=old/skill.safetensors after=new/skill.safetensors
    """
    from skillgraft.folders.compare import compare

    output.check_tables(tables)
    given = naming.by_name(grafts, naming.shortest(grafts))
    names = list(given)
    with output.progress("comparing") as progress:
        facts = compare(given, progress=progress)
    if any(tables.values()):
        from skillgraft.report.score_sheets import pair_sheets
        from skillgraft.report.table_files import write_tables

        write_tables(pair_sheets(facts), tables)
    lines: list[str] = []
    for measure in ("coverage", "jaccard", "cosine"):
        rows = [(name, *(f"{value:.3f}" for value in row)) for name, row in zip(names, facts[measure], strict=True)]
        lines += [*output.columns(rows, header=[measure, *names]), ""]
    lines += output.digest_lines(dict(zip(names, facts["digests"], strict=True)))
    output.show(facts, as_json=json, lines=lines)
