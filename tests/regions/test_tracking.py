"""A run's checkpoints seen through one of them (P1 fig. 15), and each through its own region."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillgraft import evaluate, extract
from skillgraft.errors import InputError
from skillgraft.regions.localize import localize
from skillgraft.regions.tracking import checkpoints_of, own_regions, track
from skillgraft.training.finetune import finetune
from tests.regions.films import QUICK, STEPS, Films, accuracy


@pytest.fixture(scope="module")
def checkpoints(films: Films, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("tracking") / "course"
    finetune(films.base, [films.task], out=out, plan=QUICK.with_changes(checkpoint_every=12))
    return checkpoints_of(out)


def test_the_checkpoints_come_in_order(checkpoints: list[Path], tmp_path: Path) -> None:
    assert [folder.name for folder in checkpoints] == ["step-000012", "step-000024", "course"]
    with pytest.raises(InputError, match="holds no checkpoints; fine-tune with checkpoint_every"):
        checkpoints_of(tmp_path / "nothing")


def test_one_checkpoints_regions_on_all_of_them(films: Films, checkpoints: list[Path]) -> None:
    """Beside the longer course: localize at the chosen checkpoint from its own labels, cut each checkpoint there, evaluate."""
    base, task = films.base, films.task
    seen: list[tuple[int, int]] = []
    asked = {"chosen": 1, "densities": (0.01, 0.1), **STEPS}
    found = track(base, checkpoints, task, on_checkpoint=lambda *at: seen.append(at), **asked)
    assert found.chosen == "step-000024"
    assert seen == [(1, 3), (2, 3), (3, 3)]
    for density, region in found.regions.items():
        longer = localize(base, checkpoints[1], task=task, density=density, labels="tuned", **STEPS)
        assert longer.graft.region == region
        for stage, folder in zip(found.stages, checkpoints, strict=True):
            graft = extract(base, folder, region=region)
            models = evaluate(base, [task], grafts={"g": graft}, tuned={"t": folder}, split="validation")["films"]
            assert stage.name == folder.name
            assert stage.grafts[density]["accuracy"]["value"] == accuracy(models["g"])
            assert stage.checkpoint["accuracy"]["value"] == accuracy(models["t"])


def test_every_checkpoints_own_region(films: Films, checkpoints: list[Path]) -> None:
    found = own_regions(films.base, checkpoints, films.task, entries=50, **STEPS)
    last = found[-1]
    assert (last.name, last.jaccard, last.coverage) == ("course", 1.0, 1.0)
    for one in found:
        assert len(one.region) == 50
        assert one.jaccard == one.region.jaccard(last.region)
        assert one.coverage == len(one.region & last.region) / 50
        assert {"share_kept", "agreement"} <= one.graft.keys()


def test_a_checkpoint_that_is_not_there(films: Films, checkpoints: list[Path]) -> None:
    with pytest.raises(InputError, match="there are 3 checkpoints; number 3 is none of them"):
        track(films.base, checkpoints, films.task, chosen=3)
    with pytest.raises(InputError, match="there are 0 checkpoints"):
        own_regions(films.base, [], films.task)
