"""Killed and started again a search ends with the same bytes; work of other settings or other numbers is never taken up."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from skillgraft import Data, load, localize, localize_live
from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.live.grafted import fingerprint_of
from skillgraft.training.finetune import finetune
from skillgraft.values.numbers import Array
from tests.readouts import making
from tests.regions.films import QUICK, Films, Killed, rewritten, watching
from tests.running import start

SEARCH = (
    "--method",
    "learned",
    "--entries",
    40,
    "--steps",
    60,
    "--lr",
    "1e5",
    "--look-every",
    2,
    "--snapshot-seconds",
    0,
)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_killed_and_started_again_it_ends_with_the_same_bytes(films: Films, tmp_path: Path, processes: int) -> None:
    words = (*films.words, *SEARCH, "-o", "cut.safetensors")
    words = (*words, "--paper-curve") if processes == 1 else words
    for folder in ("straight", "killed"):
        (tmp_path / folder).mkdir()
    straight = start(tmp_path / "straight", *words, processes=processes)
    assert straight.wait(timeout=240) == 0, straight.stderr.read() if straight.stderr else ""
    killed = start(tmp_path / "killed", *words, processes=processes)
    resume = tmp_path / "killed" / (".cut.safetensors.resume.curve" if processes == 1 else ".cut.safetensors.resume")
    deadline = time.monotonic() + 120
    while not resume.exists() and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert resume.exists()
    assert not (tmp_path / "killed" / "cut.safetensors").exists()
    again = start(tmp_path / "killed", *words, processes=processes)
    assert again.wait(timeout=240) == 0, again.stderr.read() if again.stderr else ""
    ends = [(tmp_path / folder / "cut.safetensors").read_bytes() for folder in ("straight", "killed")]
    assert ends[0] == ends[1]
    assert not list((tmp_path / "killed").glob(".cut*"))


def test_every_part_of_the_work_resumes(films: Films, tmp_path: Path) -> None:
    """Stopped at any step of the search itself or of one of the curve's, it goes on there and not before."""
    seen: list[int] = []
    settings: dict[str, Any] = {"method": "learned", "entries": 25, "steps": 5, "lr": 1e5, "look_every": 2}
    settings |= {"densities": (1e-3, 1e-2), "curve": "paper", "out": tmp_path / "g.safetensors"}
    straight = films.localize(**{**settings, "out": None})
    for _ in range(3):
        with pytest.raises(Killed):
            films.localize(runtime=watching(seen, kill_after=4), **settings)
    resumed = films.localize(runtime=watching(seen), **settings)
    assert len(seen) == 3 * 5
    assert resumed.curve == straight.curve
    assert resumed.graft == straight.graft
    assert load(tmp_path / "g.safetensors") == straight.graft
    assert [path.name for path in tmp_path.iterdir()] == ["g.safetensors"]
    with pytest.raises(InputError, match="exists already"):
        films.localize(**settings)


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ({}, 4),
        ({"entries": 30}, 4),
        ({"entries": None, "density": 0.01}, 4),
        ({"entries": None, "keep": 0.5}, 4),
        ({"entries": None}, 1),
        ({"patience": 9}, 1),
        ({"lr": 2e5}, 1),
        ({"start": 1e-2}, 1),
        ({"scope": "biases"}, 1),
        ({"reference": "zero"}, 1),
        ({"scale": 2.0}, 1),
        ({"labels": "tuned"}, 1),
        ({"batch_size": 20}, 1),
        ({"data": Data(train_rows=40)}, 1),
        ({"data": Data(max_length=6)}, 1),
    ],
)
def test_only_a_search_with_the_same_settings_goes_on(
    change: dict[str, Any], first: int, films: Films, tmp_path: Path
) -> None:
    """Whatever decides the search begins it anew; how many entries are cut from it does not.

    Without a number of entries the steps are compared, and looks at the first steps would be missing: that begins it anew.
    """
    seen: list[int] = []
    settings: dict[str, Any] = {"method": "learned", "entries": 25, "steps": 4, "lr": 1e5}
    asked = {**settings, **change}
    straight = films.localize(**asked)
    settings["out"] = asked["out"] = tmp_path / "g.safetensors"
    with pytest.raises(Killed):
        films.localize(runtime=watching(seen, kill_after=3), **settings)
    seen.clear()
    resumed = films.localize(runtime=watching(seen), **asked)
    assert seen[0] == first
    assert resumed.graft == straight.graft, "whatever was taken up"


def test_a_search_at_the_scale_of_auto_is_the_search_at_that_scale(films: Films, tmp_path: Path) -> None:
    """Killed while it looked at the second scale, and asked again for that one alone."""
    seen: list[int] = []
    settings: dict[str, Any] = {
        "method": "learned",
        "entries": 25,
        "steps": 4,
        "lr": 1e5,
        "out": tmp_path / "g.safetensors",
    }
    with pytest.raises(Killed):
        films.localize(scale="auto", runtime=watching(seen, kill_after=7), **settings)
    films.localize(scale=2.0, runtime=watching(seen), **settings)
    assert seen == [1, 2, 3, 4, 1, 2, 3, 4]


LEARNED: dict[str, Any] = {"method": "learned", "steps": 4, "lr": 1e5}
CURVES: dict[str, dict[str, Any]] = {
    "movement": {"method": "movement", "entries": 25},
    "attribution": {"method": "attribution", "entries": 25},
    "nested": LEARNED,
    "paper": {**LEARNED, "curve": "paper"},
    "paper, budget": {**LEARNED, "curve": "paper", "entries": 25},
    "paper, lr": {**LEARNED, "curve": "paper", "lr": 2e5},
}


