"""`dtype=` and `convert=`: another number format than the folder's, for the models that are opened or for TUNED."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import Graft, apply, extract, load, save
from skillgraft.compose.continual import Learning, add
from skillgraft.compose.forgetting import forget
from skillgraft.compose.scales import search_scale
from skillgraft.errors import InputError
from skillgraft.measure.evaluate import evaluate
from skillgraft.opening.runtime import Runtime
from skillgraft.predictions.predictions import Predictions
from skillgraft.regions.choose import choose_region
from skillgraft.regions.localize import localize
from skillgraft.regions.pruning import pruning_sensitivity
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data
from skillgraft.training.finetune import finetune
from tests.compose.toy_tasks import QUICK, _one_thread, place, run, tasks  # noqa: F401
from tests.model_folders import content, same_weights
from tests.narrow import formats_of, in_format
from tests.running import Run

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811

DATA = Data(shots=20)
PLAN = QUICK.with_changes(steps=60)
Folder = Callable[..., Path]
# base, dtype: neither equal nor wider
NARROWER = [("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float16"), ("float16", "bfloat16")]
WIDER = [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64"), ("bfloat16", "float64")]


@pytest.fixture(scope="module")
def folder(place: Path, tasks: list[Path]) -> Folder:
    """`folder("bfloat16")` is a base in that format, `folder("bfloat16", "tuned")` its fine-tune on films."""

    def made(dtype: str, which: str = "base") -> Path:
        base = place / f"base-{dtype}"
        if not base.exists():
            in_format(place / "encoder", base, dtype)
        if which == "base":
            return base
        return finetune(base, tasks[:1], out=place / f"tuned-{dtype}", plan=PLAN, data=DATA, reuse=True).path

    return made


@pytest.fixture(scope="module")
def skill(folder: Folder) -> Callable[[str], Graft]:
    return lambda dtype: extract(folder(dtype), folder(dtype, "tuned"))


def same(found: Predictions, wanted: Predictions) -> None:
    np.testing.assert_array_equal(found.scores, wanted.scores)


# Asking in another format


@pytest.mark.parametrize(("own", "held"), [*WIDER, *NARROWER])
def test_a_base_opened_in_another_format_is_its_folder_rounded_to_it(
    own: str, held: str, folder: Folder, tasks: list[Path], tmp_path: Path
) -> None:
    found = evaluate(folder(own), tasks[:1], runtime=Runtime(dtype=held))["films"]["base"]
    same(found, evaluate(in_format(folder(own), tmp_path / "rounded", held), tasks[:1])["films"]["base"])


@pytest.mark.parametrize(("own", "held"), [*WIDER, *NARROWER])
@pytest.mark.parametrize("scale", [1.0, 0.3, -1.0])
def test_a_graft_in_another_format_is_what_apply_writes_rounded_to_it(
    own: str, held: str, scale: float, folder: Folder, skill: Callable[[str], Graft], tasks: list[Path], tmp_path: Path
) -> None:
    graft = scale * skill(own)
    apply(folder(own), graft, out=tmp_path / "applied")
    models: dict[str, Any] = {"tuned": {"applied": tmp_path / "applied"}, "grafts": {"graft": graft}}
    found = evaluate(folder(own), tasks[:2], runtime=Runtime(dtype=held), **models)
    for task in found:
        same(found[task]["graft"], found[task]["applied"])
        assert not np.array_equal(found[task]["graft"].scores, found[task]["base"].scores)


def test_a_graft_is_converted_once_for_all_tasks(
    folder: Folder, skill: Callable[[str], Graft], tasks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    in_formats = Graft.in_formats

    def counted(graft: Graft, formats: Any) -> Graft:
        found = in_formats(graft, formats)
        if found is not graft:
            calls.append(" ".join(sorted(formats_of(graft) | formats_of(found))))
        return found

    monkeypatch.setattr(Graft, "in_formats", counted)
    graft = skill("bfloat16")
    evaluate(folder("bfloat16"), tasks, grafts={"a": graft, "b": -graft}, runtime=Runtime(dtype="float32"))
    assert calls == ["bfloat16 float32"] * 2


@pytest.mark.parametrize(("own", "held"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_what_a_search_over_scales_gives_keeps_the_folders_format(
    own: str, held: str, folder: Folder, skill: Callable[[str], Graft], tasks: list[Path]
) -> None:
    graft, runtime = skill(own), Runtime(dtype=held)
    found = search_scale(folder(own), [graft], tasks=tasks[:1], points=3, data=DATA, runtime=runtime)
    assert found.digest == (found.info["recipe"]["search"]["best"]["scale"] * graft).digest
    asked: dict[str, Any] = {"task": tasks[0], "controls": tasks[1:2], "keep": 0.2, "points": 3, "data": DATA}
    lost = forget(folder(own), graft, runtime=runtime, **asked)
    assert lost.digest == (-lost.info["recipe"]["scale"] * graft).digest
    assert formats_of(found) == formats_of(lost) == {own}


# Training and searching in another format


@pytest.mark.parametrize(("own", "held"), WIDER)
def test_a_wider_format_trains_and_searches_and_gives_the_folders_own(
    own: str, held: str, folder: Folder, tasks: list[Path], tmp_path: Path
) -> None:
    runtime = Runtime(dtype=held)
    finetune(folder(own), tasks[:1], out=tmp_path / "t", plan=PLAN.with_changes(steps=5), data=DATA, runtime=runtime)
    assert formats_of(tmp_path / "t") == {own}
    assert not same_weights(tmp_path / "t", folder(own))
    found = localize(folder(own), tmp_path / "t", task=tasks[0], entries=30, steps=2, data=DATA, runtime=runtime).graft
    assert formats_of(found) == {own}
    assert found.digest == (extract(folder(own), tmp_path / "t") & found.region).digest


@pytest.mark.parametrize(("own", "held"), [*NARROWER, ("float16", "float16")])
def test_a_narrower_format_is_refused_where_something_is_learned(
    own: str, held: str, folder: Folder, tasks: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, tuned, runtime = folder(own), folder(own, "tuned"), Runtime(dtype=held)
    monkeypatch.setattr("skillgraft.readouts.readouts.Loader.__call__", None)
    refused: list[Callable[[], object]] = [
        lambda: finetune(base, tasks[:1], out=tmp_path / "out", runtime=runtime),
        lambda: localize(base, tuned, task=tasks[0], entries=5, out=tmp_path / "out", runtime=runtime),
        lambda: choose_region(base, task=tasks[0], runtime=runtime),
        lambda: add(tmp_path / "out", base, tasks[0], learning=Learning(PLAN), runtime=runtime),
    ]
    needed = "float32" if own == "float16" else own
    why = "leaves gradients too little room" if own == held else f"would round the {own} numbers of the base"
    for call in refused:
        with pytest.raises(InputError, match=rf"^dtype {held} {why} .*; use {needed}, "):
            call()
    assert not (tmp_path / "out").exists()


def test_a_float16_base_is_looked_at_in_float32(folder: Folder, tasks: list[Path]) -> None:
    """Squared gradients are small: in float16 most of them are 0, and a region of the least sensitive would be noise."""
    asked: dict[str, Any] = {"task": tasks[0], "density": 0.1, "data": DATA}
    found = choose_region(folder("float16"), **asked)
    assert found == choose_region(folder("float16"), runtime=Runtime(dtype="float32"), **asked)


def test_a_float16_base_is_pruned_in_float32(folder: Folder, tasks: list[Path], tmp_path: Path) -> None:
    wide = in_format(folder("float16"), tmp_path / "wide", "float32")
    asked: dict[str, Any] = {"shares": (0.1, 0.4), "data": Data(shots=8)}
    found, wanted = (pruning_sensitivity(base, tasks[:2], **asked) for base in (folder("float16"), wide))
    assert found.ratios == wanted.ratios


def test_an_unknown_format_is_refused_in_words(place: Path, tasks: list[Path], run: Run) -> None:
    with pytest.raises(InputError, match="unknown dtype 'bfloat61'; did you mean 'bfloat16'"):
        Runtime(dtype="bfloat61")
    with pytest.raises(
        InputError, match="'int8' is not a floating-point format; expected float32, bfloat16 or float16"
    ):
        TaskModel.open(place / "encoder", tasks[:1], dtype="int8")
    code, out, err = run("evaluate", "encoder", "--task", "films.toml", "--dtype", "half")
    assert (code, out) == (2, "")
    assert err.startswith("error: unknown dtype 'half'; ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("verb", ["finetune", "localize", "continual"])
def test_a_narrower_format_on_the_command_line(verb: str, folder: Folder, run: Run) -> None:
    base, tuned = folder("float32"), folder("float32", "tuned")
    words = {
        "finetune": ("finetune", base, "-o", "never"),
        "localize": ("localize", base, tuned, "--entries", 5, "-o", "never"),
        "continual": ("continual", "add", "never", base),
    }[verb]
    code, out, err = run(*words, "--task", "films.toml", "--dtype", "bfloat16")
    assert (code, out) == (2, "")
    assert err.startswith("error: dtype bfloat16 would round the float32 numbers of the base")
    assert err.count("\n") == 1
    assert not Path("never").exists()


# TUNED in another format than BASE


@pytest.fixture(scope="module")
def wide_tuned(folder: Folder, tasks: list[Path], place: Path) -> tuple[Path, Path]:
    """A float32 fine-tune of a bfloat16 base, made elsewhere; and the same rounded to bfloat16."""
    start = in_format(folder("bfloat16"), place / "widened", "float32")
    wide = finetune(start, tasks[:1], out=place / "wide", plan=PLAN, data=DATA).path
    return wide, in_format(wide, place / "wide-rounded", "bfloat16")


def test_a_wider_tuned_model_is_converted_on_request(
    folder: Folder, wide_tuned: tuple[Path, Path], tasks: list[Path]
) -> None:
    base, (wide, rounded) = folder("bfloat16"), wide_tuned
    asked: dict[str, Any] = {"task": tasks[0], "entries": 40, "steps": 3, "data": DATA}
    advice = r"tensors are bfloat16 in .*base-bfloat16 and float32 in .*wide .*--convert"
    for call in (lambda: localize(base, wide, **asked), lambda: evaluate(base, tasks[:1], tuned={"t": wide})):
        with pytest.raises(InputError, match=advice):
            call()
    found, wanted = localize(base, wide, convert=True, **asked), localize(base, rounded, **asked)
    assert formats_of(found.graft) == {"bfloat16"}
    assert found.graft.digest == wanted.graft.digest
    assert found.scores == wanted.scores
    models = {"wide": wide, "rounded": rounded}
    for dtype in (None, "float32"):  # also where the models are held in a wider format than the base's
        measured = evaluate(base, tasks[:1], tuned=models, convert=True, runtime=Runtime(dtype=dtype))["films"]
        same(measured["wide"], measured["rounded"])


def test_convert_on_the_command_line(folder: Folder, wide_tuned: tuple[Path, Path], run: Run) -> None:
    base, (wide, rounded) = folder("bfloat16"), wide_tuned
    words = ("localize", base, "--task", "films.toml", "--shots", 20, "--entries", 40, "--steps", 3)
    code, out, err = run(*words, wide, "-o", "refused.safetensors")
    assert (code, out) == (2, "")
    assert "--convert" in err
    assert not Path("refused.safetensors").exists()
    graft = run(*words, wide, "--convert", "-o", "converted.safetensors", "--json").json
    assert run(*words, rounded, "-o", "rounded.safetensors").code == 0
    assert load("converted.safetensors").digest == load("rounded.safetensors").digest
    asked = ("evaluate", base, "--task", "films.toml", "--graft", "converted.safetensors", "--tuned")
    assert "--convert" in run(*asked, wide).err
    models = run(*asked, wide, "--convert", "--json").json["tasks"]["films"]
    others = run(*asked, rounded, "--json").json["tasks"]["films"]
    assert models["wide"] == others["wide-rounded"]
    assert models["converted.safetensors"]["accuracy"] == others["converted.safetensors"]["accuracy"]
    assert graft["validation"].keys() == {"base", "tuned", "graft"}
    store = ("continual", "add", "STORE", base, "--task", "films.toml", "--shots", 20, "--steps", 3, "--density", 0.05)
    mask = ("--mask-steps", 2, "--mask-lr", 1e5, "--start", "empty", "--batch-size", 8, "--tuned", wide)
    assert "--convert" in run(*store, *mask).err
    added = run(*store, *mask, "--convert", "--json").json
    assert set(added["validation"]) == {"base", "tuned", "graft"}
    assert formats_of(load(Path("STORE") / added["file"])) == {"bfloat16"}


def test_converting_a_model_of_the_same_format_changes_nothing(
    folder: Folder, tasks: list[Path], tmp_path: Path
) -> None:
    base, tuned = folder("bfloat16"), folder("bfloat16", "tuned")
    for name, convert in (("a", False), ("b", True)):
        found = localize(base, tuned, task=tasks[0], entries=20, method="movement", data=DATA, convert=convert)
        save(found.graft, tmp_path / f"{name}.safetensors")
    written = content(tmp_path)
    assert written["a.safetensors"] == written["b.safetensors"]
