"""docs/results.md, a page for each measured result and the README's table, made from JSON: `pages()` gives every file's text.

examples/results.toml says which results there are, with comments written after looking at the numbers; examples/claims.toml
which of their cells stand beside which of the papers' claims. No number of ours is written by hand.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, product
from pathlib import Path
from shlex import quote
from typing import Any

import first_screen

from skillgraft.errors import InputError, did_you_mean
from skillgraft.report.sheet import Cell, Result, Sheet, load_result, markdown
from skillgraft.values.printing import shown

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RESULTS, PAGE, README = DOCS / "results", DOCS / "results.md", ROOT / "README.md"
LISTS = ("tasks", "shots", "seeds", "ood", "controls", "methods")
ABOUT = ("id", "recipe", "base", "profile", "comment")
Part = Mapping[str, Any]
HEADER = ("claim", "paper", "here", "seeds", "verdict", "results, command")


def parts() -> Sequence[Part]:
    """The parts of examples/results.toml, in order: a result, a heading, or another page."""
    return list(_file("results.toml")["part"])


def in_turn() -> Sequence[Part]:
    """The results in the order in which they are measured: those that `first` names, then the others as they stand."""
    results = {part["id"]: part for part in parts() if "recipe" in part}
    first = [_part(name)["id"] for name in _file("results.toml")["first"]]
    return [results[name] for name in dict.fromkeys([*first, *results])]


def pages() -> dict[Path, str]:
    """Every page, by its path. A result that is not measured yet has none."""
    measured = [part for part in parts() if "recipe" in part and _json(part).exists()]
    readme = first_screen.with_tables(README.read_text(encoding="utf-8"))
    return {README: readme, PAGE: _claims_page(), **{page_of(part): _result_page(part) for part in measured}}


def page_of(part: Part) -> Path:
    """The page of a result, beside its JSON and its figures."""
    return _json(part).with_suffix(".md")


def command(part: Part) -> str:
    """The command line that gives the same; in brackets what a profile of one's own would have to say."""
    words = ["skillgraft reproduce", part["recipe"], "--base", part["base"]]
    words += [
        f"--{key.removesuffix('s') if key != 'shots' else key} {quote(str(each))}"
        for key in LISTS
        for each in part.get(key, ())
    ]
    words += [f"--{key} {part[key]}" for key in ("profile", "readout") if key in part]
    words += [f"({key} = {value})" for key, value in part.items() if key not in (*LISTS, *ABOUT, "readout")]
    return " ".join(words)


def _result_page(part: Part) -> str:
    """A result with its command, its comment, its tables and its figures."""
    result = _result(part["id"])
    heading, _, tables = markdown(result, level=1).partition("\n")
    heading = heading.replace(part["recipe"], part["id"], 1)  # a recipe may be there at several scales
    drawn = [name for name in result.made.get("figures", ()) if name.endswith(".svg")]
    pieces = [heading, f"[All results](../../results.md). `{command(part)}`", part.get("comment", "").strip()]
    pieces += [tables.strip(), *(f"![{part['id']}]({name})" for name in drawn)]
    return "\n\n".join(filter(None, pieces)) + "\n"


def _claims_page() -> str:
    lines = [_row(HEADER), _row(["---"] * len(HEADER))]
    lines += [_row(_claim(claim)) for claim in _file("claims.toml")["claim"]]
    return "\n".join([_file("results.toml")["intro"].strip(), "", *lines, *_contents()]) + "\n"


def _contents() -> Iterator[str]:
    """Every result by chapter, with its page."""
    for part in parts():
        if "heading" in part:
            yield from ("", f"## {part['heading']}", "")
        elif "page" in part:
            yield f"- [{part['title']}]({part['page']})"
        elif _json(part).exists():
            yield f"- {_link(part['id'])}: {_result(part['id']).title}"
        else:
            yield f"- {part['id']}: not measured yet, `{command(part)}`"