@pytest.mark.parametrize(
    ("killed", "asked", "steps"),
    [
        ("movement", "attribution", 0),
        ("nested", "paper", 2 * 4),
        ("paper", "nested", 0),
        ("paper", "paper, lr", 3 * 4),
        ("paper", "paper, budget", 4),
        ("paper", "paper", 0),
    ],
)
def test_a_curve_is_what_it_would_be_alone_whatever_was_killed_before(
    films: Films, tmp_path: Path, killed: str, asked: str, steps: int
) -> None:
    """Killed when all points are done, just before the graft is written. What can be taken up is: so many steps are left."""
    points = {"densities": (1e-3, 1e-2)}
    straight = films.localize(**points, **CURVES[asked])
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skillgraft.regions.localize.save", _killed)
        with pytest.raises(Killed):
            films.localize(runtime=watching(seen), out=tmp_path / "g", **points, **CURVES[killed])
    seen.clear()
    resumed = films.localize(runtime=watching(seen), out=tmp_path / "g", **points, **CURVES[asked])
    assert resumed == straight
    assert len(seen) == steps
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def _killed(*_: Any) -> None:
    raise Killed


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Films:
    """Matrices of 48 x 48 numbers: too many for the fingerprint, which looks at 1024 of them."""
    folder = tmp_path_factory.mktemp("wide")
    sizes = {**making.SMALL, "hidden_size": 48, "max_position_embeddings": 64}
    config = transformers.BertConfig(vocab_size=len(making.word_pieces()), **sizes)
    base = making.save(folder / "base", making.made("BertForMaskedLM", config), making.word_pieces())
    task = making.write_films(folder)
    finetune(base, [task], out=folder / "tuned", plan=QUICK)
    return Films(folder, base, folder / "tuned")


def few_changed(name: str, array: Array) -> Array:
    """Ten entries of one matrix are others, between two of the stretches that the fingerprint looks at."""
    if not name.endswith("layer.0.attention.self.query.weight"):
        return array
    changed = array.copy()
    changed.reshape(-1)[20:30] += 0.5
    return changed


@pytest.mark.parametrize("which", ["base", "tuned"])
def test_folders_that_the_fingerprint_cannot_tell_apart_do_not_resume_each_other(
    wide: Films, tmp_path: Path, which: str
) -> None:
    """Ten other entries are another search, though nothing else (start, heads, rows) tells the two apart."""
    folders = {"base": wide.base, "tuned": wide.tuned}
    other = rewritten(folders[which], tmp_path / "other", few_changed)
    first, second = (Checkpoint.open(folder) for folder in (folders[which], other))
    assert first.fingerprint == second.fingerprint, "what this test is about"
    assert first.digest != second.digest
    changed = {**folders, which: other}
    seen: list[int] = []
    asked: dict[str, Any] = {
        "task": wide.task,
        "method": "learned",
        "entries": 25,
        "steps": 4,
        "lr": 1e5,
        "start": "empty",
    }
    straight = localize(changed["base"], changed["tuned"], **asked)
    asked["out"] = tmp_path / "g.safetensors"
    with pytest.raises(Killed):
        localize(wide.base, wide.tuned, runtime=watching(seen, kill_after=3), **asked)
    seen.clear()
    resumed = localize(changed["base"], changed["tuned"], runtime=watching(seen), **asked)
    assert seen == [1, 2, 3, 4]
    assert resumed.graft == straight.graft


def test_equal_folders_elsewhere_do_resume(wide: Films, tmp_path: Path) -> None:
    """Where a folder lies and what it is called decides nothing."""
    moved = shutil.copytree(wide.tuned, tmp_path / "elsewhere")
    seen: list[int] = []
    asked: dict[str, Any] = {
        "task": wide.task,
        "method": "learned",
        "entries": 25,
        "steps": 4,
        "lr": 1e5,
        "out": tmp_path / "g.safetensors",
    }
    with pytest.raises(Killed):
        localize(wide.base, wide.tuned, runtime=watching(seen, kill_after=3), **asked)
    localize(wide.base, moved, runtime=watching(seen), **asked)
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize("which", ["base", "tuned"])
def test_live_models_that_the_fingerprint_cannot_tell_apart_do_not_either(tmp_path: Path, which: str) -> None:
    def layers(seed: int) -> nn.Module:
        made = nn.Linear(64, 64)
        draw = np.random.default_rng(seed)
        for parameter in made.parameters():
            parameter.data.copy_(_normal(draw, tuple(parameter.shape)))
        return made

    models = {"base": layers(0), "tuned": layers(1), "other": layers(0 if which == "base" else 1)}
    models["other"].weight.data.view(-1)[20:30] += 0.5
    assert fingerprint_of(models["other"]) == fingerprint_of(models[which]), "what this test is about"
    seen: list[int] = []
    asked: dict[str, Any] = {
        "batches": [_normal(np.random.default_rng(2), (8, 64))], "loss": lambda model, batch: model(batch).square().mean(),
        "scope": "all", "method": "learned", "start": "empty", "entries": 20, "steps": 4, "lr": 10.0,
        "resume": tmp_path / "search",
    }  # fmt: skip
    with pytest.raises(Killed):
        localize_live(models["base"], models["tuned"], runtime=watching(seen, kill_after=3), **asked)
    models[which] = models["other"]
    seen.clear()
    localize_live(models["base"], models["tuned"], runtime=watching(seen), **asked)
    assert seen == [1, 2, 3, 4]


def _normal(draw: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(draw.normal(size=shape).astype(np.float32))
