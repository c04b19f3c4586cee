"""The pruning test against brute force: zero the entries in a fresh model, evaluate, divide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skillgraft.errors import InputError
from skillgraft.live.grafted import parameter_names
from skillgraft.predictions.predict import predict
from skillgraft.predictions.predictions import Predictions
from skillgraft.regions.fisher import fisher_diagonal
from skillgraft.regions.pruning import pruning_sensitivity
from skillgraft.tasks import load_task
from skillgraft.tasks.data import Data
from skillgraft.values.names import in_layers
from tests.readouts import making
from tests.readouts.making import open_readouts


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pruning")
    making.sentence_encoder(folder / "encoder")
    task = making.write_films(folder)
    (folder / "again.toml").write_text(
        task.read_text().replace('name = "films"', 'name = "again"').replace("a good film", "a dull red house")
    )
    return folder


DATA = Data(train_rows=16, test_rows=30, seed=2)


def accuracy(found: Predictions) -> float:
    return float((found.predicted == found.labels).mean())


def by_hand(place: Path, found_on: str, scored_on: str, share: float) -> tuple[float, float]:
    """Base's accuracy on `scored_on`, and that of a model without the least sensitive entries on `found_on`."""
    tasks = {name: load_task(place / f"{name}.toml") for name in (found_on, scored_on)}
    opened = open_readouts(place / "encoder", list(tasks.values()))
    readouts = dict(zip(tasks, opened.readouts, strict=True))
    parameters = {name: p for name, p in parameter_names(opened.model).items() if in_layers(name)}
    finding = readouts[found_on].encode(DATA.examples(tasks[found_on], "train"))
    fisher = fisher_diagonal(opened.model, readouts[found_on], finding, parameters, seed=2)
    scoring = readouts[scored_on].encode(DATA.examples(tasks[scored_on], "test"))
    base = accuracy(predict(opened.model, readouts[scored_on], scoring))
    names = sorted(parameters)
    flat = np.concatenate([fisher[name].numpy().reshape(-1) for name in names])
    zeroed = np.argsort(flat, kind="stable")[: round(share * len(flat))]
    low = 0
    with torch.no_grad():
        for name in names:
            mine = zeroed[(zeroed >= low) & (zeroed < low + parameters[name].numel())] - low
            parameters[name].view(-1)[torch.from_numpy(mine)] = 0.0
            low += parameters[name].numel()
    return base, accuracy(predict(opened.model, readouts[scored_on], scoring))


def test_every_cell_is_what_a_pruned_model_scores(place: Path) -> None:
    tasks = [place / "films.toml", place / "again.toml"]
    seen: list[Any] = []
    found = pruning_sensitivity(
        place / "encoder", tasks, shares=(0.1, 0.8), data=DATA, on_task=lambda *step: seen.append(step)
    )
    assert seen == [(1, 2), (2, 2)]
    changed = False
    for one in ("films", "again"):
        for other in ("films", "again"):
            for share in (0.1, 0.8):
                base, pruned = by_hand(place, one, other, share)
                assert accuracy(found.base[other]) == base
                assert found.ratios[one][other][share].value == pytest.approx(pruned / base)
                changed |= pruned != base
    assert changed, "a test in which pruning never matters shows nothing"
    table = found.at(0.8)
    assert table["films", "again"] == found.ratios["films"]["again"][0.8]
    assert found.as_json()["films"]["again"]["0.8"] == found.ratios["films"]["again"][0.8].as_json()


def test_entries_that_one_task_finds_are_those_of_the_whole_matrix(place: Path) -> None:
    tasks = [place / "films.toml", place / "again.toml"]
    whole = pruning_sensitivity(place / "encoder", tasks, shares=(0.1,), data=DATA)
    one = pruning_sensitivity(place / "encoder", tasks, found_on=["again"], shares=(0.1,), data=DATA)
    assert one.ratios == {"again": whole.ratios["again"]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": []}, "each name once, found none"),
        ({"tasks": ["films", "films"]}, "each name once, found films, films"),
        ({"tasks": ["films"], "shares": (0.1, 1.5)}, r"a density lies in \(0, 1\], found 1.5"),
        ({"tasks": ["films"], "split": "dev"}, "split must be test"),
        ({"tasks": ["films"], "found_on": ["film"]}, "found 'film'; did you mean 'films'"),
    ],
)
def test_wrong_questions_are_refused(place: Path, settings: dict[str, Any], message: str) -> None:
    tasks = [place / f"{name}.toml" for name in settings.pop("tasks")]
    with pytest.raises(InputError, match=message):
        pruning_sensitivity(place / "encoder", tasks, data=Data(train_rows=8), **settings)
