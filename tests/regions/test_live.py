"""`localize_live` on any torch model: the base comes back bit for bit, and what cannot work is refused with its reason."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from skillgraft import Region, Scope, grafted, localize_live
from skillgraft.errors import InputError, RunError
from skillgraft.live.grafted import parameter_names, tensors_of
from skillgraft.opening.processes import Processes
from skillgraft.opening.runtime import Runtime
from skillgraft.regions.live import OF_FOLDERS, _Steps
from tests.regions.films import Killed, watching
from tests.regions.toys import FEW, Pair, net, net_accuracy, net_batches, net_loss, net_rows, tuned_net
from tests.training.toys import ToyReadout, tiny_bert, toy_rows

Batches = list[tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def pair() -> Pair:
    base = net()
    return base, tuned_net(base)


@pytest.fixture
def batches() -> Batches:
    return net_batches()


def test_the_region_keeps_what_the_loss_measures(pair: Pair, batches: Batches) -> None:
    base, tuned = pair
    graft = localize_live(base, tuned, batches, score=net_accuracy, entries=20, **FEW)
    assert len(graft) == 20
    base.eval()
    assert net_accuracy(base) < 0.8 < 0.95 < net_accuracy(tuned)
    with grafted(base, graft):
        assert net_accuracy(base) > 0.9
    recipe = graft.info["recipe"]
    assert (recipe["entries"], recipe["steps"], recipe["scope"]) == (20, 10, "all")
    assert not OF_FOLDERS.keys() & recipe.keys(), "only what had a part in the search is recorded"
    assert recipe["search"]["looks"] == [], "a budget takes the last step's order: nothing to compare"
    assert [step for step, _ in recipe["search"]["losses"]] == list(range(1, 11))


def test_small_steps_take_one_batch_each(pair: Pair, batches: Batches) -> None:
    taken: list[int] = []

    def counted(model: Any, batch: Any) -> Any:
        taken.append(len(batch[0]))
        return net_loss(model, batch)

    localize_live(*pair, batches, loss=counted, method="budgeted", scope="all", entries=20, steps=6)
    assert taken == [16] * 6, "a step of the learned region would take both"


@pytest.mark.parametrize("asked", [{}, {"entries": 20, "patience": 99}])
def test_steps_are_compared_where_that_decides_something(pair: Pair, batches: Batches, asked: dict[str, Any]) -> None:
    recipe = localize_live(*pair, batches, score=net_accuracy, **asked, **FEW).info["recipe"]
    assert [look[0] for look in recipe["search"]["looks"]] == [4, 8, 10]


def test_the_base_is_left_bit_for_bit(pair: Pair, batches: Batches) -> None:
    base = copy.deepcopy(pair[0]).train()
    base[3].eval()
    base[0].weight.requires_grad_(False)
    base[3].weight.grad = mine = torch.ones_like(base[3].weight)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    random = torch.random.get_rng_state()
    for method in ("learned", "movement", "random", "attribution"):
        options = {"steps": 3, "start": 4 / 56} if method == "learned" else {}
        localize_live(base, pair[1], batches, loss=net_loss, scope="all", method=method, entries=5, **options)
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())
    assert [module.training for module in base.modules()] == [True, True, True, True, False]
    assert [p.requires_grad for p in base.parameters()] == [False, *[True] * 5]
    assert base[3].weight.grad is mine
    assert bool((mine == 1).all())
    assert torch.equal(torch.random.get_rng_state(), random)


def test_models_states_and_folders_are_one(tmp_path: Path) -> None:
    readout = ToyReadout()
    base, tuned = tiny_bert(), tiny_bert()
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    tuned.save_pretrained(tmp_path / "tuned")
    settings: dict[str, Any] = {
        "loss": lambda model, batch: nn.functional.cross_entropy(readout.scores(model, batch), batch["labels"]),
        "method": "learned",
        "entries": 30,
        "steps": 3,
        "start": 0.0025,
    }
    batch = [readout.collate(toy_rows(12))]
    prefixed = {f"bert.{name}": tensor for name, tensor in tuned.state_dict().items()}
    first = localize_live(base, tuned, batch, **settings)
    for given_base, given_tuned in (
        (base, tuned.state_dict()),
        (base, tmp_path / "tuned"),
        (base.state_dict(), tuned),
    ):
        assert localize_live(given_base, given_tuned, batch, **settings).digest == first.digest
    outside = first.info["outside_scope"]
    assert sum(outside.values()) == sum(p.numel() for n, p in parameter_names(base).items() if "embeddings" in n)
    with pytest.raises(InputError, match="tensors that base does not have: bert"):
        localize_live(base, prefixed, batch, **settings)


def test_a_share_to_keep(pair: Pair, batches: Batches) -> None:
    """The score counts tuned's own numbers: of all 56, a share of 0.05 is 2.8, so 3 entries are the fewest."""
    base, tuned = pair

    def score(model: nn.Module) -> float:
        return float(sum((a == b).sum() for a, b in zip(model.parameters(), tuned.parameters(), strict=True)))

    base.eval()
    assert score(base) < score(tuned) == 56
    graft = localize_live(base, tuned, batches, score=score, keep=0.05, method="movement", loss=net_loss, scope="all")
    assert len(graft) == 3


