"""Every kind of input that a stranger can hand over, one row each: which files it has, and what reading it means.

A row's `read` gets a folder with the (damaged) files. It returns when the input was accepted, after proving that what was
accepted is sound: what is put on comes off again with the base's own bytes. Whatever it raises must be an error of the
project's own tree. A later kind of input joins by a row here and a seed in `corpus/`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from skillgraft.compose.store import ContinualStore
from skillgraft.errors import InputError, SkillgraftError
from skillgraft.files import graft_file
from skillgraft.files.gguf_header import check_gguf
from skillgraft.folders.apply import Named, apply, check, remove
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.folders.ledger import Ledger
from skillgraft.folders.reach import in_words
from skillgraft.report.artefacts import find
from skillgraft.serve.limits import Limits
from skillgraft.serve.names import from_mapping, parse, written
from skillgraft.serve.refusals import Refused
from skillgraft.serve.requests import chat, classification, completion, embeddings, parse_body
from skillgraft.tasks.pictures import pictures_of
from skillgraft.tasks.sources import read_table
from skillgraft.tasks.task_file import load_task
from skillgraft.values.graft import stream_of
from tests.model_folders import QUERY, body, content, moved, write_folder

CORPUS = Path(__file__).parent / "corpus"
MODEL = (
    *(
        "config.json",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ),
    *("README.md", "model.safetensors"),
)
GRAFTED = ("config.json", "model.safetensors", "skillgraft.json", "skillgraft.undo", "README.md", "README.base.md")
LORA = ("adapter_config.json", "adapter_model.safetensors")
DATA = ("d.jsonl", "d.csv", "d.tsv", "d.jsonl.gz", "d.parquet", "d.npz", "d.txt")
REPORT = ("result.json", "evaluation.json", "predictions.npz", "graft.safetensors", "scales.json", "map.json")
STORE = ("store.json", "001-a.safetensors", "002-b.safetensors")
PATCH = ("p.safetensors", "p.dense.safetensors")
PICTURES = ("a/1.png", "a/2.jpg", "b/1.bmp", "b/2.gif")
SAVED = ("dataset_info.json", "state.json", "data-00000-of-00001.arrow")
# What makes the base's tensors a model that loads: some adapters are read by loading it.
SIZES: Mapping[str, object] = {
    "vocab_size": 11,
    "hidden_size": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 6,
    "max_position_embeddings": 8,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
TOKENIZER = '{"model": {"vocab": {"good": 0, "bad": 1}}, "added_tokens": [{"id": 10, "content": "[MASK]"}]}'
_SHARED_MEMORY = Path("/dev/shm")  # where there is one, files cost no disk
_COLUMNS = {".npz": ("image", "label"), ".txt": ("text",)}


@dataclass(frozen=True)
class Target:
    """`names` are the input's files; with one name alone the input's bytes are that file's."""

    names: tuple[str, ...]
    read: Callable[[Path], None]


@cache
def home() -> Path:
    """The folder of this run, with the base, a tuned model of it and their graft."""
    with suppress(ImportError):  # other packages' adapters are merged by peft: its own weight is no case's
        import_module("peft")
    room = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="skillgraft-fuzz-", dir=room))
    write_folder(folder / "base", tensors(), config=SIZES)
    (folder / "base" / "tokenizer.json").write_text(TOKENIZER)
    with_head = {**tensors(), "classifier.weight": tensors()["cls.weight"]}
    write_folder(folder / "tuned", moved(with_head), config=SIZES)
    graft_file.save(extract(folder / "base", folder / "tuned"), folder / "graft.safetensors")
    return folder


def tensors() -> dict[str, object]:  # the same in every run: the corpus is made of it
    return {**body(cls__weight=(3, 4))}


@cache
def graft() -> Named:
    return Named(graft_file.load(home() / "graft.safetensors"), "g")


@cache
def base_content() -> Mapping[str, str]:
    return content(home() / "base")


def on_and_off(base: Path, named: Named | Path, before: Mapping[str, str]) -> None:
    """What is accepted comes off again: the base's files byte for byte."""
    on, off = home() / "on", home() / "off"
    for folder in (on, off):
        shutil.rmtree(folder, ignore_errors=True)
    apply(base, named, out=on, sync=False)
    remove(on, named, out=off, sync=False)
    assert content(off) == before, "what came off is not the base"


def read_graft(folder: Path) -> None:
    found = graft_file.load(folder / "g.safetensors")
    in_words(found)
    again = folder / "again.safetensors"
    graft_file.save(found, again, overwrite=True)
    assert graft_file.load(again) == found
    report = check(home() / "base", Named(found, "g"))
    if report.fits:
        on_and_off(home() / "base", Named(found, "g"), base_content())


