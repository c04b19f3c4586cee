"""The entries of a batch in one buffer: what stands where, beside loops over rows and modules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from skillgraft import SkillBank
from skillgraft.live.row_entries import BatchEntries
from skillgraft.live.row_forms import NOTHING, RowForms
from skillgraft.live.row_skill import RowSkill, row_skill
from tests.live.skills import random_skill

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    layers = {"norm": nn.LayerNorm(5), "wide": nn.Linear(5, 7), "narrow": nn.Linear(7, 3, bias=False)}
    return nn.ModuleDict({"layers": nn.ModuleDict(layers)}).eval()


@pytest.fixture(scope="module")
def forms(model: nn.Module) -> RowForms:
    return RowForms(model)


@pytest.fixture(scope="module")
def skills(model: nn.Module, forms: RowForms) -> list[RowSkill | None]:
    one, other = (row_skill(random_skill(model, seed, share=share), forms) for seed, share in ((1, 0.1), (2, 0.6)))
    return [one, None, other, one]


def made(skills: list[RowSkill | None], forms: RowForms, few: np.ndarray | None = None) -> BatchEntries:
    everything = np.ones((len(skills), len(forms.modules)), bool)
    return BatchEntries.of(skills, everything if few is None else few, forms, CPU)


def test_a_modules_part_holds_every_rows_entries_in_the_order_of_rows(
    skills: list[RowSkill | None], forms: RowForms
) -> None:
    few = np.ones((4, len(forms.modules)), bool)
    few[2, 1] = False  # this skill has a matrix of its own there
    entries = made(skills, forms, few)
    for index in range(len(forms.modules)):
        part = entries.part(index)
        wanted = [
            (row, *entry)
            for row, skill in enumerate(skills)
            if skill is not None and few[row, index]
            for entry in zip(*skill.entries(index), strict=True)
        ]
        found = zip(entries.row[part], entries.inputs[part], entries.outputs[part], entries.numbers[part], strict=True)
        assert list(found) == wanted
        assert entries.touched[index] == bool(wanted)
        assert entries.counts[:, index].sum() == len(wanted)


@pytest.mark.parametrize("tokens", [1, 4])
def test_both_layouts_are_the_entries_themselves(skills: list[RowSkill | None], forms: RowForms, tokens: int) -> None:
    """The outputs that each layout adds for an input of ones, against a loop over the entries."""
    entries = made(skills, forms)
    for index in range(len(forms.modules)):
        read, given = (int(width) for width in forms.widths[:, index])
        wanted = np.zeros((4, given))
        for row, skill in enumerate(skills):
            for _, output, delta in zip(*skill.entries(index), strict=True) if skill else ():
                wanted[row, output] += delta
        flat, padded = entries.flat(index, tokens), entries.rectangle(index, tokens)
        for layout in (flat, padded):
            constant = torch.zeros(()) if layout.constant is None else layout.constant
            added = (layout.delta + constant).expand(layout.outputs.shape)
            found = torch.zeros(4, tokens, given)
            if layout is padded:
                found.scatter_add_(2, layout.outputs, added)
                np.testing.assert_allclose(found[:, -1], wanted, rtol=1e-5, atol=1e-6)
            else:
                found.view(-1).index_add_(0, layout.outputs, added)
                np.testing.assert_allclose(found[:, 0], wanted, rtol=1e-5, atol=1e-6)
            assert layout.inputs.numel() == 0 or int(layout.inputs.max()) < 4 * tokens * read
        alone = entries.inputs[entries.part(index)] == NOTHING
        assert (flat.constant is not None) == alone.any() == (padded.constant is not None)


def test_padding_is_how_much_larger_the_rectangle_is(skills: list[RowSkill | None], forms: RowForms) -> None:
    entries = made(skills, forms)
    for index in range(len(forms.modules)):
        counts = entries.counts[:, index]
        assert entries.padding(index) == pytest.approx(4 * counts.max() / counts.sum())
        assert entries.rectangle(index, 2).delta.numel() == 4 * counts.max()


def test_a_text_that_grows_without_a_cache_leaves_nothing_behind(
    skills: list[RowSkill | None], forms: RowForms
) -> None:
    entries = made(skills, forms)
    one = entries.flat(1, 1).inputs
    for tokens in range(2, 9):
        entries.flat(1, tokens)
    assert len(entries._made) == 3  # one token, the last other number, and the weights
    assert entries.flat(1, 1).inputs.data_ptr() == one.data_ptr()


def test_rows_are_never_asked_one_by_one(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A language model has hundreds of modules: a loop over rows and modules took a third of a token's time."""
    bank = SkillBank(model, {"a": random_skill(model, 1, share=0.02), "b": random_skill(model, 2, share=0.02)})
    monkeypatch.setattr("skillgraft.live.row_batch._MANY", 9.0)

    def asked(_skill: RowSkill, _index: int) -> None:
        raise AssertionError("a skill was asked for one module")

    monkeypatch.setattr(RowSkill, "entries", asked)
    layers: nn.ModuleDict = model["layers"]  # type: ignore[index, assignment]
    with torch.no_grad(), bank.rows(["a", "b", None]):
        found = layers["wide"](layers["norm"](torch.randn(3, 2, 5)))
    assert found.shape == (3, 2, 7)
