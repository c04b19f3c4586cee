"""Measure how much of a language model's skill grafts keep: four sets of prompts and completions, or go on where a run stopped.

    SKILLGRAFT_DATA=… python examples/completions.py --base SMOLLM2 [--sets nl2bash …] [--profile short]

For each set the base is tuned (and once more with a proximal pull), grafts are cut by movement and by the budgeted search at each
density, at scale 1 and at the scale that validation NLL chooses, once by P1's search, and all are measured on test rows: NLL per
token, exact match, share of tuned's improvement, size, and three answers. Everything made is kept in `--store` and never made
again; docs/results/completions (or `--out`) is written from what is there, after every set. One thread.
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
from skillgraft.predictions.completions import Completions, side_by_side
from skillgraft.report.sheet import Cell, Result, Sheet, markdown, save_result
from skillgraft.report.value_sheets import cell_of
from skillgraft.values.graft import Graft

SETS = ("nl2bash", "pronounce", "countries", "translate_fr")
NOT_MADE = Cell(reason="not measured yet")


@dataclass(frozen=True)
class Scale:
    """How large a run is: rows, steps of tuning, densities, and the searches' steps and rows."""

    train: int
    validation: int
    test: int
    steps: int
    densities: tuple[float, ...]
    search_steps: int
    search_rows: int
    learned_steps: int
    pulls: tuple[float, ...]


PROFILES = {
    "full": Scale(1200, 100, 200, 400, (1e-4, 1e-3, 1e-2), 24, 12, 40, (0.0, 0.5)),
    "short": Scale(96, 8, 16, 16, (1e-3,), 2, 4, 2, (0.0,)),
}


@dataclass(frozen=True)
class Search:
    """One graft of a set: which tuned model it is cut from, by what method, how large, at which scale."""

    pull: float
    method: str
    density: float
    scale: float | str

    @property
    def name(self) -> str:
        pulled = "pulled, " if self.pull else ""
        return f"{pulled}{self.method} {self.density:g}, scale {self.scale}"

    @property
    def file(self) -> str:
        return self.name.replace(", ", "-").replace(" ", "-") + ".safetensors"


def searches(scale: Scale) -> Iterator[Search]:
    for pull in scale.pulls:
        for density in scale.densities:
            for method in ("movement", "budgeted"):
                yield from (Search(pull, method, density, times) for times in (1.0, "auto"))
    yield Search(0.0, "learned", 1e-3, 1.0)


def tuned_name(pull: float) -> str:
    return "tuned with a pull" if pull else "tuned"