def test_a_base_in_training_mode_is_scored_in_eval_mode_and_keeps_its_means(pair: Pair, batches: Batches) -> None:
    """In training mode a look at tuned's score would move the running means, and the score would be that of a batch."""
    base = copy.deepcopy(pair[0]).train()
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    modes: list[bool] = []

    def score(model: nn.Module) -> float:
        modes.append(model.training)
        return net_accuracy(model)

    asked: dict[str, Any] = {"loss": net_loss, "score": score, "keep": 0.5, "method": "movement", "scope": "all"}
    localize_live(base, pair[1], batches, **asked)
    assert modes
    assert not any(modes)
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())
    assert all(module.training for module in base.modules())


def test_heads_travel_whole_and_are_on_during_the_search() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4)])
            self.classifier = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.classifier(torch.tanh(self.layers[0](x)))
            return result

    torch.manual_seed(0)
    base, tuned = Model(), Model()
    seen = []

    def watched(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(model.get_parameter("classifier.weight").detach().clone())
        return net_loss(model, batch)

    old = base.classifier.weight.detach().clone()
    graft = localize_live(base, tuned, [net_rows()], loss=watched, method="learned", entries=3, steps=2, start=0.1)
    assert set(graft.heads) == {"classifier.weight", "classifier.bias"}
    assert set(graft.region.scope.shapes) == {"layers.0.weight", "layers.0.bias"}
    assert all(torch.equal(each, tuned.classifier.weight) for each in seen)
    assert torch.equal(base.classifier.weight, old)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_number_formats(pair: Pair, batches: Batches, dtype: torch.dtype) -> None:
    base, tuned = (copy.deepcopy(model).to(dtype) for model in pair)
    same = [(x.to(dtype), y) for x, y in batches]
    before = {name: array.copy() for name, array in tensors_of(base).arrays.items()}
    few = {**FEW, "loss": lambda model, batch: net_loss(model, batch).float(), "start": 3 / 56}
    graft = localize_live(base, tuned, same, entries=9, **few)
    assert {array.dtype.itemsize for array in graft.change.values()} == {dtype.itemsize}
    assert all(array.tobytes() == before[name].tobytes() for name, array in tensors_of(base).arrays.items())
    with grafted(base, graft):
        at = {name: parameter.detach().view(-1)[torch.from_numpy(np.array(graft.region.sites[name], np.int64))]
              for name, parameter in parameter_names(base).items() if name in graft.region.sites}  # fmt: skip
        after = parameter_names(tuned)
        for name, numbers in at.items():
            there = after[name].detach().view(-1)[torch.from_numpy(np.array(graft.region.sites[name], np.int64))]
            assert torch.equal(numbers, there)


def test_a_search_that_was_stopped_goes_on_with_the_same_bits(pair: Pair, batches: Batches, tmp_path: Path) -> None:
    seen: list[int] = []
    settings = {**FEW, "score": net_accuracy, "look_every": 3}
    straight = localize_live(*pair, batches, **settings)
    settings["resume"] = tmp_path / "search.resume"
    for steps in (4, 3):
        with pytest.raises(Killed):
            localize_live(*pair, batches, runtime=watching(seen, kill_after=steps), **settings)
        assert (tmp_path / "search.resume").exists()
    resumed = localize_live(*pair, batches, runtime=watching(seen), **settings)
    assert seen == [*range(1, 5), *range(5, 8), *range(8, 11)]
    assert resumed == straight, "provenance included: losses and looks are those of the straight run"
    assert not list(tmp_path.iterdir())
    with pytest.raises(Killed):
        localize_live(*pair, batches, runtime=watching(seen, kill_after=4), **settings)
    seen.clear()
    localize_live(*pair, batches, runtime=watching(seen), **{**settings, "lr": 31.0})
    assert seen[0] == 1, "a snapshot of other settings is not used"


def test_steps_are_a_function_of_their_number_whatever_shuffles() -> None:
    x, y = net_rows(20)
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    steps = _Steps(loader, 2, 0, Processes())
    first = [[(batch[0].sum().item(), share) for batch, share in steps(number)] for number in range(4)]
    again = [[(batch[0].sum().item(), share) for batch, share in steps(number)] for number in range(3, -1, -1)]
    assert first == again[::-1]
    assert [[share for _, share in step] for step in first] == [[0.5, 0.5], [0.5, 0.5], [1.0], [0.5, 0.5]]
    epoch = sorted(total for step in first[:3] for total, _ in step)
    assert sum(epoch) == pytest.approx(float(x.sum()), abs=1e-4)
    numbers = [10, 11, 12, 13, 14]
    shares = [list(_Steps(numbers, None, 0, Processes(index, 2))(0)) for index in (0, 1)]
    assert shares == [[(10, 0.2), (12, 0.2), (14, 0.2)], [(11, 0.2), (13, 0.2)]]


def test_a_stream_without_a_length_is_counted() -> None:
    class Stream:
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2, 3])

    assert [batch for batch, _ in _Steps(Stream(), None, 0, Processes())(5)] == [1, 2, 3]


