"""Every architecture in every number format through the verbs that run a model: finetune, localize, evaluate, Fisher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import (
    Data,
    Graft,
    TrainingPlan,
    apply,
    choose_region,
    evaluate,
    extract,
    finetune,
    localize,
    remove,
)
from skillgraft.errors import InputError
from skillgraft.values.names import in_layers
from skillgraft.values.numbers import is_float, same_bits
from tests.families.architectures import FAMILIES, Family, cases, write
from tests.model_folders import content, named, same_weights, tensors_of

ENTRIES = 20
ROWS = 6
DENSITY = 0.1
# AdamW moves every entry by about its learning rate, so that two steps show in bfloat16 too. Weight decay would move also
# what the task does not read (CLIP's text tower).
PLAN = TrainingPlan(steps=2, batch_size=4, lr=0.01, optimizer="adamw", weight_decay=0.0)
# Family → words of the error that refuses it. At most three.
REFUSED: dict[str, str] = {}
NEVER_REFUSED = (
    *("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "mistral", "phi3", "gpt2", "bert", "roberta", "mpnet"),
    *("deberta", "deberta-v2", "t5", "bart", "vit", "clip", "mixtral"),
)
ACCEPTED = tuple(name for name in FAMILIES if name not in REFUSED)


@dataclass(frozen=True)
class Skill:
    """A base and what is made of it, each when first asked for: a fine-tune of two steps, the graft of a learned region."""

    base: Path
    task: Path
    data: Data
    base_files: Mapping[str, str]

    @cached_property
    def tuned(self) -> Path:
        return finetune(self.base, [self.task], out=self.base.with_name("TUNED"), plan=PLAN, data=self.data).path

    @cached_property
    def whole(self) -> Graft:
        """All that fine-tuning changed."""
        return extract(self.base, self.tuned)

    @cached_property
    def graft(self) -> Graft:
        search = {"method": "learned", "entries": ENTRIES, "steps": 2, "batch_size": 4}
        return localize(self.base, self.tuned, task=self.task, data=self.data, **search).graft

    def ask(self, base: Path, **models: Any) -> Mapping[str, Any]:
        """Model → its predictions for the test rows."""
        return evaluate(base, [self.task], data=self.data, **models)[self.task.stem]


Skills = Callable[[Family, str], Skill]


@pytest.fixture(scope="session")
def skill(task_files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Skills:
    """The skill of a family in a number format: one for the whole run."""

    @cache
    def skill_of(family: str, dtype: str) -> Skill:
        row = FAMILIES[family]
        base = write(row, tmp_path_factory.mktemp("skill") / "BASE", dtype)
        data = Data(shots=2, test_rows=ROWS, readout=row.readout)
        return Skill(base, task_files[row.task], data, content(base))

    return lambda family, dtype: skill_of(family.name, dtype)


def test_few_families_are_refused_and_none_that_people_use_most() -> None:
    assert len(REFUSED) <= 3
    assert set(NEVER_REFUSED) <= set(ACCEPTED)


@pytest.mark.parametrize(("family", "dtype"), cases(REFUSED))
def test_a_refused_family_says_why(family: Family, dtype: str, skill: Skills) -> None:
    found = skill(family, dtype)
    with pytest.raises(InputError, match=REFUSED[family.name]):
        _ = found.tuned
    assert not found.base.with_name("TUNED").exists()


@pytest.mark.parametrize(("family", "dtype"), cases(ACCEPTED))
def test_a_tuned_folder_has_the_base_s_format_and_other_numbers(family: Family, dtype: str, skill: Skills) -> None:
    found = skill(family, dtype)
    tensors = tensors_of(found.tuned).values()
    assert {str(numbers.dtype) for numbers in tensors if is_float(numbers.dtype)} == {dtype}
    assert all(np.isfinite(numbers.astype(np.float64)).all() for numbers in tensors)
    changed = found.whole.region.sites
    assert any(in_layers(name) and len(at) for name, at in changed.items())


@pytest.mark.parametrize(("family", "dtype"), cases(ACCEPTED))
def test_a_learned_region_has_exactly_the_entries_asked(family: Family, dtype: str, skill: Skills) -> None:
    found = skill(family, dtype)
    assert len(found.graft) == ENTRIES
    assert len(found.graft.region - found.whole.region) == 0
    assert {str(numbers.dtype) for numbers in found.graft.before.values()} == {dtype}


@pytest.mark.parametrize(("family", "dtype"), cases(ACCEPTED))
def test_a_folder_and_its_graft_answer_alike(family: Family, dtype: str, skill: Skills, tmp_path: Path) -> None:
    """Tuned is its graft of everything; a base with a graft applied is the base with the graft on it."""
    found = skill(family, dtype)
    grafts = {"whole": found.whole, "graft": found.graft}
    answers = found.ask(found.base, tuned={"tuned": found.tuned}, grafts=grafts)
    assert len(answers["tuned"].labels) == ROWS
    assert np.isfinite(answers["tuned"].scores).all()
    assert _same_answers(answers["tuned"], answers["whole"])
    assert not _same_answers(answers["tuned"], answers["graft"])
    apply(found.base, *named(found.graft), out=tmp_path / "on")
    assert _same_answers(found.ask(tmp_path / "on")["base"], answers["graft"])
    remove(tmp_path / "on", *named(found.graft), out=tmp_path / "off")
    assert same_weights(tmp_path / "off", found.base)


@pytest.mark.parametrize(("family", "dtype"), cases(ACCEPTED))
def test_a_fisher_region_has_exactly_the_share_asked(family: Family, dtype: str, skill: Skills) -> None:
    found = skill(family, dtype)
    region = choose_region(found.base, task=found.task, method="lowest-fisher", density=DENSITY, data=found.data)
    assert region.scope.label == "layers"
    assert len(region) == round(DENSITY * region.scope.size)


@pytest.mark.parametrize(("family", "dtype"), cases(ACCEPTED))
def test_no_verb_touches_the_base(family: Family, dtype: str, skill: Skills) -> None:
    """Last in this file, after everything else that reads the folder."""
    found = skill(family, dtype)
    assert found.tuned.is_dir()
    assert len(found.graft) == ENTRIES
    assert content(found.base) == found.base_files


def _same_answers(a: Any, b: Any) -> bool:
    """The same scores, bit for bit, for the same rows: `a` and `b` are Predictions."""
    return same_bits(a.scores, b.scores) and np.array_equal(a.labels, b.labels)
