"""Bottleneck adapters: the formula, the published counts, every architecture, and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from skillgraft.errors import FormatError, InputError, WrongBase
from skillgraft.files import tensors as tensor_file
from skillgraft.files.tensors import TensorFile
from skillgraft.live.bottleneck import DESIGNS, Adapters, Bottleneck
from skillgraft.live.grafted import parameter_names
from skillgraft.training.methods import add_lora, is_lora, prepare
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.region import Scope
from tests.readouts import making
from tests.readouts.making import open_readouts
from tests.training.toys import tiny_bert

# P1 table 6: the size of what is added, and the percentage printed beside it (the same for both designs of adapters).
ADAPTER_PERCENT = {1: 0.025, 2: 0.05, 16: 0.4, 64: 1.6}
LORA_PERCENT = {1: 0.05, 2: 0.1, 8: 0.4}
LAYERS, WIDTH, SCOPE = 12, 768, 85_054_464  # RoBERTa-base
MODELS = {
    "bert": (making.bert, making.SENTIMENT, making.films),
    "roberta": (making.roberta, making.SENTIMENT, making.films),
    "gpt2": (making.gpt2, making.SENTIMENT, making.films),
    "llama": (making.llama, making.SENTIMENT, making.films),
    "t5": (making.t5, making.SENTIMENT, making.films),
    "vit": (making.vit, making.DIGITS, making.digits),
}
# Sub-layers of the two layers of each model: attention outputs (T5: encoder 2, decoder 2 + 2 across) and MLP outputs.
SUBLAYERS = {"bert": (2, 2), "roberta": (2, 2), "gpt2": (2, 2), "llama": (2, 2), "t5": (6, 4), "vit": (2, 2)}


def roberta_base() -> Any:
    """RoBERTa-base's shape without its numbers."""
    with torch.device("meta"):
        return transformers.RobertaForMaskedLM(transformers.RobertaConfig(vocab_size=50265))


def shaken(adapters: Adapters, scale: float = 0.5) -> Adapters:
    """Every number changed, as if trained."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in adapters.tensors.values():
            tensor.add_(scale * torch.randn(tensor.shape, generator=generator))
    return adapters


# The formula


def test_by_hand() -> None:
    """x = (1, 2); down = (1, 1) + 1 → 4; relu → 4; up = (0.5, -1), plus (0.25, 0) → (2.25, -4); x + that."""
    layer = Bottleneck(2, 1, torch.nn.functional.relu)
    numbers = {"down.weight": [[1.0, 1.0]], "down.bias": [1.0], "up.weight": [[0.5], [-1.0]], "up.bias": [0.25, 0.0]}
    layer.load_state_dict({name: torch.tensor(value) for name, value in numbers.items()})
    assert layer(torch.tensor([[1.0, 2.0]])).tolist() == [[3.25, -2.0]]
    assert layer(torch.tensor([[-3.0, -2.0]])).tolist() == [[-2.75, -2.0]]  # relu stops it: the bias alone


@pytest.mark.parametrize("design", DESIGNS)
def test_it_stands_between_the_dense_layer_and_the_residual_sum(design: str) -> None:
    """A whole BERT layer written out, with its adapters, against the hooks."""
    model: Any = tiny_bert()
    adapters = shaken(Adapters.fresh(model, design, bottleneck=3))
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2))
    layer = model.encoder.layer[0]

    def adapted(name: str, hidden: torch.Tensor) -> torch.Tensor:
        found = adapters.layers.get(f"encoder.layer.0.{name}")
        if found is None:
            return hidden
        inner = DESIGNS[design].activation(hidden @ found.down.weight.T + found.down.bias)
        return hidden + inner @ found.up.weight.T + found.up.bias

    attended = layer.attention.self(x)[0]
    middle = layer.attention.output.LayerNorm(
        adapted("attention.output.dense", layer.attention.output.dense(attended)) + x
    )
    wanted = layer.output.LayerNorm(adapted("output.dense", layer.output.dense(layer.intermediate(middle))) + middle)
    handles = adapters.attach(model)
    torch.testing.assert_close(_first(layer(x)), wanted)
    for handle in handles:
        handle.remove()
    assert not torch.allclose(_first(layer(x)), wanted)


def _first(output: Any) -> torch.Tensor:
    found = output if isinstance(output, torch.Tensor) else output[0]
    assert isinstance(found, torch.Tensor)
    return found


# The published counts


@pytest.mark.parametrize("bottleneck", ADAPTER_PERCENT)
def test_the_counts_of_table_6(bottleneck: int) -> None:
    """RoBERTa-base: 12 layers of width 768, an adapter has 2 · 768 · b weights and b + 768 biases.

    P1 prints one percentage for both designs, proportional to b: that of Pfeiffer's weights without biases, rounded upwards
    (0.0217 b % of the layers against 0.025 b %). Houlsby's two adapters per layer have twice that.
    """
    weights = 2 * WIDTH * bottleneck
    one = weights + bottleneck + WIDTH
    model = roberta_base()
    counts = {design: len(Adapters.fresh(model, design, bottleneck=bottleneck)) for design in DESIGNS}
    assert counts == {"houlsby": 2 * LAYERS * one, "pfeiffer": LAYERS * one}
    assert Scope.select("layers", {n: tuple(p.shape) for n, p in parameter_names(model).items()}).size == SCOPE
    assert 1.15 < ADAPTER_PERCENT[bottleneck] / (100 * LAYERS * weights / SCOPE) < 1.16


@pytest.mark.parametrize("rank", LORA_PERCENT)
def test_loras_counts_of_table_6(rank: int) -> None:
    """Query and value of 12 layers, A and B of 768 · rank each; printed like the adapters', rounded upwards."""
    model = roberta_base()
    add_lora(model, rank=rank)
    added = sum(parameter.numel() for name, parameter in model.named_parameters() if is_lora(name))
    assert added == 12 * 2 * 2 * 768 * rank
    assert 1.15 < LORA_PERCENT[rank] / (100 * added / SCOPE) < 1.16


