"""What a folder holds: every file is read as what it is, listed as not used, or listed with what is wrong with it.

    found = find(["runs", "skill.safetensors"])
    found.of("graft"), found.scores(), found.unread, found.unused

A model folder counts as one artefact; grafts and predictions that were put into it are found too. Nothing is skipped
silently, and one damaged file does not spoil the rest.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from skillgraft.errors import InputError, SkillgraftError
from skillgraft.files import graft_file
from skillgraft.files.regular import CONFIG_BYTES, read_text
from skillgraft.files.tensors import TensorFile
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.ledger import LEDGER, Ledger
from skillgraft.folders.weight_files import read_json
from skillgraft.predictions.predictions import AnyPredictions, load_predictions
from skillgraft.report import json_artefacts
from skillgraft.report.json_artefacts import Scores, predicted
from skillgraft.report.sheet import FORMAT, load_result
from skillgraft.values import strict_json
from skillgraft.values.graft import Graft
from skillgraft.values.info import Info
from skillgraft.values.region import Region

# Kind → what one and several of it are called.
_WORDS: Mapping[str, tuple[str, str]] = {
    "graft": ("graft", "grafts"), "region": ("region", "regions"), "model": ("model folder", "model folders"),
    "predictions": ("file of predictions", "files of predictions"), "result": ("result", "results"),
    "evaluation": ("evaluation", "evaluations"), "localization": ("search for a region", "searches for regions"),
    "scales": ("search for a scale", "searches for scales"), "map": ("disentanglement map", "disentanglement maps"),
}  # fmt: skip
_OURS = (graft_file.GRAFT, graft_file.REGION)


@dataclass(frozen=True)
class Artefact:
    """One file or model folder: its kind, its name from the given folder on, its size, and what it holds."""

    kind: str
    name: str
    bytes: int
    value: Any
    scores: tuple[Scores, ...] = ()

    @property
    def stem(self) -> str:
        """What figures call it: its name without folders and, for a file, without ending."""
        path = Path(self.name)
        return path.name if self.kind == "model" else path.stem

    @property
    def base(self) -> str:
        """The fingerprint of the base that a graft, region or tuned model belongs to; "" where none is known."""
        return str(getattr(self.value, "base_fingerprint", ""))

    @property
    def region(self) -> Region | None:
        return self.value.region if isinstance(self.value, Graft | NamedRegion) else None


@dataclass(frozen=True)
class NamedRegion:
    """A region file's content: the region, the base that it belongs to, and how it was made."""

    region: Region
    base_fingerprint: str
    info: Info


@dataclass(frozen=True)
class ModelFolder:
    """A model folder: its fingerprint, that of the base which it was made from ("" where none is known), and how."""

    fingerprint: str
    base_fingerprint: str
    made: Mapping[str, Any]