def test_regions_can_be_compared_by_the_callers_score_alone(pair: Pair, batches: Batches) -> None:
    asked: dict[str, Any] = {"loss": net_loss, "scope": "all", "entries": 6, "steps": 4, "look_every": 2}
    with pytest.raises(InputError, match="look_every compares scores: give score="):
        localize_live(*pair, batches, **asked)
    looks = localize_live(*pair, batches, score=net_accuracy, **asked).info["recipe"]["search"]["looks"]
    assert [step for step, _, _ in looks] == [0, 2, 4]


def test_start_from_a_region(pair: Pair, batches: Batches) -> None:
    base, tuned = pair
    still: dict[str, Any] = {"method": "learned", "steps": 1, "lr": 1e-9}
    given = localize_live(base, tuned, batches, loss=net_loss, scope="all", method="movement", entries=6).region
    kept = localize_live(base, tuned, batches, loss=net_loss, scope="all", start=given, **still)
    assert kept.region == given
    assert len(localize_live(base, tuned, batches, loss=net_loss, scope="all", start="empty", **still)) == 0


def nan_loss(model: nn.Module, batch: Any) -> Tensor:
    return net_loss(model, batch) * float("nan")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"batches": (batch for batch in [1])}, InputError, "a generator can be only once: give a list of batches"),
        ({"batches": 3}, InputError, "a int can be only once"),
        ({"batches": []}, InputError, "there are no batches to learn from"),
        ({"loss": nan_loss}, RunError, "the loss is nan at step 1"),
        ({"loss": lambda model, batch: model(batch[0])}, InputError, r"one number, found shape \[16, 2\]"),
        ({"loss": lambda *_: 0.5}, InputError, "one number, found float"),
        ({"loss": lambda *_: torch.ones(())}, InputError, "does not depend on the scope's parameters"),
        ({"score": lambda _: float("nan"), "entries": None}, RunError, "the score is nan at step"),
        ({"keep": 0.9, "entries": None}, InputError, "give score="),
        ({"keep": 0.9}, InputError, "a density, a number of entries, or a share to keep of the score or of the gain"),
        ({"method": "lerned"}, InputError, "did you mean 'learned'"),
        ({"scope": "*.attention.*"}, InputError, "selects none of the 6 tensors"),
        ({"reference": "nil"}, InputError, "the reference is 'base' or 'zero', found 'nil'"),
        ({"init": "gauss"}, InputError, "a mask starts constant or uniform, found 'gauss'"),
        ({"look_every": 0}, InputError, "look_every must be 1 or more, found 0"),
        ({"patience": 3}, InputError, "patience counts looks at a score, and there is none"),
        ({"batch_size": 4}, InputError, "'batch_size' is for folders; here give batches of the size you want"),
        ({"labels": "tuned"}, InputError, "'labels' is for folders; here give batches with the labels you want"),
        ({"densities": (0.1,)}, InputError, "'densities' is for folders; here call localize_live for each budget"),
        ({"curve": "paper"}, InputError, "'curve' is for folders; here call localize_live for each budget"),
        ({"runtime": Runtime(device="cpu")}, InputError, "'device' is for folders; here move the model"),
        ({"runtime": Runtime(dtype="bfloat16")}, InputError, "'dtype' is for folders; here convert base and tuned"),
        ({"batches_per_step": 0}, InputError, "batches_per_step must be 1 or more, found 0"),
        ({"base": {}, "tuned": {}}, InputError, "give base or tuned as a torch module"),
        ({"base": {"0.weight": torch.ones(1)}}, InputError, "base's numbers do not fit the tuned model"),
        (
            {"tuned": nn.Sequential(nn.Linear(4, 5))},
            InputError,
            r"0.bias is \[6\] of float32 in base and \[5\] of float32",
        ),
        ({"tuned": net().double()}, InputError, "of float32 in base and .* of float64 in tuned"),
        ({"tuned": {"0.weight": torch.ones(6, 4)}}, InputError, "tuned is not of this model: 0.bias"),
    ],
)
def test_what_cannot_work_is_refused(
    pair: Pair, batches: Batches, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {"base": pair[0], "tuned": pair[1], "batches": batches, "entries": 5, **FEW, **changes}
    with pytest.raises(error, match=message):
        localize_live(given.pop("base"), given.pop("tuned"), given.pop("batches"), **given)


def test_a_region_of_another_model_is_no_start(pair: Pair, batches: Batches) -> None:
    other = Region(Scope.of("all", {"nowhere": (3,)}), {"nowhere": [1]})
    with pytest.raises(InputError, match="nowhere is not in the scope"):
        localize_live(*pair, batches, loss=net_loss, scope="all", method="learned", start=other)
