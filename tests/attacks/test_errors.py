"""Content of an odd type or size ends in an error of the project's own tree, never in "This looks like a bug"."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from skillgraft.compose.store import ContinualStore
from skillgraft.errors import DataError, FormatError, InputError, SkillgraftError
from skillgraft.files import tensors as tensor_file
from skillgraft.files.gguf_header import check_gguf
from skillgraft.files.tensors import Entry, header_bytes
from skillgraft.folders.apply import apply, remove
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.folders.given import Named
from skillgraft.report.artefacts import find
from skillgraft.tasks.section import Section
from skillgraft.tasks.sources import read_table
from skillgraft.values.info import Info
from tests.fuzz import run as fuzzing
from tests.fuzz.targets import TARGETS, seeds
from tests.model_folders import QUERY, body, moved, write_folder, write_pair


@pytest.mark.parametrize(
    "items",
    [
        {"removed": [[1]]}, {"body_heads": [None]}, {"architectures": [3]}, {"labels": [["a"]]}, {"id2label": {"0": 5}},
        {"id2label": {"0": [1]}}, {"versions": {"numpy": 2}},
    ],
)  # fmt: skip
def test_provenance_of_odd_types(items):
    with pytest.raises(InputError, match="must hold texts alone"):
        Info(**items)
    with pytest.raises(InputError, match="must hold texts alone"):
        Info.from_texts({key: json.dumps(value) for key, value in items.items()})


@pytest.mark.parametrize("name", [5, None, ["x"], {}, "x" * 5000, "a\nb", "\x1b[2J", ""])
def test_a_model_s_name_is_a_short_line(name, tmp_path):
    folder = write_folder(tmp_path / "base", body(), config={"_name_or_path": name})
    assert Checkpoint.open(folder).name == "base"


def test_half_characters_in_a_config(tmp_path):
    folder = write_folder(tmp_path / "base", body())
    (folder / "config.json").write_text('{"model_type": "\\ud800"}')
    with pytest.raises(FormatError, match=r"config\.json is not valid JSON"):
        Checkpoint.open(folder)


def test_an_index_that_names_a_file_of_an_impossible_name(tmp_path):
    folder = write_folder(tmp_path / "base", body(), shards=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x" * 3000}}))
    with pytest.raises(InputError, match=r"the index names x{20}.* which are not there"):
        Checkpoint.open(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"base": 5}, {"base_prefix": ["x"]}, {"base_prefix": "0."}, {"base_config": 1}, {"base_config": "[1]"},
        {"base_config": "{"}, {"base_ledger": {}}, {"made": [1]}, {"applied": 5}, {"applied": [5]}, {"applied": [{}]},
        {"more": 1},
    ],
)  # fmt: skip
def test_an_edited_ledger(change, tmp_path):
    base, tuned = write_pair(tmp_path, body(), moved(body()))
    graft = Named(extract(base, tuned), "g")
    apply(base, graft, out=tmp_path / "on")
    file = tmp_path / "on" / "skillgraft.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(FormatError, match="not a ledger that skillgraft wrote"):
        remove(tmp_path / "on", graft, out=tmp_path / "off")


@pytest.mark.parametrize(
    "change",
    [
        {"members": 5}, {"members": [{"digest": 1}]}, {"heads": "abc"}, {"heads": [[1]]}, {"removed": [1]}, {"prefix": 5},
        {"prefix": "a b."}, {"settings": [1]}, {"settings": 7},
        {"members": [{"digest": "a", "file": "f", "scale": int("9" * 400), "entries": 1}]},
        {"members": [{"digest": "a", "file": "f", "scale": float("inf"), "entries": 1}]},
    ],
)  # fmt: skip
def test_an_edited_layer(change, tmp_path):
    base, tuned = write_pair(tmp_path, body(), moved(body()))
    graft = Named(extract(base, tuned), "g")
    apply(base, graft, out=tmp_path / "on")
    file = tmp_path / "on" / "skillgraft.json"
    content = json.loads(file.read_text())
    content["applied"][0] |= change
    file.write_text(json.dumps(content))
    with pytest.raises(FormatError, match="not a ledger that skillgraft wrote"):
        remove(tmp_path / "on", graft, out=tmp_path / "off")


@pytest.mark.parametrize(
    "settings",
    [
        {"lora_alpha": int("9" * 400)}, {"lora_alpha": "8"}, {"lora_alpha": [8]}, {"lora_alpha": 1e300},
        {"alpha_pattern": [1]}, {"alpha_pattern": {"query": "x"}}, {"alpha_pattern": {"query": int("9" * 400)}},
    ],
)  # fmt: skip
def test_lora_settings_of_odd_types(settings, tmp_path):
    base = write_folder(tmp_path / "base", body())
    (tmp_path / "lora").mkdir()
    stem = f"base_model.model.{QUERY.removesuffix('.weight')}"
    factors = {
        f"{stem}.lora_A.weight": np.ones((1, 4), np.float32),
        f"{stem}.lora_B.weight": np.ones((4, 1), np.float32),
    }
    tensor_file.write(tmp_path / "lora" / "adapter_model.safetensors", factors, {})
    (tmp_path / "lora" / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "lora_alpha": 1, **settings})
    )
    with pytest.raises((FormatError, InputError)):
        extract(base, tmp_path / "lora")


@pytest.mark.parametrize("task_type", [["SEQ_CLS"], {"a": 1}, 5])
def test_a_lora_task_of_an_odd_type_is_none(task_type, tmp_path):
    base = write_folder(tmp_path / "base", body())
    (tmp_path / "lora").mkdir()
    stem = f"base_model.model.{QUERY.removesuffix('.weight')}"
    factors = {
        f"{stem}.lora_A.weight": np.ones((1, 4), np.float32),
        f"{stem}.lora_B.weight": np.ones((4, 1), np.float32),
    }
    tensor_file.write(tmp_path / "lora" / "adapter_model.safetensors", factors, {})
    settings = {"peft_type": "LORA", "lora_alpha": 1, "task_type": task_type}
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(settings))
    assert set(extract(base, tmp_path / "lora").region) == {QUERY}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.npz", b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }"),
        ("d.npz", b"PK\x03\x04" + bytes(100)),
        ("d.npz", b""),
        ("d.parquet", b"PAR1" + bytes(50) + b"PAR1"),
        ("d.jsonl", b'{"text": ' + b"9" * 5000 + b', "label": 0}\n'),
        ("d.jsonl", b"[" * 5000),
        ("d.jsonl.gz", b"\x1f\x8b\x08" + bytes(40)),
        ("d.csv", b'text,label\n"open'),
        ("d.csv", b"text,la\rbel\na,b\n"),
    ],
)
def test_damaged_data(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    columns = ("image", "label") if name.endswith(".npz") else ("text", "label")
    with pytest.raises(DataError, match=name):
        read_table(str(tmp_path / name), columns)


@pytest.mark.parametrize("kind", ["timestamp", "date32", "date64", "duration", "time64"])
def test_dates_that_python_has_not(kind, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    types = {"timestamp": pyarrow.timestamp("us"), "duration": pyarrow.duration("s"), "time64": pyarrow.time64("us")}
    value = 2**31 - 1 if kind == "date32" else 2**62
    column = pyarrow.array([value], types.get(kind) or getattr(pyarrow, kind)(), safe=False)
    parquet.write_table(pyarrow.table({"text": column, "label": [0]}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"d\.parquet"):
        read_table(str(tmp_path / "d.parquet"), ("text", "label"))


def test_a_saved_dataset_whose_offsets_lead_out_of_its_buffers(tmp_path):
    """Its files are mapped into memory as they are: read unproved, this one ends the process."""
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": ["ab", "cdef"], "label": [0, 1]}).save_to_disk(tmp_path / "saved")
    file = next((tmp_path / "saved").glob("*.arrow"))
    offsets = struct.pack("<iii", 0, 2, 6)
    assert file.read_bytes().count(offsets) == 1
    file.write_bytes(file.read_bytes().replace(offsets, struct.pack("<iii", 0, 2**30, 2**30 + 4)))
    with pytest.raises(DataError, match=r"saved: cannot be read: .*offset"):
        read_table(str(tmp_path / "saved"), ("text", "label"))


@pytest.mark.parametrize(("line", "kind"), [(f"name{'.a' * 3000} = 1", "dict"), (f"name = 0x{'f' * 5000}", "int")])
def test_a_task_file_with_a_value_that_cannot_be_spelt(line, kind, tmp_path):
    (tmp_path / "t.toml").write_text(line)
    with pytest.raises(InputError, match=rf"'name' must be a string; found a value that cannot be spelt \({kind}\)"):
        Section.of_file(tmp_path / "t.toml").text("name")


def test_a_store_that_lists_a_file_of_an_impossible_name(tmp_path):
    task = {"task": "a", "file": "x" * 3000, "digest": "0", "entries": 1}
    store = {
        "format": "skillgraft.store",
        "format_version": "1",
        "base": "b",
        "base_fingerprint": "0" * 64,
        "tasks": [task],
    }
    (tmp_path / "store.json").write_text(json.dumps(store))
    with pytest.raises(FormatError, match="is not a file of this folder"):
        ContinualStore.open(tmp_path)


def test_a_report_survives_any_one_file(tmp_path):
    write_folder(tmp_path / "model", body())
    (tmp_path / "model" / "skillgraft.json").write_text('{"made": [1]}')
    (tmp_path / "a.json").write_text('{"split": "test", "tasks": {"x": {"base": {"n": ' + "9" * 400 + "}}}}")
    (tmp_path / "b.json").write_text('{"scale": ' + "9" * 400 + ', "points": [{"scale": 1, "a": ' + "9" * 400 + "}]}")
    (tmp_path / "c.npz").write_bytes(b"\x93NUMPY\x01\x00\x05\x00(((((")
    found = find([tmp_path])
    assert found.artefacts == ()
    assert {each.name.rpartition("/")[2] for each in found.unread} >= {"model", "c.npz"}


def gguf(*, tensors=0, settings=b"", count=0, version=3, magic=b"GGUF", tail=b""):
    return magic + struct.pack("<IQQ", version, tensors, count) + settings + tail


def text(value):
    return struct.pack("<Q", len(value)) + value


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"GGUF", "shorter than its header"),
        (gguf(magic=b"GGML"), "does not begin with GGUF"),
        (gguf(version=9), "GGUF version 9"),
        (gguf(count=2**60), "the most that is read is 1,000,000"),
        (gguf(tensors=2**60), "the most that is read is 1,000,000"),
        (gguf(count=5), "truncated"),
        (gguf(count=1, settings=struct.pack("<Q", 2**62)), "a name of"),
        (gguf(count=1, settings=text(b"a") + struct.pack("<I", 99)), "unknown type 99"),
        (gguf(count=1, settings=text(b"a") + struct.pack("<IIQ", 9, 8, 2**60)), "an array of"),
        (gguf(count=1, settings=text(b"a") + struct.pack("<IIQ", 9, 4, 2**62)), "truncated"),
        (gguf(count=1, settings=text(b"a") + struct.pack("<IIQIQ", 9, 9, 1, 4, 1)), "unknown type 9"),
        (gguf(count=2, settings=(text(b"a") + struct.pack("<II", 4, 1)) * 2), "two settings of one name"),
        (gguf(tensors=1, tail=text(b"t") + struct.pack("<IQIQ", 1, 2**50, 0, 0)), "reaches beyond"),
        (gguf(tensors=1, tail=text(b"t") + struct.pack("<I", 200)), "a tensor of 200 dimensions"),
    ],
)
def test_gguf_headers_that_promise_too_much(content, why, tmp_path):
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(FormatError, match=why):
        check_gguf(tmp_path / "m.gguf")


def test_headers_are_never_written_with_a_name_twice():
    entry = Entry("a", "F32", (1,), 0, 4)
    with pytest.raises(FormatError, match="repeated names: a"):
        header_bytes([entry, Entry("a", "F32", (1,), 4, 4)], {})


# The fuzzer itself


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_is_sound(name):
    """A fuzzer whose seeds are refused would only ever see the first check."""
    found = {seed: fuzzing.tried(name, content) for seed, content in seeds(name).items()}
    assert set(found.values()) == {"accepted"}, found


@pytest.mark.parametrize("name", TARGETS)
def test_fifty_cases_of_every_kind(name):
    found = {number: fuzzing.tried(name, fuzzing.case(name, number)) for number in range(50)}
    assert {number: each for number, each in found.items() if each not in ("accepted", "refused")} == {}


def test_a_case_is_the_same_again_and_findings_are_counted(tmp_path, monkeypatch):
    assert fuzzing.case("graft", 7) == fuzzing.case("graft", 7)
    counts = fuzzing.run(["task"], cases=30, seconds=60, state=tmp_path / "s.json", findings=tmp_path / "f")
    assert sum(counts["task"].values()) == 30
    monkeypatch.setattr(fuzzing, "outcome", lambda *_: 1 / 0)
    counts = fuzzing.run(["task"], cases=31, seconds=60, state=tmp_path / "s.json", findings=tmp_path / "f")
    assert counts["task"]["findings"] == 1
    assert "ZeroDivisionError" in (tmp_path / "f" / "task-30.txt").read_text()
    assert issubclass(DataError, SkillgraftError)
