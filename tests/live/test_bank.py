"""SkillBank: rows as `grafted` answers them, whatever is drawn; refusals; threads; skills and models that change."""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from skillgraft import Graft, Region, SkillBank, grafted
from skillgraft.errors import HeadConflict, InputError, RunError, WrongBase
from skillgraft.live import row_batch, row_change
from skillgraft.live.row_forms import RowForms
from tests.live.skills import distance, random_skill, row_by_row

CLOSE = 1e-5


class RMSNorm(nn.Module):
    """As Gemma has it: 1 is added to the weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + self.weight)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 6, bias=False)
        self.norm, self.last = nn.LayerNorm(6), RMSNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(x + self.second(self.first(x).tanh())))


class Toy(nn.Module):
    """Embeddings with shared positions, two layers, a tied head, and a classifier of the first token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.positions = nn.Embedding(11, 6), nn.Embedding(16, 6)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.classifier, self.lm_head = nn.Linear(6, 3), nn.Linear(6, 11, bias=False)
        self.lm_head.weight = self.embed.weight
        with torch.no_grad():
            self.layers[1].norm.weight[2] = 0.0  # nothing can be read off such an output
            self.layers[0].norm.bias[:] = torch.randn(6)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.positions(torch.arange(ids.shape[1])[None])
        for layer in self.layers:
            x = layer(x)
        return torch.cat([self.lm_head(x).flatten(1), self.classifier(x[:, 0])], 1)


@pytest.fixture(scope="module")
def model() -> Toy:
    return Toy().eval()


@pytest.fixture(scope="module")
def skills(model: Toy) -> dict[str, Graft]:
    """Few entries, many, all of them, and biases alone."""
    found = {f"share-{share:g}": random_skill(model, seed, share=share) for seed, share in enumerate((0.02, 0.1, 1.0))}
    biases = {name: at for name, at in found["share-1"].region.sites.items() if name.endswith("bias")}
    found["biases"] = found["share-1"] & Region(found["share-1"].region.scope, biases)
    return found


def ids(rows: int, tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 11, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def summed(skills: Mapping[str, Graft], row: str | Mapping[str, float] | None) -> Graft | None:
    """What `grafted` takes for an entry of rows()."""
    if row is None or isinstance(row, str):
        return None if row is None else skills[row]
    parts = [scale * skills[name] for name, scale in row.items()]
    return sum(parts[1:], start=parts[0])


NAMES = ("share-0.02", "share-0.1", "share-1", "biases")
SCALES = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.7])
ROWS = st.lists(
    st.none() | st.sampled_from(NAMES) | st.dictionaries(st.sampled_from(NAMES), SCALES, min_size=1, max_size=3),
    min_size=1,
    max_size=6,
)


@settings(max_examples=30, deadline=None)
@given(rows=ROWS, tokens=st.integers(1, 4), seed=st.integers(0, 3), narrow=st.booleans())
def test_every_row_is_answered_as_with_its_skill_alone(
    rows: list[Any], tokens: int, seed: int, narrow: bool, model: Toy, skills: dict[str, Graft]
) -> None:
    """Whatever is in the batch; with sparse layouts alone (`narrow`) as with matrices of their own."""
    bank, batch = SkillBank(model, skills), ids(len(rows), tokens, seed)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patched:
        if narrow:
            patched.setattr(row_batch, "_MANY", 9.0)
            patched.setattr(row_batch, "_MANY_DECODING", 9.0)
            patched.setattr(row_change, "_PADDING", 0.0)
        base = model(batch)
        wanted = row_by_row(model, [summed(skills, row) for row in rows], lambda: model(batch))
        with bank.rows(rows):
            found = model(batch)
    for row, entry in enumerate(rows):
        if entry is None:
            assert torch.equal(found[row], base[row])
        else:
            assert distance(found[row], wanted[row]) <= CLOSE
    with torch.no_grad():
        assert torch.equal(model(batch), base)


def test_beams_and_choices_belong_to_their_row(model: Toy, skills: dict[str, Graft]) -> None:
    batch = ids(6, 3)
    with torch.no_grad(), SkillBank(model, skills).rows(["share-0.1", None]):
        found = model(batch)
    with torch.no_grad():
        wanted = row_by_row(model, [skills["share-0.1"]] * 3 + [None] * 3, lambda: model(batch))
    assert distance(found, wanted) <= CLOSE


def test_a_graph_is_recorded_as_ever(model: Toy, skills: dict[str, Graft]) -> None:
    with SkillBank(model, skills).rows(["share-0.1"] * 2):
        found = model(ids(2, 3))
    found.sum().backward()
    model.zero_grad(set_to_none=True)
    with torch.no_grad(), grafted(model, skills["share-0.1"]):
        assert distance(found.detach(), model(ids(2, 3))) <= CLOSE


