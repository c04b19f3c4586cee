"""bfloat16 and float16 folders through every search: formats are kept, models are given back, and only rounding differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from skillgraft import Data, Graft, Runtime, TaskModel, apply, extract, grafted, localize, localize_live
from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Checkpoint, content_digest
from skillgraft.live.grafted import tensors_of
from skillgraft.regions.methods import METHODS
from skillgraft.regions.search import Searching, SearchPlan
from skillgraft.regions.tuned_pair import TunedPair, open_pair
from skillgraft.training.finetune import finetune
from tests.model_folders import FORMATS, named
from tests.readouts import making
from tests.regions.films import QUICK, Films, Killed, accuracy, converted, watching
from tests.training.toys import ToyReadout, toy_rows

NARROW = ("bfloat16", "float16")
OPTIONS: dict[str, dict[str, Any]] = {"learned": {"steps": 6, "lr": 1e5}, "budgeted": {"steps": 20}}
MadeIn = Callable[[str], Films]


@pytest.fixture(scope="module")
def made_in(films: Films, tmp_path_factory: pytest.TempPathFactory) -> MadeIn:
    """The films in a number format; each is written once."""
    folder = tmp_path_factory.mktemp("formats")
    made = {name: films.in_format(name, folder / name) for name in FORMATS}
    return made.__getitem__


def asked(method: str, **more: Any) -> dict[str, Any]:
    return {"method": method, "entries": 60, **OPTIONS.get(method, {}), **more}


def formats_of(graft: Graft) -> set[str]:
    return {str(array.dtype) for part in (graft.before, graft.change, graft.heads) for array in part.values()}


def assert_is_folder(pair: TunedPair, folder: Path) -> None:
    """The model as it stands holds the folder's numbers, bit for bit."""
    held, files = tensors_of(pair.opened.model), Checkpoint.open(folder)
    assert set(held.shapes) == set(files.shapes)
    for name in held.shapes:
        assert held.dtypes[name] == files.dtypes[name]
        assert held.flat(name).tobytes() == files.flat(name).tobytes(), name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("format", NARROW)
def test_the_graft_has_the_folders_format(made_in: MadeIn, tmp_path: Path, format: str, method: str) -> None:
    films = made_in(format)
    graft = films.graft(**asked(method))
    assert formats_of(graft) == {format}
    assert len(graft) == 60
    apply(films.base, *named(graft), out=tmp_path / "out")
    assert {str(dtype) for dtype in Checkpoint.open(tmp_path / "out").dtypes.values()} == {format}
    after = Checkpoint.open(films.tuned)
    for name, at in graft.region.sites.items():
        assert after.flat(name)[at].tobytes() == graft.change[name].tobytes()


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("format", ["float32", "bfloat16"])
def test_what_is_searched_is_bit_for_bit_what_apply_writes(
    made_in: MadeIn, tmp_path: Path, format: str, method: str, scale: float
) -> None:
    films = made_in(format)
    plan = SearchPlan.of(**asked(method, scale=scale))
    with open_pair(films.base, films.tuned, [films.task], plan=plan) as pair:
        outcome = Searching(pair.problem, plan, pair).best(pair.start(plan.start))
        apply(films.base, *named(scale * pair.cut(outcome.region)), out=tmp_path / "out")
        with outcome.problem.borrowed():
            outcome.problem.put_on(outcome.region)
            assert_is_folder(pair, tmp_path / "out")
        assert_is_folder(pair, films.base)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_float16_folder_is_searched_in_float32_with_the_numbers_that_apply_writes(
    made_in: MadeIn, tmp_path: Path, scale: float
) -> None:
    films = made_in("float16")
    plan = SearchPlan.of(**asked("movement", scale=scale))
    with open_pair(films.base, films.tuned, [films.task], plan=plan) as pair:
        outcome = Searching(pair.problem, plan, pair).best(pair.start(plan.start))
        apply(films.base, *named(scale * pair.cut(outcome.region)), out=tmp_path / "out")
        wide = converted(tmp_path / "out", tmp_path / "wide", "float32")
        with outcome.problem.borrowed():
            outcome.problem.put_on(outcome.region)
            assert_is_folder(pair, wide)


