"""A folder with one of everything that a report shows, and something of what it does not; names that try to be markup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from skillgraft import extract
from skillgraft.files import graft_file
from skillgraft.folders.ledger import Ledger
from skillgraft.measure import summary
from skillgraft.report.blocks import Block, environment
from skillgraft.report.sheet import Cell, Result, Sheet, save_result
from skillgraft.report.value_sheets import disentanglement_sheet

from ..family import write_family
from ..measure.making import random_predictions

EVIL = "</script><script>alert('graft')</script><b>&amp;"


def html(block: Block) -> str:
    """A block as the page has it."""
    macros = environment().get_template("blocks.html").make_module()
    return str(macros.block(block))  # type: ignore[attr-defined]


def grid(look: str = "table", **fields: Any) -> Sheet:
    """Two tasks × two models; the last cell has no value, the first has the paper's beside it."""
    cells = {
        ("sst2", "base"): Cell(0.5, 0.4, 0.6, paper=0.55),
        ("sst2", "graft"): Cell(0.8, 0.7, 0.9),
        ("trec", "base"): Cell(0.25),
        ("trec", "graft"): Cell(reason="no skill to localise"),
    }
    words = {"rows_are": "task", "columns_are": "model", "values_are": "accuracy", "look": look, "cells": cells}
    return Sheet(**{"title": "Accuracy", "rows": ("sst2", "trec"), "columns": ("base", "graft"), **words, **fields})


def curve(**fields: Any) -> Sheet:
    """Two lines over densities that do not stand in order; one point is missing."""
    cells = {
        ("0.001", "learned"): Cell(0.8, 0.75, 0.85),
        ("0.00001", "learned"): Cell(0.6, 0.55, 0.65),
        ("0.0001", "learned"): Cell(0.7, 0.65, 0.75, paper=0.72),
        ("0.001", "movement"): Cell(0.7),
        ("0.00001", "movement"): Cell(0.5),
        ("0.0001", "movement"): Cell(reason="out of time"),
    }
    words: dict[str, Any] = {"rows_are": "density", "values_are": "accuracy", "look": "lines", "log_x": True}
    return Sheet("Curve", ("0.001", "0.00001", "0.0001"), ("learned", "movement"), cells, **{**words, **fields})


def write_runs(folder: Path) -> Path:
    """BASE, a tuned folder, grafts, a region, predictions, results, what verbs printed, a damaged graft, a foreign file."""
    write_family(folder)
    Ledger(base="BASE", base_fingerprint=_fingerprint(folder), made={"by": "finetune", "tasks": ["toy"]}).write(
        folder / "TUNED", versions={"skillgraft": "0.1.0"}
    )
    answers = {
        name: random_predictions(60, 3, seed=seed, **_made_by(name)) for seed, name in enumerate(("base", "TUNED"))
    }
    answers["a.safetensors"] = random_predictions(60, 3, seed=1, **_made_by("a.safetensors"))
    # The same rows for all: the labels are those of the first.
    answers = {
        name: type(each)(each.scores, answers["base"].labels, task="toy", made_by=each.made_by)
        for name, each in answers.items()
    }
    for name, each in answers.items():
        each.save(folder / "predictions" / f"toy--{name}.npz")
    models = {name: summary(each, base=answers["base"] if name != "base" else None) for name, each in answers.items()}
    facts = {"format": "skillgraft evaluation 1", "readout": "linear", "split": "test", "tasks": {"toy": models}}
    _write(folder / "scores.json", facts)
    write_grafts(folder, models)
    _write(folder / "localize.json", localized(models))
    points = [{"scale": n / 4, "scores": {"toy": 0.5 + n / 10}, "keeps": True} for n in range(5)]
    _write(folder / "scales.json", {"format": "skillgraft scales 1", "out": "x", "scale": 0.5, "points": points})
    pair = disentanglement_sheet([0.0, 1.0], [[0.0, 0.1], [0.2, 0.3]], tasks=("toy", "other"))
    sheets = (grid(), grid("bars"), grid("heatmap"), curve(), pair)
    save_result(
        Result(
            "table2", "Grafts keep the skill", sheets, ("CPU profile.",), {"command": "skillgraft reproduce table2"}
        ),
        folder / "table2.json",
    )
    (folder / "damaged.safetensors").write_bytes((folder / "a.safetensors").read_bytes()[:-3])
    (folder / "notes.txt").write_text("not for reports")
    return folder


def write_grafts(folder: Path, models: dict[str, Any]) -> None:
    scores = {"validation": {"base": models["base"], "tuned": models["TUNED"], "graft": models["a.safetensors"]}}
    a = extract(folder / "BASE", folder / "TUNED", entries=4).with_info(
        task=EVIL, scores=scores, command="skillgraft extract"
    )
    b = extract(folder / "BASE", folder / "OTHER", entries=2).with_info(task="other")
    graft_file.save(a, folder / "a.safetensors")
    graft_file.save(b, folder / "b.safetensors")
    region = graft_file.load_region(folder / "b.safetensors")
    graft_file.save_region(region, folder / "region.safetensors", base_fingerprint=a.base_fingerprint)


def localized(models: dict[str, Any]) -> dict[str, Any]:
    """What `localize --curve --json` prints."""
    validation = {"base": models["base"], "tuned": models["TUNED"], "graft": models["a.safetensors"]}
    points = [{"density": d, "entries": 1, **models[name]} for d, name in ((1e-4, "base"), (1e-2, "TUNED"))]
    return {
        "format": "skillgraft localization 1",
        "out": "runs/a.safetensors",
        "method": "learned",
        "density": 1e-3,
        "validation": validation,
        "curve": points,
    }


def _made_by(model: str) -> dict[str, Any]:
    return {"made_by": {"model": model, "split": "test"}}


def _fingerprint(folder: Path) -> str:
    from skillgraft.folders.checkpoint import Checkpoint

    return Checkpoint.open(folder / "BASE").fingerprint


def _write(path: Path, facts: dict[str, Any]) -> None:
    path.write_text(json.dumps(facts), encoding="utf-8")
