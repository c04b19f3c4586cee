"""PEFT's sparse layout: what PEFT makes of the adapter is what the graft makes of the base."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillgraft import apply, extract
from skillgraft.errors import InputError
from skillgraft.interop.supertuning import export_supertuning
from tests.families.architectures import FAMILIES, load
from tests.interop.test_lora import answers, pair, sparse
from tests.model_folders import same_weights

peft = pytest.importorskip("peft")


@pytest.mark.parametrize("name", ["bert", "llama", pytest.param("qwen3", marks=pytest.mark.long)])
def test_peft_answers_as_the_grafted_model_does(name: str, tmp_path: Path) -> None:
    base, other = pair(name, tmp_path)
    g = sparse(extract(base, other, scope="matrices"), share=0.1)
    made = export_supertuning(g, base, tmp_path / "adapter")
    assert (made.entries, made.dropped, made.rank) == (len(g), {}, 0)
    apply(base, g, out=tmp_path / "on")
    wanted = answers(load(FAMILIES[name], tmp_path / "on", "float32"))
    model = peft.PeftModel.from_pretrained(load(FAMILIES[name], base, "float32"), tmp_path / "adapter")
    assert (answers(model) - wanted).norm() / wanted.norm() < 1e-6


def test_the_adapter_read_back_is_the_graft(tmp_path: Path) -> None:
    base, other = pair("llama", tmp_path)
    g = sparse(extract(base, other, scope="matrices"), share=0.1)
    made = export_supertuning(g, base, tmp_path / "adapter")
    back = extract(base, tmp_path / "adapter")
    assert {n: at.tolist() for n, at in back.region.sites.items()} == {
        n: at.tolist() for n, at in g.region.sites.items()
    }
    apply(base, g, out=tmp_path / "on")
    apply(base, back, out=tmp_path / "back")
    assert made.rounded or same_weights(tmp_path / "on", tmp_path / "back")


def test_what_it_cannot_hold_is_refused(tmp_path: Path) -> None:
    base, other = pair("gpt2", tmp_path)
    with pytest.raises(InputError, match="is a Conv1D, which PEFT's Supertuning does not take"):
        export_supertuning(extract(base, other, scope="matrices"), base, tmp_path / "out")
    with pytest.raises(InputError, match=r"have no sparse adapter form .*--drop"):
        export_supertuning(extract(base, other, scope="layers"), base, tmp_path / "out")
