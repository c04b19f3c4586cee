"""Every kind of input that a stranger can hand over, one row each: which files it has, and what reading it means.

A row's `read` gets a folder with the (damaged) files. It returns when the input was accepted, after proving that what was
accepted is sound: what is put on comes off again with the base's own bytes. Whatever it raises must be an error of the
project's own tree. A later kind of input joins by a row here and a seed in `corpus/`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from skillgraft.compose.store import ContinualStore
from skillgraft.errors import InputError, SkillgraftError
from skillgraft.files import graft_file
from skillgraft.files.gguf_header import check_gguf
from skillgraft.folders.apply import apply, check, remove
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.folders.given import Named
from skillgraft.folders.ledger import Ledger
from skillgraft.folders.reach import in_words
from skillgraft.report.artefacts import find
from skillgraft.tasks.pictures import pictures_of
from skillgraft.tasks.sources import read_table
from skillgraft.tasks.task_file import load_task
from skillgraft.values.graft import stream_of
from skillgraft.values.numbers import same_bits
from tests.model_folders import content

from .online import HTTP, HUB, read_headers, read_http, read_hub, read_names, read_request
from .room import base_content, graft, home, talking

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
GRAFTED = (
    *("config.json", "model.safetensors", "skillgraft.json", "skillgraft.undo", "README.md", "README.base.md"),
    *("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer.base.json"),
    *("tokenizer_config.json", "tokenizer_config.base.json", "special_tokens_map.json", "special_tokens_map.base.json"),
)
LORA = ("adapter_config.json", "adapter_model.safetensors")
DATA = ("d.jsonl", "d.csv", "d.tsv", "d.jsonl.gz", "d.parquet", "d.npz", "d.txt")
REPORT = ("result.json", "evaluation.json", "predictions.npz", "graft.safetensors", "scales.json", "map.json")
STORE = ("store.json", "001-a.safetensors", "002-b.safetensors")
KEPT = ("graft.safetensors", "region.safetensors", "facts.json", "predictions.npz", "0.01.safetensors")
PATCH = ("p.safetensors", "p.dense.safetensors")
PICTURES = ("a/1.png", "a/2.jpg", "b/1.bmp", "b/2.gif")
CHAT = (
    *("config.json", "model.safetensors", "chat_template.jinja", "generation_config.json", "tokenizer_config.json"),
    *("tokenizer.json", "special_tokens_map.json"),
)
SAVED = ("dataset_info.json", "state.json", "data-00000-of-00001.arrow")
_COLUMNS = {".npz": ("image", "label"), ".txt": ("text",)}


@dataclass(frozen=True)
class Target:
    """`names` are the input's files; with one name alone the input's bytes are that file's."""

    names: tuple[str, ...]
    read: Callable[[Path], None]


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
    remove(folder, talking() if (folder / "chat_template.jinja").exists() else graft(), out=off, sync=False)
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


def read_chat(folder: Path) -> None:
    """A folder that talks: as the base of a graft that talks otherwise, and as TUNED."""
    before = content(folder)
    if check(folder, talking()).fits:
        on_and_off(folder, talking(), before)
    _tuned(folder)


def read_adapter(folder: Path) -> None:
    """Bottleneck adapters: what is read is written with the same bits."""
    from skillgraft.live.bottleneck import Adapters

    found = Adapters.load(folder / "adapter.safetensors")
    found.save(folder / "again.safetensors", base_fingerprint="0" * 64)
    again = Adapters.load(folder / "again.safetensors").tensors
    assert all(same_bits(one.detach().numpy(), again[name].detach().numpy()) for name, one in found.tensors.items())


def read_kept(folder: Path) -> None:
    """What an executor's store keeps of a step: every kind of result, and the parts that are read by themselves."""
    from skillgraft.papers.run import KINDS, PARTS

    for kind in KINDS.values():
        if (folder / kind.file).exists() and kind.file in KEPT:
            kind.load(folder / kind.file)
    for part in ("region", "facts", "recipe"):
        PARTS[part](folder, "")
    PARTS["density"](folder, "0.01")


TARGETS: Mapping[str, Target] = {
    "graft": Target(("g.safetensors",), read_graft),
    "streamed": Target(("g.safetensors",), read_streamed),
    "packed": Target(("g.safetensors",), read_streamed),
    "region": Target(("r.safetensors",), read_region),
    "model": Target(MODEL, read_model),
    "chat": Target(CHAT, read_chat),
    "grafted": Target(GRAFTED, read_grafted),
    "lora": Target(LORA, _tuned),
    "patch": Target(PATCH, lambda folder: _tuned(folder / PATCH[0])),
    "adapter": Target(("adapter.safetensors",), read_adapter),
    "gguf": Target(("m.gguf",), read_gguf),
    "task": Target(("t.toml",), lambda folder: void(load_task(folder / "t.toml"))),
    "data": Target(DATA, read_data),
    "pictures": Target(PICTURES, read_pictures),
    "saved": Target(SAVED, lambda folder: void(read_table(str(folder), ("text", "label")))),
    "request": Target(("body.json",), read_request),
    "headers": Target(("headers",), read_headers),
    "names": Target(("sum",), read_names),
    "http": Target(HTTP, read_http),
    "hub": Target(HUB, read_hub),
    "report": Target(REPORT, read_report),
    "store": Target(STORE, read_store),
    "kept": Target(KEPT, read_kept),
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


def put(name: str, seed: str, content: bytes) -> None:
    """One more seed."""
    (CORPUS / name).mkdir(parents=True, exist_ok=True)
    (CORPUS / name / seed).write_bytes(content)
