"""Running steps: once, in order, side by side, again after a kill; and what becomes of steps that fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from skillgraft import graft_file
from skillgraft.errors import InputError
from skillgraft.reproduce import Draft, Recipe, Step, Store, Wanted
from skillgraft.reproduce.executor import executor
from skillgraft.reproduce.jobs import models, saying
from skillgraft.reproduce.jobs.artefacts import GRAFT
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import filled
from skillgraft.reproduce.run import plan, run

from .toys import PARTS, TOYS, added, slow_step, value

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillgraft.reproduce.jobs.JOBS", TOYS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_every_step_runs_once_after_those_it_needs(store: Store) -> None:
    shared = added(1)
    top = added(3, added(2, shared), shared)
    seen: list[tuple[str, int, int]] = []
    assert run([top, shared], store, on_step=lambda step, n, of: seen.append((step.job, n, of))) == {}
    assert value(store.path(top)) == 1 + 2 + 1 + 3
    assert seen == [("add", 1, 3), ("add", 2, 3), ("add", 3, 3)]
    again: list[object] = []
    run([top], store, on_step=lambda *ended: again.append(ended))
    assert again == []


def test_the_record_tells_how_an_artefact_came_about(store: Store) -> None:
    below = added(1)
    step = added(2, below, seed=5)
    run([step], store)
    record = store.record(step)
    assert record["settings"] == {"number": 2, "seed": 5}
    assert record["needs"] == {"part 0": below.key}
    assert {"job", "key", "seconds", "versions"} <= record.keys()


def test_a_failed_step_does_not_stop_the_others_and_its_reason_reaches_the_cells(store: Store) -> None:
    bad = Step("fail", {"why": "shots=512, but the class 'x' of task 't' has 84 rows"})
    above = added(1, bad)
    cells: dict[tuple[str, str], Wanted | str] = {
        ("a", "good"): Wanted.of(value, added(7)),
        ("a", "bad"): Wanted.of(value, bad),
        ("a", "above"): Wanted.of(value, added(2, above)),
        ("a", "known"): "the paper has none",
    }
    draft = Draft("mixed", cells)
    failures = run(draft.steps(), store)
    sheet = filled(draft, store, failures)
    assert sheet.cells["a", "good"].value == 7
    assert {sheet.cells["a", name].reason for name in ("bad", "above")} == {bad.settings["why"]}
    assert sheet.cells["a", "known"].reason == "the paper has none"
    assert not store.has(bad)


def test_a_bug_is_not_taken_for_a_reason(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        run([Step("crash")], store)


def test_a_failed_step_is_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step("fail", {"why": "the data are not here"})
    assert run([step], store) == {step.key: "the data are not here"}
    here = replace(TOYS["fail"], run=lambda out, _needs, why: (out / "data").write_text(why))
    monkeypatch.setattr("skillgraft.reproduce.jobs.JOBS", {**TOYS, "fail": here})
    assert run([step], store) == {}


def test_side_by_side_gives_the_same_as_one_after_the_other(studio: Path, tmp_path: Path) -> None:
    """Worker processes have the real jobs: here those that cut grafts out of a model that another step made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skillgraft.reproduce.jobs.JOBS", {**models.JOBS, **saying.JOBS})
        base = str(studio / "bert")
        tuned = Step("tune", {"base": base})
        grafts = [Step("cut", {"base": base, "budget": budget}, {"tuned": tuned}) for budget in (3, 40, 500)]
        one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
        for store in (one, two):
            with store.making(tuned) as out:
                moved(studio / "bert", out / "model")
        assert run(grafts, one) == {}
        with executor(2) as workers:
            assert run(grafts, two, executor=workers) == {}
        for step in grafts:
            assert graft_file.load(two.path(step) / GRAFT) == graft_file.load(one.path(step) / GRAFT)


def moved(base: Path, out: Path) -> None:
    """A model whose every weight has moved by its own small amount."""
    shutil.copytree(base, out)
    tensors = safetensors.numpy.load_file(base / "model.safetensors")
    draw = np.random.default_rng(0)
    other = {name: (x + draw.normal(size=x.shape)).astype(x.dtype) for name, x in tensors.items()}
    safetensors.numpy.save_file(other, out / "model.safetensors", metadata={"format": "pt"})


