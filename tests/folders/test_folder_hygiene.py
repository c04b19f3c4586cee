"""What a grafted copy of a folder holds beside its weights, and that the original stays as it is."""

from __future__ import annotations

import json

import pytest

from skillgraft.errors import InputError
from skillgraft.files import tensors as tensor_file
from skillgraft.folders.apply import apply, remove
from skillgraft.folders.extract import extract
from tests.model_folders import body, content, file_names, moved, named, numbers, same_weights, write_folder, write_pair


@pytest.mark.parametrize("shards", [1, 2])
def test_what_travels_and_what_does_not(shards, tmp_path):
    base = write_folder(tmp_path / "base", body(), shards=shards)
    tuned = write_folder(tmp_path / "tuned", moved(body()))
    stale = [
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "tf_model.h5",
        "model.fp16.safetensors",
        "training_args.bin",
    ]
    for file in [*stale, "tokenizer.json", "vocab.txt", "generation_config.json", ".hidden", "modeling_mine.py"]:
        (base / file).write_text("{}")
    for sub in ("1_Pooling/config.json", "2_Dense/pytorch_model.bin", "onnx/model.onnx", ".cache/x"):
        (base / sub).parent.mkdir()
        (base / sub).write_text("{}")
    before = content(base)
    for file in base.rglob("*"):
        file.chmod(0o555 if file.is_dir() else 0o444)
    outcome = apply(base, *named(extract(base, tuned)), out=tmp_path / "on")
    assert outcome.left_out == tuple(sorted([*stale, "onnx"]))
    assert content(base) == before
    travelled = {"tokenizer.json", "vocab.txt", "generation_config.json", "modeling_mine.py", "1_Pooling", "2_Dense"}
    weights = {file.name for file in base.glob("model*") if file.name != "model.fp16.safetensors"}
    assert file_names(tmp_path / "on") == travelled | weights | {"config.json", "README.md", "skillgraft.json"}
    assert same_weights(tmp_path / "on", tuned)
    (tmp_path / "on" / "tokenizer.json").write_text("the copy can be edited")


def test_folder_with_links_becomes_a_folder_with_file_names(tmp_path):
    """As in a hub cache, where a snapshot's files are links to blobs."""
    real, tuned = write_folder(tmp_path / "blobs", body()), write_folder(tmp_path / "tuned", moved(body()))
    base = tmp_path / "snapshots" / "5f1d"
    base.mkdir(parents=True)
    for file in real.iterdir():
        (base / file.name).symlink_to(f"../../blobs/{file.name}")
    apply(base, *named(extract(base, tuned)), out=tmp_path / "on")
    assert not any(file.is_symlink() for file in (tmp_path / "on").iterdir())
    assert same_weights(tmp_path / "on", tuned)
    assert same_weights(real, base)


def test_folder_without_config_or_header_metadata(tmp_path):
    base, tuned = tmp_path / "base", tmp_path / "tuned"
    for folder, tensors in ((base, body()), (tuned, moved(body()))):
        folder.mkdir()
        tensor_file.write(folder / "model.safetensors", tensors, {})
    graft = named(extract(base, tuned))
    apply(base, *graft, out=tmp_path / "on")
    remove(tmp_path / "on", *graft, out=tmp_path / "off")
    assert same_weights(tmp_path / "on", tuned)
    assert file_names(tmp_path / "off") == {"model.safetensors"}


def test_index_counts_the_bytes_of_the_tensors(tmp_path):
    base = write_folder(tmp_path / "base", body(), shards=2)
    tuned = {**moved(body()), "classifier.weight": numbers((3, 4), seed=1)}
    apply(base, *named(extract(base, write_folder(tmp_path / "tuned", tuned))), out=tmp_path / "on")
    index = json.loads((tmp_path / "on" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in tuned.values())
    assert index["weight_map"].keys() == tuned.keys()


def test_output_inside_the_input_is_refused(tmp_path):
    base, tuned = write_pair(tmp_path, body(), moved(body()))
    graft = named(extract(base, tuned))
    for out in (base / "out", base / "a" / "b"):
        with pytest.raises(InputError, match=r"lies inside .*, which stays as it is; choose an output outside it"):
            apply(base, *graft, out=out)
    with pytest.raises(InputError, match="exists already; choose another output or remove it first"):
        apply(base, *graft, out=base)
    assert content(base).keys() == {"config.json", "model.safetensors"}
