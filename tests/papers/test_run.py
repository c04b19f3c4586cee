"""Running steps: once, in order, side by side, again after a kill; what becomes of results and of steps that fail."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from skillgraft.errors import InputError
from skillgraft.files.graft_file import save
from skillgraft.folders.extract import extract
from skillgraft.opening.executors import executor, threads_here
from skillgraft.papers import Draft, Recipe, Step, Store, Wanted, main
from skillgraft.papers.main import TOKENS, plan, tokens
from skillgraft.papers.profile import Profile, profile
from skillgraft.papers.recipe import filled
from skillgraft.papers.recipes import RECIPES
from skillgraft.papers.run import run
from skillgraft.papers.samples import Sample
from skillgraft.papers.steps import in_order
from skillgraft.predictions.predictions import Predictions
from skillgraft.regions.choose import ChosenRegion
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region, Scope

from .toys import PARTS, Tuned, added, crash, fail, files, slow_step

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_every_step_runs_once_after_those_it_needs(store: Store) -> None:
    shared = added(1)
    top = added(3, added(2, shared), shared)
    seen: list[tuple[str, int, int]] = []
    assert run([top, shared], store, on_step=lambda step, n, of: seen.append((step.name, n, of))) == {}
    assert store.read(top) == 1 + 2 + 1 + 3
    assert seen == [("add", 1, 3), ("add", 2, 3), ("add", 3, 3)]
    again: list[object] = []
    run([top], store, on_step=lambda *ended: again.append(ended))
    assert again == []


def test_the_record_tells_how_a_result_came_about(store: Store) -> None:
    below = added(1)
    step = added(2, below, seed=5)
    run([step], store)
    record = json.loads((store.path(step) / "step.json").read_text(encoding="utf-8"))
    assert record["arguments"] == {"number": 2, "others": [f"add {below.key}"], "seed": 5}
    assert (record["function"], record["key"], record["threads"]) == ("add", step.key, store.threads)
    assert {"seconds", "versions"} <= record.keys()


def test_a_failed_step_does_not_stop_the_others_and_its_reason_reaches_the_cells(store: Store) -> None:
    bad = Step(fail, {"why": "shots=512, but the class 'x' of task 't' has 84 rows"})
    above = added(1, bad)
    cells: dict[tuple[str, str], Wanted | str] = {
        ("a", "good"): Wanted.of(float, added(7)),
        ("a", "bad"): Wanted.of(float, bad),
        ("a", "above"): Wanted.of(float, added(2, above)),
        ("a", "known"): "the paper has none",
    }
    draft = Draft("mixed", cells)
    failures = run(draft.steps(), store)
    sheet = filled(draft, store, failures)
    assert sheet.cells["a", "good"].value == 7
    assert {sheet.cells["a", name].reason for name in ("bad", "above")} == {bad.arguments["why"]}
    assert sheet.cells["a", "known"].reason == "the paper has none"
    assert not store.has(bad)


def test_a_bug_is_not_taken_for_a_reason(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        run([Step(crash, {})], store)


def test_a_failed_step_is_tried_again(store: Store, tmp_path: Path) -> None:
    step = Step(reads, {"name": str(tmp_path / "data")})
    assert run([step], store) == {step.key: "the data are not here"}
    (tmp_path / "data").touch()
    assert run([step], store) == {}


def reads(*, name: str) -> float:
    if not Path(name).exists():
        raise InputError("the data are not here")
    return 1.0


def test_another_number_of_threads_is_another_result(tmp_path: Path) -> None:
    one, two = Store(tmp_path, 1), Store(tmp_path, 2)
    assert one.path(added(1)) != two.path(added(1))
    with pytest.raises(InputError, match=f"for steps of 7 threads, but they would run with {threads_here()}"):
        run([added(1)], Store(tmp_path, 7))


SCOPE = Scope.of("all", {"w": (4, 2)})
GRAFT = Graft(Region(SCOPE, {"w": [1, 3]}), {"w": np.float32([1, 2])}, {"w": np.float32([3, 4])})


def a_graft(*, scale: float) -> Graft:
    return (scale * GRAFT).with_info(recipe={"scale": scale})


def several(*, names: Sequence[str]) -> dict[str, Graft]:
    return {name: float(number) * GRAFT for number, name in enumerate(names, start=1)}


def a_region() -> ChosenRegion:
    return ChosenRegion(GRAFT.region, {"rounds": 4})


def predicted() -> Predictions:
    return Predictions(np.float32([[1, 0], [0, 1]]), np.array([0, 0]), task="t")


@dataclass(frozen=True)
class Localization:
    """As `localize` gives it."""

    graft: Graft
    nested: Mapping[float, Graft]


def searched(*, densities: Sequence[float], out: Path) -> Localization:
    save(GRAFT, out)  # refuses a file that is there
    return Localization(GRAFT, {density: density * GRAFT for density in densities})


def trained(*, out: Path, reuse: bool) -> Tuned:
    assert reuse
    for folder in (out, out.with_name(f"{out.name}.steps") / "step-000002"):
        folder.mkdir(parents=True, exist_ok=True)
    (out / "weights").touch()
    return Tuned(out)


def test_results_are_kept_by_their_type_and_read_back(store: Store) -> None:
    graft, grafts, found = Step(a_graft, {"scale": 2.0}), Step(several, {"names": ["a/b", "a+b"]}), Step(a_region, {})
    predictions, search, tuned = Step(predicted, {}), Step(searched, {"densities": [1e-5, 0.5]}), Step(trained, {})
    assert run([graft, grafts, found, predictions, search, tuned], store) == {}
    assert store.read(graft) == a_graft(scale=2.0)
    assert store.read(graft.region) == store.read(found) == GRAFT.region
    assert store.read(graft.recipe) == {"scale": 2.0}
    assert store.read(found.facts) == {"rounds": 4}
    assert store.read(grafts) == {"a/b": GRAFT, "a+b": 2.0 * GRAFT}
    assert store.read(grafts["a+b"]) == 2.0 * GRAFT
    assert store.read(predictions) == predicted()
    assert store.read(search) == GRAFT
    assert store.read(search.at(1e-5)) == 1e-5 * GRAFT
    assert store.read(tuned).name == "model"
    assert store.read(tuned.checkpoint("step-000002")).is_dir()
    listed = Step(files, {"folder": tuned})
    run([listed], store)
    assert store.read(listed) == ["weights"]


def test_a_result_that_was_saved_but_not_kept_is_made_again(store: Store) -> None:
    """Killed between a function's own last file and ours: a function without `reuse` would refuse its file."""
    step = Step(searched, {"densities": [0.5]})
    work = store.path(step).with_name(f"{store.path(step).name}.work")
    work.mkdir(parents=True)
    (work / "graft.safetensors").write_text("what the killed run left")
    assert run([step], store) == {}
    assert store.read(step) == GRAFT


