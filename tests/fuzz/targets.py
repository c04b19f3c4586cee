"""Every kind of input that a stranger can hand over, one row each: which files it has, and what reading it means.

A row's `read` gets a folder with the (damaged) files. It returns when the input was accepted, after proving that what was
accepted is sound: what is put on comes off again with the base's own bytes. Whatever it raises must be an error of the
project's own tree. A later kind of input joins by a row here and a seed in `corpus/`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
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
from skillgraft.tasks.sources import read_table
from skillgraft.tasks.task_file import load_task
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
DATA = ("d.jsonl", "d.csv", "d.tsv", "d.jsonl.gz", "d.parquet", "d.npz")
REPORT = ("result.json", "evaluation.json", "predictions.npz", "graft.safetensors", "scales.json", "map.json")
STORE = ("store.json", "001-a.safetensors", "002-b.safetensors")
_COLUMNS = {".npz": ("image", "label")}


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
    folder = Path(tempfile.mkdtemp(prefix="skillgraft-fuzz-"))
    write_folder(folder / "base", tensors())
    write_folder(folder / "tuned", moved({**tensors(), "classifier.weight": tensors()["cls.weight"]}))
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


def on_and_off(base: Path, named: Named, before: Mapping[str, str]) -> None:
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
    "region": Target(("r.safetensors",), read_region),
    "model": Target(MODEL, read_model),
    "grafted": Target(GRAFTED, read_grafted),
    "lora": Target(LORA, _tuned),
    "gguf": Target(("m.gguf",), read_gguf),
    "task": Target(("t.toml",), lambda folder: void(load_task(folder / "t.toml"))),
    "data": Target(DATA, read_data),
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


def seeds(name: str) -> dict[str, bytes]:
    """The corpus of a target."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}


__all__ = ["QUERY", "TARGETS", "Target", "home", "outcome", "seeds", "tensors"]