def measure(name: str, base: Path, store: Path, scale: Scale) -> None:
    """Everything of one set that is not there yet."""
    folder, data = store / name, Data(train_rows=scale.train, validation_rows=scale.validation, test_rows=scale.test)
    folder.mkdir(parents=True, exist_ok=True)
    tuned = {}
    for pull in scale.pulls:
        plan = TrainingPlan(
            optimizer="adamw", lr=1e-4, schedule="linear", steps=scale.steps, batch_size=8, pull=pull,
            validate_every=max(1, scale.steps // 8), keep="best",
        )  # fmt: skip
        _say(name, tuned_name(pull))
        tuned[pull] = finetune(base, [name], out=folder / f"tuned-{pull:g}", plan=plan, data=data, reuse=True).path
        _answers(folder, tuned_name(pull), base, name, data, tuned={tuned_name(pull): tuned[pull]})
    for search in searches(scale):
        file = folder / search.file
        if not file.exists():
            _say(name, search.name)
            localize(base, tuned[search.pull], task=name, data=data, out=file, **_asked(search, scale))
        _answers(folder, search.name, base, name, data, grafts={search.name: file})


def _asked(search: Search, scale: Scale) -> dict[str, Any]:
    asked: dict[str, Any] = {"method": search.method, "density": search.density, "scale": search.scale}
    steps = {"budgeted": scale.search_steps, "learned": scale.learned_steps}.get(search.method)
    return asked | ({"steps": steps, "batch_size": scale.search_rows} if steps else {})


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
    return folder / f"{model.replace(', ', '-').replace(' ', '-')}.npz"


def _say(task: str, what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {task}: {what}", file=sys.stderr, flush=True)


Found = Mapping[str, Mapping[str, Completions]]


def collected(store: Path, scale: Scale) -> Found:
    """Set → model → predictions, of what is there."""
    names = ["base", *map(tuned_name, scale.pulls), *(search.name for search in searches(scale))]
    return {
        task: {name: Completions.load(file) for name in names if (file := _predictions(store / task, name)).exists()}
        for task in SETS
        if _predictions(store / task, "base").exists()
    }


def page(store: Path, scale: Scale, base: Path) -> Result:
    """NLL, exact match, share of the improvement, scale and size: models as rows, sets as columns."""
    found = collected(store, scale)
    by_name = {search.name: search for search in searches(scale)}
    rows = tuple(dict.fromkeys(model for models in found.values() for model in models))
    sheets = [
        _sheet("NLL per token of the true completions", "number", found, rows, lambda _task, one: one["nll"]),
        _sheet("Exact match", "percent", found, rows, lambda _task, one: one["exact_match"]),
        _sheet(
            "Share of tuned's improvement in NLL", "percent", found, rows, lambda _task, one: one.get("relative_gain")
        ),
    ]
    grafts = {
        (name, task): store / task / by_name[name].file
        for task, models in found.items()
        for name in models
        if name in by_name
    }
    sizes = {place: Cell(float(file.stat().st_size)) for place, file in grafts.items()}
    scales = {place: Cell(Graft.load(file).scale) for place, file in grafts.items()}
    for title, unit, cells in (("Size of the graft's file", "bytes", sizes), ("Scale", "number", scales)):
        some = tuple(row for row in rows if row in by_name)
        whole = {(row, task): cells.get((row, task), NOT_MADE) for row in some for task in found}
        sheets.append(Sheet(title, some, tuple(found), whole, unit=unit, rows_are="model", columns_are="set"))
    made = {
        "command": f"python examples/completions.py --base {base.name}",
        "profile": vars(scale) | {"sets": list(found)},
    }
    return Result(
        "completions", "Skills of a language model, and the grafts that keep them", tuple(sheets), _notes(found), made
    )


def _sheet(title: str, unit: Any, found: Found, rows: tuple[str, ...], cell: Any) -> Sheet:
    cells = {}
    for task, models in found.items():
        for row in rows:
            cells[row, task] = NOT_MADE
            if row in models:
                pulled = tuned_name(1.0) if row.startswith("pulled") else tuned_name(0.0)
                others = {"base": models["base"], "tuned": models.get(pulled)}
                one = summary(models[row], **{key: each for key, each in others.items() if each is not models[row]})
                cells[row, task] = (
                    cell_of(cell(task, one)) if cell(task, one) else Cell(reason="what others are compared with")
                )
    return Sheet(title, rows, tuple(found), cells, unit=unit, rows_are="model", columns_are="set")


def _notes(found: Found) -> tuple[str, ...]:
    """Three answers each, of the models that stand for the others."""
    notes = []
    for task, models in found.items():
        some = {name: each for name, each in models.items() if name in ("base", "tuned") or "budgeted 0.001" in name}
        for row in side_by_side(some):
            told = (f"{name} `{' '.join(text.replace('`', chr(39)).split())[:120]}`" for name, text in row.items())
            notes += [f"{task}: {'; '.join(told)}"]
    return tuple(notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--base", type=Path, required=True, help="a causal language model's folder")
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=SETS)
    parser.add_argument("--profile", default="full", choices=PROFILES)
    parser.add_argument("--store", type=Path, default=Path("results/completions"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/completions"))
    asked = parser.parse_args()
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    scale = PROFILES[asked.profile]
    for name in asked.sets:
        measure(name, asked.base, asked.store, scale)
        result = page(asked.store, scale, asked.base)
        asked.out.mkdir(parents=True, exist_ok=True)
        save_result(result, asked.out / "completions.json")
        with atomic.new_file(asked.out / "completions.md", overwrite=True) as file:
            file.write_text(
                markdown(result, level=1) + f"\n```json\n{json.dumps(result.made)}\n```\n", encoding="utf-8"
            )


if __name__ == "__main__":
    main()
