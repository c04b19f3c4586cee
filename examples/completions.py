"""Measure how much of a language model's skill grafts keep: four sets of prompts and completions, or go on where a run stopped.

    SKILLGRAFT_DATA=… python examples/completions.py --base SMOLLM2 [--sets nl2bash …] [--profile short]

For each set the base is tuned (and once more with a proximal pull, and with P1's L1 pull), grafts are cut by movement and by
the budgeted search at each density, at scale 1 and at the scale that validation NLL chooses, once by P1's search, and all are
measured on test rows: NLL per token, exact match, share of tuned's improvement, size, and three answers. Of one set the search
is taken among all entries and in float32 as well. Everything made is kept in `--store` and never made again;
completions.json and its page in docs/results (or `--out`) are written from what is there, after every set. One thread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillgraft import Data, TrainingPlan, evaluate, finetune, localize
from skillgraft.files import atomic
from skillgraft.measure.summary import summary
from skillgraft.opening.runtime import Runtime
from skillgraft.predictions.completions import Completions, side_by_side
from skillgraft.report.sheet import Cell, Result, Sheet, markdown, save_result
from skillgraft.report.value_sheets import cell_of
from skillgraft.values.graft import Graft

SETS = ("nl2bash", "pronounce", "countries", "translate_fr")
NOT_MADE = Cell(reason="not measured yet")
SELDOM = Runtime(snapshot_seconds=600)  # what a killed run goes on from is as large as three models


# How the base is tuned: with no pull, with one in proximal form, and with P1's (AdamW + L1).
TUNINGS: Mapping[str, Mapping[str, float]] = {"tuned": {}, "pulled": {"pull": 0.5}, "l1": {"l1": 1e-3}}
TOLD = {"tuned": "tuned", "pulled": "tuned with a pull", "l1": "tuned with P1's L1 pull"}


@dataclass(frozen=True)
class Scale:
    """How large a run is: rows, steps of tuning, densities (of pulled models the first alone), steps and rows of searches."""

    train: int
    validation: int
    test: int
    steps: int
    densities: tuple[float, ...]
    search_steps: int
    search_rows: int
    learned_steps: int
    tunings: tuple[str, ...]
    compared: tuple[str, ...]  # the sets on which the search is also taken among all entries, and in float32


PROFILES = {
    "full": Scale(2000, 64, 200, 320, (1e-3, 1e-2, 1e-4), 24, 12, 40, tuple(TUNINGS), ("countries",)),
    "short": Scale(96, 8, 16, 16, (1e-3,), 2, 4, 2, ("tuned",), ()),
}


@dataclass(frozen=True)
class Search:
    """One graft of a set: which tuned model it is cut from, by what method, how large, at which scale."""

    tuning: str
    method: str
    density: float
    scale: float | str
    candidates: float | None = None
    dtype: str | None = None

    @property
    def name(self) -> str:
        of = "" if self.tuning == "tuned" else f"{self.tuning}, "
        more = ", all candidates" if self.candidates else f", {self.dtype}" if self.dtype else ""
        return f"{of}{self.method} {self.density:g}, scale {self.scale}{more}"

    @property
    def file(self) -> str:
        return _file(self.name, ".safetensors")

    @property
    def generates(self) -> bool:
        """Answers cost more than losses: only of grafts at the scale that suits them."""
        return self.scale == "auto"


def searches(scale: Scale, task: str) -> Iterator[Search]:
    """The searches of one set, the most wanted first."""
    for tuning in scale.tunings:
        for density in scale.densities if tuning == "tuned" else scale.densities[:1]:
            for method in ("movement", "budgeted"):
                yield from (Search(tuning, method, density, times) for times in (1.0, "auto"))
        if tuning == "tuned":
            yield Search(tuning, "learned", 1e-3, 1.0)
    if task in scale.compared:
        yield from (
            Search("tuned", "budgeted", 1e-3, 16.0, **how) for how in ({}, {"candidates": 1.0}, {"dtype": "float32"})
        )


def _file(name: str, suffix: str) -> str:
    return name.replace(", ", "-").replace(" ", "-").replace("'", "") + suffix


def measure(name: str, base: Path, store: Path, scale: Scale) -> None:
    """Everything of one set that is not there yet."""
    folder, data = store / name, Data(train_rows=scale.train, validation_rows=scale.validation, test_rows=scale.test)
    folder.mkdir(parents=True, exist_ok=True)
    for tuning in scale.tunings:
        plan = TrainingPlan(
            optimizer="adamw", lr=1e-4, schedule="linear", steps=scale.steps, batch_size=8, clip_norm=1.0,
            validate_every=max(1, scale.steps // 8), keep="best", **TUNINGS[tuning],
        )  # fmt: skip
        _say(name, TOLD[tuning])
        tuned = finetune(base, [name], out=folder / tuning, plan=plan, data=data, reuse=True, runtime=SELDOM).path
        _answers(folder, TOLD[tuning], base, name, data, tuned={TOLD[tuning]: tuned})
        for search in (each for each in searches(scale, name) if each.tuning == tuning):
            file = folder / search.file
            if not file.exists():
                _say(name, search.name)
                localize(base, tuned, task=name, data=data, out=file, **_asked(search, scale))
            _answers(folder, search.name, base, name, data, grafts={search.name: file}, generates=search.generates)


def _asked(search: Search, scale: Scale) -> dict[str, Any]:
    asked: dict[str, Any] = {"method": search.method, "density": search.density, "scale": search.scale}
    steps = {"budgeted": scale.search_steps, "learned": scale.learned_steps}.get(search.method)
    asked |= {"steps": steps, "batch_size": scale.search_rows} if steps else {}
    asked |= {"candidates": search.candidates} if search.candidates else {}
    return asked | ({"runtime": Runtime(dtype=search.dtype)} if search.dtype else {})


def _answers(folder: Path, model: str, base: Path, task: str, data: Data, **models: Any) -> None:
    """The model's predictions on the test rows, and those of the base once."""
    wanted = [each for each in ("base", model) if not _predictions(folder, each).exists()]
    if model not in wanted:
        return
    _say(task, f"{model}: test rows")
    found = evaluate(base, [task], data=data, with_base="base" in wanted, batch_size=16, **models)[task]
    for each in wanted:
        found[each].save(_predictions(folder, each))