def test_at_least_one_job() -> None:
    with pytest.raises(InputError, match="must be at least 1, found 0"), executor(0):
        pass


PROGRAM = """
import torch
from skillgraft.reproduce.executor import executor

if __name__ == "__main__":
    with executor(64) as workers:
        print(workers.submit(torch.get_num_threads).result())
"""


def test_a_program_that_loads_torch_itself_shares_the_cores_too(tmp_path: Path) -> None:
    """Its worker processes have loaded torch before they learn how many threads are theirs."""
    (tmp_path / "program.py").write_text(PROGRAM)
    told = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout == "1\n"


LASTING = """
import os, sys, time
from pathlib import Path
from skillgraft.reproduce.executor import executor

def work(here):
    (here / "part").write_text(str(os.getpid()))
    (here / "part").rename(here / "worker")
    time.sleep(600)

if __name__ == "__main__":
    with executor(2) as workers:
        workers.submit(work, Path(sys.argv[1])).result()
"""


def test_killed_it_leaves_no_process_at_work(tmp_path: Path) -> None:
    """Its workers would hold the steps' locks, and the cores, for as long as their steps take."""
    (tmp_path / "program.py").write_text(LASTING)
    process = subprocess.Popen([sys.executable, "program.py", str(tmp_path)], cwd=tmp_path, start_new_session=True)
    until(tmp_path / "worker")
    worker = int((tmp_path / "worker").read_text())
    assert at_work(worker)
    process.kill()
    process.wait()
    end = time.monotonic() + 30.0
    while at_work(worker):
        assert time.monotonic() < end, f"process {worker} is still at work"
        time.sleep(0.05)


def started(store: Store, *names: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.reproduce.toys", str(store.folder), *names]
    return subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)


def until(there: Path, *, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not there.exists():
        assert time.monotonic() < end, f"{there} did not appear"
        time.sleep(0.01)


def at_work(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # ended, and nobody has asked how


def test_killed_and_started_again_it_goes_on_where_it_was(store: Store) -> None:
    first, second = slow_step("first"), slow_step("second")
    work = store.path(second).with_name(f"{store.path(second).name}.work")
    process = started(store, "first", "second")
    until(work / "part-0")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert store.has(first)
    assert not store.has(second)
    made = (store.path(first) / "step.json").stat().st_mtime_ns
    assert run([first, second], store) == {}
    assert (store.path(first) / "step.json").stat().st_mtime_ns == made
    assert not work.exists()
    log = (store.path(second) / "log").read_text(encoding="utf-8").split()
    # The part that was under way is done again, those before it are not.
    assert log[0] == "0"
    assert log.count("0") == 1
    assert set(log) == {str(part) for part in range(PARTS)}


def test_two_processes_on_one_store_share_the_work(store: Store) -> None:
    names = ["alpha", "beta", "gamma"]
    processes = [started(store, *names), started(store, *reversed(names))]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    for name in names:
        path = store.path(slow_step(name))
        assert (path / "log").read_text(encoding="utf-8").split() == ["0", "1", "2"]
    assert not list(store.folder.glob("*.work"))


def test_a_dry_run_tells_what_is_there_and_about_how_long_the_rest_takes(
    studio: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = [Draft("one", {("a", "b"): Wanted.of(value, added(2, added(1)))})]
    toy = Recipe("a toy", "P0", lambda _profile: drafts)
    monkeypatch.setattr("skillgraft.reproduce.run.recipe", lambda _name: toy)
    run([added(1)], store)
    planned = plan(["toy"], Profile(str(studio / "bert")), store=store.folder)
    assert [each.done for each in planned] == [True, False]
    # 200 tokens; two layers of four 16 × 16 and two 16 × 32 matrices with their biases and two LayerNorms.
    entries = 2 * (4 * (16 * 16 + 16) + 2 * 16 * 32 + 32 + 16 + 2 * 2 * 16)
    assert planned[1].seconds == pytest.approx(200 * 7.5e-5 * entries / 1e6)
    assert not store.has(added(2, added(1)))
