"""Activations computed again: the same gradients from less that is kept."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import Tensor, nn

from skillgraft.errors import InputError
from skillgraft.opening.activations import recomputed
from tests.training.toys import tiny_bert


def tiny_llama() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=24, max_position_embeddings=32, attention_dropout=0.5,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def run(model: nn.Module, ids: Tensor) -> tuple[float, dict[str, Tensor], int]:
    """The loss, the gradients, and how many bytes the graph kept."""
    kept: list[int] = []
    model.zero_grad(set_to_none=True)

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(input_ids=ids)
        loss = (output.logits if hasattr(output, "logits") else output.last_hidden_state).square().mean()
        before_backward = sum(kept)
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return float(loss.detach()), found, before_backward


@pytest.mark.parametrize("make", [tiny_llama, tiny_bert])
def test_the_same_gradients_from_less_that_is_kept(make: object) -> None:
    model = make()  # type: ignore[operator]
    ids = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(1))
    plain = run(model, ids)
    with recomputed(model):
        again = run(model, ids)
        with torch.no_grad():
            assert float(model(input_ids=ids)[0].square().mean()) == pytest.approx(plain[0])
    assert again[0] == plain[0]
    assert all(torch.equal(again[1][name], gradient) for name, gradient in plain[1].items())
    assert again[2] < 0.6 * plain[2]
    assert run(model, ids)[2] == plain[2], "afterwards the layers are as they were"


def test_a_model_of_other_layers_is_refused() -> None:
    message = "Sequential has no layers whose activations can be computed again"
    with pytest.raises(InputError, match=message), recomputed(nn.Sequential(nn.Linear(2, 2))):
        pass