# Every architecture


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("kind", MODELS)
def test_every_architecture_starts_as_the_base_and_learns(kind: str, design: str, tmp_path: Path) -> None:
    make, text, rows = MODELS[kind]
    opened = open_readouts(make(tmp_path / kind), [making.task_of(text)])
    before = making.scored(opened, rows())
    prepared = prepare(opened.model, TrainingPlan(method=design, bottleneck=2))  # type: ignore[arg-type]
    adapters = prepared.adapters
    assert adapters is not None
    attention, mlp = SUBLAYERS[kind]
    assert len(adapters.layers) == (attention if design == "houlsby" else 0) + mlp
    assert torch.equal(making.scored(opened, rows()), before)
    frozen = {name for name, parameter in opened.model.named_parameters() if not parameter.requires_grad}
    assert all(
        "classifier" in name or "pooler" in name for name in dict(opened.model.named_parameters()).keys() - frozen
    )
    making.assert_trains(opened, rows(), adapters.tensors, but=".down.")  # up = 0 keeps the first gradient from down
    shaken(adapters, 0.1)
    assert (making.scored(opened, rows()) - before).abs().max() > 1e-3
    making.assert_trains(opened, rows(), adapters.tensors)


def test_the_start_follows_the_seed_and_leaves_torchs_own_state_alone() -> None:
    model = tiny_bert()
    before = torch.get_rng_state()
    first, again, other = (Adapters.fresh(model, "houlsby", bottleneck=2, seed=seed).tensors for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    name = "encoder.layer.0.output.dense.down.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    assert 0 < first[name].abs().max() < 0.1


# Files


def test_a_file_brings_the_same_adapters_back_under_every_head(tmp_path: Path) -> None:
    making.bert(tmp_path / "model")
    body = transformers.AutoModel.from_pretrained(tmp_path / "model")
    language = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "model").eval()
    adapters = shaken(Adapters.fresh(body, "pfeiffer", bottleneck=3))
    adapters.save(tmp_path / "a.safetensors", base_fingerprint="abc")
    again = Adapters.load(tmp_path / "a.safetensors")
    assert again.description == adapters.description == {
        "design": "pfeiffer", "bottleneck": 3, "adapters": 2, "numbers": 2 * (2 * 16 * 3 + 3 + 16),
    }  # fmt: skip
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in adapters.tensors.items())
    again.attach(language)
    adapters.attach(body)
    ids = torch.tensor([[2, 7, 9, 3]])
    torch.testing.assert_close(language.bert(ids).last_hidden_state, body.eval()(ids).last_hidden_state)