def _claim(claim: Part) -> list[str]:
    """A row of the table of claims."""
    lines = [(line["name"], list(_numbers(line))) for line in claim["ours"]]
    every = [number for _, numbers in lines for number in numbers]
    ours = [f"{name}: {_listed((each.label, _interval(each)) for each in numbers)}" for name, numbers in lines]
    theirs = [(name, [each for each in numbers if each.cell.paper is not None]) for name, numbers in lines]
    papers = [
        f"{name}: {_listed((each.label, shown(each.cell.paper or 0.0, each.sheet.unit)) for each in numbers)}"
        for name, numbers in theirs
        if numbers
    ]
    results = list(dict.fromkeys(each.result for each in every))
    seeds = {seed for each in every for seed in _seeds(each)}
    where = [*map(_link, results), f"`--only {' '.join(results)}`"]
    beside = "<br>".join(filter(None, (claim.get("paper", ""), *papers)))
    return [claim["claim"], beside or "–", "<br>".join(ours), str(len(seeds)), claim["verdict"], "<br>".join(where)]


@dataclass(frozen=True)
class Number:
    """A cell of a result; `label` has the names that tell it from the others of its line."""

    label: tuple[str, ...]
    cell: Cell
    sheet: Sheet
    result: str


def _numbers(line: Part) -> Iterator[Number]:
    """The cells that a line of a claim names."""
    every = [line[key] if isinstance(line[key], list) else [line[key]] for key in ("result", "sheet", "row", "column")]
    last = next((some for some in reversed(every) if len(some) > 1), every[-1])
    short = dict(zip(last, line.get("as", last), strict=True))
    for result, title, row, column in product(*every):
        sheet = _sheet(_result(result), title)
        for name, known in ((row, sheet.rows), (column, sheet.columns)):
            if name not in known:
                raise InputError(f"{result}: {sheet.title!r} has no {name!r}; {did_you_mean(name, known)}")
        names = zip((result, title, row, column), every, strict=True)
        label = tuple(short.get(name, name) if some is last else name for name, some in names if len(some) > 1)
        yield Number(label, sheet.cells[row, column], sheet, result)


def _listed(numbers: Iterable[tuple[tuple[str, ...], str]]) -> str:
    """`sst2 tuned 12.6, graft 5.2; qnli tuned 17.6, graft 5.1`: a name that several numbers share stands once."""
    groups = [(shared, list(some)) for shared, some in groupby(numbers, key=lambda each: each[0][:-1])]
    return "; ".join(
        " ".join([*shared, ", ".join(" ".join([*label[-1:], number]) for label, number in some)])
        for shared, some in groups
    )


def _sheet(result: Result, beginning: str) -> Sheet:
    found = [sheet for sheet in result.sheets if sheet.title.startswith(beginning)]
    if len(found) != 1:
        raise InputError(f"{result.name}: expected one sheet that begins with {beginning!r}, found {len(found)}")
    return found[0]


def _interval(number: Number) -> str:
    cell, unit = number.cell, number.sheet.unit
    if cell.value is None:
        return f"– ({cell.reason})"
    spread = f" [{', '.join(shown(end, unit) for end in cell.interval)}]" if cell.interval else ""
    return shown(cell.value, unit) + spread


def _seeds(number: Number) -> set[str]:
    """The seeds of training rows that a number comes from."""
    if all(row.startswith("seed ") for row in number.sheet.rows):
        return {row.removeprefix("seed ") for row in number.sheet.rows}
    drawn = _result(number.result).made["profile"]["seeds"]
    return set(map(str, drawn or range(max(1, len(number.cell.seeds)))))


def _link(name: str) -> str:
    return f"[{name}]({page_of(_part(name)).relative_to(DOCS).as_posix()})"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _part(name: str) -> Part:
    known = {part["id"]: part for part in parts() if "recipe" in part}
    if name not in known:
        raise InputError(f"examples/results.toml has no result {name!r}; {did_you_mean(name, known)}")
    return known[name]


def _json(part: Part) -> Path:
    return RESULTS / part["id"] / f"{part['recipe']}.json"


@cache
def _result(name: str) -> Result:
    return load_result(_json(_part(name)))


@cache
def _file(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "examples" / name).read_text(encoding="utf-8"))
