"""skillgraft reproduce"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import TABLES, Json, TablesAsked, sharing

if TYPE_CHECKING:
    from skillgraft.opening.executors import Needs
    from skillgraft.papers.main import Planned
    from skillgraft.papers.profile import Profile
    from skillgraft.report.sheet import Result

Numbers = Annotated[list[int] | None, typer.Option(help="Instead of the recipe's own; give it several times.")]


@sharing(tables=TABLES)
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME...|list", help="Tables and figures; `list` shows all.")],
    base: Annotated[str | None, typer.Option(metavar="BASE", help="Model folder or hub name.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where results go.")] = Path("results"),
    store: Annotated[Path | None, typer.Option(help="Where models and grafts are kept (DIR/store).")] = None,
    profile: Annotated[str, typer.Option(help="How large: cpu, cpu-100m, paper, smoke.")] = "cpu",
    task: Annotated[list[str] | None, typer.Option(metavar="T", help="Tasks instead of the recipe's own.")] = None,
    ood: Annotated[list[str] | None, typer.Option(metavar="T", help="Out-of-distribution tasks instead.")] = None,
    control: Annotated[list[str] | None, typer.Option(metavar="T", help="Tasks that forgetting must keep.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Some methods or rules (P2), rows of tables 6 and 7 and of pull, lines of figure 2, instead of all."
        ),
    ] = None,
    shots: Numbers = None,
    seed: Numbers = None,
    readout: Annotated[str | None, typer.Option(help="How class scores are read: auto, masked, causal, …")] = None,
    jobs: Annotated[int, typer.Option(help="Steps that run side by side; they share the cores.")] = 1,
    on: Annotated[
        str | None,
        typer.Option(metavar="ray|ray://…", help="A Ray cluster: RAY_ADDRESS's, else a local one, or an address."),
    ] = None,
    cores: Annotated[int | None, typer.Option(help="on: cores of each step, which has as many threads (1).")] = None,
    memory: Annotated[float | None, typer.Option(help="on: memory of each step, in GB.")] = None,
    gpus: Annotated[float | None, typer.Option(help="on: GPUs of each step.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the steps and about how long they take.")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Figures as PDF too; needs a Chromium or Chrome.")] = False,
    json: Json = False,
    *,
    tables: TablesAsked,
) -> None:
    """Make the papers' tables and figures with your model.

    Each is written as JSON, Markdown and a figure.

    \b
    Examples
      skillgraft reproduce list
      skillgraft reproduce table2 --base MiniLM --task sst2 --shots 64 -o results
      skillgraft reproduce table2 fig2 --base MiniLM --dry-run
      skillgraft reproduce table2 --base MiniLM --on ray --cores 4 -o /shared/results

    Killed and started again, it goes on where it was; recipes share what they have in common.
    """
    if names == ["list"]:
        _list(as_json=json)
        return
    from skillgraft.errors import InputError
    from skillgraft.papers.profile import profile as named

    if base is None:
        raise InputError("reproduce needs a model: give --base BASE")
    output.check_tables(tables)
    output.only_our_progress()
    asked = {"tasks": task, "ood": ood, "controls": control, "methods": method, "shots": shots, "seeds": seed}
    chosen = named(profile, base=base, readout=readout, **{name: tuple(given or ()) for name, given in asked.items()})
    results = store or out / "store"
    if dry_run:
        _plan(names, chosen, results, jobs, as_json=json)
    else:
        needs = _needs(cores, memory, gpus)
        made = _run(names, chosen, results, out, {"jobs": jobs, "on": on, "needs": needs}, pdf=pdf)
        if any(tables.values()):
            from skillgraft.report.table_files import write_tables

            write_tables([sheet for result in made for sheet in result.sheets], tables)
        _show(made, out, pdf=pdf, as_json=json)


def _list(*, as_json: bool) -> None:
    from skillgraft.papers.recipes import RECIPES

    rows = [(name, one.paper, one.title) for name, one in RECIPES.items()]
    facts = {name: {"paper": where, "title": title} for name, where, title in rows}
    output.show({"recipes": facts}, as_json=as_json, lines=output.columns(rows))


def _plan(names: list[str], profile: Profile, store: Path, jobs: int, *, as_json: bool) -> None:
    from skillgraft.papers.main import plan

    planned = plan(names, profile, store=store, jobs=jobs)
    left = [each for each in planned if not each.done]
    seconds = sum(each.seconds for each in left)
    facts = {"steps": [_step(each) for each in planned], "seconds": seconds}
    rows = [("done" if each.done else _time(each.seconds), each.step.title) for each in planned]
    total = f"{len(left)} of {len(planned)} steps to run, about {_time(seconds)} on two cores"
    output.show(facts, as_json=as_json, lines=[*output.columns(rows), total])


def _step(planned: Planned) -> dict[str, Any]:
    step = planned.step
    return {
        "function": step.name,
        "title": step.title,
        "key": step.key,
        "done": planned.done,
        "seconds": planned.seconds,
    }


def _time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


def _needs(cores: int | None, memory: float | None, gpus: float | None) -> Needs | None:
    """What a step takes on a cluster; None where nothing was asked for."""
    from skillgraft.opening.executors import Needs

    if cores is None and memory is None and gpus is None:
        return None
    return Needs(cores or 1, int(1e9 * (memory or 0)), gpus or 0)


def _run(
    names: list[str], profile: Profile, store: Path, out: Path, where: dict[str, Any], *, pdf: bool
) -> list[Result]:
    from skillgraft.opening.executors import executor
    from skillgraft.papers.main import reproduce
    from skillgraft.papers.recipes import recipe

    for name in names:  # a wrong name is refused before the first recipe runs
        recipe(name)
    results = []
    with executor(**where) as workers:
        for name in names:
            with output.progress(name) as bar:
                done = reproduce(
                    name, profile, store=store, out=out, executor=workers, command=output.command_line(),
                    pdf=pdf, on_step=lambda _step, n, of: bar(n, of),
                )  # fmt: skip
            results.append(done)
    return results


def _show(results: Sequence[Result], out: Path, *, pdf: bool, as_json: bool) -> None:
    from skillgraft.report.sheet import markdown

    files = {result.name: str(out / f"{result.name}.json") for result in results}
    missing = {result.name: why for result in results if pdf and (why := result.made.get("without_svg"))}
    facts = {"results": files, **({"without_pdf": missing} if missing else {})}
    lines = [f"{name}: no PDF; {why}" for name, why in missing.items()]
    output.show(facts, as_json=as_json, lines=[*(markdown(result) for result in results), *lines])
