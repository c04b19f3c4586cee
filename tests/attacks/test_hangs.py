"""Nothing waits for ever and nothing takes time with the square of its size: pipes, long names, nested masks, patterns, bombs."""

from __future__ import annotations

import gzip
import json
import os
import resource
import time
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest

from skillgraft.errors import DataError, FormatError, InputError, SkillgraftError
from skillgraft.files import graft_file
from skillgraft.files import tensors as tensor_file
from skillgraft.folders.checkpoint import Checkpoint, read_json
from skillgraft.folders.lora import LoraCheckpoint, _by_pattern
from skillgraft.folders.tokens import check_same_vocabulary
from skillgraft.predictions.predictions import Predictions
from skillgraft.report.artefacts import find
from skillgraft.tasks import load_task
from skillgraft.tasks.prompt import TemplateSlot, _without
from skillgraft.tasks.section import Section
from skillgraft.tasks.sources import read_table
from skillgraft.tasks.tables import keys_of
from skillgraft.values.names import body_prefix
from skillgraft.values.region import Region, Scope
from tests.fuzz.bundles import unpack
from tests.fuzz.targets import CORPUS, SAVED
from tests.model_folders import body, numbers, write_folder


@contextmanager
def within(seconds):
    begun = time.process_time()
    yield
    assert time.process_time() - begun < seconds


PIPES = {
    "g.safetensors": lambda path: graft_file.load(path),
    "t.toml": lambda path: Section.of_file(path),
    "d.jsonl": lambda path: read_table(str(path), ("text",)),
    "d.csv.gz": lambda path: read_table(str(path), ("text",)),
    "d.parquet": lambda path: read_table(str(path), ("text",)),
    "d.npz": lambda path: read_table(str(path), ("image", "label")),
    "columns.parquet": lambda path: keys_of(path),
    "p.npz": lambda path: Predictions.load(path),
    "c.json": lambda path: read_json(path),
}


@pytest.mark.parametrize("name", PIPES)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused_at_once(name, kind, tmp_path):
    path = tmp_path / name
    make = {"pipe": os.mkfifo, "device": lambda p: p.symlink_to("/dev/zero"), "folder": os.mkdir}
    make[kind](path)
    with within(2), pytest.raises(SkillgraftError, match=r"pipe|device|folder|expected|no column"):
        PIPES[name](path)


@pytest.mark.parametrize("victim", ["data-00000-of-00001.arrow", "state.json", "dataset_info.json"])
def test_a_saved_dataset_with_a_pipe_in_it(victim, tmp_path):
    (tmp_path / "saved").mkdir()
    for name, content in unpack((CORPUS / "saved" / "one").read_bytes(), SAVED).items():
        (tmp_path / "saved" / name).write_bytes(content)
    (tmp_path / "saved" / victim).unlink()
    os.mkfifo(tmp_path / "saved" / victim)
    with within(2), pytest.raises(DataError, match="is a pipe"):
        read_table(str(tmp_path / "saved"), ("text",))


def test_a_report_leaves_pipes_aside(tmp_path):
    for name in ("g.safetensors", "p.npz", "r.json"):
        os.mkfifo(tmp_path / name)
    found = find([tmp_path])
    assert [aside.name.rpartition("/")[2] for aside in found.unread] == ["g.safetensors", "p.npz", "r.json"]
    assert [aside.why for aside in found.unread if "pipe" not in aside.why and "no such file" not in aside.why] == []


def test_a_prefix_of_sixty_thousand_parts(tmp_path):
    long = "a." * 60_000
    with within(2):
        found = body_prefix([f"{long}{name}" for name in body()] * 20)
    assert found == long
    tensor_file.write(tmp_path / "model.safetensors", {f"{long}{n}": a for n, a in body().items()}, {})
    with (
        within(2),
        pytest.raises(FormatError, match=r"a tensor's name has 120,\d+ characters, the most that is read is 1,000"),
    ):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ["bert.encoder.layer.0.w", "bert.embeddings.word.weight", "score.bias"],
        ["encoder.layer.0.w", "embeddings.word.weight"],
        ["a.b.embed.w", "a.b.layers.0.w", "a.c.layers.0.w"],
        ["a.0.embed.w", "a.0.layers.1.w"],
        ["x.embed.w"],
        ["a.embed.w", "a.embed.w.b.0.c"],
        [],
    ],
)
def test_the_prefix_is_what_it_was(names):
    """The linear way against the definition: the longest dotted start that all anchors share, no number in it."""
    from skillgraft.values.names import is_body, is_embedding, layer_of

    anchors = [n for n in names if is_body(n) and (layer_of(n) or is_embedding(n))]
    wanted = ""
    if any(map(is_embedding, anchors)) and any(map(layer_of, anchors)):
        while True:
            longer = f"{wanted}{anchors[0][len(wanted) :].split('.')[0]}."
            if not all(n.startswith(longer) for n in anchors) or layer_of(f"{longer}x"):
                break
            wanted = longer
    assert body_prefix(names) == wanted


