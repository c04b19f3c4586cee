"""Write the seeds in `corpus/`: a small sound input of every kind. Run it where a format changes, and look at the diff.

python -m tests.fuzz.make_corpus
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from skillgraft.compose.store import ContinualStore
from skillgraft.files import graft_file, packed
from skillgraft.files import tensors as tensor_file
from skillgraft.folders.apply import apply
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.interop.export import export_patch
from skillgraft.predictions.predictions import Predictions
from skillgraft.report.sheet import Cell, Result, Sheet, save_result
from skillgraft.tasks.task_file import CATALOGUE
from skillgraft.values.numbers import BFLOAT16
from skillgraft.values.region import Region
from skillgraft.values.tails import tail_name
from tests.model_folders import EMBEDDING, QUERY, body, moved, write_folder

from . import bundles, make_requests
from .room import SIZES, TOKENIZER, graft, home, talking, tensors, write_talking
from .targets import (
    CHAT,
    CORPUS,
    DATA,
    GRAFTED,
    KEPT,
    LORA,
    MODEL,
    PATCH,
    PICTURES,
    REPORT,
    SAVED,
    STORE,
    put,
)

ROWS = [{"text": "a good film", "label": 1}, {"text": 'bad, "very" bad é', "label": 0}]


def grafts() -> None:
    found = graft().graft
    small = found & Region(found.region.scope, {QUERY: found.region.sites[QUERY]})
    arithmetic = small + 0.5 * small.without_heads()
    dense = home() / "x.safetensors"
    for name, each in {"exact": found, "small": small.without_heads(), "arithmetic": arithmetic}.items():
        graft_file.save(each, dense, overwrite=True)
        put("graft", name, dense.read_bytes())
    for name in ("exact", "arithmetic"):
        put("streamed", name, (CORPUS / "graft" / name).read_bytes())
    rows = {tail_name(EMBEDDING, 11): np.ones((2, 4), np.float32)}
    new = {"id": 11, "content": "<|im_end|>", "special": True}
    tails = replace(small, heads=rows).with_info(chat={"tokens": [new], "roles": {"eos_token": "<|im_end|>"}})
    graft_file.save(tails, dense, overwrite=True)
    for kind in ("graft", "streamed"):
        put(kind, "tails", dense.read_bytes())
    stream = found.stream()
    packed.save_packed(stream, home() / "packed.safetensors", metadata=graft_file.packed_metadata_of(stream))
    for kind in ("streamed", "packed"):
        put(kind, "packed", (home() / "packed.safetensors").read_bytes())
    half = (
        write_folder(home() / "half", body(dtype=BFLOAT16)),
        write_folder(home() / "half-tuned", moved(body(dtype=BFLOAT16))),
    )
    stream = extract(*half).stream()
    packed.save_packed(stream, home() / "half.safetensors", metadata=graft_file.packed_metadata_of(stream))
    put("packed", "bfloat16", (home() / "half.safetensors").read_bytes())
    export_patch(found, home() / "p.safetensors", base=home() / "base")
    put("patch", "one", bundles.pack(bundles.read(home(), PATCH), PATCH))
    for name, region in {"few": small.region, "full": Region.full(found.region.scope)}.items():
        graft_file.save_region(region, dense, base_fingerprint=found.base_fingerprint, info=found.info, overwrite=True)
        put("region", name, dense.read_bytes())


def folders() -> None:
    for shards in (1, 2):
        folder = write_folder(home() / f"model{shards}", moved(tensors()), shards=shards, config=SIZES)
        (folder / "README.md").write_text("# A model\n")
        put("model", f"tuned-{shards}", bundles.pack(bundles.read(folder, MODEL), MODEL))
    longer = moved(tensors())
    longer[EMBEDDING] = np.concatenate([longer[EMBEDDING], np.ones((2, 4), np.float32)])
    folder = write_folder(home() / "longer", longer, config={**SIZES, "vocab_size": 13})
    put("model", "longer", bundles.pack(bundles.read(folder, MODEL), MODEL))
    put("model", "base", bundles.pack(bundles.read(home() / "base", MODEL), MODEL))
    apply(home() / "base", graft(), out=home() / "grafted")
    put("grafted", "one", bundles.pack(bundles.read(home() / "grafted", GRAFTED), GRAFTED))
    random = np.random.default_rng(0)
    a, b = (random.normal(size=shape).astype(np.float32) for shape in ((2, 4), (4, 2)))
    stem = f"base_model.model.{QUERY.removesuffix('.weight')}"
    (home() / "lora").mkdir()
    both = {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
    tensor_file.write(home() / "lora" / LORA[1], both, {"format": "pt"})
    settings = {"peft_type": "LORA", "lora_alpha": 4, "r": 2, "alpha_pattern": {"query": 8}, "task_type": "SEQ_CLS"}
    (home() / "lora" / LORA[0]).write_text(json.dumps(settings))
    put("lora", "one", bundles.pack(bundles.read(home() / "lora", LORA), LORA))
    target = QUERY.removesuffix(".weight")
    settings = {
        "peft_type": "LORA",
        "lora_alpha": 4,
        "r": 2,
        "use_dora": True,
        "target_modules": [target],
    }  # PEFT's own
    tensor_file.write(
        home() / LORA[1], {**both, f"{stem}.lora_magnitude_vector": np.ones(4, np.float32)}, {"format": "pt"}
    )
    (home() / LORA[0]).write_text(json.dumps(settings))
    put("lora", "dora", bundles.pack(bundles.read(home(), LORA), LORA))


def chats() -> None:
    """Models that talk: as tuned, as a base, and with a graft on."""
    put("chat", "tuned", bundles.pack(bundles.read(write_talking(home() / "talks"), CHAT), CHAT))
    folder = write_folder(home() / "listens", tensors(), config=SIZES)
    (folder / "tokenizer.json").write_text(TOKENIZER)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "top_p": 0.6}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}", "added_tokens_decoder": {}}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "[MASK]"}}))
    put("chat", "base", bundles.pack(bundles.read(folder, CHAT), CHAT))
    apply(folder, talking(), out=home() / "talked-over")
    put("grafted", "talking", bundles.pack(bundles.read(home() / "talked-over", GRAFTED), GRAFTED))


def adapters() -> None:
    import transformers

    from skillgraft.live.bottleneck import Adapters

    model = transformers.BertModel(transformers.BertConfig(**SIZES))
    for design in ("houlsby", "pfeiffer"):
        file = home() / f"{design}.safetensors"
        Adapters.fresh(model, design, bottleneck=2).save(file, base_fingerprint="0" * 64)
        put("adapter", design, file.read_bytes())


def kept() -> None:
    found, folder = graft().graft.with_info(recipe={"method": "movement"}), home() / "kept"
    folder.mkdir()
    graft_file.save(found, folder / "graft.safetensors")
    graft_file.save(found, folder / "0.01.safetensors")
    graft_file.save_region(found.region, folder / "region.safetensors", base_fingerprint=found.base_fingerprint)
    (folder / "facts.json").write_text(json.dumps({"shots": 4, "seed": 1, "readout": "auto"}))
    predictions().save(folder / "predictions.npz")
    put("kept", "one", bundles.pack(bundles.read(folder, KEPT), KEPT))


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf() -> None:
    settings = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("llama.block_count") + struct.pack("<II", 4, 1),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("<s>") + text("a"),
        text("tokenizer.ggml.scores") + struct.pack("<IIQff", 9, 6, 2, 0.0, 1.0),
    ]
    tensor = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, len(settings)) + b"".join(settings) + tensor
    put("gguf", "one", header + bytes(-len(header) % 32) + np.arange(8, dtype="<f4").tobytes())


def tasks() -> None:
    for name in ("sst2", "sentiment", "qasc", "dtd10"):
        put("task", name, (CATALOGUE / f"{name}.toml").read_bytes())


def parquet() -> bytes:
    import pyarrow
    from pyarrow import parquet

    room = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": [0, 1]}), room)
    return room.getvalue()


def separated(delimiter: str) -> bytes:
    room = io.StringIO()
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    writer = csv.writer(room, delimiter=delimiter, quoting=quoting, quotechar=None if delimiter == "\t" else '"')
    writer.writerows([["text", "label"], *([row["text"], row["label"]] for row in ROWS)])
    return room.getvalue().encode()


def data() -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    room = io.BytesIO()
    np.savez_compressed(room, images=np.zeros((2, 4, 4), np.uint8), labels=np.array([0, 1]))
    made = {
        "d.jsonl": lines, "d.csv": separated(","), "d.tsv": separated("\t"), "d.jsonl.gz": gzip.compress(lines, mtime=0),
        "d.parquet": parquet(), "d.npz": room.getvalue(), "d.txt": b"a good film\n\nbad \xc3\xa9\r\n",
    }  # fmt: skip
    for name, content in made.items():
        put("data", name, bundles.pack({name: content}, DATA))


def pictures() -> None:
    from PIL import Image

    room = home() / "pictures"
    for name in PICTURES:
        (room / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(room / name)
    put("pictures", "four", bundles.pack(bundles.read(room, PICTURES), PICTURES))


def saved() -> None:
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(home() / "saved")
    put("saved", "one", bundles.pack(bundles.read(home() / "saved", SAVED), SAVED))


def predictions() -> Predictions:
    return Predictions(
        [[2.0, 0.0], [0.0, 1.0]], [0, 1], task="sst2", label_names=("bad", "good"), made_by={"seed": "0"}
    )


def report() -> None:
    folder = home() / "report"
    folder.mkdir()
    sheet = Sheet(
        "Accuracy", ("sst2",), ("base", "graft"), {("sst2", "base"): Cell(0.5, 0.4, 0.6), ("sst2", "graft"): Cell(0.8)}
    )
    save_result(Result("table", "a title", (sheet,), notes=("a note",), made={"seed": 0}), folder / "result.json")
    predictions().save(folder / "predictions.npz")
    cell = {"value": 0.5, "low": 0.4, "high": 0.6}
    model: dict[str, Any] = {
        "task": "sst2",
        "metric": "accuracy",
        "n": 2,
        "majority": 0.5,
        "score": cell,
        "ece": cell,
        "nll": cell,
    }
    evaluation = {"readout": "masked", "split": "test", "tasks": {"sst2": {"base": model, "g.safetensors": model}}}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    points = [{"scale": 0.5, "sst2": 0.7, "normalised": 0.9}, {"scale": 1.0, "sst2": 0.8, "normalised": 1.0}]
    (folder / "scales.json").write_text(json.dumps({"scale": 1.0, "points": points}))
    errors = [[cell, cell], [cell, cell]]
    (folder / "map.json").write_text(json.dumps({"tasks": ["a", "b"], "alphas": [0.0, 1.0], "errors": errors}))
    graft_file.save(graft().graft, folder / "graft.safetensors")
    put("report", "one-of-each", bundles.pack(bundles.read(folder, REPORT), REPORT))


def store() -> None:
    base = Checkpoint.open(home() / "base")
    folder = home() / "store"
    folder.mkdir()
    found = graft().graft
    names = sorted(found.region)
    kept = ContinualStore(folder, base.name, base.fingerprint)
    for task, name in zip("ab", names, strict=False):
        kept = kept.keep(task, found & Region(found.region.scope, {name: found.region.sites[name]}))
    put("store", "two", bundles.pack(bundles.read(folder, STORE), STORE))


def main() -> None:
    shutil.rmtree(CORPUS, ignore_errors=True)
    for make in (
        grafts,
        folders,
        chats,
        adapters,
        kept,
        gguf,
        tasks,
        data,
        pictures,
        saved,
        *make_requests.ALL,
        report,
        store,
    ):
        make()
    files = [path for path in Path(CORPUS).rglob("*") if path.is_file()]
    print(f"{len(files)} seeds, {sum(path.stat().st_size for path in files):,} bytes")


if __name__ == "__main__":
    main()
