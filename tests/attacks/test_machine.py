"""Files that change while they are read, outputs that reach the disk, odd names of outputs and of what killed runs left."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from skillgraft.errors import InputError
from skillgraft.files import atomic, graft_file, system
from skillgraft.files import tensors as tensor_file
from skillgraft.files.atomic import _to_disk
from skillgraft.files.tensors import TensorFile
from skillgraft.folders.apply import apply
from skillgraft.folders.extract import extract
from skillgraft.folders.given import Named
from skillgraft.values.numbers import same_bits
from tests.model_folders import body, moved, numbers, write_folder, write_pair

LARGE = {**body(), "encoder.layer.2.output.dense.weight": numbers((1200, 2000), seed=1)}


@pytest.mark.parametrize("leased", [True, False])
@pytest.mark.parametrize("what", ["truncated", "replaced"])
def test_an_input_that_changes_under_a_pass_is_an_error(leased, what, tmp_path, monkeypatch):
    """Truncation under a mapping would end the process with SIGBUS."""
    base, tuned = write_pair(tmp_path, LARGE, moved(LARGE))
    victim, changing = tuned / "model.safetensors", []
    if not leased:
        monkeypatch.setattr(system, "lease", lambda _: False)

    def change(done, _total):
        if changing or not done:
            return
        if what == "truncated":
            changing.append(subprocess.Popen(["truncate", "-s", "200", str(victim)]))
            time.sleep(0.3)
        else:
            (tmp_path / "other").write_bytes(victim.read_bytes()[:-8] + bytes(8))
            (tmp_path / "other").replace(victim)
            changing.append(None)

    with pytest.raises(InputError, match=r"changed while it was being read|became shorter"):
        extract(base, tuned, progress=change)
    for process in filter(None, changing):
        process.wait(timeout=5)


def test_a_lease_is_given_back(tmp_path):
    tensor_file.write(tmp_path / "x.safetensors", {"a": np.arange(8)}, {})
    file = TensorFile.open(tmp_path / "x.safetensors")
    with file.steady():
        assert file.flat("a").tolist() == list(range(8))
    begun = time.monotonic()
    with (tmp_path / "x.safetensors").open("r+b") as again:
        again.truncate(10)
    assert time.monotonic() - begun < 5
    with pytest.raises(InputError, match="changed while it was being read"):
        file.flat("a")


def test_numbers_at_sites_are_those_of_the_whole_tensor(tmp_path):
    array = numbers((300_000,), seed=3)
    tensor_file.write(tmp_path / "x.safetensors", {"a": array, "e": np.empty(0, np.float32)}, {})
    file = TensorFile.open(tmp_path / "x.safetensors")
    random = np.random.default_rng(0)
    for count in (0, 1, 2, 50, 5000, 300_000):
        at = np.sort(random.choice(len(array), count, replace=False)).astype(np.int32)
        assert same_bits(file.at("a", at), array[at])
    assert len(file.flat("e")) == len(file.mapped("e")) == 0


def test_outputs_are_on_the_disk_before_they_get_their_name(tmp_path, monkeypatch):
    base, tuned = write_pair(tmp_path, body(), moved(body()))
    graft = Named(extract(base, tuned), "g")
    forced = []
    real = os.fsync
    monkeypatch.setattr(atomic, "_to_disk", _to_disk)
    monkeypatch.setattr(os, "fsync", lambda fd: (forced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd))[1])
    apply(base, graft, out=tmp_path / "on", sync=False)
    assert forced == []
    apply(base, graft, out=tmp_path / "on2")
    inside = [name.rpartition("/")[2] for name in forced[:-2]]
    assert set(inside) == {item.name for item in (tmp_path / "on2").iterdir()}
    assert forced[-2].rpartition("/")[2].startswith(".on2.partial-")
    assert forced[-1] == str(tmp_path)


@pytest.mark.parametrize("left", ["²-x", "².x", "0-x", "99999999999999999999-x", "-1-x", "1٣-x", ""])
def test_odd_leftovers_stop_nobody(left, tmp_path):
    (tmp_path / f".out.partial-{os.uname().nodename}-{left}").write_text("x")
    with atomic.new_file(tmp_path / "out") as temporary:
        temporary.write_text("done")
    assert (tmp_path / "out").read_text() == "done"


def test_long_names(tmp_path):
    for name in ("x" * 240, "é" * 120, "x" * 255):
        with atomic.new_file(tmp_path / name) as temporary:
            temporary.write_text("done")
        with atomic.new_folder(tmp_path / name[:-1]) as temporary:
            (temporary / "x").write_text("done")
        assert (tmp_path / name).read_text() == "done"
    for name in ("x" * 256, "é" * 128):
        with pytest.raises(InputError, match="a file's name has at most 255 bytes"), atomic.new_file(tmp_path / name):
            pass
    with pytest.raises(InputError, match="a file's name has at most 255 bytes"), atomic.new_folder(tmp_path / "a\0b"):
        pass


def test_what_a_killed_run_left_under_a_long_name_is_removed(tmp_path):
    name = "x" * 200
    code = "import os, pathlib\nfrom skillgraft.files import atomic\n"
    code += f"with atomic.new_file(pathlib.Path({name!r})): os._exit(1)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    with atomic.new_file(tmp_path / name) as temporary:
        temporary.write_text("done")
    assert [item.name for item in tmp_path.iterdir()] == [name]


def test_a_graft_outlives_its_file(tmp_path):
    base, tuned = write_pair(tmp_path, body(), moved(body()))
    graft = extract(base, tuned)
    graft_file.save(graft, tmp_path / "g.safetensors")
    loaded = graft_file.load(tmp_path / "g.safetensors")
    os.truncate(tmp_path / "g.safetensors", 10)
    assert loaded == graft


def test_finetuning_copies_through_no_link_either(tmp_path):
    from skillgraft.training.finetune import _copy_small_files

    base = write_folder(tmp_path / "base", body())
    (tmp_path / "key").write_text("secret")
    (base / "vocab.txt").symlink_to(tmp_path / "key")
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="a link to a file outside the model folder"):
        _copy_small_files(base, tmp_path / "out")