@pytest.mark.parametrize("format", FORMATS)
def test_searching_leaves_the_models_bits_as_they_were(made_in: MadeIn, format: str) -> None:
    """The law of the task model, by digest: after every method, after what is measured, and after a search that failed."""
    films = made_in(format)
    plan = SearchPlan.of(entries=60)
    with open_pair(films.base, films.tuned, [films.task], plan=plan) as pair:
        model = pair.opened.model
        before = content_digest(tensors_of(model))
        for method in METHODS:
            own = SearchPlan.of(**asked(method))
            region = Searching(pair.problem, own, pair).best(pair.start(own.start)).region
            assert content_digest(tensors_of(model)) == before, method
        pair.scores("films", region)
        assert content_digest(tensors_of(model)) == before
        with pytest.raises(Killed):
            Searching(pair.problem, plan, pair, runtime=watching([], kill_after=2)).best(pair.start(plan.start))
        assert content_digest(tensors_of(model)) == before
        assert not any(parameter.grad is not None for parameter in model.parameters())
    dtype = pair.opened.rows.loader.dtype
    assert content_digest(tensors_of(TaskModel.open(films.base, [films.task], dtype=dtype).model)) == before


@pytest.fixture(scope="module")
def wide(made_in: MadeIn, tmp_path_factory: pytest.TempPathFactory) -> MadeIn:
    """float32 folders that hold exactly the numbers of the narrow ones."""
    folder, made = tmp_path_factory.mktemp("wide"), {}
    for name in NARROW:
        narrow = made_in(name)
        base, tuned = (
            converted(source, folder / f"{name}-{source.name}", "float32") for source in (narrow.base, narrow.tuned)
        )
        made[name] = Films(narrow.folder, base, tuned)
    return made.__getitem__


def losses(graft: Graft) -> list[float]:
    return [loss for _, loss in graft.info["recipe"].get("search", {}).get("losses", [])]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("format", "dtype"), [("float16", None), ("float16", "float32"), ("bfloat16", "float32")])
def test_in_float32_the_search_is_that_of_the_same_numbers(
    made_in: MadeIn, wide: MadeIn, format: str, dtype: str | None, method: str
) -> None:
    """The folder's format decides how numbers are stored, not what is found: the same region after the same losses."""
    narrow = made_in(format).localize(**asked(method), runtime=Runtime(dtype=dtype))
    same = wide(format).localize(**asked(method))
    assert narrow.graft.region == same.graft.region
    assert losses(narrow.graft) == losses(same.graft)
    assert narrow.scores == same.scores
    assert formats_of(narrow.graft) == {format}


@pytest.mark.parametrize("method", METHODS)
def test_in_bfloat16_it_differs_in_rounding_alone(made_in: MadeIn, wide: MadeIn, method: str) -> None:
    """Stated so: beside a float32 search of the same numbers, the loss of every step is within two steps of bfloat16
    (2 · 2⁻⁷), and nine entries of ten are the same; where no gradient decides (movement, random), all of them.
    """
    narrow, same = (which("bfloat16").graft(**asked(method)) for which in (made_in, wide))
    np.testing.assert_allclose(losses(narrow), losses(same), rtol=2 * torch.finfo(torch.bfloat16).eps)
    least = 1.0 if method in ("movement", "random") else 0.9
    assert narrow.region.coverage(of=same.region) >= least
    assert bool(losses(narrow)) == (method in OPTIONS)


@pytest.mark.parametrize("format", NARROW)
def test_a_narrower_format_than_the_folders_is_refused(films: Films, format: str) -> None:
    with pytest.raises(InputError, match=f"dtype {format} would round the float32 numbers of the base"):
        films.localize(**asked("movement"), runtime=Runtime(dtype=format))


