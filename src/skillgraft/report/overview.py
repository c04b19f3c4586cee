"""The first screen: what did I get? A sentence for each graft, one chart of all models on all tasks, one map of all skills.

reviews: 10,647 numbers, 159.1 kB, keep 97 % of the accuracy (base 75.0, tuned 91.0, graft 88.0 %); ECE 4.9 → 8.3 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from skillgraft.measure.comparisons import LEAST_GAIN
from skillgraft.measure.summary import role_of
from skillgraft.report.artefacts import Artefact, Found, short_names
from skillgraft.report.blocks import Block, Drawing, Grid, Text
from skillgraft.report.json_artefacts import ROLES, Role, Scores
from skillgraft.report.score_sheets import in_order, people_names
from skillgraft.report.sheet import Cell, Sheet
from skillgraft.report.value_sheets import NOT_MEASURED, share_sheet
from skillgraft.values.printing import human_bytes, shown


def overview(found: Found) -> list[Block]:
    """What was found, in words, a chart and a map."""
    scores = found.scores()
    shown_scores = [each for each in scores if each.split == "test"] or scores
    grafts = sorted(found.of("graft"), key=lambda each: ROLES.index(role_of(each.value)))
    blocks: list[Block] = [_sentence(graft, found, shown_scores) for graft in grafts]
    blocks = blocks or [Text(f"Found {found.in_words()}.", "lead")]
    if found.unread:
        count = "1 file" if len(found.unread) == 1 else f"{len(found.unread)} files"
        blocks.append(Text(f"{count} could not be read:", "warning", link=("#aside", "see why")))
    drawings = [Drawing.of(f"overview-scores{at or ''}", sheet) for at, sheet in enumerate(charts(shown_scores))]
    skills = {each.name for each in grafts if role_of(each.value) == "graft"}
    regions = found.regions("graft", "region", only=skills) or found.regions("graft", "region")
    if regions:
        sheet = share_sheet(regions, title="Where each skill lives: the share of its entries")
        drawings.append(Drawing.of("overview-where", sheet))
    return [*blocks, *([Grid(drawings, "first")] if drawings else [])]


def _sentence(graft: Artefact, found: Found, scores: Sequence[Scores]) -> Text:
    """What one graft is, and how it does: a skill on its own task, a sum on all, one that forgets beside the base."""
    (name,) = short_names([graft])
    base = found.base_bytes().get(graft.base)
    share = f" ({share_in_words(graft.bytes / base)} % of the base)" if base else ""
    size = f"{len(graft.value):,} numbers, {human_bytes(graft.bytes)}{share}"
    mine = [each for each in scores if model_of(graft, each)]
    role = role_of(graft.value)
    own = [each for each in mine if role == "graft" and each.task == graft.value.info.text("task")]
    tell = _keeps if own else _scores_of
    facts = "; ".join(tell(each, model_of(graft, each)) for each in own or mine)
    return Text(
        f"{size}{', ' if own else ': '}{facts}." if facts else f"{size}; no scores were found.", "skill", f"{name}:"
    )


def _keeps(scores: Scores, model: str) -> str:
    """`keep 97 % of the accuracy (base 75.0, tuned 91.0, graft 88.0 %); ECE 4.9 → 8.3 %`; of a loss, of its improvement."""
    names = {"base": _by_role(scores, "base"), "tuned": _by_role(scores, "tuned"), "graft": model}
    found = {label: scores.models[name]["score"].value for label, name in names.items() if name}
    ece = [cell.value for name in (names["tuned"], model) if name and (cell := scores.models[name].get("ece"))]
    surer = f"; ECE {' → '.join(shown(value, 'percent') for value in ece if value is not None)} %"
    confidence = surer if len(ece) == 2 and None not in ece else ""
    return f"{_share(scores, found)} ({_listed(found, scores)}){_on(scores)}{confidence}{_no_skill(scores, found)}"


def _no_skill(scores: Scores, found: Mapping[str, float | None]) -> str:
    """Where tuned is hardly better than the base, a share of its score says nothing."""
    base, tuned = found.get("base"), found.get("tuned")
    if scores.unit != "percent" or base is None or tuned is None or tuned - base >= LEAST_GAIN:
        return ""
    return f"; tuned is not {100 * LEAST_GAIN:g} points better than the base, so there was no skill to keep"


def _share(scores: Scores, found: Mapping[str, float | None]) -> str:
    base, tuned, mine = (found.get(label) for label in ("base", "tuned", "graft"))
    if scores.unit == "percent":
        return (
            f"keep {100 * mine / tuned:.0f} % of the {scores.metric}" if mine is not None and tuned else scores.metric
        )
    if base is None or tuned is None or mine is None or base == tuned:
        return scores.metric
    return f"keep {100 * (mine - base) / (tuned - base):.0f} % of what tuning gained in {scores.metric}"


def _listed(found: Mapping[str, float | None], scores: Scores) -> str:
    """`base 75.0, tuned 91.0 %`: those numbers that are there."""
    numbers = ", ".join(f"{label} {shown(value, scores.unit)}" for label, value in found.items() if value is not None)
    return f"{numbers} %" if numbers and scores.unit == "percent" else numbers


def _scores_of(scores: Scores, model: str) -> str:
    """`reviews 90.0 % (base 75.0, tuned 91.0 %)`"""
    names = {"base": _by_role(scores, "base"), "tuned": _by_role(scores, "tuned")}
    others = _listed({label: scores.models[name]["score"].value for label, name in names.items() if name}, scores)
    number = _listed({scores.task: scores.models[model]["score"].value}, scores) or f"{scores.task} undefined"
    return f"{number}{f' ({others})' if others else ''}{_on(scores)}"


def _on(scores: Scores) -> str:
    return "" if scores.split == "test" else f" on {scores.split} rows"


def _by_role(scores: Scores, role: str) -> str:
    """The model of that role on this task: made for it, or the only one; "" where there is none, or no telling which."""
    found = [name for name in scores.models if scores.roles[name].role == role]
    own = [name for name in found if scores.task in scores.roles[name].tasks]
    return next((names[0] for names in (own, found) if len(names) == 1), "")


def model_of(graft: Artefact, scores: Scores) -> str:
    """What these scores call the graft: by its file's name, with or without its ending; "" where they do not know it."""
    names = (Path(graft.name).name, graft.stem)
    return next((name for name in names if name in scores.models), "")


