"""Where a graft keeps too little, the next command is one that can be typed; localize and evaluate agree on what was measured."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from skillgraft import Data, evaluate, finetune, localize
from skillgraft.cli.hints import hints
from skillgraft.regions.localize import Localization
from skillgraft.training.plan import TrainingPlan
from tests.regions.films import STEPS, Films
from tests.running import Run

WORDS = ["localize", "BASE", "TUNED", "--task", "t.toml", "--shots", "8", "--density", "1e-4", "-o", "g.safetensors"]
OUT = Path("g.safetensors")


@dataclass(frozen=True)
class Cut:
    """As much of a graft as the hints look at."""

    density: float = 1e-4
    scale: float = 1.0
    info: dict[str, Any] = field(default_factory=lambda: {"recipe": {"density": 1e-4}})

    @property
    def region(self) -> Cut:
        return self

    def __len__(self) -> int:
        return 850


@dataclass(frozen=True)
class Found:
    graft: Cut
    kept: float | None
    trials: tuple[Any, ...] = ()
    match: dict[str, Any] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, Any]:
        return {"graft": {"relative_gain": {"value": self.kept}}}


def next_command(found: Any, words: list[str] = WORDS) -> list[str] | None:
    given = list(hints(found, command=words, out=OUT))
    return shlex.split(given[0]["command"]) if given else None


def test_a_scale_comes_first_then_entries_then_a_pull() -> None:
    scaled = ["skillgraft", *WORDS[:9], "--scale", "auto", "-o", "g-scaled.safetensors"]
    assert next_command(Found(Cut(), 0.5)) == scaled
    tried = Found(Cut(scale=8.0), 0.5, trials=({"scale": 8.0},))
    larger = ["skillgraft", *WORDS[:7], "--density", "0.001", "-o", "g-larger.safetensors"]
    assert next_command(tried) == larger
    pulled = "skillgraft finetune BASE --task t.toml --shots 8 --pull 0.5 -o PULLED"
    assert next_command(replace(tried, graft=Cut(density=0.05, scale=8.0))) == pulled.split()


def test_entries_stay_entries_and_a_share_to_keep_goes() -> None:
    counted = [*WORDS[:7], "--entries=850", "-o", "g.safetensors"]
    found = Found(Cut(scale=2.0, info={"recipe": {"entries": 850}}), 0.5)
    assert next_command(found, counted) == ["skillgraft", *WORDS[:7], "--entries", "8500", "-o", "g-larger.safetensors"]
    keeping = Found(Cut(scale=2.0, info={"recipe": {"keep_gain": 0.95}}), 0.5)
    assert "finetune" in (next_command(keeping) or [])


@pytest.mark.parametrize("kept", [0.9, 1.2, None])
def test_enough_needs_no_hint(kept: float | None) -> None:
    assert next_command(Found(Cut(), kept)) is None


def test_without_labels_the_way_counts() -> None:
    assert next_command(Found(Cut(), None, match={"share": 0.95})) is None
    assert next_command(Found(Cut(), None, match={"share": 0.4})) is not None


def test_the_command_that_is_printed_runs(
    run: Run, films: Films, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = list(map(str, (*films.words, "--method", "movement", "--entries", 5, "-o", tmp_path / "small.safetensors")))
    monkeypatch.setattr("sys.argv", ["skillgraft", *words])
    code, out, err = run(*words, "--json")
    assert code == 0, err
    (hint,) = json.loads(out)["next"]
    assert "--scale auto" in hint["command"]
    code, out, err = run(*shlex.split(hint["command"])[1:])
    assert code == 0, err
    assert (tmp_path / "small-scaled.safetensors").exists()


def test_localize_and_evaluate_agree_on_base_and_tuned_through_a_head(films: Films, tmp_path: Path) -> None:
    """Base answers through its own head, not through tuned's."""
    data, task = Data(readout="linear"), films.task
    plan = TrainingPlan(optimizer="adamw", lr=3e-3, batch_size=8, steps=40, dropout=False)
    finetune(films.base, [task], out=tmp_path / "tuned", plan=plan, data=data)
    located: Localization = localize(films.base, tmp_path / "tuned", task=task, entries=50, data=data, **STEPS)
    asked: dict[str, Any] = {"tuned": {"tuned": tmp_path / "tuned"}, "grafts": {"graft": located.graft}}
    found = evaluate(films.base, [task], split="validation", data=data, **asked).summaries()["films"]
    for model in ("base", "tuned", "graft"):
        for metric in ("score", "nll", "ece"):
            assert located.scores[model][metric]["value"] == pytest.approx(found[model][metric]["value"], abs=1e-5)