def test_three_thousand_matrices_of_one_shape(tmp_path):
    tensors = {**body(), **{f"extra{n}.weight": numbers((8, 8), seed=n) for n in range(3000)}}
    tensors["extra7.weight"] = tensors["extra2999.weight"]
    opened = Checkpoint.open(write_folder(tmp_path / "base", tensors))
    with within(8):
        assert dict(opened.twins) == {"extra2999.weight": "extra7.weight"}


def test_tensors_that_differ_outside_the_sample_are_no_twins(tmp_path):
    rows = np.zeros((64, 4096), np.float32)
    other = rows.copy()
    other[1, 5] = 1.0
    tensors = {**body(), "a.weight": rows, "b.weight": other, "c.weight": rows.copy()}
    assert dict(Checkpoint.open(write_folder(tmp_path / "base", tensors)).twins) == {"c.weight": "a.weight"}


@pytest.mark.parametrize(
    "pattern", ["(.*)*(.*)*(.*)*x", "(a+)+b", "(a|aa)+", "a*a*a*b", r"(a)\1", "x" * 300, "(", "(?i)a", "a{1}{2}"]
)
def test_patterns_that_could_take_for_ever_are_refused(pattern):
    with within(1), pytest.raises(ValueError, match=r"is not read|is no regular expression"):
        _by_pattern({pattern: 3.0}, "a" * 3000, 1.0)


@pytest.mark.parametrize(
    ("pattern", "module", "fits"),
    [
        ("model.layers.0.q_proj", "model.layers.0.q_proj", True),
        ("q_proj", "model.layers.0.q_proj", True),
        ("proj", "model.layers.0.q_proj", False),
        (r".*layers\.[0-3]\.q_proj", "model.layers.2.q_proj", True),
        ("(q|k)_proj", "model.layers.0.k_proj", True),
        ("^model.layers.0.q_proj", "model.layers.0.q_proj", True),
    ],
)
def test_patterns_mean_what_peft_means(pattern, module, fits):
    assert _by_pattern({pattern: 3.0}, module, 1.0) == (3.0 if fits else 1.0)


def test_too_many_patterns_are_refused(tmp_path):
    base = Checkpoint.open(write_folder(tmp_path / "base", body()))
    (tmp_path / "adapter").mkdir()
    settings = {"peft_type": "LORA", "alpha_pattern": {f"a{n}": 1 for n in range(10_001)}}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(FormatError, match="at most 10,000 patterns"):
        LoraCheckpoint.open(tmp_path / "adapter", base)


@pytest.mark.parametrize(("text", "left"), [("a[MASK]b", "ab"), ("[MA[MASK]SK]x", "x"), ("[MASK", "[MASK"), ("", "")])
def test_masks_are_taken_out(text, left):
    assert _without(text, "[MASK]") == left
    assert TemplateSlot("f").value({"f": text}, "[MASK]") == left


def test_nested_masks_take_linear_time():
    with within(2):
        assert _without("[MA" * 40_000 + "[MASK]" + "SK]" * 40_000, "[MASK]") == ""


@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * 20_000) + " = 1",
        "a = " + "[" * 50_000,
        "a = " + "9" * 5000,
        "a = 1\n" * 2,
        "\x00",
        "a = '" + "x" * 2_000_000,
    ],
)
def test_toml_bombs(text, tmp_path):
    path = tmp_path / "t.toml"
    path.write_text(text)
    with within(2), pytest.raises(InputError, match=r"t\.toml"):
        load_task(path)


def test_a_nul_in_a_task_s_path(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text('name = "x"\ntext = "text"\nlabels = ["a", "b"]\ntrain = "a\\u0000.jsonl"\n')
    with pytest.raises(SkillgraftError):
        read_table(load_task(path).data.train[0], ("text",))


def test_gzip_bombs_end_at_their_limit(tmp_path):
    path = tmp_path / "d.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(70):
            file.write(b" " * 4_000_000 + b"\n")
    with within(20), pytest.raises(DataError, match=r"unpacks to more than 256,000,000 bytes"):
        read_table(str(path), ("text",))


def npz_bomb(path, names):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in names:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (300, 1000, 1000), }"
                header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
                file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
                for _ in range(300):
                    file.write(bytes(1_000_000))