@dataclass(frozen=True)
class Aside:
    """A file that is not shown, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Found:
    """Everything below the given paths, in the order of names."""

    artefacts: tuple[Artefact, ...]
    unread: tuple[Aside, ...] = ()
    unused: tuple[Aside, ...] = ()

    def of(self, *kinds: str) -> list[Artefact]:
        return [each for each in self.artefacts if each.kind in kinds]

    def in_words(self) -> str:
        """`2 grafts, 1 region and 3 results`."""
        counts = Counter(each.kind for each in self.artefacts)
        parts = [f"{counts[kind]} {words[counts[kind] > 1]}" for kind, words in _WORDS.items() if counts[kind]]
        return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else "nothing to show"

    def base_bytes(self) -> dict[str, int]:
        """Fingerprint → size of the model folders that were found."""
        return {each.value.fingerprint: each.bytes for each in self.of("model")}

    def regions(self, *kinds: str, only: Container[str] | None = None) -> dict[str, Region]:
        """The regions of these artefacts, or only of those with these names, by short names."""
        members = [each for each in self.of(*kinds) if only is None or each.name in only]
        named = zip(short_names(members), members, strict=True)
        return {name: each.region for name, each in named if each.region is not None}

    def predictions(self) -> dict[tuple[str, str, str], dict[str, AnyPredictions]]:
        """Saved predictions by folder, task and split, and in there by model; base comes first."""
        groups: dict[tuple[str, str, str], list[Artefact]] = {}
        for artefact in sorted(self.of("predictions"), key=lambda each: (_model_name(each) != "base", each.name)):
            folder = str(PurePosixPath(artefact.name).parent)
            key = (folder, artefact.value.task, artefact.value.made_by.get("split", "some"))
            groups.setdefault(key, []).append(artefact)
        return {key: _by_model(members) for key, members in sorted(groups.items())}

    def scores(self) -> list[Scores]:
        """Every table of scores, all that is known of the same rows in one; test rows first."""
        order = ("evaluation", "localization", "graft")
        given = [scores for kind in order for artefact in self.of(kind) for scores in artefact.scores]
        computed = [predicted(models, split=split) for (_, _, split), models in self.predictions().items()]
        merged: list[Scores] = []
        for one in [*given, *computed]:
            joined = next(((at, both) for at, other in enumerate(merged) if (both := other.joined(one))), None)
            if joined:
                merged[joined[0]] = joined[1]
            else:
                merged.append(one)
        return sorted(merged, key=lambda each: each.split != "test")


def short_names(artefacts: Sequence[Artefact]) -> list[str]:
    """What figures call these: the file's name alone where it tells them apart, the whole one where not."""
    stems = [each.stem for each in artefacts]
    return [stem if stems.count(stem) == 1 else each.name for stem, each in zip(stems, artefacts, strict=True)]


def _by_model(members: Sequence[Artefact]) -> dict[str, AnyPredictions]:
    """Models by what they are, those that are the same ("graft" twice) by their files."""
    models = [*map(_model_name, members)]
    files = short_names(members)
    names = [model if models.count(model) == 1 else file for model, file in zip(models, files, strict=True)]
    if len(set(names)) < len(names):
        names = [each.name for each in members]
    return {name: each.value for name, each in zip(names, members, strict=True)}


def _model_name(artefact: Artefact) -> str:
    """What a predictions file says that it comes from."""
    return str(artefact.value.made_by.get("model", artefact.stem))


class _NotOurs(Exception):
    """The file is whole but nothing that a report shows."""


def find(inputs: Iterable[str | Path]) -> Found:
    """Read all files and folders below the inputs. An input that does not exist is refused."""
    artefacts, unread, unused = [], [], []
    for name, path in _named(list(map(Path, inputs))):
        try:
            artefacts.append(_read(name, path))
            artefacts[-1] = _with_scores(artefacts[-1])
        except _NotOurs as why:
            unused.append(Aside(name, str(why)))
        except (SkillgraftError, OSError) as error:
            # The page goes to other people: folders of this machine do not belong on it.
            unread.append(Aside(name, str(error).replace(str(path), path.name).removeprefix(f"{path.name}: ")))
        except Exception as error:  # one damaged file must not spoil the rest, whatever is wrong with it
            unread.append(Aside(name, f"cannot be read ({type(error).__name__})"))
    return Found(tuple(artefacts), tuple(unread), tuple(unused))


def _named(inputs: list[Path]) -> Iterator[tuple[str, Path]]:
    """Every file and model folder once, by a name that begins with that of its input."""
    for given in inputs:
        if not given.exists():
            raise InputError(f"{given} does not exist; expected a folder or file to report on")
    # What a top folder is called; `.` and `runs/..` have names too.
    tops = {os.path.realpath(given): given.name.strip(".") or given.resolve().name for given in inputs}
    seen: set[str] = set()
    for given in inputs:
        top = tops[os.path.realpath(given)]
        yield from _below(given, top if list(tops.values()).count(top) == 1 else str(given), seen)


