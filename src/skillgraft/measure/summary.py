"""What a table shows, as plain JSON-ready numbers: everything about one model on one split, and what a fine-tune broke.

Every table shows the majority-class score; a number that is missing carries its reason.

`repaired` is about rows that nobody was meant to change. `improvement` is base's NLL − the model's on a task, `damage` the
model's − base's on a control; `kept` and `given_back` say how much of tuned's improvement is still there and how much of its
damage is gone. A control that tuned did not damage has nothing to give back: that is None, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skillgraft.measure.comparisons import agreement, relative_gain, share_kept
from skillgraft.measure.intervals import (
    Bootstrap,
    Estimate,
    estimate,
    interval,
    over_seeds,
    paired,
    paired_difference,
    quotient,
)
from skillgraft.measure.metrics import ECE_BINS, METRICS, Metric, calibration_error
from skillgraft.predictions.completions import Completions
from skillgraft.predictions.predictions import AnyPredictions
from skillgraft.values.graft import Graft


def summary(
    predictions: AnyPredictions,
    *,
    base: AnyPredictions | None = None,
    tuned: AnyPredictions | None = None,
    bins: int = ECE_BINS,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """The metrics of predictions with 95 % intervals, and how they compare with base and tuned where these are given.

    Against base: `gain` (score − base's score). Against tuned: `agreement`, `share_kept`. With both: `relative_gain`.
    Fractions, not percentages. `score` is the task's own metric; `f1` is there for two classes only. Completions have `nll`,
    `perplexity` and `token_accuracy`, where texts were generated `exact_match` and `contains` too, and `exact_match_kept`.
    """
    bootstrap = Bootstrap(resamples=resamples, seed=seed)
    found = _estimates(predictions, base=base, tuned=tuned, bins=bins, bootstrap=bootstrap)
    measured = {name: each.as_json() for name, each in found.items()}
    return {**_head(predictions, bins=bins, bootstrap=bootstrap), **measured}


Compared = tuple[AnyPredictions, AnyPredictions | None, AnyPredictions | None]  # a model, base and tuned beside it


def mean_summary(
    models: Sequence[Compared], *, bins: int = ECE_BINS, resamples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """The same about the mean over several models, one for each seed, each with its own base and tuned.

    Every number has its `seeds`, `std` and what its interval is over; one that a seed lacks is missing, with the reason.
    """
    bootstrap = Bootstrap(resamples=resamples, seed=seed)
    found = [_estimates(model, base=base, tuned=tuned, bins=bins, bootstrap=bootstrap) for model, base, tuned in models]
    shared = [name for name in found[0] if all(name in each for each in found)]
    means = {name: _mean([each[name] for each in found], bootstrap) for name in shared}
    return {**_head(models[0][0], bins=bins, bootstrap=bootstrap), **means}


def _mean(found: Sequence[Estimate], bootstrap: Bootstrap) -> dict[str, Any]:
    missing = [each for each in found if each.value is None]
    if missing:
        return {**Estimate(None).as_json(), "reason": f"{missing[0].reason}, of {len(missing)} of {len(found)} seeds"}
    mean = over_seeds(found, bootstrap=bootstrap)
    ends = {"value": mean.value, "low": mean.low, "high": mean.high}
    return {**ends, "seeds": list(mean.seeds), "std": mean.std, "interval_over": mean.interval_over}


def _head(predictions: AnyPredictions, *, bins: int, bootstrap: Bootstrap) -> dict[str, Any]:
    settings = {"level": bootstrap.level, "resamples": bootstrap.resamples, "seed": bootstrap.seed}
    head = {"task": predictions.task, "metric": predictions.metric, "n": len(predictions)}
    return {**head, **_about(predictions, bins=bins), "intervals": settings}


def _estimates(
    predictions: AnyPredictions,
    *,
    base: AnyPredictions | None,
    tuned: AnyPredictions | None,
    bins: int,
    bootstrap: Bootstrap,
) -> dict[str, Estimate]:
    """Every metric and comparison that these predictions have."""
    metrics = _metrics(predictions, bins=bins)
    measured = {name: interval(predictions, metric=metric, bootstrap=bootstrap) for name, metric in metrics.items()}
    return {**measured, **_comparisons(predictions, base=base, tuned=tuned, bootstrap=bootstrap)}


def _about(predictions: AnyPredictions, *, bins: int) -> dict[str, Any]:
    """What has no interval: the majority-class score and the bins of ECE, or tokens and rows cut of completions."""
    if isinstance(predictions, Completions):
        cut = {"cut_rows": int((predictions.cut > 0).sum()), "cut_tokens": int(predictions.cut.sum())}
        return {"tokens": int(predictions.tokens.sum()), **cut}
    return {"majority": METRICS["majority"](predictions), "bins": bins}


def _metrics(predictions: AnyPredictions, *, bins: int) -> dict[str, Metric]:
    if isinstance(predictions, Completions):
        texts = ["exact_match", "contains"] if predictions.texts else []
        return {name: METRICS[name] for name in ["score", "nll", "perplexity", "token_accuracy", *texts]}
    names = ["score", "accuracy", *(["f1"] if predictions.classes == 2 else []), "balanced_accuracy", "nll", "brier"]
    return {**{name: METRICS[name] for name in names}, "ece": calibration_error(bins)}


def _comparisons(
    graft: AnyPredictions, *, base: AnyPredictions | None, tuned: AnyPredictions | None, bootstrap: Bootstrap
) -> dict[str, Estimate]:
    found = {}
    if base is not None:
        found["gain"] = paired_difference(graft, base, bootstrap=bootstrap)
    if tuned is not None:
        found["agreement"] = agreement(graft, tuned, bootstrap=bootstrap)
        found["share_kept"] = share_kept(graft, tuned, bootstrap=bootstrap)
        if all(isinstance(each, Completions) and each.texts for each in (graft, tuned)):
            found["exact_match_kept"] = share_kept(graft, tuned, metric="exact_match", bootstrap=bootstrap)
    if base is not None and tuned is not None:
        found["relative_gain"] = relative_gain(graft, tuned, base=base, bootstrap=bootstrap)
    return found


Models = Mapping[str, AnyPredictions]
BASE = "base"


def repaired(
    tasks: Mapping[str, Models], controls: Mapping[str, Models], *, tuned: str, bootstrap: Bootstrap = Bootstrap()
) -> dict[str, dict[str, Any]]:
    """Model → tasks and controls → numbers with intervals, as JSON has them; base itself is left out."""
    names = [name for name in next(iter(tasks.values())) if name != BASE]
    return {
        name: {
            "tasks": {task: _kept(models, name, tuned, bootstrap) for task, models in tasks.items()},
            "controls": {task: _given_back(models, name, tuned, bootstrap) for task, models in controls.items()},
        }
        for name in names
    }


def _kept(models: Models, name: str, tuned: str, bootstrap: Bootstrap) -> dict[str, Any]:
    improvement = paired_difference(models[BASE], models[name], metric="nll", bootstrap=bootstrap)
    three = paired("nll", models[BASE], models[name], models[tuned])
    none = "tuned improved nothing here"
    kept = estimate(lambda n: quotient(n[0] - n[1], n[0] - n[2]), three, bootstrap=bootstrap, undefined=none)
    return {"improvement": improvement.as_json(), "kept": kept.as_json()}


def _given_back(models: Models, name: str, tuned: str, bootstrap: Bootstrap) -> dict[str, Any]:
    damage = paired_difference(models[name], models[BASE], metric="nll", bootstrap=bootstrap)
    three = paired("nll", models[BASE], models[name], models[tuned])
    none = "tuned did no damage here"
    given = estimate(lambda n: 1 - quotient(n[1] - n[0], n[2] - n[0]), three, bootstrap=bootstrap, undefined=none)
    return {"damage": damage.as_json(), "given_back": given.as_json()}


def role_of(graft: Graft) -> str:
    """One skill is a `graft`, several are a `sum`; `forgotten` is what takes a skill away."""
    recipe = graft.info.get("recipe", {})
    return "forgotten" if "forget" in recipe else "sum" if len(recipe.get("grafts", ())) > 1 else "graft"
