"""Hub names: what is one, fetching from and uploading to a hub of our own, and what is said when that cannot be done."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillgraft import Graft, Region, apply, extract
from skillgraft.errors import FormatError, InputError, RunError
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.hub import GRAFT, HubName, download, file_at, folder_at, upload
from tests.family import write_family
from tests.hub_server import Hub
from tests.model_folders import same_weights

constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("family"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty hub, an empty cache, and huggingface_hub pointed at both."""
    with Hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        monkeypatch.chdir(tmp_path)
        yield server


def put_folder(hub: Hub, name: str, folder: Path) -> str:
    return hub.put(name, {file.name: file.read_bytes() for file in folder.iterdir()})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("owner/name", HubName("owner/name")),
        ("owner/name@main", HubName("owner/name", "main")),
        ("owner/name@v1.0:skills/a.safetensors", HubName("owner/name", "v1.0", "skills/a.safetensors")),
        ("o.w-n_er/n:x", HubName("o.w-n_er/n", None, "x")),
        ("hf:owner/name", HubName("owner/name")),
        ("hf:owner/name@refs/pr/1", HubName("owner/name", "refs/pr/1")),
        ("name", None),
        ("a/b/c", None),
        ("./owner/name", None),
        ("../name", None),
        ("owner/..", None),
        ("owner/...", None),
        ("/owner/name", None),
        ("owner/name:../../etc/passwd", None),
        ("owner/name@../x", None),
        ("owner/na me", None),
        ("owner/nämé", None),
        ("", None),
    ],
)
def test_what_is_a_hub_name(text: str, wanted: HubName | None) -> None:
    assert HubName.of(text) == wanted
    if wanted and not text.startswith("hf:"):
        assert str(wanted) == text


@pytest.mark.parametrize("text", ["hf:name", "hf:../../etc", "hf:a/b/c", "hf:", "hf:o/n:../x", "hf:/etc/passwd"])
def test_what_begins_with_hf_must_be_one(text: str) -> None:
    with pytest.raises(InputError, match="expected hf:owner/name"):
        HubName.of(text)


def test_a_local_folder_wins_but_for_hf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert HubName.of("owner/name") is None
    assert folder_at("owner/name") == Path("owner/name")
    assert HubName.of("hf:owner/name") == HubName("owner/name")


