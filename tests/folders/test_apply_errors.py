"""Every refusal of apply and remove: what was expected, what was found, what to do."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from skillgraft.errors import AlreadyApplied, FormatError, HeadConflict, InputError, NotApplied, Overlap, WrongBase
from skillgraft.files import tensors as tensor_file
from skillgraft.folders.apply import apply, remove
from skillgraft.folders.extract import extract
from skillgraft.folders.given import Named
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import BFLOAT16
from skillgraft.values.region import Region
from tests.model_folders import BIAS, DENSE, QUERY, body, content, moved, named, numbers, tensors_of, write_folder


@pytest.fixture
def base(tmp_path):
    return write_folder(tmp_path / "base", body())


@pytest.fixture
def graft_of(base, tmp_path):
    """A function that makes a graft which changes these tensors."""

    def make(*names: str, seed: int = 1, file: str = "g.safetensors", **heads: tuple[int, ...]) -> Named:
        tensors = moved(body(), *names, seed=seed)
        tensors |= {name.replace("__", "."): numbers(shape, seed=seed) for name, shape in heads.items()}
        return Named(extract(base, write_folder(tmp_path / f"tuned of {file}", tensors)), file)

    return make


def refused(error, action, folder, grafts, tmp_path, **options) -> str:
    """The message; nothing was written."""
    before = set(tmp_path.iterdir())
    with pytest.raises(error) as caught:
        action(folder, *grafts, out=tmp_path / "refused", **options)
    assert set(tmp_path.iterdir()) == before
    return str(caught.value)


def test_no_graft(base, tmp_path):
    assert refused(InputError, apply, base, [], tmp_path) == "apply needs at least one graft, found none"
    assert refused(InputError, remove, base, [], tmp_path) == "remove needs at least one graft, found none"


def test_wrong_base(graft_of, tmp_path):
    graft = graft_of(QUERY, DENSE)
    other = body()
    at = graft.graft.region.sites[QUERY][:2]
    other[QUERY].reshape(-1)[at] += 1
    folder = write_folder(tmp_path / "other", other)
    message = refused(WrongBase, apply, folder, [graft], tmp_path)
    assert (
        f"{folder} is not the base of g.safetensors: in {QUERY} 2 of {len(graft.graft.before[QUERY])} sites hold"
        in message
    )
    assert (
        f"(2 of {len(graft.graft)} in all); it was made for base (fingerprint {graft.graft.base_fingerprint[:12]}…)"
        in message
    )


def test_minus_zero_is_another_number(tmp_path):
    zero, minus = body(), body()
    zero[QUERY][0, 0], minus[QUERY][0, 0] = 0.0, -0.0
    folders = write_folder(tmp_path / "zero", zero), write_folder(tmp_path / "tuned", moved(zero, QUERY))
    graft = named(extract(*folders))
    refused(WrongBase, apply, write_folder(tmp_path / "minus", minus), graft, tmp_path)


def test_base_without_the_parameter(graft_of, tmp_path):
    graft = graft_of(BIAS, DENSE, QUERY)
    fewer = {name: array + 1 for name, array in body().items() if name != BIAS}
    message = refused(WrongBase, apply, write_folder(tmp_path / "fewer", fewer), [graft], tmp_path)
    assert f"g.safetensors changes {BIAS}, which {tmp_path}/fewer does not have; it was made for base" in message


def test_base_of_another_shape(graft_of, tmp_path):
    other = {**body(), DENSE: numbers((4, 7), seed=1)}
    message = refused(WrongBase, apply, write_folder(tmp_path / "other", other), [graft_of(DENSE)], tmp_path)
    assert f"{DENSE} is [4, 7] in {tmp_path}/other, [4, 6] in g.safetensors, which was made for base" in message


def test_base_of_another_format(graft_of, tmp_path):
    other = {name: array.astype(BFLOAT16) for name, array in body().items()}
    message = refused(WrongBase, apply, write_folder(tmp_path / "other", other), [graft_of(DENSE)], tmp_path)
    assert (
        f"g.safetensors holds float32 numbers, {DENSE} in {tmp_path}/other is bfloat16; use the base it was" in message
    )


def test_listed_graft_is_on_already(base, graft_of, tmp_path):
    graft = graft_of(QUERY)
    apply(base, graft, out=tmp_path / "on", scale=0.5)
    message = refused(AlreadyApplied, apply, tmp_path / "on", [graft], tmp_path)
    assert message == f"g.safetensors is on {tmp_path}/on already (see skillgraft.json); remove it first"


def test_tuned_itself_holds_the_numbers_already(graft_of, tmp_path):
    graft = graft_of(QUERY)
    message = refused(AlreadyApplied, apply, tmp_path / "tuned of g.safetensors", [graft], tmp_path)
    assert f"holds the numbers of g.safetensors already at all {len(graft.graft)} sites" in message


def test_overlap_with_what_is_on(base, graft_of, tmp_path):
    apply(base, graft_of(QUERY, file="a"), out=tmp_path / "on")
    message = refused(Overlap, apply, tmp_path / "on", [graft_of(QUERY, seed=2, file="b")], tmp_path)
    assert re.search(
        rf"b overlaps what is on .*/on \(a\): \d+ of \d+ sites differ in {QUERY}; apply them together", message
    )


def test_removing_what_is_not_on(base, graft_of, tmp_path):
    graft, other = graft_of(QUERY, file="a"), graft_of(BIAS, file="b")
    message = refused(NotApplied, remove, base, [graft], tmp_path)
    assert message == f"a is not on {base}; skillgraft.json lists nothing"
    apply(base, graft, out=tmp_path / "on")
    assert refused(NotApplied, remove, tmp_path / "on", [graft, other], tmp_path).endswith("skillgraft.json lists a")
    scaled = [Named(0.5 * graft.graft, "half of a")]
    assert "half of a is not on" in refused(NotApplied, remove, tmp_path / "on", scaled, tmp_path)


def test_removing_one_of_two_that_overlap(base, graft_of, tmp_path):
    a, b = graft_of(QUERY, file="a"), graft_of(QUERY, seed=2, file="b")
    apply(base, a, b, out=tmp_path / "on")
    message = refused(Overlap, remove, tmp_path / "on", [b], tmp_path)
    assert message == f"b overlaps a on {tmp_path}/on: they come off only together; name all of them"


def test_folder_edited_after_the_graft_came_on(base, graft_of, tmp_path):
    graft = graft_of(QUERY)
    apply(base, graft, out=tmp_path / "on")
    edited = {name: array.copy() for name, array in tensors_of(tmp_path / "on").items()}
    edited[QUERY].reshape(-1)[graft.graft.region.sites[QUERY][0]] = 7
    tensor_file.write(tmp_path / "on" / "model.safetensors", edited, {})
    message = refused(WrongBase, remove, tmp_path / "on", [graft], tmp_path)
    assert (
        f"was changed after the graft came on: 1 of {len(graft.graft)} sites differ in {QUERY}; start from" in message
    )
    tensor_file.write(tmp_path / "on" / "model.safetensors", {**edited, QUERY: edited[QUERY].astype(np.float16)}, {})
    assert f"g.safetensors holds float32 numbers, {QUERY} in" in refused(
        WrongBase, remove, tmp_path / "on", [graft], tmp_path
    )


def test_different_heads_of_one_name(base, graft_of, tmp_path):
    a = graft_of(QUERY, file="a", classifier__bias=(2,))
    b = graft_of(BIAS, seed=2, file="b", classifier__bias=(3,))
    message = refused(HeadConflict, apply, base, [a, b], tmp_path)
    assert "two grafts bring different heads named classifier.bias; choose whose to keep" in message
    apply(base, a, out=tmp_path / "on")
    message = refused(HeadConflict, apply, tmp_path / "on", [b], tmp_path)
    assert f"b brings another classifier.bias than a on {tmp_path}/on; apply them together to the base" in message


def test_grafts_of_different_bases(base, graft_of, tmp_path):
    folders = write_folder(tmp_path / "base2", body(5)), write_folder(tmp_path / "tuned2", moved(body(5), DENSE))
    message = refused(WrongBase, apply, base, [graft_of(QUERY), *named(extract(*folders))], tmp_path)
    assert "these grafts belong to different bases" in message


def test_scale_that_overflows(tmp_path):
    half = {name: array.astype(np.float16) for name, array in body().items()}
    tuned = {**half, BIAS: half[BIAS] + np.float16(1000)}
    base = write_folder(tmp_path / "half", half)
    graft = named(extract(base, write_folder(tmp_path / "tuned", tuned)))
    message = refused(InputError, apply, base, graft, tmp_path, scale=1e4)
    assert f"{BIAS}: 4 numbers overflow float16 (largest change 1e+07); use a smaller scale than 10000" in message


def test_region_beyond_this_model(graft_of, tmp_path):
    """A graft that someone made for more layers fails by name, whatever order the names have."""
    graft = graft_of(QUERY).graft
    scope = type(graft.region.scope).of("all", {**graft.region.scope.shapes, "a.missing": (3,)})
    region = Region(scope, {**graft.region.sites, "a.missing": [0]})
    extra = {"a.missing": np.zeros(1, np.float32)}
    wider = Graft(region, {**graft.before, **extra}, {**graft.change, **extra})
    folder = write_folder(tmp_path / "other", body(3))
    assert "changes a.missing, which" in refused(WrongBase, apply, folder, named(wider), tmp_path)


@pytest.mark.parametrize(
    "ledger",
    [
        "[]",
        "{",
        '{"applied": 3}',
        '{"applied": [{}]}',
        '{"unknown": 1}',
        json.dumps({"applied": [{"members": [{"digest": "a", "file": "b", "scale": "x", "entries": 1}]}]}),
    ],
)
def test_ledger_that_skillgraft_did_not_write(ledger, base, graft_of, tmp_path):
    graft = graft_of(QUERY)
    (base / "skillgraft.json").write_text(ledger)
    assert f"{base}/skillgraft.json" in refused(FormatError, apply, base, [graft], tmp_path)


def test_undo_file_that_is_broken(tmp_path):
    broken = write_folder(tmp_path / "headed", body(classifier__bias=(2,)))
    tuned = write_folder(tmp_path / "tuned", moved(body(classifier__bias=(2,))))
    graft = named(extract(broken, tuned))
    apply(broken, *graft, out=tmp_path / "on")
    (tmp_path / "on" / "skillgraft.undo").write_bytes(b"1234")
    assert "skillgraft.undo" in refused(FormatError, remove, tmp_path / "on", graft, tmp_path)


def test_input_replaced_while_it_is_copied(base, graft_of, tmp_path, monkeypatch):
    from skillgraft.folders import rewrite

    graft, copy = graft_of(QUERY), rewrite.copy_range

    def meddle(*arguments) -> None:
        copy(*arguments)
        tensor_file.write(base / "model.safetensors", body(9), {})

    monkeypatch.setattr(rewrite, "copy_range", meddle)
    message = refused(InputError, apply, base, [graft], tmp_path)
    assert "base/model.safetensors " in message
    assert any(
        each in message for each in ("changed while it was being read", "became shorter while it was being copied")
    )


def test_refusals_leave_the_inputs_alone(base, graft_of, tmp_path):
    graft = graft_of(QUERY)
    before = content(base)
    refused(NotApplied, remove, base, [graft], tmp_path)
    assert content(base) == before
