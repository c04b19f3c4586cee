"""Patches for other programs: set these entries of these tensors to these numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from skillgraft import apply, export_patch, extract
from skillgraft.errors import FormatError, InputError, WrongBase
from skillgraft.files import tensors as tensor_file
from skillgraft.files.tensors import TensorFile
from skillgraft.folders.patch import dense_file
from skillgraft.values.numbers import bits
from tests.family import write_family
from tests.model_folders import DENSE, QUERY, body, write_folder


@pytest.fixture
def family(tmp_path: Path) -> Path:
    return write_family(tmp_path)


def patched(base: Path, patch: Path) -> dict[str, np.ndarray]:
    """What a program that knows nothing of grafts makes of a patch."""
    tensors, changes = load_file(base / "model.safetensors"), load_file(patch)
    for name, array in changes.items():
        stem, _, part = name.rpartition(".")
        if part == "indices":
            tensors[stem].reshape(-1)[array] = changes[f"{stem}.values"]
    dense = dense_file(patch)
    return tensors | (load_file(dense) if dense.exists() else {})


@pytest.mark.parametrize("scale", [1.0, 0.5, -1.0])
def test_a_patch_does_what_the_graft_does(family: Path, scale: float) -> None:
    g = scale * extract(family / "BASE", family / "TUNED")
    export_patch(g, family / "patch.safetensors", base=family / "BASE")
    apply(family / "BASE", g, out=family / "OUT")
    found, wanted = patched(family / "BASE", family / "patch.safetensors"), load_file(family / "OUT/model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)


def test_the_layout(family: Path) -> None:
    g = extract(family / "BASE", family / "TUNED", entries=4)
    export_patch(g, family / "plain.safetensors")
    export_patch(g, family / "named.safetensors", base=family / "BASE")
    sites = {f"{name}.{part}" for name in (QUERY, DENSE) for part in ("indices", "values")}
    assert load_file(family / "plain.safetensors").keys() == sites
    assert load_file(family / "plain.dense.safetensors").keys() == {"classifier.weight", "classifier.bias"}
    named = load_file(family / "named.safetensors")
    assert named.keys() == {f"bert.{name}" for name in sites}
    stated = json.loads(TensorFile.open(family / "named.safetensors").metadata["shapes"])
    assert stated == {f"bert.{QUERY}": [4, 4], f"bert.{DENSE}": [4, 6]}
    assert named[f"bert.{QUERY}.indices"].tolist() == [1, 3, 7]
    assert named[f"bert.{QUERY}.indices"].dtype == np.int32


def test_heads_that_sit_in_the_body_have_its_prefix(family: Path) -> None:
    tuned = {
        **body(prefix="bert."),
        "bert.pooler.dense.bias": np.zeros(4, np.float32),
        "classifier.bias": np.ones(2, np.float32),
    }
    g = extract(family / "BASE", write_folder(family / "POOLED", tuned))
    export_patch(g, family / "patch.safetensors", base=family / "BASE")
    assert load_file(family / "patch.dense.safetensors").keys() == {"bert.pooler.dense.bias", "classifier.bias"}


def test_another_base_is_refused(family: Path) -> None:
    g = extract(family / "BASE", family / "TUNED")
    with pytest.raises(WrongBase, match=rf"OTHER is not the base .*{QUERY} 1 of 3 sites"):
        export_patch(g, family / "patch.safetensors", base=family / "OTHER")
    with pytest.raises(WrongBase, match="does not have"):
        export_patch(g, family / "patch.safetensors", base=write_folder(family / "X", {"w": np.zeros(2, np.float32)}))
    assert not (family / "patch.safetensors").exists()


def test_an_existing_file_is_left_alone(family: Path) -> None:
    target = family / "patch.safetensors"
    target.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        export_patch(extract(family / "BASE", family / "TUNED"), target)
    assert target.read_text() == "mine"


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_with_the_base_a_patch_is_a_graft_again(family: Path, scale: float) -> None:
    g = scale * extract(family / "BASE", family / "TUNED")
    export_patch(g, family / "patch.safetensors", base=family / "BASE")
    back = extract(family / "BASE", family / "patch.safetensors")
    assert {n: at.tolist() for n, at in back.region.sites.items()} == {
        n: at.tolist() for n, at in g.region.sites.items()
    }
    assert all((bits(back.written(n)) == bits(g.written(n))).all() for n in g.region)
    assert back.heads.keys() == g.heads.keys()
    apply(family / "BASE", g, out=family / "ON")
    apply(family / "BASE", back, out=family / "BACK")
    ours, theirs = load_file(family / "ON/model.safetensors"), load_file(family / "BACK/model.safetensors")
    assert {n: a.tobytes() for n, a in ours.items()} == {n: a.tobytes() for n, a in theirs.items()}


ONES = np.ones(2, np.float32)
SITES = np.array([1, 2], np.int32)
BROKEN = {
    "an index too large": (
        {"indices": np.array([1, 16], np.int32), "values": ONES},
        r"must lie in 0 … 15, found 1 … 16",
    ),
    "a negative index": ({"indices": np.array([-1, 2], np.int32), "values": ONES}, r"found -1 … 2"),
    "an index twice": ({"indices": np.array([2, 2], np.int32), "values": ONES}, "1 indices are duplicates"),
    "NaN": ({"indices": SITES, "values": np.array([1, np.nan], np.float32)}, "NaN or infinite"),
    "another format": (
        {"indices": SITES, "values": ONES.astype(np.float16)},
        "holds float16 numbers, the base's are float32",
    ),
    "too few values": ({"indices": SITES, "values": ONES[:1]}, "as many values"),
    "no whole numbers": ({"indices": ONES, "values": ONES}, "expected a row of whole numbers"),
    "no values": ({"indices": SITES}, r"query\.weight\.values is missing"),
    "another tensor": ({"else": ONES}, r"expected <tensor>\.indices and <tensor>\.values, found bert"),
}


@pytest.mark.parametrize(("parts", "says"), BROKEN.values(), ids=BROKEN)
def test_a_broken_patch_is_refused(family: Path, parts: dict[str, np.ndarray], says: str) -> None:
    tensor_file.write(family / "p.safetensors", {f"bert.{QUERY}.{part}": array for part, array in parts.items()}, {})
    with pytest.raises(InputError, match=says):
        extract(family / "BASE", family / "p.safetensors")


def test_a_patch_of_another_model_is_refused(family: Path) -> None:
    parts = {"indices": SITES, "values": ONES}
    tensor_file.write(family / "p.safetensors", {f"w.{part}": array for part, array in parts.items()}, {})
    with pytest.raises(InputError, match="w is not a tensor of"):
        extract(family / "BASE", family / "p.safetensors")
    tensor_file.write(
        family / "q.safetensors",
        {f"{QUERY}.{part}": a for part, a in parts.items()},
        {"shapes": f'{{"{QUERY}":[2,8]}}'},
    )
    with pytest.raises(InputError, match=r"is of shape \[2, 8\], the base's is \[4, 4\]"):
        extract(family / "BASE", family / "q.safetensors")
    tensor_file.write(family / "r.safetensors", {f"{QUERY}.{part}": a for part, a in parts.items()}, {"shapes": "{"})
    with pytest.raises(FormatError, match="its shapes cannot be read"):
        extract(family / "BASE", family / "r.safetensors")
    tensor_file.write(family / "s.safetensors", {f"{QUERY}.{part}": a for part, a in parts.items()}, {})
    tensor_file.write(family / "s.dense.safetensors", {f"bert.{QUERY}": np.zeros((4, 4), np.float32)}, {})
    with pytest.raises(InputError, match="a patch changes it by entries"):
        extract(family / "BASE", family / "s.safetensors")
