"""`evaluate`: tuned folders are loaded by themselves, one model at a time, and answer what they answer alone."""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from skillgraft.errors import InputError
from skillgraft.folders.extract import extract
from skillgraft.live.grafted import tensors_of
from skillgraft.measure.evaluate import Evaluation, evaluate
from skillgraft.predictions.predictions import Predictions
from skillgraft.readouts.readouts import Loader
from skillgraft.report.artefacts import find
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data
from tests.readouts import making

FORMATS = ("float32", "bfloat16", "float16")


def moved(base: Path, out: Path, *, seed: int) -> Path:
    """A fine-tune of the base: every number of its layers moved a little."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(base, dtype="auto")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".layer." in name:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    return making.save(out, model, making.word_pieces())


@pytest.fixture(params=FORMATS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """`base`, `tuned` and `other` of one number format, and films.toml."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(making.bert(tmp_path / "wide"), dtype=request.param)
    making.save(tmp_path / "base", model, making.word_pieces())
    for seed, name in enumerate(("tuned", "other")):
        moved(tmp_path / "base", tmp_path / name, seed=seed)
    making.write_films(tmp_path, test=20)
    return tmp_path


def answers_alone(folder: Path, task: Path) -> Any:
    """What the folder answers when it is loaded as a model of its own."""
    return TaskModel.open(folder, [task]).predict(split="test")["films"]


def test_tuned_answers_what_it_answers_alone(folder: Path) -> None:
    task, tuned = folder / "films.toml", {name: folder / name for name in ("tuned", "other")}
    found = evaluate(folder / "base", [task], tuned=tuned)["films"]
    assert list(found) == ["base", "tuned", "other"]
    for name in found:
        assert found[name].scores.tobytes() == answers_alone(folder / name, task).scores.tobytes(), name
    scores = {name: found[name].scores.tobytes() for name in found}
    assert len(set(scores.values())) == 3, "three models that answer the same would show nothing"


def test_a_graft_of_everything_answers_like_its_folder(folder: Path) -> None:
    """In the folder's own format: the bits of tuned are on the base."""
    graft = extract(folder / "base", folder / "tuned")
    tuned = {"tuned": folder / "tuned"}
    found = evaluate(folder / "base", [folder / "films.toml"], tuned=tuned, grafts={"graft": graft})["films"]
    assert list(found) == ["base", "tuned", "graft"]
    np.testing.assert_array_equal(found["graft"].predicted, found["tuned"].predicted)
    np.testing.assert_allclose(found["graft"].scores, found["tuned"].scores, rtol=1e-5, atol=1e-5)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """Every model that is loaded: its folder, and how many earlier ones are still in memory. Nothing waits for the collector."""
    seen: list[tuple[str, int]] = []
    alive: list[weakref.ref[nn.Module]] = []
    load = Loader.__call__

    def watched(self: Loader, source: Any) -> tuple[nn.Module, tuple[str, ...]]:
        seen.append((Path(source.name).name, sum(model() is not None for model in alive)))
        model, fresh = load(self, source)
        alive.append(weakref.ref(model))
        return model, fresh

    monkeypatch.setattr(Loader, "__call__", watched)
    gc.collect()
    gc.disable()
    yield seen
    gc.enable()


@pytest.mark.parametrize("readout", ["masked", "text-head"])
@pytest.mark.parametrize("folder", ["float32"], indirect=True)
def test_one_model_is_in_memory_at_a_time(folder: Path, readout: str, loads: list[tuple[str, int]]) -> None:
    tuned = {name: folder / name for name in ("tuned", "other")}
    graft = extract(folder / "base", folder / "tuned")
    evaluate(folder / "base", [folder / "films.toml"], tuned=tuned, grafts={"graft": graft}, data=Data(readout=readout))
    assert loads == [("base", 0), ("tuned", 0), ("other", 0)]


@pytest.mark.parametrize("folder", ["float32"], indirect=True)
def test_tuned_is_checked_before_any_model_is_loaded(folder: Path, loads: list[tuple[str, int]]) -> None:
    config = json.loads((folder / "tuned" / "config.json").read_text())
    model = transformers.BertForMaskedLM(transformers.BertConfig(**{**config, "hidden_size": 8}))
    making.save(folder / "small", model, making.word_pieces())
    with pytest.raises(InputError, match=r"differ|another shape"):
        evaluate(folder / "base", [folder / "films.toml"], tuned={"small": folder / "small"})
    assert loads == []


@pytest.mark.parametrize("folder", ["float32"], indirect=True)
def test_another_number_format_needs_convert(folder: Path) -> None:
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder / "tuned", dtype=torch.bfloat16)
    making.save(folder / "narrow", model, making.word_pieces())
    task, tuned = folder / "films.toml", {"narrow": folder / "narrow"}
    with pytest.raises(InputError, match=r"float32 .*bfloat16|convert"):
        evaluate(folder / "base", [task], tuned=tuned)
    found = evaluate(folder / "base", [task], tuned=tuned, convert=True)["films"]["narrow"]
    rounded = transformers.AutoModelForMaskedLM.from_pretrained(folder / "narrow", dtype=torch.float32)
    making.save(folder / "rounded", rounded, making.word_pieces())
    assert found.scores.tobytes() == answers_alone(folder / "rounded", task).scores.tobytes()


