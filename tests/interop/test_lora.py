"""The exact low-rank form: what PEFT makes of the adapter is what the graft makes of the base."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from skillgraft import Graft, apply, export_lora, extract
from skillgraft.errors import InputError, WrongBase
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.interop.lora import export_nothing
from skillgraft.interop.low_rank import MatrixDelta
from skillgraft.values.numbers import bits, widen
from tests.families.architectures import FAMILIES, load, tuned, write
from tests.model_folders import real_model, same_weights

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

FUSED = ("phi3", "gpt2", "gpt-neox", "bloom", "falcon")
NAMES = ("bert", "mpnet", "llama", "qwen2", "gpt2")
SLOW = (*FUSED, "qwen3", "gemma3", "roberta", "modernbert", "deberta-v2", "t5", "opt", "qwen2-moe", "mistral")


def pair(name: str, folder: Path, dtype: str = "float32") -> tuple[Path, Path]:
    base = write(FAMILIES[name], folder / "base", dtype)
    return base, tuned(base, folder / "tuned")


def answers(model: Any) -> Any:
    inputs = {"input_ids": torch.randint(5, 25, (3, 9), generator=torch.Generator().manual_seed(1))}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"][:, :4]
    with torch.no_grad():
        return model.eval()(**inputs)[0].double()


def sparse(graft: Graft, *, seed: int = 0, share: float = 0.2) -> Graft:
    """A part of the graft's entries, drawn at random."""
    random = np.random.default_rng(seed)
    sites = {name: at[random.random(len(at)) < share] for name, at in graft.region.sites.items()}
    return graft & type(graft.region)(graft.region.scope, sites)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set:UserWarning")
@pytest.mark.parametrize(
    "name", [*NAMES, *(pytest.param(name, marks=pytest.mark.long) for name in SLOW if name not in NAMES)]
)
def test_peft_answers_as_the_grafted_model_does(name: str, tmp_path: Path) -> None:
    base, other = pair(name, tmp_path)
    g = sparse(extract(base, other, scope="layers"))
    made = export_lora(g, base, tmp_path / "adapter", drop=True)
    assert made.entries + sum(made.dropped.values()) == len(g)
    on = g & type(g.region)(g.region.scope, {n: at for n, at in g.region.sites.items() if n in linear(base, made)})
    assert len(on) == made.entries
    apply(base, on, out=tmp_path / "on")
    wanted = answers(load(FAMILIES[name], tmp_path / "on", "float32"))
    model = peft.PeftModel.from_pretrained(load(FAMILIES[name], base, "float32"), tmp_path / "adapter")
    found = answers(model)
    assert (found - wanted).norm() / wanted.norm() < 1e-5
    assert (answers(load(FAMILIES[name], base, "float32")) - wanted).norm() / wanted.norm() > 1e-3
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged, after = Checkpoint.open(tmp_path / "merged"), Checkpoint.open(tmp_path / "on")
    differ = sum(int((bits(merged.flat(n)[at]) != bits(after.flat(n)[at])).sum()) for n, at in on.region.sites.items())
    assert differ == made.rounded <= 0.01 * made.entries


def linear(base: Path, made: Any) -> set[str]:
    """The base's names of the modules in an adapter."""
    names = Checkpoint.open(base).places
    return {name for name in names if any(f"{path}.weight".endswith(name) for path in made.ranks)}


