"""Models and grafts on the Hugging Face Hub: what a hub name is, fetching it into the cache, uploading a graft with a card.

    owner/name                      the newest revision: a model folder, or the repository's graft
    owner/name@revision:file        a file of it, at a branch, tag or commit
    hf:owner/name                   the hub's, even where a local folder has that name

A path that exists is a path; only another `owner/name` is a hub name. Everything is fetched by huggingface_hub, which keeps it
in its cache and asks `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` as it always does. What is about to be fetched is said on the
logger `skillgraft`, which the command line shows.

Refused: names with parts of dots alone, repositories without safetensors, grafts that cannot be read.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from skillgraft.errors import InputError, RunError, listed
from skillgraft.files import atomic
from skillgraft.folders.card import card
from skillgraft.values.graft import Graft, GraftLike, graft_of

T = TypeVar("T")
LOG = logging.getLogger("skillgraft.hub")
GRAFT = "skill.safetensors"  # what an uploaded graft is called there
ALWAYS = "hf:"
_PART = r"(?!\.+(?:$|[/@:]))[\w.-]{1,96}"
_NAME = re.compile(
    rf"(?P<name>{_PART}/{_PART})(@(?P<revision>[\w.][\w./-]{{0,99}}))?(:(?P<file>[\w.-][\w./-]{{0,199}}))?", re.ASCII
)
# What a model folder needs; other formats of the same weights stay where they are.
_WANTED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.md", "*.tiktoken")
_OTHERS = ("onnx/*", "openvino/*", "original/*", "consolidated*", "*.fp16.safetensors", "*.bf16.safetensors")


@dataclass(frozen=True)
class HubName:
    """A repository on the hub, at a revision, and a file in it."""

    name: str
    revision: str | None = None
    file: str | None = None

    @classmethod
    def of(cls, value: str | Path) -> HubName | None:
        """The hub name that a value is, or None if it is a path. What begins with `hf:` must be one."""
        text = str(value)
        forced = text.startswith(ALWAYS)
        if not forced and (Path(text).is_absolute() or Path(text).exists()):
            return None
        found = _NAME.fullmatch(text.removeprefix(ALWAYS))
        if found and ".." not in (found["file"] or "").split("/") and ".." not in (found["revision"] or "").split("/"):
            return cls(found["name"], found["revision"], found["file"])
        if forced:
            raise InputError(f"{text}: expected hf:owner/name, hf:owner/name@revision or hf:owner/name@revision:file")
        return None

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        return f"{self.name}{at}" + (f":{self.file}" if self.file else "")


def located(value: str | Path) -> str | Path:
    """A model's path once it is here; whatever is no hub name as it is."""
    return folder_at(value) if HubName.of(value) else value


def folder_at(value: str | Path) -> Path:
    """The folder (or file) of a model: a path as it is, a cached repository's newest snapshot, a hub name's once fetched."""
    hub = HubName.of(value)
    if hub is None:
        return _snapshot(Path(value))
    if hub.file:
        return _file(hub, hub.file)
    LOG.info("fetching the model %s from the hub", hub)
    wanted = {"allow_patterns": list(_WANTED), "ignore_patterns": list(_OTHERS)}
    folder = Path(_asked(hub, lambda library: library.snapshot_download(hub.name, revision=hub.revision, **wanted)))
    if not any(folder.glob("*.safetensors")):
        raise InputError(
            f"{hub} on the hub has no safetensors; ask its owner to convert the weights, or convert a copy"
        )
    return folder


def file_at(value: str | Path) -> Path:
    """The file of a graft or region: a path as it is, a hub name's once it is fetched."""
    hub = HubName.of(value)
    if hub is None:
        return Path(value)
    LOG.info("fetching %s from the hub", hub)
    return _file(hub, hub.file or _graft_file(hub))


def upload(
    graft: GraftLike, name: str, *, private: bool = False, licence: str | None = None, message: str | None = None
) -> str:
    """Put a graft with its card into a repository of the hub, which is made where it is not there; returns its address.

    `name` is `owner/name`, or `owner/name:file` for another file than skill.safetensors. `licence` goes into the card.
    """
    hub = HubName.of(name if name.startswith(ALWAYS) else ALWAYS + name)
    assert hub is not None
    if hub.revision:
        raise InputError(f"{hub}: an upload makes a new revision of the main branch; leave @{hub.revision} out")
    g, file = graft_of(graft), hub.file or GRAFT
    if not file.endswith(".safetensors"):
        raise InputError(f"{hub}: a graft's file is called *.safetensors, found {file}")
    seen, under = "private" if private else "public", f"licence {licence}" if licence else "no licence stated"
    LOG.info(
        "uploading %s (%s entries) and its card to %s: %s if it is new, %s", file, f"{len(g):,}", hub.name, seen, under
    )

    def send(library: Any) -> str:
        with tempfile.TemporaryDirectory(prefix="skillgraft-upload-") as room:
            g.save(Path(room) / "graft.safetensors")
            api = library.HfApi()
            api.create_repo(hub.name, private=private, exist_ok=True)
            text = card(g, hub.name, file=file, licence=licence).encode()
            parts = {"README.md": text, file: str(Path(room) / "graft.safetensors")}
            operations = [library.CommitOperationAdd(path, content) for path, content in parts.items()]
            done = api.create_commit(hub.name, operations, commit_message=message or f"Graft of {len(g):,} entries")
            return str(done.repo_url)

    return str(_asked(hub, send))


