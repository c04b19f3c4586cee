"""`remove` gives back the base's files byte for byte: header order, index, every side file, and permissions."""

from __future__ import annotations

import json
import stat

import pytest

from skillgraft.files import tensors as tensor_file
from skillgraft.files.tensors import TensorFile, header_bytes
from skillgraft.folders.apply import apply, remove
from skillgraft.folders.extract import extract
from skillgraft.folders.given import Named
from tests.model_folders import body, content, moved, numbers, write_folder


def shuffled(path, order):
    """Rewrite a weight file with its tensors in another order, padding and metadata: as other programs write them."""
    file = TensorFile.open(path)
    names = sorted(file.entries, key=order)
    arrays = {name: file.read(name).copy() for name in names}
    entries, at = [], 0
    for name in names:
        entries.append(tensor_file.Entry(name, file.entries[name].tag, arrays[name].shape, at, arrays[name].nbytes))
        at += arrays[name].nbytes
    header = header_bytes(entries, {"format": "pt", "who": "é"})
    text = header[8:].rstrip() + b" " * 13
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(arrays[name].tobytes() for name in names))


def modes(folder):
    return {str(f.relative_to(folder)): stat.S_IMODE(f.stat().st_mode) for f in folder.rglob("*")}


@pytest.fixture(params=[1, 3])
def base(request, tmp_path):
    """A folder as others write it: odd header order, odd index, cards, settings, links, modes."""
    base = write_folder(
        tmp_path / "base", body(prefix="bert.", cls__bias=(5,), pooler__weight=(4, 4)), shards=request.param
    )
    for file in base.glob("*.safetensors"):
        shuffled(file, lambda name: (hash(name[::-1]) % 7, name[::-1]))
        file.chmod(0o600)
    index = base / "model.safetensors.index.json"
    if index.exists():
        index.write_text(json.dumps(json.loads(index.read_text()), indent=3) + "\n\n")
    (base / "config.json").write_text('{ "architectures" : ["BertForMaskedLM"],\r\n "model_type":"bert" }')
    (base / "config.json").chmod(0o640)
    for name in ("README.md", "README.base.md", "vocab.txt", ".gitattributes", "skillgraft.json"):
        (base / name).write_bytes(
            b'{"made": {"by": "hand"}}' if name.endswith("json") else b"\xff\x00 " + name.encode()
        )
    (base / "sub").mkdir()
    (base / "sub" / "run.sh").write_text("x")
    (base / "sub" / "run.sh").chmod(0o700)
    return base


def with_head(tmp_path, name, seed, **heads):
    tensors = moved(body(cls__bias=(5,)), seed=seed) if not heads else {**moved(body(), seed=seed)}
    tensors |= {key.replace("__", "."): numbers(shape, seed=seed) for key, shape in heads.items()}
    return write_folder(tmp_path / name, tensors, config={"architectures": ["BertForSequenceClassification"]})


def test_a_graft_with_heads_comes_off_byte_for_byte(base, tmp_path):
    graft = Named(extract(base, with_head(tmp_path, "tuned", 1, classifier__weight=(2, 4), pooler__weight=(4, 4))), "g")
    assert graft.graft.info["removed"] == ["cls.bias"]
    apply(base, graft, out=tmp_path / "on")
    assert content(tmp_path / "on") != content(base)
    remove(tmp_path / "on", graft, out=tmp_path / "off")
    assert content(tmp_path / "off") == content(base)
    assert modes(tmp_path / "off") == modes(base)
    for file in (tmp_path / "on").glob("*.safetensors"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "on" / "skillgraft.undo").stat().st_mode) == 0o600


@pytest.mark.parametrize("first", ["body", "heads"])
def test_layers_come_off_in_any_order_byte_for_byte(base, first, tmp_path):
    whole = extract(base, with_head(tmp_path, "tuned", 1, classifier__weight=(2, 4), pooler__weight=(4, 4)))
    half = sorted(whole.region)[:2]
    parts = {
        "heads": Named(split(whole, half, True), "h"),
        "body": Named(
            split(whole, half, False).without_heads().with_info(prefix=None, removed=None, architectures=None), "b"
        ),
    }
    second = ({*parts} - {first}).pop()
    apply(base, parts["body"], out=tmp_path / "1")
    apply(tmp_path / "1", parts["heads"], out=tmp_path / "2")
    remove(tmp_path / "2", parts[first], out=tmp_path / "3")
    remove(tmp_path / "3", parts[second], out=tmp_path / "4")
    assert content(tmp_path / "4") == content(base)
    assert modes(tmp_path / "4") == modes(base)


def split(graft, names, inside):
    from skillgraft.values.region import Region

    region = Region(graft.region.scope, {n: at for n, at in graft.region.sites.items() if (n in names) == inside})
    return graft & region


def test_a_folder_of_an_older_version_comes_off_in_another_order(base, tmp_path):
    """Without the headers the tensors come back all the same."""
    from tests.model_folders import same_weights

    graft = Named(extract(base, with_head(tmp_path, "tuned", 1, classifier__weight=(2, 4))), "g")
    apply(base, graft, out=tmp_path / "on")
    undo = TensorFile.open(tmp_path / "on" / "skillgraft.undo")
    arrays = {name: undo.read(name).copy() for name in undo.entries}
    tensor_file.write(tmp_path / "on" / "skillgraft.undo", arrays, {})
    remove(tmp_path / "on", graft, out=tmp_path / "off")
    assert same_weights(tmp_path / "off", base)


def test_a_header_that_does_not_fit_is_not_used(base, tmp_path):
    from tests.model_folders import same_weights

    graft = Named(extract(base, with_head(tmp_path, "tuned", 1, classifier__weight=(2, 4))), "g")
    apply(base, graft, out=tmp_path / "on")
    undo = TensorFile.open(tmp_path / "on" / "skillgraft.undo")
    arrays = {name: undo.read(name).copy() for name in undo.entries}
    foreign = {key: "{}" if key.startswith("header:") else text for key, text in undo.metadata.items()}
    tensor_file.write(tmp_path / "on" / "skillgraft.undo", arrays, foreign)
    remove(tmp_path / "on", graft, out=tmp_path / "off")
    assert same_weights(tmp_path / "off", base)
