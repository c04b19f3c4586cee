"""Many skills in one batch: `SkillBank` beside the base alone, peft's `adapter_names`, and one skill after the other.

The models have the shapes of all-MiniLM-L6-v2, all-mpnet-base-v2 and SmolLM2-135M, with drawn numbers: what is measured does
not depend on them, and no model needs to be there. Encoders answer 64 rows of 32 tokens, each row with a skill of its own; the
decoder gives one more token to 32 sequences of 32. Every skill moves a ten-thousandth of the layers' entries, wherever they
are: biases and norms too. peft holds as many LoRA adapters (r = 8, on the query and value matrices alone). One after the other is
what everybody else does: `grafted`, one row, off again.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from folders import random_sites
from measuring import Figure, Measured, Settings, command, interleaved
from skillgraft import SkillBank, grafted
from skillgraft.live.grafted import tensors_of
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region, Scope

_DENSITY = 1e-4
_TOKENS = 32
_HELD = 1_000
_ROUNDS = {"mpnet": 5}  # a batch takes seconds
_BESIDE = ("one skill after the other", "peft adapter_names")


@dataclass(frozen=True)
class Shape:
    """A model's class and sizes, the rows of its batch, and the matrices that peft adapts."""

    model: str
    rows: int
    lora: tuple[str, str]
    config: Mapping[str, Any] = field(default_factory=dict)


_MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
_SMOLLM2 = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49_152,
    "tie_word_embeddings": True,
}
_SHAPES = {
    "minilm": Shape("BertModel", 64, ("query", "value"), _MINILM),
    "mpnet": Shape("MPNetModel", 64, ("attn.q", "attn.v")),
    "smollm2": Shape("LlamaForCausalLM", 32, ("q_proj", "v_proj"), _SMOLLM2),
}
_SMALL = {"num_hidden_layers": 2, "vocab_size": 1100}


def measure(settings: Settings) -> Measured:
    """One figure a model: the bank's throughput over the base's; bytes an entry; the cost of a thousand held."""
    torch.set_num_threads(1)
    figures, details = {}, {}
    with torch.inference_mode():
        for name in _SHAPES:
            seconds = _Asked(name, settings).times(settings)
            median = {job: statistics.median(found) for job, found in seconds.items()}
            beside = ", ".join(
                f"{job} {median['base'] / found:.2g} ×" for job, found in median.items() if job not in ("base", "bank")
            )
            figures[name] = Figure(
                median["base"] / median["bank"], f"{beside}; base {1000 * median['base']:.0f} ms of processor"
            )
            details[name] = seconds
            print(f"{name}: bank {figures[name].value:.3f} ×, {figures[name].absolute}", file=sys.stderr, flush=True)
        figures["held"], figures["bytes"] = _held(settings)
    return Measured(figures, details)


