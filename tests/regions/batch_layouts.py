"""Models whose layers do not all have their rows first, from toys to transformers, and a readout that runs any of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from skillgraft.readouts.readout import Batch, Encoded
from skillgraft.tasks import Examples, Task
from tests.readouts import making

WIDTH, WORDS, CLASSES = 8, 30, 3


@dataclass(frozen=True)
class Plain:
    """A model's own logits, from token ids or pixels; `left` pads on the left, as XLNet wants it."""

    left: bool = False
    task: Task = field(default_factory=lambda: making.task_of(making.SENTIMENT))
    settings: Mapping[str, Any] = field(default_factory=dict)

    def encode(self, examples: Examples) -> list[Encoded]:
        raise NotImplementedError

    def collate(self, rows: Sequence[Encoded]) -> Batch:
        batch = {"labels": torch.tensor([row.label for row in rows])}
        if "pixel_values" in rows[0].inputs:
            return {**batch, "pixel_values": torch.stack([row.inputs["pixel_values"] for row in rows])}
        length = max(row.length for row in rows)
        ids, mask = torch.zeros(len(rows), length, dtype=torch.long), torch.zeros(len(rows), length, dtype=torch.long)
        for number, row in enumerate(rows):
            own = slice(length - row.length, None) if self.left else slice(row.length)
            ids[number, own], mask[number, own] = torch.tensor(row.inputs["input_ids"]), 1
        return {**batch, "input_ids": ids, "attention_mask": mask}

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        given = {name: tensor for name, tensor in batch.items() if name != "labels"}
        if "pixel_values" in given:
            given["pixel_values"] = given["pixel_values"].to(next(model.parameters()).dtype)
        output = model(**given)
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        return logits


# The two rows that are compared have 5 and 2 tokens, or 6 and 2: an even length divides by the two of them.
ODD, EVEN = (6, 3, 5, 6, 4, 2, 7), (8, 4, 6, 6, 4, 2, 8)


def token_rows(lengths: Sequence[int] = ODD) -> list[Encoded]:
    draw = torch.Generator().manual_seed(0)
    ids = [torch.randint(3, WORDS, (length,), generator=draw).tolist() for length in lengths]
    return [Encoded({"input_ids": row}, number % CLASSES, len(row)) for number, row in enumerate(ids)]


def pixel_rows(count: int = 5) -> list[Encoded]:
    pixels = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return [Encoded({"pixel_values": image}, number % CLASSES, 1) for number, image in enumerate(pixels)]


class Toy(nn.Module):
    """Words, one odd layer, their mean over the row's own words, classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.first, self.norm, self.odd = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.classes = nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = torch.tanh(self.started(self.words(input_ids)))
        states = states + torch.tanh(self.strange(states, attention_mask))
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        logits: Tensor = self.classes((self.norm(states) * mask).sum(1) / mask.sum(1))
        return logits

    def started(self, states: Tensor) -> Tensor:
        first: Tensor = self.first(states)
        return first

    def strange(self, states: Tensor, _mask: Tensor) -> Tensor:
        raise NotImplementedError


class RowsSecond(Toy):
    """(length, rows, width), as XLNet and Longformer have it."""

    def strange(self, states: Tensor, _mask: Tensor) -> Tensor:
        moved: Tensor = self.odd(states.transpose(0, 1))
        return moved.transpose(0, 1)


class Shuffled(Toy):
    """All tokens of all rows in the order of one of their numbers, as grouped experts see them."""

    def strange(self, states: Tensor, _mask: Tensor) -> Tensor:
        flat = states.flatten(0, 1)
        order = flat[:, 0].argsort()
        back: Tensor = self.odd(flat[order])[order.argsort()]
        return back.view_as(states)


class Experts(Toy):
    """Tokens go to one of three linear layers; which, depends on the token."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))  # type: ignore[assignment]

    def strange(self, states: Tensor, _mask: Tensor) -> Tensor:
        flat = states.flatten(0, 1)
        chosen, result = flat[:, :3].argmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate(self.odd):  # type: ignore[arg-type]
            mine = (chosen == number).nonzero().flatten()
            if len(mine):
                result = result.index_add(0, mine, expert(flat[mine]))
        return result.view_as(states)


class SharedPositions(Toy):
    """Positions are projected once for all rows, as in DeBERTa."""

    def strange(self, states: Tensor, _mask: Tensor) -> Tensor:
        places = torch.linspace(-1, 1, 8 * WIDTH, dtype=states.dtype, device=states.device).view(8, WIDTH).cos()
        projected: Tensor = self.odd(places.unsqueeze(0))
        return states * projected[:, : states.shape[1]]


class ReadPast(Toy):
    """The layer's weight is used, its forward is not, as in torch's MultiheadAttention."""

    def strange(self, states: Tensor, _mask: Tensor) -> Tensor:
        return functional.linear(states, self.odd.weight, self.odd.bias)


