"""A run's checkpoints seen through one of them (P1 fig. 15), and each through its own region."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skillgraft.errors import InputError
from skillgraft.localize.skill import Rows, localize_skill
from skillgraft.localize.tracking import checkpoints_of, own_regions, track
from skillgraft.measure.evaluate import evaluate
from skillgraft.training.finetune import finetune
from tests.training.test_finetune import QUICK, place  # noqa: F401

STEPS: dict[str, Any] = {"steps": 6, "lr": 1e5}


@pytest.fixture(scope="module")
def run(place: Path) -> list[Path]:  # noqa: F811
    finetune(place / "encoder", [place / "films.toml"], place / "course", plan=QUICK, checkpoint_every=12)
    return checkpoints_of(place / "course")


def test_the_checkpoints_come_in_order(run: list[Path], tmp_path: Path) -> None:
    assert [folder.name for folder in run] == ["step-000012", "step-000024", "course"]
    with pytest.raises(InputError, match="holds no checkpoints; fine-tune with checkpoint_every"):
        checkpoints_of(tmp_path / "nothing")


def test_one_checkpoints_regions_on_all_of_them(place: Path, run: list[Path]) -> None:  # noqa: F811
    """Beside the long way: localize at the chosen checkpoint from its own labels, cut each checkpoint there, evaluate."""
    base, task = place / "encoder", place / "films.toml"
    seen: list[tuple[int, int]] = []
    found = track(base, run, task, chosen=1, densities=(0.01, 0.1), on_checkpoint=lambda *at: seen.append(at), **STEPS)
    assert found.chosen == "step-000024"
    assert seen == [(1, 3), (2, 3), (3, 3)]
    from skillgraft import extract

    for density, region in found.regions.items():
        longer = localize_skill(base, run[1], task, budget=density, data=Rows(labels="tuned"), **STEPS)
        assert longer.graft.region == region
        for stage, folder in zip(found.stages, run, strict=True):
            graft = extract(base, folder, region=region)
            said = evaluate(base, [task], grafts={"g": graft}, tuned={"t": folder}, split="validation").said["films"]
            assert stage.name == folder.name
            right = {name: float((one.predicted == one.labels).mean()) for name, one in said.items()}
            assert stage.grafts[density]["accuracy"]["value"] == right["g"]
            assert stage.checkpoint["accuracy"]["value"] == right["t"]


def test_every_checkpoints_own_region(place: Path, run: list[Path]) -> None:  # noqa: F811
    found = own_regions(place / "encoder", run, place / "films.toml", budget=50, **STEPS)
    last = found[-1]
    assert (last.name, last.jaccard, last.coverage) == ("course", 1.0, 1.0)
    for one in found:
        assert len(one.region) == 50
        assert one.jaccard == one.region.jaccard(last.region)
        assert one.coverage == len(one.region & last.region) / 50
        assert {"share_kept", "agreement"} <= one.graft.keys()


def test_a_checkpoint_that_is_not_there(place: Path, run: list[Path]) -> None:  # noqa: F811
    with pytest.raises(InputError, match="there are 3 checkpoints; number 3 is none of them"):
        track(place / "encoder", run, place / "films.toml", chosen=3)
    with pytest.raises(InputError, match="there are 0 checkpoints"):
        own_regions(place / "encoder", [], place / "films.toml")