def far(graft: Graft, *, seed: int = 5) -> Graft:
    """The graft with other numbers to lead to, as large as the base's: the changes that moved most are of this kind."""
    random = np.random.default_rng(seed)
    after = {
        name: (random.normal(scale=0.05, size=len(old)) + 0.3 * widen(old)).astype(old.dtype)
        for name, old in graft.before.items()
    }
    return replace(graft, change=after)


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.long)])
def test_with_the_remainder_a_merge_by_peft_gives_after_bit_for_bit(name: str, tmp_path: Path) -> None:
    base, other = pair(name, tmp_path)
    g = far(sparse(extract(base, other, scope="matrices").without_heads()))
    without = export_lora(g, base, tmp_path / "without")
    assert without.rounded > 0.02 * without.entries
    assert without.remainder_rank == 0
    assert not (tmp_path / "without" / "remainder").exists()
    made = export_lora(g, base, tmp_path / "adapter", remainder=True)
    assert made.rounded == 0 < made.remainder_rank <= made.rank
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "adapter" / file).read_bytes() == (tmp_path / "without" / file).read_bytes()
    model = peft.PeftModel.from_pretrained(load(FAMILIES[name], base, "float32"), tmp_path / "adapter")
    model.load_adapter(tmp_path / "adapter" / "remainder", "remainder")
    model.merge_and_unload(adapter_names=["default", "remainder"]).save_pretrained(tmp_path / "merged")
    apply(base, g, out=tmp_path / "on")
    assert same_weights(tmp_path / "merged", tmp_path / "on")


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set:UserWarning")
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_an_adapter_that_adds_nothing(name: str, tmp_path: Path) -> None:
    base, _ = pair(name, tmp_path)
    export_nothing(base, tmp_path / "nothing")
    model = peft.PeftModel.from_pretrained(load(FAMILIES[name], base, "float32"), tmp_path / "nothing")
    assert len(model.peft_config["default"].target_modules) == 1
    assert (answers(model) == answers(load(FAMILIES[name], base, "float32"))).all()
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    assert same_weights(tmp_path / "merged", base)


def test_a_change_that_lands_everywhere_has_no_remainder(tmp_path: Path) -> None:
    base, other = pair("llama", tmp_path, "bfloat16")
    made = export_lora(sparse(extract(base, other, scope="*_proj.weight")), base, tmp_path / "out", remainder=True)
    assert (made.rounded, made.remainder_rank) == (0, 0)
    assert not (tmp_path / "out" / "remainder").exists()


@settings(max_examples=300, deadline=None)
@given(st.floats(2**-20, 2**4, width=32), st.floats(2**-20, 2**4, width=32), st.booleans())
def test_no_other_number_would_land_where_the_change_misses(old: float, new: float, turned: bool) -> None:
    """The law behind the count: the numbers that land are neighbours, and after − before lies among them, before rounding."""
    before, after = np.array([-old if turned else old], np.float32), np.array([new], np.float32)
    delta = MatrixDelta.between("x", (1, 1), np.array([0]), before, after)
    if not len(delta.at) or not delta.misses[0] or np.frexp(new)[0] == 0.5:
        return
    change = delta.numbers[0]
    for end in (-np.inf, np.inf):
        other = change
        for _ in range(8):
            other = np.nextafter(other, np.float32(end))
            assert before[0] + other != after[0]
    rest = delta.remainder
    assert delta.landed + rest.numbers == after


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_product_is_the_change_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    base, other = pair("gpt2", tmp_path, dtype)
    g = sparse(extract(base, other, scope="*.weight"))
    made = export_lora(g, base, tmp_path / "adapter", drop=True)
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    for path, rank in made.ranks.items():
        name = path.removeprefix("transformer.") + ".weight"
        a, b = (tensors[f"base_model.model.{path}.lora_{factor}.weight"] for factor in "AB")
        assert a.shape[0] == b.shape[1] == rank
        change = np.zeros(g.region.scope.shapes[name], np.float32)
        change.reshape(-1)[g.region.sites[name]] = widen(g.written(name)) - widen(g.before[name])
        assert (bits((b @ a).T) == bits(change)).all()


def test_alpha_is_the_rank_of_each_module(tmp_path: Path) -> None:
    base, other = pair("llama", tmp_path)
    made = export_lora(sparse(extract(base, other, scope="layers"), share=0.02), base, tmp_path / "out", drop=True)
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert settings["r"] == settings["lora_alpha"] == made.rank
    assert settings["rank_pattern"] == settings["alpha_pattern"]
    assert {**dict.fromkeys(made.ranks, made.rank), **settings["rank_pattern"]} == made.ranks
    assert len(set(made.ranks.values())) > 1
    assert settings["task_type"] == "CAUSAL_LM"
    assert all(path.startswith("model.layers.") for path in made.ranks)


