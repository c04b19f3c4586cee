"""Continual learning on tiny models: nothing is forgotten, bit for bit; stores on disk; what a kill or a second writer does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import apply, extract, grafted, load, save
from skillgraft.checkpoint import Checkpoint
from skillgraft.compose.continual import WORK, Learning, add
from skillgraft.compose.sequences import after_each, naive_continual, separate_finetunes
from skillgraft.compose.store import LOCK, Store, writing
from skillgraft.compose.tune import tune
from skillgraft.errors import FormatError, InputError, RunError, SkillgraftError, WrongBase
from skillgraft.live import tensors_of
from skillgraft.localize.skill import Rows
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.predictions import Predictions
from skillgraft.readouts import open_readouts
from skillgraft.tasks import load_task
from skillgraft.training.finetune import finetune
from tests.compose.toy_tasks import QUICK, TASKS, _one_thread, place, run, tasks  # noqa: F401
from tests.folders import content, same_weights

PLAN = QUICK.with_changes(steps=12, lr=1e-2)
LEARNING = Learning(PLAN, search={"budget": 0.05, "steps": 3, "lr": 1e5}, data=Rows(shots=12))


@pytest.fixture(scope="module")
def encoder(place: Path) -> Path:  # noqa: F811
    return place / "encoder"


@pytest.fixture(scope="module")
def history(encoder: Path, tasks: list[Path], place: Path) -> list[dict[str, str]]:  # noqa: F811
    """STORE with three tasks; the bytes of its visible files after each addition."""
    seen = []
    for task in tasks:
        add(place / "STORE", encoder, task, learning=LEARNING)
        seen.append(_files(place / "STORE"))
    return seen


@pytest.fixture(scope="module")
def store(history: list[dict[str, str]], place: Path) -> Store:  # noqa: F811
    assert len(history) == 3
    return Store.open(place / "STORE")


def _files(folder: Path) -> dict[str, str]:
    """What a reader of the store looks at, by SHA-256."""
    return {name: digest for name, digest in content(folder).items() if not name.startswith(".")}


def _said(base: Path, task: Path, store: Store) -> Predictions:
    name = load_task(task).name
    return evaluate(base, [task], grafts={"g": store.graft(name)}).said[name]["g"]


# Laws


def test_nothing_is_ever_written_again(history: list[dict[str, str]], store: Store) -> None:
    for before, after in pairwise(history):
        grafts = {name: digest for name, digest in before.items() if name != "store.json"}
        assert grafts.items() <= after.items()
    assert store.tasks == TASKS
    assert set(history[-1]) == {
        "store.json",
        *(f"00{number}-{name}.safetensors" for number, name in enumerate(TASKS, 1)),
    }


def test_regions_are_disjoint_and_lie_in_the_tasks_own(store: Store) -> None:
    regions = [store.own(task).region for task in TASKS]
    assert all(a.isdisjoint(b) for a, b in combinations(regions, 2))
    assert len(regions[0]) == store.own("films").info["recipe"]["region"]
    for task, region in zip(TASKS, regions, strict=True):
        assert 0 < len(region) <= store.own(task).info["recipe"]["region"]


def test_before_is_the_bases_number_everywhere(store: Store, encoder: Path) -> None:
    base = Checkpoint.open(encoder)
    for task in TASKS:
        graft = store.own(task)
        for name, at in graft.region.sites.items():
            np.testing.assert_array_equal(base.flat(name)[at], graft.before[name])
        moved = sum(int((graft.change[name] != graft.before[name]).sum()) for name in graft.region)
        assert moved > 0.5 * len(graft), "training inside the region moves it"


def test_the_first_task_keeps_its_bits(encoder: Path, tasks: list[Path], tmp_path: Path) -> None:  # noqa: F811
    """Numbers and predictions right after it was learned, and after two more tasks: folder, live model, scores."""
    add(tmp_path / "S", encoder, tasks[0], learning=LEARNING)
    first = Store.open(tmp_path / "S")
    first.use(encoder, "films", tmp_path / "then")
    said = _said(encoder, tasks[0], first)
    for task in tasks[1:]:
        add(tmp_path / "S", encoder, task, learning=LEARNING)
    now = Store.open(tmp_path / "S")
    now.use(encoder, "films", tmp_path / "now")
    assert same_weights(tmp_path / "then", tmp_path / "now")
    assert content(tmp_path / "then") == content(tmp_path / "now")
    assert now.graft("films") == first.graft("films")
    np.testing.assert_array_equal(_said(encoder, tasks[0], now).scores, said.scores)


def test_a_model_is_the_base_with_the_grafts_up_to_its_task(store: Store, encoder: Path, tmp_path: Path) -> None:
    for count, task in enumerate(TASKS, 1):
        outcome = store.use(encoder, task, tmp_path / task)
        assert outcome.entries == sum(len(store.own(one)) for one in TASKS[:count]) == len(store.graft(task))
        assert store.graft(task).form == "exact"
        assert extract(encoder, tmp_path / task).region == store.graft(task).region & _changed(store, task)
        opened = open_readouts(encoder, [load_task(encoder.parent / "films.toml")])
        with grafted(opened.model, store.graft(task)):
            live = tensors_of(opened.model).arrays
            folder = Checkpoint.open(tmp_path / task)
            assert all(np.array_equal(folder.read(name), live[name]) for name in folder.shapes)


def _changed(store: Store, task: str) -> Any:
    """The entries whose number differs from the base's: training may have left one as it was."""
    graft = store.graft(task)
    sites = {name: at[graft.change[name] != graft.before[name]] for name, at in graft.region.sites.items()}
    return type(graft.region)(graft.region.scope, sites)