def test_heads_go_row_by_row(model: Toy) -> None:
    heads = [
        {"classifier.weight": torch.randn(3, 6).numpy(), "classifier.bias": torch.randn(3).numpy()} for _ in range(2)
    ]
    few = random_skill(model, 5)
    few = few & Region(few.region.scope, {"layers.0.first.weight": few.region.sites["layers.0.first.weight"]})
    grafts = [
        Graft(few.region, few.before, few.change, heads=head, base_fingerprint=few.base_fingerprint) for head in heads
    ]
    bank = SkillBank(model, {"one": grafts[0], "two": grafts[1]})
    with torch.no_grad():
        wanted = row_by_row(model, [grafts[1], None, grafts[0]], lambda: model(ids(3, 2)))
        with bank.rows(["two", None, "one"]):
            assert distance(model(ids(3, 2)), wanted) <= CLOSE
    with pytest.raises(HeadConflict), bank.rows([{"one": 1.0, "two": 1.0}]):
        pass


def test_names_digests_and_bytes(model: Toy, skills: dict[str, Graft], tmp_path: Path) -> None:
    skills["biases"].save(tmp_path / "b.safetensors")
    bank = SkillBank(model, {"a": skills["share-0.1"], "b": tmp_path / "b.safetensors"})
    assert bank.names == ["a", "b"]
    assert bank.digests == {"a": skills["share-0.1"].digest, "b": skills["biases"].digest}
    assert repr(bank) == "SkillBank(2 skills on Toy)"
    before = bank.nbytes
    bank.remove("a")
    assert (bank.names, bank.nbytes < before) == (["b"], True)


def test_an_entry_takes_less_than_forty_bytes() -> None:
    model = nn.Sequential(nn.Linear(500, 400), nn.Linear(400, 300))
    graft = random_skill(model, 1, share=0.01)
    assert 12 <= SkillBank(model, {"a": graft}).nbytes / len(graft) <= 40


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["sharp"], "no skill 'sharp' is held; .*Known: share-0.02"),
        ([{}], "an empty mapping names no skill; write None for the base"),
        ([{"biases": float("nan")}], "the scale of 'biases' must be a finite number, found nan"),
        ([{"biases": True}], "the scale of 'biases' must be a finite number, found True"),
        ("biases", r"rows\(\) takes one entry for every row of the batch, found 'biases'"),
        ([], "one entry for every row"),
    ],
)
def test_rows_are_checked_before_anything_runs(rows: Any, message: str, model: Toy, skills: dict[str, Graft]) -> None:
    bank = SkillBank(model, skills)
    with pytest.raises(InputError, match=message), bank.rows(rows):
        raise AssertionError


def test_a_batch_of_another_size_is_refused(model: Toy, skills: dict[str, Graft]) -> None:
    with torch.no_grad(), pytest.raises(InputError, match=r"embed was given \[3, 2\] in a batch of 2 rows"):  # noqa: SIM117
        with SkillBank(model, skills).rows(["share-0.1"] * 2):
            model(ids(3, 2))


def test_an_input_without_an_axis_of_rows_is_refused() -> None:
    """Eight positions are no rows, though eight is a multiple of two."""
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])})
    first, second = model["layers"]
    graft = random_skill(model, 1)
    with torch.no_grad(), SkillBank(model, {"a": graft}).rows(["a", None]):
        first(torch.zeros(2, 3, 4))
        first(torch.zeros(6, 4))  # the same, flat
        with pytest.raises(
            InputError, match=r"layers\.1 was given \[8, 4\] in a batch of 2 rows: that has no axis of rows"
        ):
            second(torch.zeros(8, 4))


def test_names_that_are_held_and_names_that_are_not(model: Toy, skills: dict[str, Graft]) -> None:
    bank = SkillBank(model, {"a": skills["biases"]})
    with pytest.raises(InputError, match="'a' is held already"):
        bank.add("a", skills["share-1"])
    bank.add("a", skills["share-1"], replace=True)
    assert bank.digests["a"] == skills["share-1"].digest
    with pytest.raises(InputError, match="no skill 'b' is held"):
        bank.remove("b")
    with pytest.raises(InputError, match="a skill needs a name, found ''"):
        bank.add("", skills["share-1"])


def test_rows_are_entered_once_at_a_time(model: Toy, skills: dict[str, Graft]) -> None:
    bank = SkillBank(model, skills)
    with torch.no_grad(), bank.rows(["biases"]):
        model(ids(1, 2))
        with pytest.raises(InputError, match="entered already"), bank.rows(["biases"]):
            raise AssertionError
    with pytest.raises(RunError, match="no skill had any effect"), bank.rows(["biases"]):
        copy.deepcopy(model)(ids(1, 2))  # a copy's hooks answer to no bank


def test_another_base_is_refused_and_nothing_is_held(skills: dict[str, Graft]) -> None:
    other = Toy()
    with torch.no_grad():
        other.layers[0].first.weight += 1
    bank = SkillBank(other)
    for hold in (bank.fits, lambda graft: bank.add("a", graft)):
        with pytest.raises(WrongBase, match="this model is not the graft's base"):
            hold(skills["share-1"])
    assert (bank.names, bank.nbytes) == ([], 0)