def test_entries_without_a_form_are_refused_with_their_count(tmp_path: Path) -> None:
    base, other = pair("bert", tmp_path)
    g = extract(base, other, scope="all")
    with pytest.raises(InputError, match=r"of [\d,]+ entries have no LoRA form .*embeddings.*--drop") as refused:
        export_lora(g, base, tmp_path / "adapter")
    assert "in bias" in str(refused.value)
    assert not (tmp_path / "adapter").exists()
    made = export_lora(g, base, tmp_path / "adapter", drop=True)
    by_kind = g.region.by_kind()
    assert made.dropped["bias"] == by_kind["bias"]
    assert made.dropped["LayerNorm"] == by_kind["LayerNorm"]


def test_a_rank_that_is_too_large_is_refused_with_what_it_needs_and_what_dropping_costs(tmp_path: Path) -> None:
    base, other = pair("llama", tmp_path)
    g = sparse(extract(base, other, scope="*_proj.weight"), share=0.1)
    whole = export_lora(g, base, tmp_path / "whole")
    needed = rf"largest: {whole.rank}\. .* leave out [\d,]+ entries .*% of .*--max-rank 3"
    with pytest.raises(InputError, match=needed):
        export_lora(g, base, tmp_path / "narrow", max_rank=3)
    made = export_lora(g, base, tmp_path / "narrow", max_rank=3, drop=True)
    assert max(made.ranks.values()) == made.rank == 3
    assert made.entries + made.beyond_rank == whole.entries
    assert 0 < made.kept_share < 1
    assert export_lora(g, base, tmp_path / "wide", max_rank=whole.rank).entries == whole.entries


def test_heads_travel_whole(tmp_path: Path) -> None:
    base = real_model("BertModel", tmp_path / "base")
    other = real_model("BertForSequenceClassification", tmp_path / "tuned", base=base, num_labels=3)
    g = extract(base, other, scope="*.query.weight")
    made = export_lora(g, base, tmp_path / "adapter")
    assert set(made.heads) >= {"classifier.weight", "classifier.bias"}
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["task_type"] == "SEQ_CLS"
    assert "classifier" in settings["modules_to_save"]
    import transformers

    kind = transformers.AutoModelForSequenceClassification
    apply(base, g, out=tmp_path / "on")
    wanted = answers(kind.from_pretrained(tmp_path / "on"))
    loaded = peft.PeftModel.from_pretrained(kind.from_pretrained(base, num_labels=3), tmp_path / "adapter")
    assert (answers(loaded) - wanted).norm() / wanted.norm() < 1e-5
    again = extract(base, tmp_path / "adapter", region=g.region)
    assert {n: h.tolist() for n, h in again.heads.items()} == {n: h.tolist() for n, h in g.heads.items()}


def test_the_adapter_read_back_is_the_graft(tmp_path: Path) -> None:
    base, other = pair("llama", tmp_path, "bfloat16")
    g = sparse(extract(base, other, scope="*_proj.weight"))
    assert export_lora(g, base, tmp_path / "adapter").rounded == 0
    back = extract(base, tmp_path / "adapter")
    assert {n: at.tolist() for n, at in back.region.sites.items()} == {
        n: at.tolist() for n, at in g.region.sites.items()
    }
    assert all((bits(back.written(n)) == bits(g.written(n))).all() for n in g.region)


def test_another_base_an_empty_graft_and_a_bad_rank_are_refused(tmp_path: Path) -> None:
    base, other = pair("bert", tmp_path)
    g = extract(base, other, scope="*.query.weight")
    with pytest.raises(WrongBase, match=r"holds the numbers of .* already"):
        export_lora(g, other, tmp_path / "out")
    with pytest.raises(InputError, match="nothing to adapt"):
        export_lora(extract(base, other, scope="biases"), base, tmp_path / "out", drop=True)
    with pytest.raises(InputError, match="max_rank is 1 or more, found 0"):
        export_lora(g, base, tmp_path / "out", max_rank=0)
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        export_lora(g, base, tmp_path / "out")
