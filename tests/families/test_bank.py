"""SkillBank on every architecture: each row as `grafted` answers it, rows without a skill the base's own bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from skillgraft import SkillBank, extract
from skillgraft.errors import InputError
from skillgraft.live.row_forms import RowForms
from skillgraft.opening.compat import in_one_format
from tests.families.architectures import FAMILIES, Family, load
from tests.live.skills import distance, random_skill, row_by_row

Pairs = Callable[[Family, str], tuple[Path, Path]]
QUICK = (
    "bert", "roberta", "mpnet", "distilbert", "modernbert", "gpt2", "llama", "qwen2", "gemma", "mistral", "phi3", "t5", "bart",
    "vit", "clip",
)  # fmt: skip
FLOAT32 = 1e-5  # of the largest logit
FLOAT = np.dtype(np.float32)
# A sum is rounded to bfloat16 in one product by `grafted` and in two by the bank, and neither is the answer in float32: the bank
# may be this many times as far from it as `grafted` is (root mean square; 1.01 at the median of three draws for each family).
BFLOAT16 = 2.0
WRITES = ("decoder", "encoder-decoder")
# How much of a family has no per-row form, and why; of those that are not here nothing but positions and patches is refused.
REFUSED = {
    "deberta": ("encoder.layer.0.attention.self.in_proj.weight", "reads its numbers directly|relative positions"),
    "deberta-v2": ("encoder.layer.0.attention.self.query_proj.weight", "relative positions"),
    "longformer": ("encoder.layer.0.attention.self.query.weight", "moves the axis of rows"),
    "xlnet": ("layer.0.ff.layer_1.weight", "moves the axis of rows"),
    "t5": ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "relative positions"),
    "mpnet": ("encoder.relative_attention_bias.weight", "relative positions"),
    "mamba": ("layers.0.mixer.out_proj.weight", "reads its numbers directly|no per-row form"),
    "mixtral": ("layers.0.block_sparse_moe.experts.0.w1.weight", "no per-row form"),
    "resnet": ("encoder.stages.0.layers.0.layer.0.convolution.weight", "no per-row form"),
}


def families(names: tuple[str, ...]) -> list[Any]:
    """All families; those that are not named are marked `long`."""
    return [
        pytest.param(family, id=name, marks=() if name in names else (pytest.mark.long,))
        for name, family in FAMILIES.items()
    ]


def batch_of(family: Family, rows: int) -> dict[str, Tensor]:
    """Token ids with padding in the first row, pictures, or both."""
    draw, batch = torch.Generator().manual_seed(1), {}
    if family.tokenizer:
        batch["input_ids"] = torch.randint(5, 48, (rows, 7), generator=draw)
        batch["attention_mask"] = torch.ones(rows, 7, dtype=torch.long)
        batch["attention_mask"][0, slice(0, 2) if family.kind in WRITES else slice(5, 7)] = 0
    if family.processor:
        batch["pixel_values"] = torch.randn(rows, 3, 8, 8, generator=draw)
    return batch


def asked(model: Any, family: Family, batch: dict[str, Tensor]) -> Callable[[], Tensor]:
    """What the model answers: logits, last states, or both towers' embeddings."""
    if family.kind == "encoder-decoder":
        batch = {**batch, "decoder_input_ids": batch["input_ids"][:, :4]}
    if family.processor:
        batch = {**batch, "pixel_values": batch["pixel_values"].to(model.dtype)}

    def ask() -> Tensor:
        output = model(**batch)
        if family.kind == "clip":
            return torch.cat([output.image_embeds, output.text_embeds], -1)
        return output.logits if "logits" in output else output.last_hidden_state

    return ask


def off(found: Tensor, truth: Tensor) -> float:
    """Root mean square of the difference, in the rows that have a skill."""
    return float((found.float() - truth)[[0, 2]].square().mean().sqrt())