def _predictions(folder: Path, model: str) -> Path:
    return folder / _file(model, ".npz")


def _say(task: str, what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {task}: {what}", file=sys.stderr, flush=True)


Found = Mapping[str, Mapping[str, Completions]]


def collected(store: Path, scale: Scale) -> Found:
    """Set → model → predictions, of what is there."""
    found = {}
    for task in SETS:
        names = ["base", *(TOLD[tuning] for tuning in scale.tunings), *(each.name for each in searches(scale, task))]
        files = {name: _predictions(store / task, name) for name in names}
        found[task] = {name: Completions.load(file) for name, file in files.items() if file.exists()}
    return {task: models for task, models in found.items() if "base" in models}


def page(store: Path, scale: Scale, base: Path) -> Result:
    """NLL, exact match, share of the improvement, scale and size: models as rows, sets as columns."""
    found = collected(store, scale)
    by_name = {search.name: search for task in SETS for search in searches(scale, task)}
    rows = tuple(dict.fromkeys(model for models in found.values() for model in models))
    sheets = [
        _sheet("NLL per token of the true completions", "number", found, rows, lambda one: one["nll"]),
        _sheet("Exact match", "percent", found, rows, lambda one: one.get("exact_match")),
        _sheet("Share of tuned's improvement in NLL", "percent", found, rows, lambda one: one.get("relative_gain")),
    ]
    grafts = {
        (name, task): Graft.load(store / task / by_name[name].file)
        for task, models in found.items()
        for name in models
        if name in by_name
    }
    sizes = {place: Cell(float((store / place[1] / by_name[place[0]].file).stat().st_size)) for place in grafts}
    scales = {place: Cell(graft.scale) for place, graft in grafts.items()}
    for title, unit, cells in (("Size of the graft's file", "bytes", sizes), ("Scale", "number", scales)):
        some = tuple(row for row in rows if row in by_name)
        whole = {(row, task): cells.get((row, task), NOT_MADE) for row in some for task in found}
        sheets.append(Sheet(title, some, tuple(found), whole, unit=unit, rows_are="model", columns_are="set"))
    made = {
        "command": f"python examples/completions.py --base {base.name}",
        "profile": vars(scale) | {"sets": list(found)},
    }
    notes = (*_courses(store, found, scale), *_overlaps(grafts), *_notes(found))
    return Result(
        "completions", "Skills of a language model, and the grafts that keep them", tuple(sheets), notes, made
    )


def _courses(store: Path, found: Found, scale: Scale) -> Iterator[str]:
    """How validation NLL fell while the models were tuned: whether it had stopped."""
    for task in found:
        for tuning in scale.tunings:
            log = store / task / tuning / "training.jsonl"
            steps = [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []
            looks = (f"{-step['validation']:.3f} ({step['step']})" for step in steps if "validation" in step)
            if steps:
                yield f"{task}, {TOLD[tuning]}: validation NLL after steps: {', '.join(looks)}"


def _overlaps(grafts: Mapping[tuple[str, str], Graft]) -> Iterator[str]:
    """How many entries the searches among all entries, and in float32, share with the usual one."""
    for (name, task), graft in grafts.items():
        usual = grafts.get((name.rsplit(", ", 1)[0], task))
        if usual is not None and name.count(", ") == 2 and name.startswith("budgeted"):
            share = graft.region.coverage(of=usual.region)
            yield f"{task}: {name} has {100 * share:.1f} % of the entries of the usual search"


def _sheet(title: str, unit: Any, found: Found, rows: tuple[str, ...], cell: Any) -> Sheet:
    cells = {}
    for task, models in found.items():
        for row in rows:
            cells[row, task] = NOT_MADE if row not in models else _cell(cell, models, row)
    return Sheet(title, rows, tuple(found), cells, unit=unit, rows_are="model", columns_are="set")


def _cell(cell: Any, models: Mapping[str, Completions], row: str) -> Cell:
    """A graft's gain is counted of the tuned model that it was cut from; a pulled model's own of the one without a pull."""
    of = TOLD[row.split(",")[0] if row.split(",")[0] in TUNINGS else "tuned"]
    others = {"base": models["base"], "tuned": models.get(of)}
    value = cell(summary(models[row], **{key: each for key, each in others.items() if each is not models[row]}))
    if value is None:
        return Cell(reason="what others are compared with" if models[row].texts else "no answers written")
    return cell_of(value)


def _notes(found: Found) -> tuple[str, ...]:
    """Three answers each, of the models that stand for the others."""
    notes = []
    for task, models in found.items():
        some = {
            name: each
            for name, each in models.items()
            if name in ("base", "tuned") or "budgeted 0.001, scale auto" in name
        }
        for row in side_by_side(some):
            told = (f"{name} `{_shown(text)}`" for name, text in row.items())
            notes += [f"{task}: {'; '.join(told)}"]
    return tuple(notes)


def _shown(text: str) -> str:
    """A generated text in one short line, harmless in Markdown."""
    return "".join(each if each.isprintable() else "?" for each in " ".join(text.replace("`", "'").split()))[:120]


def write_page(store: Path, scale: Scale, base: Path, out: Path) -> None:
    """What is there so far, as JSON and as a page."""
    result = page(store, scale, base)
    out.mkdir(parents=True, exist_ok=True)
    save_result(result, out / "completions.json")
    with atomic.new_file(out / "completions.md", overwrite=True) as file:
        file.write_text(markdown(result, level=1) + f"\n```json\n{json.dumps(result.made)}\n```\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--base", type=Path, required=True, help="a causal language model's folder")
    parser.add_argument("--sets", nargs="*", default=list(SETS), help="none: only the page is written")
    parser.add_argument("--profile", default="full", choices=PROFILES)
    parser.add_argument("--store", type=Path, default=Path("results/completions"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    asked = parser.parse_args()
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    scale = PROFILES[asked.profile]
    for name in asked.sets:
        measure(name, asked.base, asked.store, scale)
        write_page(asked.store, scale, asked.base, asked.out)
    if not asked.sets:
        write_page(asked.store, scale, asked.base, asked.out)


if __name__ == "__main__":
    main()