def charts(scores: Sequence[Scores]) -> Iterator[Sheet]:
    """All tasks in one sheet for each split and unit: base, tuned, graft and sum side by side; other models by their names."""
    for split, unit in dict.fromkeys((each.split, each.unit) for each in scores):
        members = [each for each in scores if (each.split, each.unit) == (split, unit)]
        labelled = [(row, _labelled(each)) for row, each in zip(_rows(members), members, strict=True)]
        labels = [name for _, models in labelled for name in models]
        columns = sorted(dict.fromkeys(labels), key=in_order)
        cells = {
            (row, column): models.get(column, Cell(reason=NOT_MEASURED))
            for row, models in labelled
            for column in columns
        }
        metrics = " or ".join(dict.fromkeys(each.metric for each in members))
        rows = tuple(row for row, _ in labelled)
        words = {"rows_are": "", "columns_are": "model", "values_are": metrics, "unit": unit}
        title = f"{metrics[:1].upper()}{metrics[1:]} on {split} rows: base, tuned and grafts"
        yield Sheet(title, rows, tuple(columns), cells, look="bars", **words)  # type: ignore[arg-type]


def _rows(scores: Sequence[Scores]) -> list[str]:
    """The tasks' names; where one stands twice, with the number of rows, or numbered."""
    names = [each.task for each in scores]
    longer = [name if names.count(name) == 1 else each.title for name, each in zip(names, scores, strict=True)]
    return [
        name if longer.count(name) == 1 else f"{name} ({longer[:at].count(name) + 1})" for at, name in enumerate(longer)
    ]


def _labelled(scores: Scores) -> dict[str, Cell]:
    """The scores that the chart shows: a model by its role where it alone has it, else by its name.

    What was made for other tasks is left to the tables, but for sums, which are for all.
    """
    wanted = [name for name in scores.models if _is_for(scores.roles[name], scores.task)]
    roles = [scores.roles[name].role for name in wanted]
    people = people_names(wanted)
    labels = [
        role if role and roles.count(role) == 1 else people[name] for name, role in zip(wanted, roles, strict=True)
    ]
    return {label: scores.models[name]["score"] for label, name in zip(labels, wanted, strict=True)}


def _is_for(role: Role, task: str) -> bool:
    return role.role in ("", "base", "sum", "forgotten") or not role.tasks or task in role.tasks


def share_in_words(share: float) -> str:
    """Two digits of a small share, whole percents of a large one."""
    return f"{100 * share:.2g}" if share < 0.1 else f"{100 * share:.0f}"