class _Asked:
    """One model's shape three times: the base alone, in a bank, and in peft; all asked the same."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name, shape = name, _SHAPES[name]
        self.rows = 4 if settings.small else shape.rows
        self.plain, self.held = _model(shape, settings), _model(shape, settings)
        self.grafts = {f"skill-{number}": _skill(self.plain, number) for number in range(self.rows)}
        self.bank = SkillBank(self.held, self.grafts)
        self.draw = np.random.default_rng(0)

    def times(self, settings: Settings) -> dict[str, list[float]]:
        """Seconds of processor of each job, interleaved."""
        plain, held, single = (
            _question(self.name, *asked) for asked in ((self.plain, self.rows), (self.held, self.rows), (self.plain, 1))
        )
        names = list(self.grafts)

        def bank() -> None:
            # Requests of an encoder never meet in the same order again; a decoder's stay together for many tokens.
            rows = names if self.name == "smollm2" else list(self.draw.permutation(names))
            with self.bank.rows(rows):
                held()

        def one_by_one() -> None:
            for graft in self.grafts.values():
                with grafted(self.plain, graft):
                    single()

        jobs = {
            "base": plain,
            "bank": bank,
            "one skill after the other": one_by_one,
            "peft adapter_names": self._peft(settings),
        }
        rounds = min(settings.rounds, _ROUNDS.get(self.name, settings.rounds))
        return interleaved(jobs, rounds=rounds, clock=time.process_time)

    def _peft(self, settings: Settings) -> Callable[[], object]:
        from peft import LoraConfig, get_peft_model

        shape = _SHAPES[self.name]
        config = LoraConfig(r=8, target_modules=list(shape.lora), init_lora_weights=False)
        model = get_peft_model(_model(shape, settings), config, adapter_name="skill-0")
        for name in list(self.grafts)[1:]:
            model.add_adapter(name, config)
        return _question(self.name, model.eval(), self.rows, adapter_names=list(self.grafts))


def _model(shape: Shape, settings: Settings) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    model_class = getattr(transformers, shape.model)
    with torch.inference_mode(False):
        model: nn.Module = model_class(
            model_class.config_class(**{**shape.config, **(_SMALL if settings.small else {})})
        )
    return model.eval().requires_grad_(False)


def _question(name: str, model: nn.Module, rows: int, **rest: Any) -> Callable[[], object]:
    """A batch of texts for an encoder; one more token of as many sequences for a decoder, whose cache is cut back each time."""
    draw = torch.Generator().manual_seed(1)
    ids, mask = torch.randint(5, 1000, (rows, _TOKENS), generator=draw), torch.ones(rows, _TOKENS + 1, dtype=torch.long)
    if name != "smollm2":
        return lambda: model(input_ids=ids, attention_mask=mask[:, :_TOKENS], **rest)
    cache = model(input_ids=ids, use_cache=True, **rest).past_key_values

    def step() -> None:
        model(input_ids=ids[:, :1], attention_mask=mask, past_key_values=cache, use_cache=True, **rest)
        cache.crop(-1)

    return step


def _skill(model: nn.Module, seed: int) -> Graft:
    """A graft that moves a ten-thousandth of the layers' entries, drawn anew for every seed."""
    numbers = tensors_of(model)
    scope = Scope.select("layers", {name: shape for name, shape in numbers.shapes.items() if "relative" not in name})
    region = Region(scope, random_sites(scope, round(scope.size * _DENSITY), seed=seed))
    before = {name: numbers.flat(name)[at].copy() for name, at in region.sites.items()}
    after = {name: old + np.float32(0.01) for name, old in before.items()}
    return Graft(region, before, after, base_fingerprint="drawn for the benchmark")


def _held(settings: Settings) -> tuple[Figure, Figure]:
    """A batch's time with a thousand skills held over its time with one, and the bytes that an entry takes."""
    shape, rows = _SHAPES["minilm"], 4 if settings.small else 64
    one, many = (_model(shape, settings) for _ in range(2))
    few = {f"skill-{number}": _skill(one, number) for number in range(settings.scaled(_HELD))}
    banks = {"one": SkillBank(one, {"skill-0": few["skill-0"]}), "thousand": SkillBank(many, few)}
    questions = {"one": _question("minilm", one, rows), "thousand": _question("minilm", many, rows)}

    def job(name: str) -> Callable[[], None]:
        def run() -> None:
            with banks[name].rows(["skill-0"] * rows):
                questions[name]()

        return run

    seconds = interleaved({name: job(name) for name in banks}, rounds=settings.rounds, clock=time.process_time)
    ratio = statistics.median(seconds["thousand"]) / statistics.median(seconds["one"])
    entries = sum(map(len, few.values()))
    held = Figure(ratio, f"{len(few)} held; {rows} rows of {_TOKENS} tokens, MiniLM")
    return held, Figure(
        banks["thousand"].nbytes / entries, f"{banks['thousand'].nbytes / 1e6:.1f} MB, {len(few)} grafts included"
    )


if __name__ == "__main__":
    command("bank", measure)
