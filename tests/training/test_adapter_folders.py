"""Fine-tuning with bottleneck adapters: a folder that is the base with the adapters beside it, which `evaluate` alone takes."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from skillgraft import apply, extract
from skillgraft.errors import InputError, WrongBase
from skillgraft.folders.weight_files import ADAPTER
from skillgraft.live.bottleneck import Adapters
from skillgraft.live.grafted import parameter_names
from skillgraft.measure.evaluate import evaluate
from skillgraft.opening.runtime import Runtime
from skillgraft.regions.localize import localize
from skillgraft.tasks.data import Data
from skillgraft.training.finetune import finetune
from skillgraft.training.methods import prepare
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.region import Region, Scope
from tests.model_folders import named, same_weights
from tests.readouts import making
from tests.running import Run
from tests.training.test_finetune import QUICK, TRAIN, place, run  # noqa: F401
from tests.training.toys import tiny_bert

LINEAR = Data(readout="linear")


@pytest.fixture(scope="module")
def adapted(place: Path) -> Path:  # noqa: F811
    plan = QUICK.with_changes(method="houlsby", steps=250)
    finetune(place / "encoder", [place / "films.toml"], out=place / "adapted", plan=plan)
    return place / "adapted"


def test_the_folder_is_the_base_with_the_adapters_beside_it(adapted: Path, place: Path) -> None:  # noqa: F811
    assert same_weights(place / "encoder", adapted)
    made = json.loads((adapted / "skillgraft.json").read_text())["made"]
    numbers = 4 * (2 * 16 * 16 + 16 + 16)
    assert made["adapters"] == {
        "file": ADAPTER, "design": "houlsby", "bottleneck": 16, "adapters": 4, "numbers": numbers,
    }  # fmt: skip
    assert made["plan"]["method"] == "houlsby"
    assert ADAPTER in (adapted / "README.md").read_text()
    transformers.AutoModel.from_pretrained(adapted)


def test_evaluate_attaches_them_and_leaves_the_base_as_it_was(adapted: Path, place: Path) -> None:  # noqa: F811
    """Base comes first and again under another name after the adapted model: both answer the same."""
    task = place / "films.toml"
    copy = extract(place / "encoder", place / "encoder")
    found = evaluate(place / "encoder", [task], tuned={"a": adapted}, grafts={"again": copy})["films"]
    accuracy = {name: float((one.predicted == one.labels).mean()) for name, one in found.items()}
    assert accuracy["a"] > max(0.9, accuracy["base"] + 0.2)
    np.testing.assert_array_equal(found["base"].scores, found["again"].scores)
    recorded = json.loads((adapted / "skillgraft.json").read_text())["made"]["validation"]["films"]
    validation = evaluate(place / "encoder", [task], tuned={"a": adapted}, split="validation")["films"]["a"]
    assert float((validation.predicted == validation.labels).mean()) == recorded


def test_from_the_command_line(run: Run, place: Path) -> None:  # noqa: F811
    words = (*TRAIN, "--method", "pfeiffer", "--bottleneck", 2, "--steps", 5)
    facts = run("finetune", "encoder", *words, "-o", "small", "--json").json
    adapters = Adapters.load(place / "small" / ADAPTER)
    assert (adapters.design, adapters.bottleneck) == ("pfeiffer", 2)
    assert facts["trained"] == len(adapters)  # and not BERT's pooler, which the frozen text head does not read
    models = run("evaluate", "encoder", "--task", "films.toml", "--tuned", "small", "--json").json["tasks"]["films"]
    assert set(models) == {"base", "small"}


def test_a_trained_head_travels_too(place: Path, tmp_path: Path) -> None:  # noqa: F811
    plan, task = QUICK.with_changes(method="houlsby", lr=1e-2, steps=60), place / "films.toml"
    recorded = finetune(place / "masked", [task], out=tmp_path / "out", plan=plan, data=LINEAR).validation["films"]
    tuned = {"t": tmp_path / "out"}
    found = evaluate(place / "masked", [task], tuned=tuned, data=LINEAR, split="validation")["films"]
    accuracy = {name: float((one.predicted == one.labels).mean()) for name, one in found.items()}
    assert accuracy["t"] == recorded > accuracy["base"]


def test_checkpoints_on_the_way_have_their_adapters(place: Path, tmp_path: Path) -> None:  # noqa: F811
    plan = QUICK.with_changes(method="pfeiffer", steps=4, checkpoint_every=2)
    finetune(place / "encoder", [place / "films.toml"], out=tmp_path / "out", plan=plan)
    half, end, out = (
        Adapters.load(folder / ADAPTER).tensors
        for folder in (tmp_path / "out.steps" / "step-000002", tmp_path / "out.steps" / "step-000004", tmp_path / "out")
    )
    assert all(torch.equal(end[name], out[name]) for name in out)
    assert not all(torch.equal(half[name], out[name]) for name in out)


def test_interrupted_and_started_again_it_ends_with_the_same_bits(place: Path, tmp_path: Path) -> None:  # noqa: F811
    """An exception leaves what kill -9 leaves: the snapshot of the last step (test_finetune.py kills for real)."""
    plan = QUICK.with_changes(method="houlsby", steps=12)

    def steps(out: Path, *, stop_at: int = 0) -> list[int]:
        seen: list[int] = []

        def note(step: int, *_: object) -> None:
            seen.append(step)
            if step == stop_at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) if stop_at else nullcontext():
            runtime = Runtime(snapshot_seconds=0, progress=note)
            finetune(place / "encoder", [place / "films.toml"], out=out, plan=plan, runtime=runtime)
        return seen

    assert steps(tmp_path / "straight") == list(range(1, 13))
    assert steps(tmp_path / "broken", stop_at=8) == list(range(1, 9))
    assert not (tmp_path / "broken").exists()
    assert steps(tmp_path / "broken") == list(range(8, 13))  # step 8 broke off before it was saved
    one, two = ((tmp_path / name / ADAPTER).read_bytes() for name in ("straight", "broken"))
    assert one == two


# What is refused


def test_there_is_no_delta_in_it(adapted: Path, place: Path, run: Run) -> None:  # noqa: F811
    says = r"adapter\.safetensors\), which add parameters to the base rather than change its own"
    with pytest.raises(InputError, match=says):
        localize(place / "encoder", adapted, task=place / "films.toml", entries=5)
    for words in (
        ("extract", "encoder", "adapted", "-o", "g.safetensors"),
        ("extract", "adapted", "encoder", "-o", "g.safetensors"),
        ("localize", "encoder", "adapted", "--task", "films.toml", "--entries", 5, "-o", "g.safetensors"),
        ("finetune", "adapted", "--task", "films.toml", "-o", "out"),
        ("evaluate", "adapted", "--task", "films.toml"),
    ):
        code, _, err = run(*words)
        assert code == 2, words
        assert len(err.splitlines()) <= 2
        assert "`evaluate` takes it as --tuned" in err
    with pytest.raises(InputError, match=says):
        apply(adapted, *named(extract(place / "encoder", place / "encoder")), out=place / "never")
    assert not (place / "never").exists()


def test_the_wrong_base_is_refused_before_a_model_is_loaded(adapted: Path, place: Path, tmp_path: Path) -> None:  # noqa: F811
    model = transformers.AutoModel.from_pretrained(place / "encoder")
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight[0, 0] += 1
    making.save(tmp_path / "other", model, making.word_pieces())
    with pytest.raises(WrongBase, match="were trained on a base of fingerprint"):
        evaluate(tmp_path / "other", [place / "films.toml"], tuned={"a": adapted}, data=Data(readout="text-head"))


@pytest.mark.parametrize("method", ["lora", "houlsby", "pfeiffer"])
def test_a_region_and_a_pull_cannot_reach_added_parameters(method: Any) -> None:
    model = tiny_bert()
    shapes = {name: tuple(parameter.shape) for name, parameter in parameter_names(model).items()}
    with pytest.raises(
        InputError, match=f"method {method} trains parameters that it adds: a region cannot restrict it"
    ):
        prepare(model, TrainingPlan(method=method), inside=Region(Scope.select("layers", shapes), {}))
    for pull in ("l1", "pull"):
        with pytest.raises(InputError, match=f"{pull} pulls the base's own parameters back; method {method} trains"):
            TrainingPlan(method=method, **{pull: 0.001})


def test_a_bottleneck_has_a_width() -> None:
    with pytest.raises(InputError, match="bottleneck must be at least 1, found 0"):
        TrainingPlan(method="houlsby", bottleneck=0)
