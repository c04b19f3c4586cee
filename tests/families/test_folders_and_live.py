"""Every architecture in every number format: out of a folder, onto a folder, off again, and on a live model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import extract, grafted
from skillgraft.folders.apply import apply, remove
from skillgraft.live.grafted import as_numpy
from skillgraft.values.graft import Graft
from skillgraft.values.names import in_layers
from skillgraft.values.numbers import bits, is_float
from tests.families.architectures import FAMILIES, QUICK, Family, cases, load, tuned, write
from tests.model_folders import content, named, same_weights, tensors_of

Pairs = Callable[[Family, str], tuple[Path, Path]]
KINDS = {"encoder", "decoder", "encoder-decoder", "vision", "clip", "state-space", "moe"}
ENTRIES = 20


def test_the_table_has_every_kind_and_the_families_that_may_not_be_missing() -> None:
    assert len(FAMILIES) >= 40
    assert {family.kind for family in FAMILIES.values()} == KINDS
    assert set(QUICK) <= FAMILIES.keys()
    assert {"llama", "qwen2", "gemma", "mistral", "phi3", "roberta", "deberta", "bart", "clip"} <= FAMILIES.keys()


def test_a_family_is_written_to_the_same_bytes_again(tmp_path: Path) -> None:
    family = FAMILIES["bert"]
    first, second = (write(family, tmp_path / name, "bfloat16") for name in ("first", "second"))
    assert content(first) == content(second)
    assert content(tuned(first, tmp_path / "third")) == content(tuned(second, tmp_path / "fourth"))


@pytest.mark.parametrize(("family", "dtype"), cases())
def test_the_pair_is_of_one_format_and_differs_in_every_layer(family: Family, dtype: str, pair: Pairs) -> None:
    """What the other tests here rest on."""
    base, other = map(tensors_of, pair(family, dtype))
    assert {str(array.dtype) for array in base.values() if is_float(array.dtype)} == {dtype}
    assert {name: (array.shape, array.dtype) for name, array in base.items()} == {
        name: (array.shape, array.dtype) for name, array in other.items()
    }
    layers = [name for name in base if in_layers(name) and not _is_statistic(name)]
    assert layers
    assert [name for name in layers if not _moved(base[name], other[name])] == []


@pytest.mark.parametrize(("family", "dtype"), cases())
def test_a_graft_of_everything_gives_tuned_and_taken_off_gives_base(
    family: Family, dtype: str, pair: Pairs, tmp_path: Path
) -> None:
    base, other = pair(family, dtype)
    before = content(base)
    graft = extract(base, other)
    _put_on(base, graft, tmp_path / "on")
    assert same_weights(tmp_path / "on", other)
    _take_off(tmp_path / "on", graft, tmp_path / "off")
    assert content(tmp_path / "off") == before == content(base)


@pytest.mark.parametrize(("family", "dtype"), cases())
def test_a_graft_of_a_few_entries_changes_those_alone(family: Family, dtype: str, pair: Pairs, tmp_path: Path) -> None:
    base, other = pair(family, dtype)
    graft = extract(base, other, entries=ENTRIES).without_heads()
    assert len(graft) == ENTRIES
    assert all(in_layers(name) for name in graft.region.sites)
    _put_on(base, graft, tmp_path / "on")
    ours, theirs = tensors_of(base), tensors_of(tmp_path / "on")
    assert sum(_moved(ours[name], theirs[name]) for name in ours) == ENTRIES
    _take_off(tmp_path / "on", graft, tmp_path / "off")
    assert same_weights(tmp_path / "off", base)


@pytest.mark.parametrize(("family", "dtype"), cases())
def test_a_live_model_is_tuned_inside_and_base_afterwards(family: Family, dtype: str, pair: Pairs) -> None:
    base, other = pair(family, dtype)
    model = load(family, base, dtype)
    before, wanted = _state(model), _state(load(family, other, dtype))
    assert before.keys() == wanted.keys()
    with grafted(model, extract(base, other)):
        assert _differing(_state(model), wanted) == []
    assert _differing(_state(model), before) == []
    with grafted(model, extract(base, other, entries=ENTRIES).without_heads()):
        inside = _state(model)
        assert sum(_moved(before[name], inside[name]) for name in before) == ENTRIES
    assert _differing(_state(model), before) == []


def _put_on(base: Path, graft: Graft, out: Path) -> None:
    apply(base, *named(graft), out=out)


def _take_off(folder: Path, graft: Graft, out: Path) -> None:
    remove(folder, *named(graft), out=out)


def _is_statistic(name: str) -> bool:
    """Buffers of batch normalisation are saved, but they are no parameters."""
    return "running_" in name or "num_batches" in name


def _moved(a: Any, b: Any) -> int:
    """How many entries have other bits."""
    return int(np.count_nonzero(bits(a) != bits(b)))


def _state(model: Any) -> dict[str, Any]:
    """Copies of a live model's floating-point parameters and buffers, a tied one once."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: as_numpy(tensor).copy() for name, tensor in tensors.items() if tensor.is_floating_point()}


def _differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return [name for name in a if a[name].dtype != b[name].dtype or _moved(a[name], b[name])]