def test_bytes_follow_the_entries(store: Store, encoder: Path, tasks: list[Path], tmp_path: Path) -> None:  # noqa: F811
    """12 bytes an entry (index, old and new number) and a header that does not grow with them."""
    search = {**LEARNING.search, "budget": 0.1}
    twice = add(tmp_path / "S", encoder, tasks[0], learning=Learning(PLAN, search=search, data=LEARNING.data))
    sizes = [(one.path / one.kept[0].file).stat().st_size for one in (store, twice)]
    entries = [one.kept[0].entries for one in (store, twice)]
    assert entries[1] == pytest.approx(2 * entries[0], abs=1)
    assert sizes[1] - sizes[0] == pytest.approx(12 * (entries[1] - entries[0]), rel=0.3)


def test_training_aims_at_the_bases_own_readout(store: Store, encoder: Path, tasks: list[Path], tmp_path: Path) -> None:  # noqa: F811
    """A learning rate of 0 leaves base + start, and its first loss is that of the base's label embeddings."""
    task, start = load_task(tasks[1]), store.graft("films")
    still = PLAN.with_changes(lr=0.0, weight_decay=0.0, steps=1, batch_size=24)
    losses: list[float] = []
    tune(
        encoder, task, tmp_path / "t", plan=still, start=start, data=LEARNING.data,
        on_step=lambda _done, _total, entry: losses.append(entry["loss"]),
    )  # fmt: skip
    apply(encoder, [store.upto("films")[0]], tmp_path / "applied")
    assert same_weights(tmp_path / "t", tmp_path / "applied")
    said = _training_scores(encoder, task, start)
    assert losses[0] == pytest.approx(_cross_entropy(said), rel=1e-5)


def _training_scores(base: Path, task: Any, graft: Any) -> Predictions:
    from skillgraft.measure.predict import predict
    from skillgraft.tasks import training_split

    opened = open_readouts(base, [task])
    rows = opened.readouts[0].encode(training_split(task, shots=12).train)
    with grafted(opened.model, graft):
        return predict(opened.model, opened.readouts[0], rows)


def _cross_entropy(said: Predictions) -> float:
    scores = said.scores.astype(np.float64)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return float(-logs[np.arange(len(logs)), said.labels].mean())


def test_without_a_start_tuning_is_finetuning(encoder: Path, tasks: list[Path], tmp_path: Path) -> None:  # noqa: F811
    tune(encoder, load_task(tasks[0]), tmp_path / "a", plan=PLAN, data=LEARNING.data)
    finetune(encoder, [tasks[0]], tmp_path / "b", plan=PLAN, shots=12)
    assert same_weights(tmp_path / "a", tmp_path / "b")
    tune(encoder, load_task(tasks[0]), tmp_path / "a", plan=PLAN, data=LEARNING.data)  # finished: taken as it is
    with pytest.raises(InputError, match="made with other settings"):
        tune(encoder, load_task(tasks[0]), tmp_path / "a", plan=PLAN.with_changes(lr=1e-3), data=LEARNING.data)


