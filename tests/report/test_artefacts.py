"""Finding artefacts: every file is shown, listed as not used, or listed with what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skillgraft.errors import InputError
from skillgraft.files import graft_file
from skillgraft.measure import Estimate
from skillgraft.report.artefacts import Found, find
from skillgraft.report.json_artefacts import ScaleCurves
from skillgraft.report.value_sheets import disentanglement_sheet


def kinds(found: Found) -> dict[str, str]:
    return {each.name: each.kind for each in found.artefacts}


def test_one_of_everything(runs: Path) -> None:
    found = find([runs])
    assert kinds(found) == {
        "runs/BASE": "model", "runs/OTHER": "model", "runs/TUNED": "model", "runs/a.safetensors": "graft",
        "runs/b.safetensors": "graft", "runs/localize.json": "localization", "runs/region.safetensors": "region",
        "runs/predictions/toy--TUNED.npz": "predictions", "runs/predictions/toy--a.safetensors.npz": "predictions",
        "runs/predictions/toy--base.npz": "predictions", "runs/scales.json": "scales", "runs/scores.json": "evaluation",
        "runs/table2.json": "result",
    }  # fmt: skip
    assert [(each.name, each.why) for each in found.unused] == [("runs/notes.txt", "a report does not read .txt")]
    (damaged,) = found.unread
    assert damaged.name == "runs/damaged.safetensors"
    assert str(runs) not in damaged.why
    assert found.in_words() == (
        "2 grafts, 1 region, 3 model folders, 3 files of predictions, 1 result, 1 evaluation, 1 search for a region "
        "and 1 search for a scale"
    )


def test_sizes_are_those_on_disk(runs: Path) -> None:
    sizes = {each.name: each.bytes for each in find([runs]).artefacts}
    assert sizes["runs/a.safetensors"] == (runs / "a.safetensors").stat().st_size
    assert sizes["runs/BASE"] == sum(file.stat().st_size for file in (runs / "BASE").iterdir())


def test_a_tuned_folder_knows_its_base(runs: Path) -> None:
    models = {each.name: each for each in find([runs]).of("model")}
    base, tuned = models["runs/BASE"], models["runs/TUNED"]
    assert tuned.base == base.value.fingerprint
    assert base.base == ""
    assert (tuned.value.made["tasks"], tuned.value.made["versions"]) == (["toy"], {"skillgraft": "0.1.0"})


def test_a_grafted_folder_lists_its_grafts(runs: Path, tmp_path: Path) -> None:
    from skillgraft import apply

    apply(runs / "BASE", runs / "b.safetensors", out=tmp_path / "GRAFTED")
    (model,) = find([tmp_path / "GRAFTED"]).of("model")
    assert model.value.made["applied"] == [{"graft": "b.safetensors", "scale": 1.0, "entries": 2}]


def test_files_by_themselves_and_nothing_twice(runs: Path) -> None:
    found = find([runs / "a.safetensors", runs / "predictions", runs / "a.safetensors", runs])
    names = [each.name for each in found.artefacts]
    assert names[0] == "a.safetensors"
    assert names[1] == "predictions/toy--TUNED.npz"
    assert "runs/a.safetensors" not in names


def test_inputs_of_one_name_go_by_their_paths(runs: Path, tmp_path: Path) -> None:
    for parent in "xy":
        (tmp_path / parent / "run").mkdir(parents=True)
        (tmp_path / parent / "run" / "a.safetensors").write_bytes((runs / "a.safetensors").read_bytes())
    found = find([tmp_path / "x" / "run", tmp_path / "y" / "run"])
    assert {each.name for each in found.artefacts} == {f"{tmp_path}/{parent}/run/a.safetensors" for parent in "xy"}


def test_links_that_lead_back_end(tmp_path: Path) -> None:
    (tmp_path / "back").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "broken.npz").symlink_to(tmp_path / "nowhere")
    found = find([tmp_path])
    assert {each.name.split("/")[1] for each in (*found.unread, *found.unused)} == {"broken.npz", "self"}


def test_guests_in_a_model_folder_are_found(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "M").mkdir()
    for file in (*(runs / "OTHER").iterdir(), runs / "a.safetensors", runs / "predictions" / "toy--base.npz"):
        (tmp_path / "M" / file.name).write_bytes(file.read_bytes())
    found = find([tmp_path / "M"])
    assert {"M/a.safetensors": "graft", "M/toy--base.npz": "predictions"}.items() <= kinds(found).items()


def test_a_config_alone_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert not find([tmp_path]).artefacts


def test_a_model_that_cannot_be_opened_is_named(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "M").mkdir()
    (tmp_path / "M" / "config.json").write_text("{}")
    (tmp_path / "M" / "model.safetensors").write_bytes(b"short")
    (tmp_path / "a.safetensors").write_bytes((runs / "a.safetensors").read_bytes())
    (tmp_path / "L").mkdir()
    (tmp_path / "L" / "skillgraft.json").write_text("{")
    found = find([tmp_path])
    assert [each.kind for each in found.artefacts] == ["graft"]
    assert {Path(each.name).name for each in found.unread} == {"M", "L"}


def test_hidden_files_are_listed(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_text("x")
    (tmp_path / ".hidden.json").write_text("{}")
    assert [each.why for each in find([tmp_path]).unused] == ["hidden", "hidden"]


@pytest.mark.parametrize(
    ("name", "content", "unread", "why"),
    [
        ("x.json", "{", True, "not JSON"),
        ("x.json", "[1]", False, "JSON, but not an object"),
        ("x.json", '{"a": 1}', False, "JSON without a format that a report reads"),
        ("x.json", '{"split": "test", "tasks": {"t": {}}}', False, "JSON without a format"),
        (
            "x.json",
            '{"format": "skillgraft evaluation 2"}',
            True,
            "expected 'skillgraft evaluation 1', found version 2",
        ),
        (
            "x.json",
            '{"format": "skillgraft evaluation 1", "split": "test", "tasks": {"t": {"base": {}}}}',
            True,
            "not what skillgraft prints",
        ),
        (
            "x.json",
            '{"format": "skillgraft evaluation 1", "split": "test", "tasks": {"t": {}}}',
            True,
            "not what skillgraft prints",
        ),
        ("x.json", '{"format": "skillgraft scales 1", "scale": 1, "points": []}', True, "no points"),
        (
            "x.json",
            '{"format": "skillgraft map 1", "tasks": ["a", "b"], "alphas": [0], "errors": [[]]}',
            True,
            "over 1 scales has 1 × 1 errors",
        ),
        ("x.json", '{"format": "skillgraft result 1"}', True, "damaged result file"),
        ("x.npz", "zip?", True, "x.npz"),
        ("Makefile", "", False, "files without an ending"),
    ],
)
def test_what_is_no_artefact_says_why(tmp_path: Path, name: str, content: str, unread: bool, why: str) -> None:
    (tmp_path / name).write_text(content)
    found = find([tmp_path])
    (aside,) = found.unread if unread else found.unused
    assert not found.artefacts
    assert why in f"{aside.name}: {aside.why}"
    assert str(tmp_path) not in aside.why


def test_foreign_tensors_are_not_used(runs: Path) -> None:
    found = find([runs / "BASE" / "model.safetensors"])
    assert found.unused[0].why == "tensors, but neither a graft nor a region"


def test_broken_scores_do_not_spoil_their_graft(runs: Path, tmp_path: Path) -> None:
    graft = graft_file.load(runs / "a.safetensors").with_info(scores={"test": {"toy": {"score": 1}}})
    graft_file.save(graft, tmp_path / "g.safetensors")
    found = find([tmp_path])
    assert kinds(found).popitem()[1] == "graft"
    assert "not what skillgraft prints" in found.unread[0].why


def test_a_missing_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere does not exist; expected a folder or file"):
        find([tmp_path / "nowhere"])


def scores_of(runs: Path, name: str) -> Any:
    return next(each.scores for each in find([runs]).artefacts if each.name == f"runs/{name}")


def test_scores_of_the_same_rows_are_joined(runs: Path) -> None:
    (localized,), (recorded,) = scores_of(runs, "localize.json"), scores_of(runs, "a.safetensors")
    assert list(localized.models) == ["base", "tuned", "a.safetensors"]
    assert localized.joined(recorded) == localized
    (evaluated,) = scores_of(runs, "scores.json")
    assert (evaluated.split, evaluated.task, evaluated.rows) == ("test", "toy", 60)
    assert evaluated.joined(localized) is None  # other rows


def test_scores_that_disagree_stay_apart(runs: Path, tmp_path: Path) -> None:
    facts = json.loads((runs / "scores.json").read_text())
    facts["tasks"]["toy"]["base"]["score"]["value"] = 0.123
    (tmp_path / "x.json").write_text(json.dumps(facts))
    (one,), (two,) = scores_of(runs, "scores.json"), find([tmp_path]).artefacts[0].scores
    assert one.joined(two) is None


def test_what_forget_printed(runs: Path) -> None:
    (search,) = find([runs / "scales.json"]).artefacts
    assert search.value == ScaleCurves(
        {"scores toy": {"0": 0.5, "0.25": 0.6, "0.5": 0.7, "0.75": 0.8, "1": 0.9}}, "0.5"
    )


def test_what_combine_printed(tmp_path: Path) -> None:
    points = [{"scale": [0.5, 1.0], "accuracy": {"toy": 0.7}, "normalised": {"value": 0.9, "low": 0.8, "high": 1.0}}]
    facts = {
        "format": "skillgraft scales 1",
        "out": "x",
        "scale": [0.5, 1.0],
        "search": {"best": points[0], "singles": {}, "points": points},
    }
    (tmp_path / "x.json").write_text(json.dumps(facts))
    expected = ScaleCurves({"accuracy toy": {"0.5, 1": 0.7}, "normalised": {"0.5, 1": 0.9}}, "0.5, 1")
    assert find([tmp_path]).artefacts[0].value == expected


def test_a_disentanglement_map_by_itself(tmp_path: Path) -> None:
    errors = [[Estimate(0.0), Estimate(0.1, 0.0, 0.2)], [Estimate(0.2), Estimate(0.3)]]
    facts = {
        "format": "skillgraft map 1",
        "tasks": ["a", "b"],
        "alphas": [0.0, 1.0],
        "errors": [[each.as_json() for each in row] for row in errors],
    }
    (tmp_path / "x.json").write_text(json.dumps(facts))
    (found,) = find([tmp_path]).artefacts
    assert (found.kind, found.value) == ("map", disentanglement_sheet([0.0, 1.0], errors, tasks=("a", "b")))
