"""Switching grafts of 8,500 entries on a live model of RoBERTa-base's shape, beside peft's ways to change adapters.

A switch restores the old numbers, checks that the next graft's `before` stands at every site, and writes. With 1 graft held it is
switched for itself; with 64 they take turns. Every graft touches every parameter of the layers, which is the dearest way to
spread its entries. The figures are for one switch after another; what a switch costs when something else has filled the
processor's caches, as a forward pass does, stands beside them. peft holds two LoRA adapters (r = 8, query and value):
`set_adapter` changes which is active; hotswap copies another's numbers in, from memory or from disk.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from folders import random_sites
from measuring import MEGABYTE, Figure, Measured, Settings, command, interleaved, median_ratio, work_folder
from skillgraft.errors import RunError
from skillgraft.live.grafted import fingerprint_of, live_model, tensors_of
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import same_bits
from skillgraft.values.region import Region, Scope

_SWITCHES = 100
_HELD = 64
_ENTRIES = 8_500
_COLD = "with cold caches"
_CACHE_BYTES = 100 * MEGABYTE  # more than any cache holds
_PEFT = ("set_adapter", "hotswap, memory", "hotswap, disk")


def measure(settings: Settings) -> Measured:
    """held_1 and held_64: median milliseconds of a switch."""
    torch.set_num_threads(min(2, torch.get_num_threads()))
    with work_folder(settings, needed_bytes=100 * MEGABYTE) as folder:
        one, many = _Switcher(settings, held=1), _Switcher(settings, held=_HELD)
        jobs = {"held_1": one.switch, "held_64": many.switch, **_peft_jobs(settings, folder)}
        seconds = {name: interleaved({name: job}, rounds=_SWITCHES)[name] for name, job in jobs.items()}
        room = np.zeros(_CACHE_BYTES, np.uint8)
        for name, switcher in (("held_1", one), ("held_64", many)):
            found = interleaved({_COLD: switcher.switch}, rounds=_SWITCHES, between=lambda: np.add(room, 1, out=room))
            seconds[f"{name}, {_COLD}"] = found[_COLD]
        many.check()
    median = {name: 1000 * statistics.median(found) for name, found in seconds.items()}
    figures = {name: Figure(median[name], _beside_peft(seconds, name)) for name in ("held_1", "held_64")}
    return Measured(
        figures,
        {
            "median_ms": median,
            "highest_ms": {name: 1000 * max(found) for name, found in seconds.items()},
            "first_switch_ms": 1000 * many.first_seconds,
            "scope_entries": many.grafts[0].region.scope.size,
            "graft_entries": len(many.grafts[0]),
            "parameters_touched": len(many.grafts[0].region.sites),
        },
    )


def _beside_peft(seconds: dict[str, list[float]], name: str) -> str:
    ratios = [
        f"{median_ratio(seconds[name], seconds[other]):.2g} × {other} ({_milliseconds(seconds[other])})"
        for other in _PEFT
    ]
    return f"{_milliseconds(seconds[f'{name}, {_COLD}'])} {_COLD}; {', '.join(ratios)}"


def _milliseconds(seconds: list[float]) -> str:
    return f"{1000 * statistics.median(seconds):.2f} ms"


class _Switcher:
    """A live model with some grafts that take turns. All are put on once first: then they are held."""

    def __init__(self, settings: Settings, *, held: int) -> None:
        self.model = _roberta(settings)
        numbers = tensors_of(self.model)
        scope = Scope.select("layers", numbers.shapes)
        fingerprint = fingerprint_of(self.model)
        self.grafts = []
        for seed in range(held):
            region = Region(scope, random_sites(scope, settings.scaled(_ENTRIES), seed=seed))
            before = {name: numbers.flat(name)[at] for name, at in region.sites.items()}
            after = {name: old + np.float32(0.01) for name, old in before.items()}
            self.grafts.append(Graft(region, before, after, base_fingerprint=fingerprint))
        self.live = live_model(self.model)
        start = time.perf_counter()
        for graft in self.grafts:
            self.live.switch(graft)
        self.first_seconds = (time.perf_counter() - start) / held
        self.turns = itertools.cycle(self.grafts)

    def switch(self) -> None:
        self.live.switch(next(self.turns))

    def check(self) -> None:
        """What is on stands at its sites, and comes off."""
        (graft,) = self.live.on
        self._expect(graft, {name: graft.written(name) for name in graft.region})
        self.live.switch(None)
        self._expect(graft, dict(graft.before))

    def _expect(self, graft: Graft, numbers: dict[str, Any]) -> None:
        found = tensors_of(self.model)
        for name, at in graft.region.sites.items():
            if not same_bits(found.flat(name)[at], numbers[name]):
                raise RunError(f"{name} does not hold the expected numbers after a switch")


def _roberta(settings: Settings) -> nn.Module:
    from transformers import RobertaConfig, RobertaModel

    torch.manual_seed(0)
    size = {"num_hidden_layers": 1, "vocab_size": 1000} if settings.small else {"vocab_size": 50_265}
    model: nn.Module = RobertaModel(RobertaConfig(**size), add_pooling_layer=False)
    return model.eval()


def _peft_jobs(settings: Settings, folder: Path) -> dict[str, Callable[[], object]]:
    from peft import LoraConfig, get_peft_model
    from peft.utils.hotswap import hotswap_adapter, hotswap_adapter_from_state_dict

    config = LoraConfig(r=8, target_modules=["query", "value"], init_lora_weights=False)
    switched = get_peft_model(_roberta(settings), config)
    switched.add_adapter("second", config)
    names = itertools.cycle(["second", "default"])
    swapped = get_peft_model(_roberta(settings), config)
    states = itertools.cycle([_lora_numbers(swapped, seed) for seed in range(2)])
    swapped.save_pretrained(folder / "lora")
    jobs: tuple[Callable[[], object], ...] = (
        lambda: switched.set_adapter(next(names)),
        lambda: hotswap_adapter_from_state_dict(swapped, next(states), "default", config),
        lambda: hotswap_adapter(swapped, str(folder / "lora"), adapter_name="default", torch_device="cpu"),
    )
    return dict(zip(_PEFT, jobs, strict=True))


def _lora_numbers(model: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Numbers for every LoRA matrix, under the names that hotswap expects."""
    torch.manual_seed(seed)
    return {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items() if "lora_" in name}


if __name__ == "__main__":
    command("switch", measure)