def test_base_tuned_and_graft_by_name(hub: Hub, family: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put_folder(hub, "me/base", family / "BASE")
    put_folder(hub, "me/tuned", family / "TUNED")
    with caplog.at_level("INFO", logger="skillgraft"):
        g = extract("me/base", "me/tuned")
    assert caplog.messages == ["fetching the model me/base from the hub", "fetching the model me/tuned from the hub"]
    assert g.digest == extract(family / "BASE", family / "TUNED").digest
    assert g.info["base"] == "me/base"
    assert "127.0.0.1" in g.push_to_hub("me/skill", licence="mit")
    assert Graft.load("me/skill") == g
    assert Region.load("hf:me/skill") == g.region
    apply("me/base", "me/skill", out=tmp_path / "ON")
    apply(family / "BASE", g, out=tmp_path / "WANTED")
    assert same_weights(tmp_path / "ON", tmp_path / "WANTED")


def test_a_second_time_nothing_is_fetched_anew(hub: Hub, family: Path) -> None:
    put_folder(hub, "me/base", family / "BASE")
    folder = folder_at("me/base")
    hub.requests.clear()
    assert folder_at("me/base") == folder
    assert not [request for request in hub.requests if request.startswith("GET /me/base/resolve")]
    repository = folder.parents[1]
    assert Checkpoint.open(repository).path == folder  # the cache's own folder, as it lies there
    assert Checkpoint.open(folder).name == "me/base"


def test_revisions_and_files(hub: Hub, family: Path, tmp_path: Path) -> None:
    g = extract(family / "BASE", family / "TUNED", entries=2)
    h = extract(family / "BASE", family / "OTHER")
    upload(g, "me/skills")
    first = hub.repositories["me/skills"][-1][0]
    upload(h, "me/skills")
    upload(g, "me/skills:small.safetensors")
    assert Graft.load("me/skills").digest == h.digest
    assert Graft.load(f"me/skills@{first}").digest == g.digest
    assert Graft.load("me/skills:small.safetensors").digest == g.digest
    assert download("me/skills:small.safetensors", tmp_path / "g.safetensors").digest == g.digest
    assert Graft.load(tmp_path / "g.safetensors") == g
    with pytest.raises(InputError, match="exists already"):
        download("me/skills", tmp_path / "g.safetensors")


def test_a_graft_by_another_name_and_several(hub: Hub, family: Path, tmp_path: Path) -> None:
    extract(family / "BASE", family / "OTHER").save(tmp_path / "g.safetensors")
    data = (tmp_path / "g.safetensors").read_bytes()
    hub.put("me/one", {"only.safetensors": data, "README.md": b"x"})
    assert len(Graft.load("me/one")) == 2
    hub.put("me/one", {"second.safetensors": data})
    with pytest.raises(
        InputError, match=r"holds only\.safetensors, second\.safetensors; name one of them: me/one:only"
    ):
        Graft.load("me/one")
    hub.put("me/none", {"README.md": b"x"})
    with pytest.raises(InputError, match=r"me/none has no file 'skill\.safetensors' on the hub"):
        Graft.load("me/none")


def test_what_cannot_be_had_is_said_in_words(hub: Hub, family: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_folder(hub, "me/base", family / "BASE")
    hub.put("me/pickles", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    hub.put("me/gated", {})
    hub.gated.add("me/gated")
    for name, says in {
        "me/nothing": "me/nothing is not on the hub, or is private: .*hf auth login",
        "me/base@v9": "me/base@v9 has no revision 'v9': leave it out for the newest",
        "me/gated": "me/gated is gated: accept its terms",
        "me/pickles": "me/pickles on the hub has no safetensors",
    }.items():
        with pytest.raises(InputError, match=says):
            Checkpoint.open(name)
    with pytest.raises(InputError, match=r"has no file .x\.gguf. on the hub"):
        folder_at("me/base:x.gguf")
    hub.put("me/bad", {GRAFT: b"not a graft"})
    with pytest.raises(FormatError):
        Graft.load("me/bad")
    with pytest.raises(InputError, match="leave @v1 out"):
        upload(extract(family / "BASE", family / "OTHER"), "me/skill@v1")
    with pytest.raises(InputError, match=r"called \*\.safetensors, found x\.bin"):
        upload(extract(family / "BASE", family / "OTHER"), "me/skill:x.bin")
    folder_at("me/base")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert Checkpoint.open("me/base").places  # cached
    with pytest.raises(InputError, match=r"me/other is not in the cache, and .*connect, or give a local folder"):
        Checkpoint.open("me/other")
    with pytest.raises(InputError, match="me/skill is not in the cache"):
        Graft.load("me/skill")


@pytest.mark.long  # huggingface_hub tries again for half a minute
@pytest.mark.usefixtures("hub")
def test_no_hub_to_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises((InputError, RunError), match=r"me/base(:|.*cannot be reached)"):
        folder_at("me/base")


def test_the_card_says_what_it_is_and_how_to_use_it(hub: Hub, family: Path) -> None:
    scores = {"validation": {"base": {"accuracy": 0.5}, "graft": {"accuracy": 0.875, "ece": 0.04}}}
    g = extract(family / "BASE", family / "OTHER").with_info(
        base="me/base", task="films|<script>", scores=scores, method="movement\n# forged"
    )
    g.push_to_hub("me/skill", licence='mit"\nevil: 1')
    card = hub.repositories["me/skill"][-1][1]["README.md"].decode()
    head, _, page = card.removeprefix("---\n").partition("---\n")
    assert 'base_model: "me/base"' in head
    assert head.count("\nlicense: ") == 1
    assert "evil: 1" not in head.splitlines()
    assert 'apply("me/base", "me/skill", out="grafted")' in page
    assert g.digest in page
    assert g.base_fingerprint in page
    assert "| graft | 0.875 | 0.04 |" in page
    assert "<script>" not in card
    assert "\n# forged" not in card


def test_the_command_line(hub: Hub, family: Path, tmp_path: Path) -> None:
    put_folder(hub, "me/base", family / "BASE")
    extract(family / "BASE", family / "OTHER").save(tmp_path / "g.safetensors")
    said = run(hub, tmp_path, "upload", "g.safetensors", "me/skill", "--licence", "mit")
    assert said.stdout.startswith(f"{hub.address}/me/skill: 2 entries")
    does = "uploading skill.safetensors (2 entries) and its card to me/skill: public if it is new, licence mit"
    assert does in said.stderr
    said = run(hub, tmp_path, "apply", "me/base", "me/skill", "-o", "ON")
    assert said.stderr.splitlines() == ["fetching me/skill from the hub", "fetching the model me/base from the hub"]


@pytest.mark.long
def test_more_of_the_command_line(hub: Hub, family: Path, tmp_path: Path) -> None:
    extract(family / "BASE", family / "OTHER").push_to_hub("me/skill")
    run(hub, tmp_path, "download", "me/skill", "-o", "h.safetensors")
    assert len(Graft.load(tmp_path / "h.safetensors")) == 2
    assert run(hub, tmp_path, "check", "me/base", "me/nothing", ends=2).stderr.endswith("`hf auth login`\n")


@pytest.mark.long
def test_a_task_s_rows_by_name(hub: Hub, tmp_path: Path) -> None:
    """Through `datasets` itself: fetched once, read offline after that, and refused in words where they are not."""
    pytest.importorskip("datasets")
    rows = [{"text": f"a film of {n} hours", "label": "bad" if n > 3 else "good"} for n in range(8)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    hub.put("datasets/me/films", {"train.jsonl": lines, "test.jsonl": lines, "README.md": b"# films"})
    read = "import sys; from skillgraft.tasks.sources import read_table; print(len(read_table(sys.argv[1], ('text', 'label'))))"
    assert run(hub, tmp_path, "hf:me/films:train", code=read).stdout == "8\n"
    hub.requests.clear()
    assert run(hub, tmp_path, "hf:me/films:train", code=read, HF_HUB_OFFLINE="1").stdout == "8\n"
    assert hub.requests == []
    for name, says in (("hf:me/none:train", "me/none"), ("hf:me/films:dev", "dev")):
        ended = run(hub, tmp_path, name, code=read, ends=1)
        assert re.search(rf"DataError: {name}: cannot be read: .*{says}", ended.stderr)


def run(
    hub: Hub, where: Path, *words: str, ends: int = 0, code: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    settings = {
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(where / "home"),
        "HF_TOKEN": "hf_test",
        "HF_HUB_DISABLE_XET": "1",
        **more,
    }
    ended = subprocess.run(
        [sys.executable, *(["-c", code] if code else ["-m", "skillgraft"]), *words],
        cwd=where,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == ends, ended.stderr
    return ended


def test_a_file_is_only_what_it_is(tmp_path: Path) -> None:
    assert file_at(tmp_path / "g.safetensors") == tmp_path / "g.safetensors"
