"""Beyond the papers: a model that was pulled towards its base while it was tuned keeps its skill in fewer entries.

P1 §3.2 pulls AdamW's models alone. Here SGD's are pulled, too, and what their grafts keep is also counted against the model
that was tuned without a pull: a pull that costs accuracy counts against its grafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from skillgraft.reproduce import formulas as f
from skillgraft.reproduce.content import task_of
from skillgraft.reproduce.drafts import Columns, wanted
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import Draft, Recipe
from skillgraft.reproduce.samples import DENSITY, Sample, base, called, draws, says, sized, tuned, tuned_by

STRENGTHS = (0.0, 3e-4, 1e-3)  # of the L1 pull; P1's is the last
OF_PAIRS = 10 * DENSITY  # pairs of sentences are given ten times as many entries


def _searched(name: str) -> Callable[[float], dict[str, Any]]:
    return lambda density: {"name": name, "budget": density}


WAYS: Mapping[str, Callable[[float], dict[str, Any]]] = MappingProxyType(
    {"movement": _searched("movement"), "budgeted": _searched("budgeted"), "learned": sized}
)
ROWS = MappingProxyType({f"{strength:g}, {way}": (strength, way) for strength in STRENGTHS for way in WAYS})
NOTE = (
    "movement: the entries that moved most, without any search; budgeted: searched at a tenth of the learned region's cost; "
    "learned: P1's search. What a graft keeps is counted of its own tuned model, and of the one that was tuned without a pull."
)


def pull(profile: Profile) -> Sequence[Draft]:
    """Grafts by every way to choose, out of models tuned with an L1 pull of every strength; or some of these rows."""
    chosen = profile.methods_or(*ROWS)
    return [
        _pulled(chosen, task, shots, draws(profile, task, shots))
        for task in profile.tasks_or("sst2", "subj", "ag_news", "qnli")
        for shots in profile.shots_or("many")
    ]


def _pulled(chosen: Sequence[str], task: str, shots: int, samples: Sequence[Sample]) -> Draft:
    density = DENSITY if len(task_of(task).inputs) == 1 else OF_PAIRS
    cells = {
        (row, column): wanted(samples, asked)
        for row in chosen
        for column, asked in _columns(*ROWS[row], density).items()
    }
    title = f"{called(task)}, {shots} examples per class, density {density:g}"
    return Draft(title, cells, rows_are="strength of the pull, way to choose", notes=(NOTE,))


def _columns(strength: float, way: str, density: float) -> Columns:
    pulled = tuned_by(l1=strength)

    def found(sample: Sample) -> dict[str, Any]:
        return {"graft": sample.graft(sample.tuned(l1=strength), **WAYS[way](density))}

    return {
        "base": (f.score, says(base)),
        "tuned": (f.score, says(pulled)),
        "tuned ECE": (f.ece, says(pulled)),
        "graft": (f.score, says(found)),
        "graft ECE": (f.ece, says(found)),
        "share kept": (f.kept, says(found), says(pulled)),
        "relative gain": (f.gain, says(found), says(pulled), says(base)),
        "share kept, without a pull": (f.kept, says(found), says(tuned)),
        "relative gain, without a pull": (f.gain, says(found), says(tuned), says(base)),
    }


RECIPES: Mapping[str, Recipe] = {
    "pull": Recipe("models pulled towards the base keep a skill in fewer entries", "ours, after P1 §3.2", pull),
}
