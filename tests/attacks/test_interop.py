"""Hostile adapters, patches and repositories: an error in words, nothing run, nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillgraft import extract
from skillgraft.errors import InputError, SkillgraftError
from skillgraft.files import tensors as tensor_file
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.hub import HubName, folder_at
from skillgraft.folders.patch import PatchCheckpoint
from tests.family import write_family
from tests.model_folders import QUERY


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="module")
def patch(family: Path) -> bytes:
    parts = {"indices": np.array([1, 2], np.int32), "values": np.ones(2, np.float32)}
    tensors = {f"bert.{QUERY}.{part}": array for part, array in parts.items()}
    tensor_file.write(family / "patch.safetensors", tensors, {"shapes": json.dumps({f"bert.{QUERY}": [4, 4]})})
    return (family / "patch.safetensors").read_bytes()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=8))
def test_a_patch_with_other_bytes_is_read_or_refused(
    family: Path, patch: bytes, tmp_path: Path, at: int, new: bytes
) -> None:
    """Only our own errors, and whatever is accepted lies within the base's tensors and is finite."""
    place = at % len(patch)
    (tmp_path / "p.safetensors").write_bytes(patch[:place] + new + patch[place + len(new) :])
    try:
        found = PatchCheckpoint.open(tmp_path / "p.safetensors", Checkpoint.open(family / "BASE"))
    except SkillgraftError:
        return
    for name, sites in found.region.sites.items():
        assert sites.max() < np.prod(found.base.shapes[name])
        assert np.isfinite(found.values[name]).all()


@pytest.mark.parametrize(
    "name",
    [
        "hf:../../etc/passwd", "hf:owner/..", "hf:owner/name:../../../x", "hf:owner/name@../../x", "hf:o/n:/etc/passwd",
        "hf:o\x1b[2J/n", "hf:" + "a" * 100_000 + "/b", "hf:o/n:" + "../" * 50 + "x", "hf:o//n", "hf:o/n@", "hf:o/n:",
    ],
)  # fmt: skip
def test_a_hub_name_never_leaves_the_hub(name: str) -> None:
    with pytest.raises(InputError, match="expected hf:owner/name"):
        HubName.of(name)


@pytest.mark.parametrize("revision", ["../../../outside", "main", "", "\x00", "a" * 5000, "deadbeef/../.."])
def test_a_cache_that_points_elsewhere_is_refused(tmp_path: Path, revision: str) -> None:
    cache = tmp_path / "models--o--n"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(revision)
    (tmp_path / "outside").mkdir()
    with pytest.raises(InputError, match="names a snapshot that is not in it"):
        folder_at(cache)


ADAPTERS: dict[str, Callable[[Path], None]] = {
    "a pickle alone": lambda folder: (folder / "adapter_model.bin").write_bytes(b"\x80\x04."),
    "weights that are no safetensors": lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"x" * 64),
    "no weights": lambda _: None,
}


@pytest.mark.parametrize("kind", ["IA3", "NO_SUCH_KIND", "PROMPT_TUNING", None, ["LORA"], {"a": 1}])
@pytest.mark.parametrize("weights", ADAPTERS)
def test_a_hostile_adapter_is_an_error_in_words(family: Path, tmp_path: Path, kind: object, weights: str) -> None:
    settings = {
        "peft_type": kind,
        "task_type": [1],
        "auto_mapping": {"base_model_class": "os.system", "parent_library": "os"},
    }
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    ADAPTERS[weights](tmp_path)
    with pytest.raises(SkillgraftError):
        extract(family / "BASE", tmp_path)