def check(family: Family, folder: Path, dtype: str, tolerance: float) -> None:
    model = load(family, folder, dtype)
    first, second = random_skill(model, 1), random_skill(model, 2)
    bank = SkillBank(model, {"first": first, "second": second})
    ask = asked(model, family, batch_of(family, 5))
    skills = [first, None, second, 0.5 * first + -0.7 * second, 2.0 * second]
    with torch.no_grad():
        base, wanted = ask(), row_by_row(model, skills, ask)
        with bank.rows(["first", None, "second", {"first": 0.5, "second": -0.7}, {"second": 2.0}]):
            mixed = ask()
        with bank.rows(["second"] * 5):
            alike = ask()
    assert torch.equal(mixed[1], base[1])
    assert distance(mixed, wanted) <= tolerance
    assert distance(alike[2], wanted[2]) <= tolerance
    if len(first):
        assert distance(wanted[0], base[0]) > 20 * FLOAT32  # the skills do something


@pytest.mark.parametrize("family", families(QUICK))
def test_every_row_is_answered_as_with_its_skill_alone(family: Family, pair: Pairs) -> None:
    check(family, pair(family, "float32")[0], "float32", FLOAT32)


@pytest.mark.parametrize("family", families(("bert", "llama", "t5")))
@pytest.mark.parametrize("draw", [0, *(pytest.param(draw, marks=pytest.mark.long) for draw in (1, 2))])
def test_in_bfloat16_no_further_from_float32_than_grafted_itself(family: Family, draw: int, pair: Pairs) -> None:
    folder = pair(family, "bfloat16")[0]
    model, wide = load(family, folder, "bfloat16"), load(family, folder, "float32")
    in_one_format(model, torch.bfloat16)  # the code of DeBERTa and XLNet runs in no other way
    skills = [random_skill(model, 1 + 2 * draw), None, random_skill(model, 2 + 2 * draw)]
    bank, ask = SkillBank(model, {"first": skills[0], "last": skills[2]}), asked(model, family, batch_of(family, 3))
    with torch.no_grad():
        base, wanted = ask(), row_by_row(model, skills, ask)
        with bank.rows(["first", None, "last"]):
            found = ask()
        exactly = [skill and skill.in_formats(dict.fromkeys((*skill.before, *skill.heads), FLOAT)) for skill in skills]
        truth = row_by_row(wide, exactly, asked(wide, family, batch_of(family, 3)))
    assert torch.equal(found[1], base[1])
    ratio = off(found, truth) / max(off(wanted, truth), 1e-30)
    print(f"{family.name}: {ratio:.2f}")  # docs/serving.md tells of these
    assert ratio <= BFLOAT16


@pytest.mark.parametrize("family", [case for case in families(QUICK) if case.values[0].kind in WRITES])
@pytest.mark.parametrize("beams", [1, 2])
def test_texts_are_written_as_with_the_skill_alone(family: Family, beams: int, pair: Pairs) -> None:
    model = load(family, pair(family, "float32")[0], "float32")
    first, second = random_skill(model, 1), random_skill(model, 2)
    bank, batch = SkillBank(model, {"first": first, "second": second}), batch_of(family, 4)

    def write() -> Tensor:
        return model.generate(**batch, max_new_tokens=6, min_new_tokens=6, num_beams=beams, do_sample=False)

    with torch.no_grad():
        base, wanted = write(), row_by_row(model, [first, None, second, first], write)
        with bank.rows(["first", None, "second", "first"]):
            found = write()
    assert torch.equal(found, wanted)
    assert not torch.equal(found, base)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("t5", "mixtral") else pytest.mark.long) for name in REFUSED]
)
def test_what_has_no_per_row_form_is_refused_by_name(name: str, pair: Pairs) -> None:
    family, (parameter, reason) = FAMILIES[name], REFUSED[name]
    model = load(family, pair(family, "float32")[0], "float32")
    refused = RowForms(model).refusals([parameter])
    assert list(refused) == [parameter]
    assert re.search(reason, refused[parameter])


def test_a_graft_with_such_a_parameter_is_not_held(pair: Pairs) -> None:
    family = FAMILIES["t5"]
    base, tuned = pair(family, "float32")
    graft, bank = extract(base, tuned), SkillBank(load(family, base, "float32"))
    with pytest.raises(InputError, match=r"relative_attention_bias\.weight: a table of relative positions"):
        bank.fits(graft)
    with pytest.raises(InputError, match="skill 'all'"):
        bank.add("all", graft)
    assert bank.names == []
