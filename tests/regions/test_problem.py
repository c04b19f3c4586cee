"""What a search borrows: base's and tuned's numbers stay where they are, and every number comes back."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from skillgraft.folders.checkpoint import Checkpoint, MemoryTensors
from skillgraft.live.grafted import as_numpy, as_torch, tensors_of
from skillgraft.regions.problem import Problem, holding_all
from skillgraft.regions.search import SearchPlan
from skillgraft.regions.tuned_pair import open_pair
from skillgraft.task_model import TaskModel
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import BFLOAT16, Array
from skillgraft.values.region import Region
from tests.regions.films import Films
from tests.regions.toys import a_problem, bert_loss, bert_pair, bert_steps, net, net_loss, net_rows, tuned_net


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, Any]:
    return bert_pair()


def test_the_bases_numbers_are_neither_copied_nor_written_to(pair: Any) -> None:
    """They are the reference, and may lie in a mapped file; a borrowed model has others in their stead."""
    problem = a_problem(pair)
    before = {name: slot.data.clone().view(-1) for name, slot in problem.slots.items()}
    with problem.borrowed():
        problem.put_on(Region.full(problem.scope))
        for name, slot in problem.slots.items():
            assert not torch.equal(slot.data.view(-1), before[name])
            assert torch.equal(problem.before[name], before[name])
    for name, slot in problem.slots.items():
        assert slot.data.data_ptr() == problem.before[name].data_ptr()


def live_tensors() -> dict[int, Tensor]:
    """Every tensor that the interpreter holds, each stretch of memory once."""
    return {each.untyped_storage().data_ptr(): each for each in gc.get_objects() if issubclass(type(each), Tensor)}


def mapped(folder: Path) -> Iterator[tuple[int, int]]:
    """Where the folder's files lie in memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        stretch, *_, name = line.split(maxsplit=5)
        if name.startswith(str(folder.resolve())):
            low, high = stretch.split("-")
            yield int(low, 16), int(high, 16)


def bytes_besides(tensors: Mapping[int, Tensor], *folders: Path) -> int:
    """How many bytes of these tensors lie in no file of the folders."""
    files = [stretch for folder in folders for stretch in mapped(folder)]
    inside = {address for address in tensors if any(low <= address < high for low, high in files)}
    return sum(each.untyped_storage().nbytes() for address, each in tensors.items() if address not in inside)


@pytest.mark.parametrize("format", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_nothing_of_the_scopes_size_is_kept_twice(films: Films, tmp_path: Path, format: str, scale: float) -> None:
    """The law of memory: a problem between two folders holds no number besides the model's and those of tuned's files."""
    here = films.in_format(format, tmp_path / format)
    opened = TaskModel.open(here.base, [here.task])
    tuned = Checkpoint.open(here.tuned)
    before = live_tensors()
    problem = Problem.between(opened.model, tuned, steps=lambda _: [], loss=opened.loss).scaled(scale)
    new = {address: each for address, each in live_tensors().items() if address not in before}
    assert new, "tuned's numbers are looked at through tensors of their own"
    assert bytes_besides(new, here.tuned) == 0
    own = {p.untyped_storage().data_ptr() for p in opened.model.parameters()}
    assert {each.untyped_storage().data_ptr() for each in problem.before.values()} <= own
    with problem.borrowed():
        kept = {address: each for address, each in live_tensors().items() if address not in before}
        size = problem.scope.size * opened.rows.loader.dtype.itemsize
        assert bytes_besides(kept, here.tuned) == size, "a borrowed model has numbers of its own in the scope, once"


def test_an_open_pair_keeps_nothing_of_the_scopes_size_either(films: Films) -> None:
    plan = SearchPlan.of(density=0.01)
    before = live_tensors()
    with open_pair(films.base, films.tuned, [films.task], plan=plan) as pair:
        new = {address: each for address, each in live_tensors().items() if address not in before}
        for parameter in pair.opened.model.parameters():
            new.pop(parameter.untyped_storage().data_ptr(), None)
        largest = max(map(np.prod, pair.problem.scope.shapes.values()))
        assert bytes_besides(new, films.base, films.tuned) < 4 * largest


numbers = st.floats(-1e4, 1e4, width=16) | st.sampled_from([0.0, -0.0, 1e-7, -1e-7, 1.0, 1024.0])
FORMATS = {"float32": np.float32, "bfloat16": BFLOAT16, "float16": np.float16, "float64": np.float64}


def vector(values: list[float], format: str) -> Array:
    return np.array(values, np.float64).astype(FORMATS[format])


@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20),
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from([1.0, 0.3, 2.0, 5.7]),
    st.data(),
)
def test_put_on_is_the_graft_bit_for_bit(
    entries: list[tuple[float, float]], format: str, scale: float, data: st.DataObject
) -> None:
    """Law: `put_on(region)` gives the numbers that the graft of the region, at the same scale, writes into the base."""
    base, tuned = (vector([entry[side] for entry in entries], format) for side in (0, 1))
    model = nn.Module()
    model.register_parameter("weight", nn.Parameter(as_torch(base)))
    problem = Problem.between(
        model, MemoryTensors({"weight": tuned}), steps=lambda _: [], loss=lambda *_: torch.zeros(()), scope="all"
    ).scaled(scale)
    at = sorted(data.draw(st.sets(st.integers(0, len(entries) - 1))))
    region = Region(problem.scope, {"weight": at} if at else {})
    wanted = base.copy()
    for name, sites in region.sites.items():
        wanted[sites] = Graft.between({name: base}, {name: tuned}, region, scale=scale).written(name)
    with problem.borrowed():
        problem.put_on(region)
        assert as_numpy(problem.slots["weight"].data).tobytes() == wanted.tobytes()
    with problem.holding(region):
        assert as_numpy(problem.slots["weight"].data).tobytes() == wanted.tobytes()
    assert as_numpy(problem.slots["weight"].data).tobytes() == base.tobytes()


def test_all_of_tuned_is_there_and_goes_again(pair: Any) -> None:
    """Outside the scope too; the base's numbers come back, though the body failed."""
    model, tuned = pair
    before = {name: array.copy() for name, array in tensors_of(model).arrays.items()}

    def fail() -> None:
        with holding_all(model, tuned):
            held = tensors_of(model).arrays
            assert all(held[name].tobytes() == array.tobytes() for name, array in tuned.arrays.items())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    after = tensors_of(model).arrays
    assert all(after[name].tobytes() == array.tobytes() for name, array in before.items())


def test_tuned_is_asked_with_its_own_buffers_and_in_eval_mode() -> None:
    """In training mode a batch would change the running means of the base, and tuned's score would be that of a batch."""
    base = net()
    tuned = tuned_net(base)
    tuned.train()(net_rows()[0])  # moves the running means
    tuned.eval()
    expected = float(net_loss(tuned, net_rows()).detach())
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    base.train()
    with holding_all(base, tensors_of(tuned)):
        assert float(net_loss(base, net_rows()).detach()) == expected
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())
    assert all(module.training for module in base.modules())


def test_a_steps_loss_is_the_mean_over_its_rows(pair: Any) -> None:
    """Batches count by their rows: the loss of a step is that of all rows at once."""
    problem = a_problem(pair)
    rows = [batch for batch, _ in bert_steps(0)]
    with problem.borrowed():
        total = problem.backward(0)
        alone = [float(bert_loss(pair[0], batch).detach()) for batch in rows]
    sizes = [len(batch["labels"]) for batch in rows]
    assert total == pytest.approx(np.average(alone, weights=sizes), rel=1e-6)
