"""Pre-train a small image encoder here, for P2's image results: a base that has seen some image sets and none of the others.

    SKILLGRAFT_DATA=… python examples/image_encoder.py OUT [--task T …] [--steps N]
    skillgraft reproduce talos-addition --base OUT --readout prototypes --task mnist --task gtsrb --task cifar10 --task dtd10

A vision transformer of 1.2 million numbers starts from random ones and learns several image sets at once, each through its part
of one linear head (by default fashion_mnist, usps and sklearn_digits). The head is dropped: OUT is an encoder alone, with its
processor. P2's tasks are then other sets, read through frozen prototypes of their labels. By estimate half an hour on two cores.

What to expect of it: mnist is close to what the encoder has seen, photographs are far from it. Prototypes in an encoder of
random numbers can be good already where classes differ in plain brightness: measure `fresh_encoder`'s folder beside OUT before
saying that pre-training helped.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from skillgraft import Data, Runtime, TrainingPlan, finetune

SEEN = ("fashion_mnist", "usps", "sklearn_digits")
SIZE = 32  # pixels a side, in colour: grey images are repeated
PLAN = TrainingPlan(
    optimizer="adamw", lr=1e-3, weight_decay=0.05, batch_size=64, steps=4000, schedule="cosine", warmup_steps=200,
    clip_norm=1.0, train_embeddings=True, mixture="proportional",
)  # fmt: skip


def fresh_encoder(folder: Path, *, width: int = 128, layers: int = 6) -> None:
    """A vision transformer with random numbers, always the same ones, and its processor."""
    config = transformers.ViTConfig(
        image_size=SIZE, patch_size=4, hidden_size=width, num_hidden_layers=layers, num_attention_heads=4,
        intermediate_size=4 * width, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    size = {"height": SIZE, "width": SIZE}
    transformers.ViTImageProcessorPil(size=size, do_convert_rgb=False).save_pretrained(folder)


def encoder_alone(trained: Path, folder: Path) -> None:
    """The body of a trained classifier, without its head."""
    transformers.ViTModel.from_pretrained(trained, add_pooling_layer=False).save_pretrained(folder)
    transformers.AutoImageProcessor.from_pretrained(trained, backend="pil").save_pretrained(folder)


def pre_train(
    tasks: Sequence[str | Path], out: Path, *, plan: TrainingPlan = PLAN, width: int = 128, layers: int = 6
) -> tuple[Mapping[str, Any], ...]:
    """Random numbers → a classifier of all tasks' labels → OUT, its encoder. Gives the log of the training."""
    with tempfile.TemporaryDirectory(dir=out.parent) as work:
        base, trained = Path(work, "base"), Path(work, "trained")
        fresh_encoder(base, width=width, layers=layers)
        found = finetune(
            base, tasks, out=trained, plan=plan, data=Data(readout="linear"), runtime=Runtime(progress=_show)
        )
        for task, score in found.validation.items():
            print(f"{task}: {100 * score:.1f} % of the validation rows", file=sys.stderr)
        encoder_alone(trained, out)
    return found.log


def _show(step: int, steps: int, entry: object) -> None:
    if step % 100 == 0:
        print(f"{step}/{steps} {entry}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="where the encoder goes")
    parser.add_argument("--task", action="append", help="image tasks to learn from; several times")
    parser.add_argument("--steps", type=int, default=PLAN.steps)
    asked = parser.parse_args()
    asked.out.resolve().parent.mkdir(parents=True, exist_ok=True)
    pre_train(asked.task or SEEN, asked.out.resolve(), plan=PLAN.with_changes(steps=asked.steps))


if __name__ == "__main__":
    main()