def test_a_linear_head_travels_with_its_task(place: Path, tasks: list[Path], tmp_path: Path) -> None:  # noqa: F811
    learning = Learning(PLAN, search=LEARNING.search, data=Rows(shots=12, readout="linear"))
    said = []
    for task in tasks[:2]:
        store = add(tmp_path / "S", place / "masked", task, learning=learning)
        found = evaluate(place / "masked", [tasks[0]], grafts={"g": store.graft("films")}, readout="linear")
        said.append(found.said["films"]["g"].scores)
    np.testing.assert_array_equal(said[0], said[1])
    heads = [store.own(name).heads["classifier.weight"] for name in TASKS[:2]]
    assert not np.array_equal(heads[0], heads[1])
    store.use(place / "masked", "films", tmp_path / "films")
    assert Checkpoint.open(tmp_path / "films").read("classifier.weight").tobytes() == heads[0].tobytes()
    store.use(place / "masked", "animals", tmp_path / "animals")
    assert Checkpoint.open(tmp_path / "animals").read("classifier.weight").tobytes() == heads[1].tobytes()


# Reuse


def test_a_fine_tune_or_a_region_that_exists_is_not_made_anew(
    store: Store,
    encoder: Path,
    tasks: list[Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    folders = separate_finetunes(encoder, tasks[:1], tmp_path / "single", learning=LEARNING)
    watched: list[str] = []

    def watch(stage: str) -> None:
        watched.append(stage)

    again = add(tmp_path / "S", encoder, tasks[0], learning=LEARNING, tuned=folders["films"], on_stage=watch)
    assert watched == ["localizing", "inside"]
    assert again.own("films").digest == store.own("films").digest
    region = store.own("films").region
    watched.clear()
    third = add(tmp_path / "T", encoder, tasks[0], learning=LEARNING, region=region, on_stage=watch)
    assert watched == ["inside"]
    assert third.own("films").digest == store.own("films").digest
    assert third.own("films").info["method"] == "given"


# Sequences


def test_the_store_forgets_nothing_where_naive_tuning_does(
    encoder: Path,
    tasks: list[Path],  # noqa: F811
    store: Store,
    tmp_path: Path,
) -> None:
    kept = after_each(tmp_path / "S", encoder, tasks, learning=LEARNING, rows=30)
    assert Store.open(tmp_path / "S").kept == store.kept
    assert all(kept.identical(task) for task in TASKS)
    table = kept.scores()
    assert table.rows == ("base", "after films", "after animals", "after colours")
    assert table["after films", "films"] == table["after colours", "films"]
    assert table["after films", "colours"].value is None
    longer = Learning(PLAN.with_changes(steps=40), data=LEARNING.data)
    naive = naive_continual(encoder, tasks, tmp_path / "naive", learning=longer, rows=30)
    assert not naive.identical("films")
    assert naive.identical("colours"), "the last task has only one stage"
    last = evaluate(encoder, [tasks[2]], tuned={"t": tmp_path / "naive" / "003-colours"}, rows=30).said["colours"]["t"]
    np.testing.assert_array_equal(naive.said["colours"]["after colours"].scores, last.scores)
    again = naive_continual(encoder, tasks, tmp_path / "naive", learning=longer, rows=30)
    assert again.scores() == naive.scores()


def test_a_store_of_other_tasks_is_not_continued(store: Store, encoder: Path, tasks: list[Path]) -> None:  # noqa: F811
    with pytest.raises(InputError, match="which is not how animals, films begins"):
        after_each(store.path, encoder, [tasks[1], tasks[0]], learning=LEARNING)
    with pytest.raises(InputError, match="each once; found films, films"):
        after_each(store.path, encoder, [tasks[0], tasks[0]], learning=LEARNING)


# Kills and second writers


def _child(work: Callable[[], object], said: Path | None = None) -> int:
    """Run the work in a process of its own; its exit code, negative for a signal."""
    child = os.fork()
    if not child:
        code = 99
        try:
            work()
            code = 0
        except SkillgraftError as error:
            if said:
                said.write_text(str(error))
            code = error.exit_code
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _killed_at(event: int, below: Path) -> None:
    """Kill this process at its n-th rename, link or removal below a folder."""
    left = [event]

    def listen(name: str, arguments: tuple[Any, ...]) -> None:
        if name in ("os.rename", "os.link", "os.remove", "os.rmdir") and str(arguments[0]).startswith(str(below)):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(listen)


def test_killed_at_any_moment_the_store_is_as_it_was_and_adding_goes_on(
    encoder: Path,
    tasks: list[Path],  # noqa: F811
    store: Store,
    tmp_path: Path,
) -> None:
    """One process after the other is killed one file operation later; every one of them finds a sound store."""
    first = tmp_path / "S"
    add(first, encoder, tasks[0], learning=LEARNING)
    before, kills, tasks_seen = _files(first), 0, set()

    def go_on() -> None:
        _killed_at(kills + 1, tmp_path / "copy")
        add(tmp_path / "copy", encoder, tasks[1], learning=LEARNING, snapshot_seconds=0.0)

    shutil.copytree(first, tmp_path / "copy")
    while (code := _child(go_on)) == -signal.SIGKILL:
        kills += 1
        found = Store.open(tmp_path / "copy")
        tasks_seen.add(found.tasks)
        assert found.own("films").digest == store.own("films").digest
        files = _files(tmp_path / "copy")
        assert files["001-films.safetensors"] == before["001-films.safetensors"]
        if found.tasks == ("films",):
            assert files["store.json"] == before["store.json"]
        else:
            assert _child(lambda: add(tmp_path / "copy", encoder, tasks[1], learning=LEARNING)) == 2  # it is there
            break
    else:
        assert code == 0
    assert kills > 5
    assert Store.open(tmp_path / "copy").own("animals").digest == store.own("animals").digest
    assert not list((tmp_path / "copy").glob(f"{WORK}*")), "what killed processes left is gone"


@pytest.mark.parametrize("event", [1, 2, 3])
def test_killed_at_the_very_start_a_store_can_still_be_begun(
    event: int,
    encoder: Path,
    tasks: list[Path],  # noqa: F811
    store: Store,
    tmp_path: Path,
) -> None:
    def begin() -> None:
        _killed_at(event, tmp_path)
        add(tmp_path / "S", encoder, tasks[0], learning=LEARNING)

    assert _child(begin) == -signal.SIGKILL
    assert add(tmp_path / "S", encoder, tasks[0], learning=LEARNING).own("films").digest == store.own("films").digest
    assert {file.name for file in (tmp_path / "S").iterdir()} == {"store.json", "001-films.safetensors", LOCK}


def test_a_second_writer_is_refused(encoder: Path, tasks: list[Path], store: Store, tmp_path: Path) -> None:  # noqa: F811
    before = _files(store.path)
    with writing(store.path, Checkpoint.open(encoder)):
        code = _child(lambda: add(store.path, encoder, tasks[0], learning=LEARNING), tmp_path / "said")
        assert code == RunError.exit_code
        assert f"is being written by another process ({os.getpid()})" in (tmp_path / "said").read_text()
        Store.open(store.path).use(encoder, "films", tmp_path / "read")  # reading is free
    assert _files(store.path) == before


# Refusals


def test_what_cannot_be_added_is_refused(store: Store, encoder: Path, tasks: list[Path], tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(InputError, match="knows the task 'films' already"):
        add(store.path, encoder, tasks[0], learning=LEARNING)
    with pytest.raises(InputError, match=r"method full or bias, not 'lora'"):
        add(tmp_path / "S", encoder, tasks[0], learning=Learning(PLAN.with_changes(method="lora")))
    copy, other, taken = _copy(store, tmp_path), _other(tasks[0], tmp_path), store.own("films").region
    with pytest.raises(InputError, match=rf"'other' has no region to train in: all its {len(taken):,} entries belong"):
        add(copy, encoder, other, learning=LEARNING, region=taken)
    with pytest.raises(InputError, match="has no region to train in: it is empty; give a larger budget"):
        add(copy, encoder, other, learning=LEARNING, region=taken - taken)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("hello")
    with pytest.raises(InputError, match="is no store and not empty"):
        add(tmp_path / "full", encoder, tasks[0], learning=LEARNING)
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["letter.txt"]


def _copy(store: Store, folder: Path) -> Path:
    shutil.copytree(store.path, folder / "copy")
    return folder / "copy"


def _other(task: Path, folder: Path) -> Path:
    """The same task under another name."""
    text = task.read_text().replace('name = "films"', 'name = "other"').replace('"x.jsonl"', f'"{task.parent}/x.jsonl"')
    (folder / "other.toml").write_text(text.replace('"y.jsonl"', f'"{task.parent}/y.jsonl"'))
    return folder / "other.toml"


def test_another_base_is_refused_by_name(store: Store, encoder: Path, tasks: list[Path], tmp_path: Path) -> None:  # noqa: F811
    store.use(encoder, "films", tmp_path / "stranger")
    before = _files(store.path)
    for attempt in (
        lambda: store.use(tmp_path / "stranger", "films", tmp_path / "out"),
        lambda: add(store.path, tmp_path / "stranger", tasks[0], learning=LEARNING),
    ):
        with pytest.raises(WrongBase, match=r"stranger \(fingerprint .*is not the base of .*STORE, which is "):
            attempt()
    assert _files(store.path) == before
    assert not (tmp_path / "out").exists()


def test_an_unknown_task_gets_a_hint(store: Store) -> None:
    with pytest.raises(InputError, match="has no task 'animal'; did you mean 'animals'"):
        store.graft("animal")


def _swapped(folder: Path) -> None:
    graft = load(folder / "001-films.safetensors")
    change = {name: numbers + np.float32(0.5) for name, numbers in graft.change.items()}
    other = type(graft)(graft.region, graft.before, change, base_fingerprint=graft.base_fingerprint, info=graft.info)
    save(other, folder / "001-films.safetensors", overwrite=True)


def _overlapping(folder: Path) -> None:
    shutil.copyfile(folder / "001-films.safetensors", folder / "002-animals.safetensors")
    _edit(folder, lambda text: text["tasks"][1].update(digest=text["tasks"][0]["digest"]))


def _edit(folder: Path, change: Callable[[Any], object]) -> None:
    text = json.loads((folder / "store.json").read_text())
    change(text)
    (folder / "store.json").write_text(json.dumps(text))


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing file": (lambda f: (f / "002-animals.safetensors").unlink(), "002-animals.safetensors, the graft of task animals"),
    "cut short": (lambda f: os.truncate(f / "003-colours.safetensors", 900), "003-colours.safetensors"),
    "other numbers": (_swapped, r"001-films.safetensors is not the graft that was stored for task films"),
    "overlap": (_overlapping, r"002-animals.safetensors and 001-films.safetensors share \d+ entries"),
    "not JSON": (lambda f: (f / "store.json").write_text("{"), "store.json: not what skillgraft wrote"),
    "another format": (lambda f: _edit(f, lambda t: t.update(format="x")), "its format is not skillgraft.store"),
    "a later version": (lambda f: _edit(f, lambda t: t.update(format_version="2")), "format version '2'"),
    "a path": (lambda f: _edit(f, lambda t: t["tasks"][0].update(file="../x")), "'../x' is not a file of this folder"),
    "twice": (lambda f: _edit(f, lambda t: t["tasks"].append(t["tasks"][0])), "a task is listed twice"),
    "no digest": (lambda f: _edit(f, lambda t: t["tasks"][0].pop("digest")), "store.json: not what skillgraft wrote"),
    "no text": (lambda f: _edit(f, lambda t: t.update(base=3)), "base and base_fingerprint must be texts"),
    "no number": (lambda f: _edit(f, lambda t: t["tasks"][0].update(entries="3")), "entries a number"),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_store_is_refused_with_names(what: str, store: Store, tmp_path: Path) -> None:
    spoil, message = SPOILED[what]
    folder = _copy(store, tmp_path)
    spoil(folder)
    with pytest.raises(FormatError, match=message):
        Store.open(folder).graft("colours")


def test_a_folder_that_is_no_store_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`skillgraft continual add` makes one"):
        Store.open(tmp_path)
    assert not (tmp_path / LOCK).exists()