def test_side_by_side_gives_the_same_as_one_after_the_other(studio: Path, tmp_path: Path) -> None:
    """Worker processes call the library: here what cuts grafts out of a model that another step made."""
    base = str(studio / "bert")
    tuned = Step(moved, {"base": base})
    grafts = [Step(extract, {"base": base, "tuned": tuned, "entries": entries}) for entries in (3, 40, 500)]
    one = Store(tmp_path / "one")
    assert run(grafts, one) == {}
    with executor(2) as workers:
        two = Store(tmp_path / "two", workers.threads)
        assert run(grafts, two, executor=workers) == {}
    for step in grafts:
        assert two.read(step) == one.read(step)


def moved(*, base: str, out: Path) -> Tuned:
    """A model whose every weight has moved by its own small amount."""
    shutil.copytree(base, out)
    tensors = safetensors.numpy.load_file(Path(base) / "model.safetensors")
    draw = np.random.default_rng(0)
    other = {name: (x + draw.normal(size=x.shape)).astype(x.dtype) for name, x in tensors.items()}
    safetensors.numpy.save_file(other, out / "model.safetensors", metadata={"format": "pt"})
    return Tuned(out)


def test_at_least_one_job() -> None:
    with pytest.raises(InputError, match="must be at least 1, found 0"), executor(0):
        pass


