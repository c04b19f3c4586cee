"""What really goes wrong: kills at any moment, a full disk, folders that cannot be written, inputs that change underneath."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skillgraft.compose.rules import combined
from skillgraft.errors import RunError, SkillgraftError
from skillgraft.files import graft_file, system
from skillgraft.files.graft_stream import open_stream, save_stream
from skillgraft.folders.apply import apply
from skillgraft.folders.extract import extract, extracted
from skillgraft.folders.given import Named
from skillgraft.values import stream as streams

from .model_folders import body, content, moved, numbers, write_folder

REPOSITORY = str(Path(__file__).parent.parent)
BIG = "encoder.layer.2.output.dense.weight"
# What a process does to the file system, as Python's audit events name it: the moments at which it is killed.
EVENTS = ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "shutil.copyfile", "os.listdir")


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """base, tuned, their graft and two parts of it, in a place that every user may read."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        tensors = {**body(classifier__bias=(2,)), BIG: numbers((256, 256), seed=1)}
        write_folder(root / "base", tensors, shards=2)
        write_folder(root / "tuned", moved(tensors))
        (root / "base" / "README.md").write_text("card")
        whole = extract(root / "base", root / "tuned")
        graft_file.save(whole, root / "whole.safetensors")
        graft_file.save(whole.without_heads() * 0.5, root / "half.safetensors")
        yield root


@pytest.fixture(autouse=True)
def narrow_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is read and written by stretches has many of them."""
    monkeypatch.setattr(streams, "STRETCH", 8192)


def do_extract(root: Path, out: Path) -> None:
    save_stream(extracted(root / "base", root / "tuned"), out)


def do_pack(root: Path, out: Path) -> None:
    save_stream(extracted(root / "base", root / "tuned"), out, pack=True)


def do_apply(root: Path, out: Path) -> None:
    apply(root / "base", root / "whole.safetensors", out=out)


def do_combine(root: Path, out: Path) -> None:
    parts = [open_stream(root / f"{name}.safetensors") for name in ("whole", "half")]
    save_stream(combined(parts, rule="ties", keep=0.5, head=parts[0]), out)


ACTIONS = {"extract": do_extract, "pack": do_pack, "apply": do_apply, "combine": do_combine}
Action = Callable[[Path, Path], None]
every_action = pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)


def start(work: Callable[[], None], message_file: Path | None = None) -> int:
    """A process that does the work; it ends with an error's own exit code, its message in `message_file`, or with 99."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        work()
        code = 0
    except SkillgraftError as error:
        if message_file:
            message_file.write_text(str(error))
        code = error.exit_code
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """The exit code; negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def image(path: Path) -> object:
    """All bytes of a file or folder."""
    return path.read_bytes() if path.is_file() else content(path)


def clear(path: Path) -> None:
    path.unlink() if path.is_file() else shutil.rmtree(path)


@pytest.fixture
def expected(root, tmp_path):
    """A function that gives the bytes of an action's complete output."""

    def made(action: Action) -> object:
        action(root, tmp_path / "made" / "out")
        return image(tmp_path / "made" / "out")

    return made


def check_aftermath(action: Action, root: Path, out: Path, complete: object) -> None:
    """The target is absent or complete; the next run is not disturbed by what was left, and removes it."""
    if out.exists():
        assert image(out) == complete
        clear(out)
    action(root, out)
    assert image(out) == complete
    assert [item.name for item in out.parent.iterdir()] == [out.name]
    clear(out)