def test_a_model_that_was_changed_is_looked_at_again(skills: dict[str, Graft]) -> None:
    model = Toy().eval()
    bank = SkillBank(model, {"a": skills["share-0.02"]})
    model.layers[0] = copy.deepcopy(model.layers[0])  # the same numbers in other modules
    with torch.no_grad():
        wanted = row_by_row(model, [skills["share-0.02"], None], lambda: model(ids(2, 3)))
        with bank.rows(["a", None]):
            assert distance(model(ids(2, 3)), wanted) <= CLOSE
        model.layers[0].first.weight += 1
        with pytest.raises(WrongBase, match="skill 'a'"), bank.rows(["a", None]):
            raise AssertionError


def test_skills_that_come_and_go_do_not_touch_a_batch_under_way(model: Toy, skills: dict[str, Graft]) -> None:
    bank, batch = SkillBank(model, skills), ids(2, 3)
    with torch.no_grad():
        with bank.rows(["share-0.1", {"biases": 0.5}]):
            first = model(batch)
            bank.remove("share-0.1")
            bank.add("share-0.1", skills["share-1"])
            bank.remove("biases")
            assert torch.equal(model(batch), first)
        wanted = row_by_row(model, [skills["share-0.1"], 0.5 * skills["biases"]], lambda: model(batch))
    assert distance(first, wanted) <= CLOSE


def test_rows_belong_to_the_thread_that_entered_them(model: Toy, skills: dict[str, Graft]) -> None:
    """Eight threads ask one model at the same time, one of them the base, while a ninth holds and lets go."""
    bank, batch, names = SkillBank(model, skills), ids(3, 4), [*skills, None]
    with torch.no_grad():
        wanted = {name: row_by_row(model, [skills.get(name)] * 3, lambda: model(batch)) for name in names}
    wrong: list[object] = []
    done = threading.Event()

    def ask(name: Any) -> None:
        with torch.no_grad():
            for _ in range(10):
                with bank.rows([name] * 3):
                    found = model(batch)
                if distance(found, wanted[name]) > CLOSE or (name is None and not torch.equal(found, wanted[name])):
                    wrong.append(name)

    def come_and_go() -> None:
        while not done.is_set():
            bank.add("guest", skills["biases"])
            bank.remove("guest")

    threads = [threading.Thread(target=ask, args=(names[number % 5],)) for number in range(8)]
    guest = threading.Thread(target=come_and_go)
    for thread in (guest, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    guest.join()
    assert wrong == []


def test_a_bank_that_is_let_go_leaves_no_hooks(skills: dict[str, Graft]) -> None:
    model = Toy()
    bank = SkillBank(model, skills)
    assert model.lm_head._forward_hooks
    del bank
    gc.collect()
    assert not any(module._forward_hooks for module in model.modules())


class Fast(nn.Module):
    """Reads the numbers of a layer below itself, as Mamba does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.inner.weight.T + self.outer(x.to(self.outer.weight.dtype))


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.batchnorm, self.scale = nn.Conv1d(3, 3, 1), nn.BatchNorm1d(3), nn.Parameter(torch.ones(3))
        self.experts, self.relative_attention_bias = nn.ModuleList([nn.Linear(3, 3)]), nn.Embedding(4, 2)
        self.kind = type("Linear", (nn.Linear,), {})(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (Fast, "inner.weight", r"Fast reads its numbers directly \(inner: Linear\)"),
        (Odd, "conv.weight", r"this kind of module has no per-row form \(conv: Conv1d\)"),
        (Odd, "batchnorm.weight", r"this norm is not weight · x̂ \+ bias over the last axis"),
        (Odd, "scale", r"no per-row form \(the model: Odd\)"),
        (Odd, "experts.0.weight", "tokens are sorted by expert"),
        (Odd, "relative_attention_bias.weight", "a table of relative positions has no axis of rows"),
        (Odd, "kind.weight", "no per-row form"),
    ],
)
def test_what_has_no_per_row_form_is_refused_with_the_reason(
    make: Callable[[], nn.Module], name: str, reason: str
) -> None:
    forms = RowForms(make())
    assert forms.refusals(["outer.weight"] if make is Fast else []) == {}
    with pytest.raises(AssertionError, match=reason):
        assert forms.refusals([name]) == {}, forms.refusals([name])[name]


@pytest.mark.long
def test_a_compiled_model_answers_the_same_or_says_that_it_cannot(skills: dict[str, Graft]) -> None:
    model, batch = Toy().eval(), ids(3, 4)
    early = torch.compile(model, backend="eager")
    with torch.no_grad():
        early(batch)
        bank = SkillBank(model, {"a": skills["share-0.1"], "b": skills["biases"]})
        rows: list[list[Any]] = [["a", None, "b"], [{"a": 0.5}, "b", None]]
        wanted = []
        for entries in rows:
            with bank.rows(entries):
                wanted.append(model(batch))
        accepted: list[Tensor] = []
        with contextlib.suppress(RunError):  # torch may not look for hooks that came later; then leaving rows() says so
            with bank.rows(rows[0]):
                answer = early(batch)
            accepted.append(answer)
        assert all(torch.equal(answer, wanted[0]) for answer in accepted)
        torch.compiler.reset()
        late = torch.compile(model, backend="eager")
        for entries, answer in zip(rows, wanted, strict=True):
            with bank.rows(entries):
                assert torch.equal(late(batch), answer)
