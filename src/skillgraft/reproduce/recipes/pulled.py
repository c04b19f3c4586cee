"""Beyond the papers: a model that was pulled towards its base while it was tuned keeps its skill in fewer entries.

P1 §3.2 pulls AdamW's models alone. Here SGD's are pulled, too, and what their grafts keep is counted against the model that was
tuned without a pull: a pull that costs accuracy counts against its grafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skillgraft.reproduce import formulas as f
from skillgraft.reproduce.drafts import Columns, curve
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import Draft, Recipe
from skillgraft.reproduce.samples import DENSITY, Model, base, called, draws, says, tuned, tuned_by

STRENGTHS = (0.0, 3e-4, 1e-3)  # of the L1 pull; P1's is the last
NOTE = (
    "movement graft: the entries that moved most, without any search; budgeted graft: searched at a tenth of the learned "
    "region's cost. Share kept and relative gain are the budgeted graft's: of its own tuned model, and of the one without a pull."
)


def pull(profile: Profile) -> Sequence[Draft]:
    """Tuned models and their grafts of 1e-4, by the strength of an L1 pull towards the base."""
    return [
        curve(
            f"{called(task)}, {shots} examples per class, density {DENSITY:g}",
            draws(profile, task, shots), _columns, STRENGTHS,
            rows_are="strength of the pull", look="table", notes=(NOTE,),
        )
        for task in profile.tasks_or("sst2", "subj", "ag_news")
        for shots in profile.shots_or("many")
    ]  # fmt: skip


def _columns(strength: float) -> Columns:
    pulled = tuned_by(l1=strength)
    moved, found = _graft_of(strength, "movement"), _graft_of(strength, "budgeted")
    return {
        "base": (f.score, says(base)),
        "tuned": (f.score, says(pulled)), "tuned ECE": (f.ece, says(pulled)),
        "movement graft": (f.score, says(moved)), "movement graft ECE": (f.ece, says(moved)),
        "budgeted graft": (f.score, says(found)), "budgeted graft ECE": (f.ece, says(found)),
        "share kept": (f.kept, says(found), says(pulled)),
        "relative gain": (f.gain, says(found), says(pulled), says(base)),
        "share kept, without a pull": (f.kept, says(found), says(tuned)),
        "relative gain, without a pull": (f.gain, says(found), says(tuned), says(base)),
    }  # fmt: skip


def _graft_of(strength: float, way: str) -> Model:
    return lambda sample: {"graft": sample.graft(sample.tuned(l1=strength), name=way, budget=DENSITY)}


RECIPES: Mapping[str, Recipe] = {
    "pull": Recipe("models pulled towards the base keep a skill in fewer entries", "ours, after P1 §3.2", pull),
}