def test_npz_bombs_are_refused_before_they_are_unpacked(tmp_path):
    npz_bomb(tmp_path / "d.npz", ["images", "labels"])
    with (
        within(2),
        pytest.raises(DataError, match=r"would unpack to 600,0.* bytes, the most that is read from .* is 256,000,000"),
    ):
        read_table(str(tmp_path / "d.npz"), ("image", "label"))
    npz_bomb(tmp_path / "p.npz", ["scores", "labels", "header"])
    with within(2), pytest.raises(InputError, match="would unpack to"):
        Predictions.load(tmp_path / "p.npz")


@pytest.mark.parametrize("mark", ["[],", "{},", "1,", '"a":1,'])
def test_json_bombs_are_counted_before_they_are_read(mark, tmp_path):
    inside = mark * 4_000_010
    (tmp_path / "c.json").write_text(f"{{{inside}}}" if ":" in mark else f"[{inside}]")
    with within(5), pytest.raises((FormatError, InputError), match="the most that is read is"):
        read_json(tmp_path / "c.json", limit=100_000_000)


def sparse(path, size):
    with path.open("wb") as file:
        file.truncate(size)


def test_sparse_files_are_refused_by_their_size(tmp_path):
    folder = write_folder(tmp_path / "m", body())
    sparse(folder / "config.json", 10**12)
    with pytest.raises(
        InputError, match=r"config.json has 1,000,000,000,000 bytes, the most that is read is 16,000,000"
    ):
        Checkpoint.open(folder)
    other = write_folder(tmp_path / "n", body())
    for each in (folder, other):
        sparse(each / "vocab.txt", 10**11)
    with pytest.raises(InputError, match="the most that is read is 64,000,000"):
        check_same_vocabulary(folder, other)


def region_file(path, flags, size):
    """A region whose one bitmap is this."""
    scope = Scope.of("all", {"w": (size,)})
    graft_file.save_region(Region.full(Scope.of("all", {"w": (64,)})), path)
    count = int(np.bitwise_count(flags).sum())
    metadata = {
        **tensor_file.TensorFile.open(path).metadata,
        "scope_shapes": f'{{"w":[{size}]}}',
        "entries": str(count),
        "density": repr(count / scope.size),
    }
    path.unlink()
    tensor_file.write(path, {"w.bitmap": flags}, metadata)


def test_a_bitmap_of_ones_is_refused_before_room_is_made(tmp_path):
    nbytes = 12_000_000
    region_file(tmp_path / "r.safetensors", np.full(nbytes, 255, np.uint8), 8 * nbytes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FormatError, match=r"96,000,000 entries would take 384,000,000 bytes of memory"):
        graft_file.load_region(tmp_path / "r.safetensors")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_bitmap_read_in_stretches_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(graft_file, "_STRETCH", 3)
    flags = np.random.default_rng(0).integers(0, 256, 41).astype(np.uint8)
    region_file(tmp_path / "r.safetensors", flags, 8 * 41)
    at = np.flatnonzero(np.unpackbits(flags, bitorder="little"))
    assert graft_file.load_region(tmp_path / "r.safetensors").sites["w"].tolist() == at.tolist()
    flags[-1] |= 128
    region_file(tmp_path / "s.safetensors", flags, 8 * 41 - 1)
    with pytest.raises(FormatError, match="bits beyond the 327 entries are set"):
        graft_file.load_region(tmp_path / "s.safetensors")


@pytest.mark.parametrize(
    "source",
    ["hf:../../etc:train", "hf:../etc:train", "hf:o/..:train", "hf:o/n/..:train", "hf:/etc/passwd:train", "hf:o/n:tr/../ain",
     "hf:o/n\n:train", "hf:o/é:train", "hf:./n:train", "hf:o:train"],
)  # fmt: skip
def test_hub_names_are_plain(source):
    with pytest.raises(InputError, match="expected hf:owner/name:split"):
        read_table(source, ("text",))


def test_a_hub_name_never_reads_a_local_folder(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "owner" / "name" / "train.jsonl").write_text('{"text": "local", "label": 0}\n')
    with pytest.raises(DataError, match="hf:owner/name:train: cannot be read"):
        read_table("hf:owner/name:train", ("text",))