class HalfReadPast(Toy):
    """The layer runs, and its weight is used once more."""

    def strange(self, states: Tensor, _mask: Tensor) -> Tensor:
        return functional.linear(self.odd(states), self.odd.weight.square())


class TwiceForSome(Toy):
    """The layer runs a second time if the batch has rows of three tokens."""

    def strange(self, states: Tensor, mask: Tensor) -> Tensor:
        once, some = self.odd(states), mask.sum(1) == 3
        return torch.where(some[:, None, None], self.odd(once), once) if some.any() else once


class OnlyForSome(RowsSecond):
    """The layer, which has its rows second, runs only if the batch has rows of three tokens."""

    def strange(self, states: Tensor, mask: Tensor) -> Tensor:
        some = mask.sum(1) == 3
        return torch.where(some[:, None, None], super().strange(states, mask), states) if some.any() else states


class ChoicesFirst(Toy):
    """Two copies of every row, all first copies before all second ones."""

    def strange(self, states: Tensor, _mask: Tensor) -> Tensor:
        one, two = self.odd(torch.cat([states, states * 2])).chunk(2)
        return one * two  # type: ignore[no-any-return]


class RowsFirst(Toy):
    """Two copies of every row side by side, and tokens flattened in their order: nothing odd about it."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Linear(WIDTH, WIDTH)

    def strange(self, states: Tensor, _mask: Tensor) -> Tensor:
        both = torch.stack([states, states * 2], 1)
        one, two = self.odd(both.flatten(0, 1)).view_as(both).unbind(1)
        flat: Tensor = self.flat(one.flatten(0, 1))
        return two * flat.view_as(two)


class InPlace(Toy):
    """Outputs are changed in place, the first layer's, too."""

    def strange(self, states: Tensor, _mask: Tensor) -> Tensor:
        changed: Tensor = self.odd(states).mul_(2).add_(1)
        return changed

    def started(self, states: Tensor) -> Tensor:
        changed: Tensor = self.first(states).mul_(3)
        return changed


class OnePlusNorm(nn.Module):
    """Gemma's: (1 + weight) ⊙ x̂."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, states: Tensor) -> Tensor:
        return (1 + self.weight) * functional.rms_norm(states, (WIDTH,))


class Gemmas(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.odd = OnePlusNorm()  # type: ignore[assignment]

    def strange(self, states: Tensor, _mask: Tensor) -> Tensor:
        normed: Tensor = self.odd(states)
        return normed


class ChannelNorm(Toy):
    """A norm along another axis than the last: as many channels as places."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = nn.GroupNorm(2, WIDTH)  # type: ignore[assignment]

    def strange(self, states: Tensor, mask: Tensor) -> Tensor:
        padded = functional.pad(states * mask.unsqueeze(-1), (0, 0, 0, WIDTH - states.shape[1]))
        return self.odd(padded.transpose(1, 2)).transpose(1, 2)[:, : states.shape[1]]  # type: ignore[no-any-return]


TOYS: Sequence[type[Toy]] = (
    RowsSecond, Shuffled, Experts, SharedPositions, ReadPast, HalfReadPast, TwiceForSome, OnlyForSome, ChoicesFirst,
    RowsFirst, InPlace, Gemmas, ChannelNorm,
)  # fmt: skip


def _tokens(name: str, **rest: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        config = getattr(transformers, f"{name}Config")(
            vocab_size=WORDS, num_labels=CLASSES, pad_token_id=0, bos_token_id=1, eos_token_id=2, **rest
        )
        model: nn.Module = getattr(transformers, f"{name}ForSequenceClassification")(config)
        return model

    return make


_SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
_DEBERTA = {**_SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_position_embeddings": 16}
_MIXTURE = {**_SMALL, "num_key_value_heads": 1}


def _swin() -> nn.Module:
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=2, num_labels=CLASSES
    )
    return transformers.SwinForImageClassification(config)


TRANSFORMERS: dict[str, Callable[[], nn.Module]] = {
    "xlnet": _tokens("XLNet", d_model=8, n_layer=2, n_head=2, d_inner=12),
    "longformer": _tokens("Longformer", **_SMALL, attention_window=4, max_position_embeddings=32),
    "deberta": _tokens("Deberta", **_DEBERTA),
    "deberta-v2": _tokens("DebertaV2", **_DEBERTA),
    "mixtral": _tokens("Mixtral", **_MIXTURE, num_local_experts=3, num_experts_per_tok=2),
    "qwen2-moe": _tokens(
        "Qwen2Moe", **_MIXTURE, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "gemma": _tokens("Gemma", **_MIXTURE, head_dim=4),
    "swin": _swin,
}  # fmt: skip
