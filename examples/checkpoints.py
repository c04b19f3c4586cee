"""What a Trainer's checkpoint holds with GraftCallback beside a full one: bytes on disk, by what is trained.

    python examples/checkpoints.py BASE WORK

BASE is a folder with a language model or an encoder. Two steps on rows drawn at random for each line of the table; nothing is
learned, but what is trained changes as in a real run. The table is in Markdown; WORK is emptied behind each line.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from skillgraft import GraftCallback

# What is trained, by a part of the parameters' names, and whether the graft is packed.
RUNS = (
    ("everything", "", False),
    ("everything, packed", "", True),
    ("one layer", ".3.", False),
    ("biases", "bias", False),
    ("norms", "norm", False),
)
MODEL, GRAFT = "model*.safetensors", "graft.safetensors"


def trained(base: Path, out: Path, part: str, *, pack: bool) -> Path | None:
    """The checkpoint of a run of two steps; None where the model has nothing of that name."""
    model = opened(base)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part in name.lower())
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return None
    arguments = transformers.TrainingArguments(
        str(out), max_steps=2, save_steps=2, per_device_train_batch_size=2, learning_rate=1e-4, lr_scheduler_type="constant",
        report_to=[], disable_tqdm=True, use_cpu=True, logging_strategy="no", seed=1,
    )  # fmt: skip
    callback = GraftCallback(base, pack=pack)
    transformers.Trainer(model, arguments, train_dataset=rows(model), callbacks=[callback]).train()
    return out / "checkpoint-2"


def opened(base: Path) -> Any:
    config = transformers.AutoConfig.from_pretrained(base)
    causal = str((config.architectures or [""])[0]).endswith(("ForCausalLM", "LMHeadModel"))
    auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForSequenceClassification
    return auto.from_pretrained(base, dtype="auto")


def rows(model: Any) -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(5, int(model.config.vocab_size), (4, 16), generator=draw).tolist()
    causal = hasattr(model, "lm_head")
    return [{"input_ids": row, "labels": row if causal else place % 2} for place, row in enumerate(tokens)]


def size(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.glob(pattern))


def table(base: Path, work: Path) -> Iterator[str]:
    """One line for each kind of run."""
    yield "| trained | model file | graft | share | optimizer's state, which stays |"
    yield "|---|---|---|---|---|"
    for name, part, pack in RUNS:
        out = work / name.replace(", ", "-").replace(" ", "-")
        checkpoint = trained(base, out, part, pack=pack)
        if checkpoint is None:
            continue
        whole, graft, state = (size(checkpoint, pattern) for pattern in (MODEL, GRAFT, "optimizer.pt"))
        shutil.rmtree(out)
        yield f"| {name} | {mega(whole)} | {mega(graft)} | {graft / whole:.2%} | {mega(state)} |"


def mega(count: int) -> str:
    return f"{count / 1e6:,.2f} MB"


def main(base: str, work: str) -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for line in table(Path(base).absolute(), Path(work)):
        print(line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
