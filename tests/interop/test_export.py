"""Patches for other programs: set these entries of these tensors to these numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from skillgraft import apply, export_patch, extract
from skillgraft.errors import InputError, WrongBase
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
        elif part != "values":
            tensors[name] = array
    return tensors


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
    assert load_file(family / "plain.safetensors").keys() == sites | {"classifier.weight", "classifier.bias"}
    named = load_file(family / "named.safetensors")
    assert named.keys() == {f"bert.{name}" for name in sites} | {"classifier.weight", "classifier.bias"}
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
    assert load_file(family / "patch.safetensors").keys() == {"bert.pooler.dense.bias", "classifier.bias"}


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