def download(name: str, out: str | Path) -> Graft:
    """Copy a graft of the hub to a file of its own; it is read first, and nothing is written if it is not a graft."""
    atomic.check_target(Path(out))
    hub = HubName.of(name if name.startswith(ALWAYS) else ALWAYS + name)
    assert hub is not None
    source = file_at(ALWAYS + str(hub))
    graft = Graft.load(source)
    with atomic.new_file(Path(out)) as temporary:
        shutil.copyfile(source, temporary)
    return graft


def cached_name(folder: Path) -> str | None:
    """The hub name of a snapshot in the cache; None for any other folder."""
    parts = folder.absolute().parts
    if len(parts) < 3 or parts[-2] != "snapshots" or not parts[-3].startswith("models--"):
        return None
    return parts[-3].removeprefix("models--").replace("--", "/")


def _snapshot(path: Path) -> Path:
    """The newest snapshot of a repository's own folder in the cache; any other path as it is."""
    main = path / "refs" / "main"
    if not (path.name.startswith("models--") and main.is_file()):
        return path
    revision = main.read_text(encoding="ascii", errors="replace").strip()
    found = path / "snapshots" / revision
    if not re.fullmatch(r"[0-9a-f]{7,64}", revision) or not found.is_dir():
        raise InputError(f"{path} names a snapshot that is not in it; fetch the model again")
    return found


def _file(hub: HubName, file: str) -> Path:
    return Path(_asked(hub, lambda library: library.hf_hub_download(hub.name, file, revision=hub.revision)))


def _graft_file(hub: HubName) -> str:
    """The repository's graft: skill.safetensors, or its only safetensors file."""
    files = _asked(hub, lambda library: _files(library, hub))
    grafts = [file for file in files if file.endswith(".safetensors")]
    if GRAFT in grafts or not grafts:
        return GRAFT
    if len(grafts) > 1:
        raise InputError(f"{hub} holds {listed(grafts)}; name one of them: {hub}:{grafts[0]}")
    return grafts[0]


def _files(library: Any, hub: HubName) -> list[str]:
    """The repository's files; offline, those that are cached."""
    if _offline():
        folder = Path(library.snapshot_download(hub.name, revision=hub.revision, local_files_only=True))
        return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    return sorted(library.HfApi().list_repo_files(hub.name, revision=hub.revision))


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.is_offline_mode())


def _asked(hub: HubName, call: Callable[[Any], T]) -> T:
    """What the hub answers; its library's errors as ours."""
    try:
        import huggingface_hub
    except ImportError:
        raise InputError(
            f"{hub} is a hub name, which needs the package huggingface_hub: pip install 'skillgraft[hub]'"
        ) from None
    with _explained(hub), _bars_on_a_terminal():
        return call(huggingface_hub)


@contextmanager
def _bars_on_a_terminal() -> Iterator[None]:
    """How far a download is, only where someone can see it; the setting found is put back."""
    from huggingface_hub import utils

    silenced = not sys.stderr.isatty() and not utils.are_progress_bars_disabled()
    if silenced:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        if silenced:
            utils.enable_progress_bars()


@contextmanager
def _explained(hub: HubName) -> Iterator[None]:
    from huggingface_hub import errors

    reasons: tuple[tuple[type[Exception], str], ...] = (
        (errors.GatedRepoError, "is gated: accept its terms on the hub and log in with `hf auth login`"),
        (
            errors.RepositoryNotFoundError,
            "is not on the hub, or is private: check the name, or log in with `hf auth login`",
        ),
        (
            errors.RevisionNotFoundError,
            f"has no revision {hub.revision!r}: leave it out for the newest, or name a branch, tag or commit",
        ),
        (errors.RemoteEntryNotFoundError, f"has no file {hub.file or GRAFT!r} on the hub"),
        (errors.LocalTokenNotFoundError, "needs a token: log in with `hf auth login`"),
        (
            errors.LocalEntryNotFoundError,
            "is not in the cache, and the hub cannot be reached: connect, or give a local folder",
        ),
        (errors.HFValidationError, "is not a name that the hub takes"),
    )
    try:
        yield
    except (errors.OfflineModeIsEnabled, errors.CachedRepoTreeNotFoundError) as error:
        raise InputError(
            f"{hub} is not in the cache, and HF_HUB_OFFLINE forbids to fetch it: connect, or give a local folder"
        ) from error
    except tuple(kind for kind, _ in reasons) as error:
        why = next(why for kind, why in reasons if isinstance(error, kind))
        raise InputError(f"{hub} {why}") from error
    except (errors.HfHubHTTPError, OSError, RuntimeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise RunError(f"{hub}: the hub could not do it: {type(error).__name__}: {first[:200]}") from error