PROGRAM = """
import torch
from skillgraft.papers.run import executor

if __name__ == "__main__":
    with executor(64) as workers:
        print(workers.threads, workers.submit(torch.get_num_threads).result())
"""


def test_a_program_that_loads_torch_itself_shares_the_cores_too(tmp_path: Path) -> None:
    """Its worker processes have loaded torch before they learn how many threads are theirs."""
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout == "1 1\n"


LASTING = """
import os, sys, time
from pathlib import Path
from skillgraft.papers.run import executor

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


def started(store: Store, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.papers.toys", str(store.folder), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": str(store.threads)}
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment, start_new_session=True)


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
    until(work / "model" / "part-0")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert store.has(first)
    assert not store.has(second)
    made = (store.path(first) / "step.json").stat().st_mtime_ns
    assert run([first, second], store) == {}
    assert (store.path(first) / "step.json").stat().st_mtime_ns == made
    assert not work.exists()
    log = (store.read(second) / "log").read_text(encoding="utf-8").split()
    # The part that was under way is done again, those before it are not.
    assert log[0] == "0"
    assert log.count("0") == 1
    assert set(log) == {str(part) for part in range(PARTS)}


def test_two_processes_on_one_store_share_the_work(store: Store) -> None:
    words = ["alpha", "beta", "gamma"]
    processes = [started(store, *words), started(store, *reversed(words))]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    for word in words:
        log = store.read(slow_step(word)) / "log"
        assert log.read_text(encoding="utf-8").split() == ["0", "1", "2"]
    assert not list(store.folder.glob("*.work"))


def test_a_dry_run_tells_what_is_there_and_about_how_long_the_rest_takes(
    studio: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = [Draft("one", {("a", "b"): Wanted.of(float, added(2, added(1)))})]
    toy = Recipe("a toy", "P0", lambda _profile: drafts)
    monkeypatch.setattr(main, "recipe", lambda _name: toy)
    monkeypatch.setattr("skillgraft.papers.main.TOKENS", {"add": lambda given: 100.0 * given["number"]})
    run([added(1)], store)
    planned = plan(["toy"], Profile(str(studio / "bert")), store=store.folder)
    assert [each.done for each in planned] == [True, False]
    # 200 tokens; two layers of four 16 × 16 and two 16 × 32 matrices with their biases and two LayerNorms.
    entries = 2 * (4 * (16 * 16 + 16) + 2 * 16 * 32 + 32 + 16 + 2 * 2 * 16)
    assert planned[1].seconds == pytest.approx(200 * 7.5e-5 * entries / 1e6)
    assert not store.has(added(2, added(1)))


def test_a_search_is_estimated_by_the_rows_of_its_own_steps(studio: Path) -> None:
    from skillgraft.regions.methods import METHODS

    sample = Sample(profile("cpu", base=str(studio / "bert")), str(studio / "films.toml"), 512, 0)
    learned, budgeted = sample.graft(density=0.1), sample.graft(density=0.1, method="budgeted")
    assert tokens(learned) / tokens(budgeted) == pytest.approx(256 / (METHODS["budgeted"].step_rows or 0))


def test_steps_that_run_a_model_have_an_estimate(studio: Path) -> None:
    """Every function of every recipe is either estimated or known to take no time."""
    tasks = tuple(str(studio / f"{task}.toml") for task in ("films", "plays"))
    asked = profile("smoke", base=str(studio / "bert"), tasks=tasks, controls=(str(studio / "songs.toml"),))
    drafts = [draft for recipe in RECIPES.values() for draft in recipe.draft(asked)]
    steps = in_order(step for draft in drafts for step in draft.steps())
    quick = {"extract", "union", "recall", "best_rate", "all_rows"}
    assert {step.name for step in steps} == set(TOKENS) | quick
    assert len({(step.function, step.name) for step in steps}) == len(TOKENS) + len(quick), "names tell functions apart"
    assert all(tokens(step) > 0 for step in steps if step.name in TOKENS)