@pytest.mark.parametrize("format", NARROW)
def test_a_graft_of_a_narrow_folder_does_what_its_scores_say(made_in: MadeIn, format: str) -> None:
    """`evaluate` opens the folder in its own format: scores of float16 are read in float16 there, and in float32 here."""
    films = made_in(format)
    located = films.localize(**asked("learned"))
    measured = Runtime(dtype="float32" if format == "float16" else None)
    predictions = films.predictions(graft=located.graft, runtime=measured)
    for model in ("base", "tuned", "graft"):
        assert accuracy(predictions[model]) == located.scores[model]["accuracy"]["value"]
        mean = float(-np.log(_of_the_label(predictions[model])).mean())
        assert located.scores[model]["nll"]["value"] == pytest.approx(mean, rel=1e-5)


def _of_the_label(predictions: Any) -> Any:
    scores = torch.from_numpy(predictions.scores).double().softmax(1).numpy()
    return scores[np.arange(len(scores)), predictions.labels]


def test_convert_rounds_heads_too(films: Films, tmp_path: Path) -> None:
    """Law: to extract with `convert` is to extract from a folder that was rounded beforehand."""
    wide, data = making.bert(tmp_path / "wide"), Data(readout="linear")
    base = converted(wide, tmp_path / "narrow", "bfloat16")
    finetune(wide, [films.task], out=tmp_path / "t", plan=QUICK, data=data)
    rounded = converted(tmp_path / "t", tmp_path / "rounded", "bfloat16")
    graft = extract(base, tmp_path / "t", convert=True)
    assert {"classifier.weight", "classifier.bias"} <= graft.heads.keys()
    assert formats_of(graft) == {"bfloat16"}
    assert graft.digest == extract(base, rounded).digest
    assert graft.digest == extract(base, rounded, convert=True).digest, "nothing is left to round"


@pytest.mark.parametrize("format", NARROW)
def test_heads_of_a_narrow_folder_travel_in_its_format(films: Films, tmp_path: Path, format: str) -> None:
    """From a narrow base through finetune and localize: the head is on while the region is learned, and goes again."""
    base, data = converted(making.bert(tmp_path / "masked"), tmp_path / "narrow", format), Data(readout="linear")
    finetune(base, [films.task], out=tmp_path / "t", plan=QUICK.with_changes(steps=100), data=data)
    assert {str(dtype) for dtype in Checkpoint.open(tmp_path / "t").dtypes.values()} == {format}
    located = localize(base, tmp_path / "t", task=films.task, data=data, **asked("learned"))
    assert located.graft.heads
    assert formats_of(located.graft) == {format}
    assert located.scores["tuned"]["accuracy"]["value"] > 0.9


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("format", NARROW)
def test_live_models_keep_their_format_and_bits(made_in: MadeIn, format: str, method: str) -> None:
    films, readout = made_in(format), ToyReadout()
    base, tuned = (
        transformers.AutoModel.from_pretrained(folder, dtype=getattr(torch, format)).eval()
        for folder in (films.base, films.tuned)
    )
    batches = [readout.collate(toy_rows(12))]

    def loss(model: Any, batch: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(readout.scores(model, batch).float(), batch["labels"])

    before = content_digest(tensors_of(base))
    settings = {**asked(method), "loss": loss}
    settings |= {"lr": 100.0} if method == "learned" else {}
    graft = localize_live(base, tuned, batches, **settings)
    assert formats_of(graft) == {format}
    assert content_digest(tensors_of(base)) == before
    assert graft == localize_live(base, films.tuned, batches, **settings), "a folder is as good as its model"
    held, after = tensors_of(base).arrays, tensors_of(tuned).arrays
    with grafted(base, graft):
        for name, at in graft.region.sites.items():
            assert held[name].reshape(-1)[at].tobytes() == after[name].reshape(-1)[at].tobytes()
    assert content_digest(tensors_of(base)) == before
