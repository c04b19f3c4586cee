"""Every way in which a model folder can be wrong, or become so while it is read."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

from skillgraft.errors import FormatError, InputError
from skillgraft.files import tensors as tensor_file
from skillgraft.folders.checkpoint import Checkpoint
from tests.model_folders import DENSE, EMBEDDING, QUERY, body, real_model, same_weights, write_folder

INDEX = "model.safetensors.index.json"


def refused(folder, error: type[InputError] = InputError) -> str:
    with pytest.raises(error) as caught:
        Checkpoint.open(folder)
    return str(caught.value)


def test_missing_folder(tmp_path):
    assert refused(tmp_path / "no").endswith(
        "/no does not exist; expected a model folder with config.json and model.safetensors"
    )


def test_file_instead_of_folder(tmp_path):
    (tmp_path / "m.safetensors").write_bytes(b"")
    assert "m.safetensors is a file; expected a model folder" in refused(tmp_path / "m.safetensors")


def test_no_weights(tmp_path):
    (tmp_path / "vocab.txt").write_text("a")
    assert f"has no model.safetensors and no {INDEX}; found vocab.txt" in refused(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "found nothing" in refused(tmp_path / "empty")


def test_adapter_is_not_a_base(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "is a PEFT adapter; it can be TUNED" in refused(tmp_path)


@pytest.mark.parametrize("architectures", [["a; import os"], "BertModel", [3], None], ids=str)
def test_pickled_weights(architectures, tmp_path):
    """Nothing of an untrusted config gets into the command, and an odd folder name is quoted."""
    folder = tmp_path / 'it\'s "odd" $HOME'
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": architectures}))
    (folder / "pytorch_model.bin").write_bytes(b"")
    message = refused(folder)
    assert "pytorch_model.bin, a pickle: loading one can run any code, so skillgraft never does" in message
    python, option, code = shlex.split(message.split("convert it: ", 1)[1])
    assert (python, option) == ("python", "-c")
    expected = f"t.AutoModel.from_pretrained({json.dumps(str(folder))})"
    assert code.startswith(f"import transformers as t; {expected}.save_pretrained(")


@pytest.mark.long
def test_pickled_weights_come_with_a_command_that_converts_them(tmp_path):
    torch = pytest.importorskip("torch")
    import transformers

    real = real_model("BertForMaskedLM", tmp_path / "real")
    folder = tmp_path / "pickled"
    folder.mkdir()
    shutil.copy(real / "config.json", folder)
    torch.save(transformers.BertForMaskedLM.from_pretrained(real).state_dict(), folder / "pytorch_model.bin")
    command = shlex.split(refused(folder).split("convert it: ", 1)[1])
    subprocess.run([sys.executable, *command[1:]], check=True, capture_output=True)
    assert same_weights(tmp_path / "pickled-safetensors", real)


@pytest.mark.parametrize(
    ("setting", "said"), [({"quant_method": "gptq", "bits": 4}, "gptq"), ({}, "None"), ("fp8", "fp8")]
)
def test_quantised_model(setting, said, tmp_path):
    folder = write_folder(tmp_path / "m", body(), config={"quantization_config": setting})
    assert f"is quantised ({said}); skillgraft needs the original F32, F16 or BF16 weights" in refused(folder)


def test_quantisation_set_to_null_is_none(tmp_path):
    opened = Checkpoint.open(write_folder(tmp_path / "m", body(), config={"quantization_config": None}))
    assert opened.shapes


def test_eight_bit_weights(tmp_path):
    folder = write_folder(tmp_path / "m", {"w": np.zeros(4, np.uint8)})
    path = folder / "model.safetensors"
    text = path.read_bytes()[8:].replace(b'"U8"', b'"F8_E4M3"')
    header, rest = text[: text.rindex(b"}") + 1], b"\0" * 4
    path.write_bytes(len(header).to_bytes(8, "little") + header + rest)
    assert "w: F8_E4M3 is a quantised format; skillgraft works on F64, F32, F16 and BF16" in refused(
        folder, FormatError
    )


def sharded(path, change=lambda weight_map: weight_map):
    folder = write_folder(path / "m", body(), shards=2)
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    (folder / INDEX).write_text(json.dumps({"weight_map": change(weight_map)}))
    return folder


def test_index_that_names_a_missing_shard(tmp_path):
    folder = sharded(tmp_path)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert (
        "the index names model-00002-of-00002.safetensors, which are not there; is the download complete?"
        in refused(folder)
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda m: {k: v for k, v in m.items() if k != DENSE},
        lambda m: {**m, DENSE: next(v for v in m.values() if v != m[DENSE])},
    ],
    ids=["tensor not listed", "tensor in another shard"],
)
def test_index_that_disagrees_with_its_files(change, tmp_path):
    assert f"{INDEX}: disagrees with its files about {DENSE}" in refused(sharded(tmp_path, change), FormatError)


def test_tensor_that_no_shard_has(tmp_path):
    folder = sharded(tmp_path, lambda m: {**m, "more.weight": m[DENSE]})
    assert "disagrees with its files about more.weight" in refused(folder, FormatError)


def test_tensor_in_two_shards(tmp_path):
    folder = sharded(tmp_path)
    for shard in sorted(folder.glob("*.safetensors")):
        parts = {name: a for name, a in body().items() if name in tensor_file.TensorFile.open(shard).entries}
        tensor_file.write(shard, {**parts, DENSE: body()[DENSE]}, {})
    assert f"disagrees with its files about {DENSE}" in refused(folder, FormatError)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "sub/x.safetensors", "", ".", ".."])
def test_index_that_points_elsewhere(name, tmp_path):
    (tmp_path / "x").write_bytes(b"")
    folder = sharded(tmp_path, lambda m: {**m, DENSE: name})
    message = refused(folder)
    assert "are not plain file names beside it" in message or "which are not there" in message


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": []}', '{"weight_map": {}}', "{}", '"' * 3])
def test_index_that_is_no_index(text, tmp_path):
    folder = sharded(tmp_path)
    (folder / INDEX).write_text(text)
    assert INDEX in refused(folder, FormatError)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_config_that_is_no_object(text, tmp_path):
    folder = write_folder(tmp_path / "m", body())
    (folder / "config.json").write_text(text)
    assert "config.json" in refused(folder, FormatError)


def test_config_in_another_encoding(tmp_path):
    folder = write_folder(tmp_path / "m", body())
    (folder / "config.json").write_bytes('{"a": "é"}'.encode("latin-1"))
    assert "config.json is not valid JSON" in refused(folder, FormatError)


# Files that change underneath


def test_file_replaced_between_opening_and_reading(tmp_path):
    opened = Checkpoint.open(write_folder(tmp_path / "m", body()))
    tensor_file.write(tmp_path / "m" / "model.safetensors", body(1), {})
    with pytest.raises(InputError, match="changed while it was being read; run again on a file that nobody writes"):
        opened.read(QUERY)


@pytest.mark.parametrize("mapped", [False, True], ids=["before the first read", "after the first read"])
def test_file_truncated_underneath_is_an_error_not_a_dead_process(mapped, tmp_path):
    opened = Checkpoint.open(write_folder(tmp_path / "m", body()))
    if mapped:
        opened.read(QUERY)
    with (tmp_path / "m" / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(InputError, match="changed while it was being read"):
        opened.read(EMBEDDING).sum()
    with pytest.raises(InputError, match="changed while it was being read"):
        opened.check_unchanged()


def test_file_removed_underneath(tmp_path):
    opened = Checkpoint.open(write_folder(tmp_path / "m", body()))
    shutil.rmtree(tmp_path / "m")
    with pytest.raises(InputError, match="disappeared while working"):
        opened.read(QUERY)