@pytest.mark.parametrize("folder", ["bfloat16"], indirect=True)
def test_a_task_model_has_its_folders_format(folder: Path) -> None:
    opened = TaskModel.open(folder / "base", [folder / "films.toml"])
    assert {parameter.dtype for parameter in opened.model.parameters()} == {torch.bfloat16}
    before = {name: array.tobytes() for name, array in tensors_of(opened.model).arrays.items()}
    opened.predict(extract(folder / "base", folder / "tuned"))
    assert {name: array.tobytes() for name, array in tensors_of(opened.model).arrays.items()} == before


@pytest.mark.parametrize("folder", ["float32"], indirect=True)
def test_names_are_given_once(folder: Path) -> None:
    task = folder / "films.toml"
    with pytest.raises(InputError, match="each name once, found films, films"):
        evaluate(folder / "base", [task, task])
    with pytest.raises(InputError, match="two models are called 'base'"):
        evaluate(folder / "base", [task], tuned={"base": folder / "tuned"})


def test_lists_are_called_by_their_names_and_grafts_may_be_files(tmp_path: Path) -> None:
    making.bert(tmp_path / "base")
    tuned = moved(tmp_path / "base", tmp_path / "tuned", seed=1)
    making.write_films(tmp_path, test=20)
    graft = extract(tmp_path / "base", tuned)
    graft.save(tmp_path / "g.safetensors")
    task = tmp_path / "films.toml"
    found = evaluate(tmp_path / "base", [task], tuned=[tuned], grafts=[tmp_path / "g.safetensors", graft])
    assert list(found["films"]) == ["base", "tuned", "g.safetensors", "graft"]
    scores = [found["films"][model].scores.tobytes() for model in ("g.safetensors", "graft")]
    assert scores[0] == scores[1] == found["films"]["tuned"].scores.tobytes()
    by_name = evaluate(tmp_path / "base", [task], grafts={"skill": tmp_path / "g.safetensors"})
    assert by_name["films"]["skill"].scores.tobytes() == scores[0]
    with pytest.raises(InputError, match=r"two of g.safetensors, g.safetensors have one name, .* give \{name: model\}"):
        evaluate(tmp_path / "base", [task], grafts=[tmp_path / "g.safetensors"] * 2)


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    labels = np.arange(40) % 2

    def answers(right: int) -> Predictions:
        predicted = np.where(np.arange(40) < right, labels, 1 - labels)
        return Predictions(
            np.eye(2, dtype=np.float32)[predicted] * 2, labels, task="films", label_names=("bad", "good")
        )

    models = {"base": answers(20), "tuned": answers(40), "graft": answers(30)}
    return Evaluation("linear", {"films": models}, ("tuned",))


def test_an_evaluation_has_a_table(evaluation: Evaluation) -> None:
    lines = evaluation.table().splitlines()
    assert lines[0].split()[:3] == ["films", "(40", "rows)"]
    assert [line.split()[0] for line in lines[1:4]] == ["base", "tuned", "graft"]
    assert lines[4] == "majority class: 50.0"
    kept = evaluation.summaries()["films"]["graft"]
    assert (kept["share_kept"]["value"], kept["relative_gain"]["value"]) == (0.75, 0.5)
    assert "share_kept" not in evaluation.summaries()["films"]["tuned"]


def test_a_task_is_compared_with_its_own_tuned_model(evaluation: Evaluation, tmp_path: Path) -> None:
    """Of several tuned models the one of this very task counts, and a report of all files has one table, not two."""
    models = dict(evaluation["films"])
    models["other"] = dataclasses.replace(models["graft"], made_by={"role": "tuned", "tasks": "plays"})
    models["tuned"] = dataclasses.replace(models["tuned"], made_by={"role": "tuned", "tasks": "films"})
    several = Evaluation("linear", {"films": models}, ("other", "tuned"))
    found = several.summaries()["films"]
    assert found["graft"]["share_kept"] == evaluation.summaries()["films"]["graft"]["share_kept"]
    assert "share_kept" not in found["tuned"]
    facts = several.as_json(split="test")
    assert facts["models"]["other"] == {"role": "tuned", "tasks": "plays"}
    (tmp_path / "scores.json").write_text(json.dumps(facts))
    for name, each in models.items():
        made_by = {**each.made_by, "model": name, "split": "test"}
        dataclasses.replace(each, made_by=made_by).save(tmp_path / f"{name}.npz")
    (joined,) = find([tmp_path]).scores()
    assert joined.models.keys() == models.keys()


def test_an_evaluation_is_saved_and_read_again(evaluation: Evaluation, tmp_path: Path) -> None:
    evaluation.save(tmp_path / "new" / "folder")
    files = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    assert files == {"films--base.npz", "films--tuned.npz", "films--graft.npz"}
    again = Predictions.load(tmp_path / "new" / "folder" / "films--graft.npz")
    assert again.scores.tobytes() == evaluation["films"]["graft"].scores.tobytes()


def test_an_evaluation_as_a_frame(evaluation: Evaluation) -> None:
    pytest.importorskip("pandas")
    frame = evaluation.to_frame()
    assert list(frame.index) == [("films", "base"), ("films", "tuned"), ("films", "graft")]
    assert frame.loc[("films", "graft"), "score"] == 0.75
    assert frame.loc[("films", "graft"), "share_kept"] == 0.75
    assert np.isnan(frame.loc[("films", "tuned"), "share_kept"])


def test_a_frame_without_pandas_is_one_clear_line(evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="a DataFrame needs pandas, which is not installed: pip install pandas"):
        evaluation.to_frame()