def read_streamed(folder: Path) -> None:
    """A graft file, packed or not, that is read stretch by stretch and never held as a whole."""
    path = folder / "g.safetensors"
    stream = stream_of(path)
    in_words(stream)
    if not stream.packed:
        void(stream.describe())
    if check(home() / "base", path).fits:
        on_and_off(home() / "base", path, base_content())


def read_region(folder: Path) -> None:
    region = graft_file.load_region(folder / "r.safetensors")
    graft_file.load_info(folder / "r.safetensors")
    graft_file.save_region(region, folder / "again.safetensors", overwrite=True)
    assert graft_file.load_region(folder / "again.safetensors") == region


def read_model(folder: Path) -> None:
    source = Checkpoint.open(folder)
    Ledger.of(source)
    assert len(source.fingerprint) == 64
    before = content(folder)
    if check(folder, graft()).fits:
        on_and_off(folder, graft(), before)
    _tuned(folder)


def _tuned(folder: Path) -> None:
    """The folder as TUNED: a graft of it puts the base's numbers right and comes off again."""
    found = extract(home() / "base", folder)
    if len(found):
        on_and_off(home() / "base", Named(found, "t"), base_content())


def read_grafted(folder: Path) -> None:
    off = home() / "off"
    shutil.rmtree(off, ignore_errors=True)
    remove(folder, graft(), out=off, sync=False)
    Ledger.of(Checkpoint.open(off))


def read_data(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        table = read_table(str(path), _COLUMNS.get(path.suffix, ("text", "label")))
        assert len(table) > 0


def read_pictures(folder: Path) -> None:
    table = read_table(str(folder), ("image", "label"))
    found = pictures_of(table.columns["image"], lambda place: table.where(place, "image"))
    for picture in found.pictures:
        picture.check()
        assert picture.pixels().ndim in (2, 3)


def read_request(folder: Path) -> None:
    """A body as each path of the server reads it; accepted by at least one."""
    refusals = []
    with _as_input():
        body = parse_body((folder / "body.json").read_bytes())
        for read in (completion, chat, embeddings, classification):
            try:
                read(body, Limits())
            except Refused as refused:
                refusals.append(refused)
        if len(refusals) == 4:
            raise refusals[0]


def read_names(folder: Path) -> None:
    """A sum of skills in words: what is written of it means the same sum."""
    text = (folder / "sum").read_bytes().decode(errors="replace")
    with _as_input():
        terms = parse(text)
        again = parse(written(terms))
        assert [name for name, _ in again] == [name for name, _ in terms]
        assert all(abs(a - b) <= 1e-5 * abs(b) for (_, a), (_, b) in zip(again, terms, strict=True)), text
        assert from_mapping(dict(terms)) == terms


@contextmanager
def _as_input() -> Iterator[None]:
    try:
        yield
    except Refused as refused:
        raise InputError(str(refused)) from refused


def read_gguf(folder: Path) -> None:
    check_gguf(folder / "m.gguf")
    from gguf import GGUFReader

    try:  # what our check lets through the package reads, or refuses in its own words; never for ever
        GGUFReader(folder / "m.gguf")
    except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise InputError(str(error)) from error


def read_report(folder: Path) -> None:
    found = find([folder])
    for artefact in found.artefacts:
        assert artefact.name
    if found.unread:
        raise InputError(found.unread[0].why)


def read_store(folder: Path) -> None:
    store = ContinualStore.open(folder)
    for task in store.tasks:
        store.graft(task)


TARGETS: Mapping[str, Target] = {
    "graft": Target(("g.safetensors",), read_graft),
    "streamed": Target(("g.safetensors",), read_streamed),
    "region": Target(("r.safetensors",), read_region),
    "model": Target(MODEL, read_model),
    "grafted": Target(GRAFTED, read_grafted),
    "lora": Target(LORA, _tuned),
    "patch": Target(PATCH, lambda folder: _tuned(folder / PATCH[0])),
    "gguf": Target(("m.gguf",), read_gguf),
    "task": Target(("t.toml",), lambda folder: void(load_task(folder / "t.toml"))),
    "data": Target(DATA, read_data),
    "pictures": Target(PICTURES, read_pictures),
    "saved": Target(SAVED, lambda folder: void(read_table(str(folder), ("text", "label")))),
    "request": Target(("body.json",), read_request),
    "names": Target(("sum",), read_names),
    "report": Target(REPORT, read_report),
    "store": Target(STORE, read_store),
}


def void(_: object) -> None:
    """The value was made: that is all that is asked."""


def outcome(target: Target, folder: Path) -> str:
    """ "" where the input was accepted, else the refusal. Any error that is not the project's own comes through."""
    try:
        target.read(folder)
    except SkillgraftError as error:
        message = str(error)
        assert message.strip()
        return message
    return ""


@cache
def seeds(name: str) -> Mapping[str, bytes]:
    """The corpus of a target."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}


__all__ = ["QUERY", "TARGETS", "Target", "home", "outcome", "seeds", "tensors"]