def _below(path: Path, name: str, seen: set[str]) -> Iterator[tuple[str, Path]]:
    true = os.path.realpath(path)
    if true in seen:  # named twice, or a link that leads back
        return
    seen.add(true)
    if not path.is_dir() or Path(name).name.startswith("."):
        yield name, path
        return
    model = is_model(path)
    if model:
        yield name, path
    for item in sorted(path.iterdir()):
        if not model or _is_guest(item):
            yield from _below(item, f"{name}/{item.name}", seen)


def is_model(folder: Path) -> bool:
    """Whether a folder is a model: it has skillgraft's ledger, or a config beside weights."""
    weights = any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir())
    return (folder / LEDGER).is_file() or (weights and (folder / "config.json").is_file())


def _is_guest(file: Path) -> bool:
    """Whether a file in a model folder is no part of the model: predictions, a graft, a region."""
    return file.suffix == ".npz" or (file.suffix == ".safetensors" and _format(file) in _OURS)


def _format(file: Path) -> str | None:
    try:
        return TensorFile.open(file).metadata.get("format")
    except SkillgraftError:
        return None  # the model's own file, and reading the model will tell


def _read(name: str, path: Path) -> Artefact:
    if Path(name).name.startswith("."):
        raise _NotOurs("hidden")
    reader = _model if path.is_dir() else READERS.get(path.suffix)
    if reader is None:
        raise _NotOurs(f"a report does not read {path.suffix or 'files without an ending'}")
    kind, value = reader(path)
    size = (
        sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else path.stat().st_size
    )
    return Artefact(kind, name, size, value)


def _with_scores(artefact: Artefact) -> Artefact:
    """The artefact with the scores that it tells. Broken scores do not spoil the graft that carries them."""
    tell = _SCORES.get(artefact.kind)
    return replace(artefact, scores=tell(artefact)) if tell else artefact


def _model(folder: Path) -> tuple[str, ModelFolder]:
    source = Checkpoint.open(folder)
    members = [member for layer in Ledger.of(source).applied for member in layer.members]
    # Where no graft is on, `Ledger.of` takes the folder itself as the base; what it was tuned from stands in its file.
    own = read_json(folder / LEDGER) if (folder / LEDGER).is_file() else {}
    made = {**(own.get("made") or {}), **({"versions": own["versions"]} if "versions" in own else {})}
    applied = [{"graft": member.file, "scale": member.scale, "entries": member.entries} for member in members]
    base = str(own.get("base_fingerprint", ""))
    return "model", ModelFolder(source.fingerprint, base, {**made, **({"applied": applied} if applied else {})})


def _tensors(path: Path) -> tuple[str, Any]:
    kind = TensorFile.open(path).metadata.get("format")
    if kind not in _OURS:
        raise _NotOurs("tensors, but neither a graft nor a region")
    if kind == graft_file.REGION:
        return "region", NamedRegion(graft_file.load_region(path), *graft_file.load_info(path))
    return "graft", graft_file.load(path)


def _predictions(path: Path) -> tuple[str, AnyPredictions]:
    return "predictions", load_predictions(path)


def _json(path: Path) -> tuple[str, Any]:
    """A result, or what a verb printed with `--json`, by the format that it names."""
    try:
        found = strict_json.parse(read_text(path, limit=CONFIG_BYTES))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from None
    if not isinstance(found, dict):
        raise _NotOurs("JSON, but not an object that a report shows")
    if found.get("format") == FORMAT:
        return "result", load_result(path)
    known = json_artefacts.read(found)
    if known is None:
        raise _NotOurs("JSON without a format that a report reads")
    return known


READERS: Mapping[str, Callable[[Path], tuple[str, Any]]] = MappingProxyType(
    {".safetensors": _tensors, ".npz": _predictions, ".json": _json}
)
_SCORES: Mapping[str, Callable[[Artefact], tuple[Scores, ...]]] = MappingProxyType(
    {
        "evaluation": lambda artefact: artefact.value,
        "localization": lambda artefact: (artefact.value.scores,),
        "graft": lambda artefact: json_artefacts.checked(
            json_artefacts.recorded, artefact.value, Path(artefact.name).name
        ),
    }
)