def killed_at(step: int) -> None:
    """Kill this process at its `step`-th touch of the file system."""
    left = step

    def hook(event: str, _arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in EVENTS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


@every_action
def test_killed_at_every_step(action, root, expected, tmp_path):
    complete, out, codes = expected(action), tmp_path / "place" / "out", []
    while 0 not in codes:
        codes.append(ended(start(lambda: (killed_at(len(codes) + 1), action(root, out)))))
        check_aftermath(action, root, out, complete)
    assert len(codes) > 8
    assert set(codes) == {0, -signal.SIGKILL}


@every_action
def test_killed_at_random_moments(action, root, expected, tmp_path):
    complete, out = expected(action), tmp_path / "place" / "out"
    begun = time.perf_counter()
    action(root, tmp_path / "timed")
    duration = time.perf_counter() - begun
    moments = random.Random(0)
    for _ in range(12):
        child = start(lambda: action(root, out))
        time.sleep(moments.uniform(0, 1.5 * duration))
        os.kill(child, signal.SIGKILL)
        assert ended(child) in (0, -signal.SIGKILL)
        check_aftermath(action, root, out, complete)


@every_action
def test_two_processes_with_one_target(action, root, expected, tmp_path):
    """One wins; the other says that the target exists or appeared. Nothing is mixed, nothing is left."""
    complete = expected(action)
    for turn in range(8):
        out = tmp_path / f"place{turn}" / "out"
        children = [start(lambda: action(root, out), tmp_path / f"message{n}") for n in (0, 1)]  # noqa: B023
        codes = [ended(child) for child in children]
        assert sorted(codes) == [0, 2]
        message = (tmp_path / f"message{codes.index(2)}").read_text()
        assert "exists already" in message or "appeared while working; nothing was overwritten" in message
        assert image(out) == complete
        assert [item.name for item in out.parent.iterdir()] == ["out"]


@every_action
@pytest.mark.parametrize("limit", [100, 5_000, 150_000])
def test_file_size_limit(action, limit, root, tmp_path):
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        # The message may be longer than the limit: only whether it is the right one leaves the process.
        with pytest.raises(
            RunError, match=r"out could not be written: File too large \(\d+ MB free\); nothing was left"
        ):
            action(root, tmp_path / "out")

    assert ended(start(work)) == 0
    assert list(tmp_path.iterdir()) == []


def on_a_mount(tmp_path: Path, options: str, script: str) -> str:
    """Run Python where `place` is a tmpfs of its own, seen by that process alone; returns what it printed."""
    place = tmp_path / "place"
    place.mkdir()
    mount, alone = f"mount -t tmpfs -o {options} tmpfs {place}", ["unshare", "--mount", "sh", "-c"]
    try:
        subprocess.run([*alone, mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting is not permitted here")
    command = [*alone, f'{mount} && exec {sys.executable} -c "$0" {place}', script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


SCRIPT = """
import sys, pathlib, subprocess
sys.path.insert(0, {repository!r})
from tests.test_crashes import ACTIONS, SkillgraftError, clear
root, place = pathlib.Path({root!r}), pathlib.Path(sys.argv[1])
for size in {sizes}:
    if size:
        subprocess.run(["mount", "-o", f"remount,size={{size}}", str(place)], check=True)
    for name, action in ACTIONS.items():
        try:
            action(root, place / "out")
            print(name, "done", sep="|")
            clear(place / "out")
        except SkillgraftError as error:
            print(name, error.exit_code, error, [item.name for item in place.iterdir()], sep="|")
"""


def test_full_disk(root, tmp_path):
    sizes = ["8k", "64k", "200k", "300k", "400k", "600k", "900k"]
    script = SCRIPT.format(repository=REPOSITORY, root=str(root), sizes=sizes)
    lines = [line.split("|") for line in on_a_mount(tmp_path, "size=1m", script).splitlines()]
    failures = [line for line in lines if line[1] != "done"]
    assert len(lines) == len(ACTIONS) * len(sizes)
    assert {line[0] for line in failures} == set(ACTIONS)
    assert {line[0] for line in lines if line[1] == "done"} == set(ACTIONS)
    for _, code, message, left in failures:
        assert code == "1"
        assert "out could not be written: the disk is full (0 MB free); nothing was left behind" in message
        assert left == "[]"


def test_read_only_disk(root, tmp_path):
    script = SCRIPT.format(repository=REPOSITORY, root=str(root), sizes=[None])
    lines = [line.split("|") for line in on_a_mount(tmp_path, "ro", script).splitlines()]
    assert [line[:2] for line in lines] == [[name, "1"] for name in ACTIONS]
    assert all("out cannot be written: no permission in" in line[2] for line in lines)


def as_nobody() -> None:
    os.setgid(65534)
    os.setuid(65534)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@every_action
def test_folder_that_another_user_may_not_write(action, root, tmp_path):
    with tempfile.TemporaryDirectory() as name:
        shared = Path(name)
        shared.chmod(0o755)
        (shared / "message").write_text("")
        (shared / "message").chmod(0o666)
        before = content(root)
        code = ended(start(lambda: (as_nobody(), action(root, shared / "out")), shared / "message"))
        assert code == 1
        assert f"{shared}/out cannot be written: no permission in {shared}" in (shared / "message").read_text()
        assert [item.name for item in shared.iterdir()] == ["message"]
        shared.chmod(0o777)
        assert ended(start(lambda: (as_nobody(), action(root, shared / "out")))) == 0
        action(root, tmp_path / "out")
        assert image(shared / "out") == image(tmp_path / "out")
        assert content(root) == before


# Who writes in the very process that holds the lease waits until the kernel takes it back, for 45 s.
@pytest.mark.parametrize("leased", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("keep", [0, 50, 2_000, 200_000])
def test_tuned_truncated_while_it_is_read(keep, leased, root, tmp_path, monkeypatch):
    """In place: an error, not a dead process, whether it is mapped (under a lease) or read."""
    if not leased:
        monkeypatch.setattr(system, "lease", lambda _: False)
    tuned = shutil.copytree(root / "tuned", tmp_path / "tuned")

    def cut(_done: int, _size: int) -> None:
        os.truncate(tuned / "model.safetensors", keep)

    for options in ({}, {"entries": 10}):
        shutil.copyfile(root / "tuned" / "model.safetensors", tuned / "model.safetensors")
        message_file = tmp_path / "message"
        assert ended(start(lambda: extract(root / "base", tuned, progress=cut, **options) and None, message_file)) == 2  # noqa: B023
        assert "tuned/model.safetensors changed while it was being read; run again" in message_file.read_text()


@pytest.mark.parametrize("keep", [0, 50, 2_000])
def test_base_truncated_while_it_is_copied(keep, root, tmp_path, monkeypatch):
    from skillgraft.folders import rewrite

    base = shutil.copytree(root / "base", tmp_path / "base")
    copy = rewrite.copy_range

    def cut(*arguments) -> None:
        for shard in base.glob("*.safetensors"):
            os.truncate(shard, keep)
        copy(*arguments)

    monkeypatch.setattr(rewrite, "copy_range", cut)
    graft = extract(root / "base", root / "tuned", entries=10)  # of everything, nothing would be copied
    message_file = tmp_path / "message"
    assert ended(start(lambda: apply(base, Named(graft, "g"), out=tmp_path / "out") and None, message_file)) == 2
    assert (
        "became shorter while it was being copied" in message_file.read_text()
        or "changed while" in message_file.read_text()
    )
    assert sorted(item.name for item in tmp_path.iterdir()) == ["base", "message"]