def rewritten(path: Path, out: Path, *, drop: str = "", **metadata: str) -> Path:
    file = TensorFile.open(path)
    arrays = {name: np.array(file.read(name)) for name in file.entries if name != drop}
    tensor_file.write(out, arrays, {**file.metadata, **metadata})
    return out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "skillgraft-graft"}, "expected the format skillgraft-adapter 1, found skillgraft-graft 1"),
        ({"format_version": "9"}, "expected the format skillgraft-adapter 1, found skillgraft-adapter 9"),
        ({"design": "compacter"}, r"expected a design \(houlsby, pfeiffer\).*found 'compacter'"),
        ({"bottleneck": "many"}, "expected a design.*found 'pfeiffer' and 'many'"),
        ({"bottleneck": "4"}, r"down\.weight is \[3, 16\], expected \[4, 16\] for a bottleneck of 4 at width 16"),
        (
            {"drop": "encoder.layer.1.output.dense.up.bias"},
            r"lonely or strange: encoder\.layer\.1\.output\.dense\.up\.bias",
        ),
    ],
)
def test_a_wrong_file(change: dict[str, str], says: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    Adapters.fresh(tiny_bert(), "pfeiffer", bottleneck=3).save(path, base_fingerprint="")
    with pytest.raises(FormatError, match=says):
        Adapters.load(rewritten(path, tmp_path / "b.safetensors", **change))


def test_adapters_of_another_model_are_refused() -> None:
    adapters = Adapters.fresh(tiny_bert(), "houlsby", bottleneck=2)
    sizes = {"vocab_size": 50, "num_attention_heads": 2, "intermediate_size": 24}
    for settings, says in (
        ({"hidden_size": 8, "num_hidden_layers": 2}, "gives 8 numbers in this BertModel, its adapter takes 16"),
        (
            {"hidden_size": 16, "num_hidden_layers": 3},
            r"encoder\.layer\.2\.attention\.output\.dense, .* have no adapter",
        ),
        ({"hidden_size": 16, "num_hidden_layers": 1}, r"encoder\.layer\.1\.attention\.output\.dense, .* missing"),
    ):
        other = transformers.BertModel(transformers.BertConfig(**sizes, **settings))
        with pytest.raises(WrongBase, match=says):
            adapters.attach(other)


def test_a_model_without_the_matrices_and_an_unknown_design() -> None:
    with pytest.raises(InputError, match="found no MLP out and no attention output in Linear"):
        Adapters.fresh(torch.nn.Linear(2, 2), "houlsby", bottleneck=1)
    with pytest.raises(InputError, match="no adapter design 'housby'; did you mean 'houlsby'"):
        Adapters.fresh(tiny_bert(), "housby", bottleneck=1)


def test_experts_in_one_tensor_take_no_adapter() -> None:
    """JetMoE's outputs have the right kinds, but their modules are a stack of matrices with no single width."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_key_value_heads": 1, "kv_channels": 4, "vocab_size": 40}
    settings = {**sizes, "intermediate_size": 12, "num_local_experts": 2, "num_experts_per_tok": 1}
    with pytest.raises(InputError, match="found no MLP out and no attention output in JetMoeModel"):
        Adapters.fresh(transformers.JetMoeModel(transformers.JetMoeConfig(**settings)), "houlsby", bottleneck=1)


def test_mpnet_has_an_adapter_behind_each_sublayer() -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    model = transformers.MPNetModel(transformers.MPNetConfig(vocab_size=40, **sizes))
    behind = Adapters.fresh(model, "houlsby", bottleneck=1).layers
    layers = [f"encoder.layer.{number}" for number in (0, 1)]
    assert sorted(behind) == [f"{layer}.{part}" for layer in layers for part in ("attention.attn.o", "output.dense")]
