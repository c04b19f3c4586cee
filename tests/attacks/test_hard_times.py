"""Every verb that writes, where the disk is full or read-only, another process has the same output, or the clock goes back.

What verbs without a loop do there, at every size of disk, is in tests/test_crashes.py.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skillgraft.files import atomic
from tests.attacks import kills
from tests.attacks.kills import VERBS, child, clear, ended, image, run, whole
from tests.model_folders import content

pytestmark = pytest.mark.long
every_verb = pytest.mark.parametrize("verb", VERBS)


@pytest.fixture(scope="module")
def prepared() -> Iterator[Path]:
    """A base, tuned models, grafts and a task, in a place that every user may read."""
    pytest.importorskip("transformers")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        kills.prepare(work)
        for item in (work, *work.rglob("*")):
            item.chmod(0o755 if item.is_dir() else 0o644)
        yield work


@pytest.fixture
def work(prepared: Path) -> Iterator[Path]:
    before = content(prepared)
    clear(prepared)
    yield prepared
    clear(prepared)
    assert content(prepared) == before, "an input was changed"


@pytest.fixture(scope="module")
def complete(prepared: Path) -> dict[str, object]:
    """What each verb leaves where nothing goes wrong."""
    found = {}
    for verb, words in VERBS.items():
        run(prepared, words)
        found[verb] = image(prepared / "OUT")
        clear(prepared)
    return found


def goes_on(work: Path, verb: str, complete: dict[str, object]) -> None:
    """What stands there may stand there, and the same command, run again, ends as if nothing had been."""
    assert whole(work / "OUT", complete[verb])
    if image(work / "OUT") != complete[verb]:
        run(work, VERBS[verb])
    assert image(work / "OUT") == complete[verb]
    assert [item.name for item in work.iterdir() if item.name.startswith(".OUT")] == []


@every_verb
@pytest.mark.parametrize("limit", [100, 3_000, 20_000])
def test_a_full_disk(verb: str, limit: int, work: Path, complete: dict[str, object]) -> None:
    """Files end at so many bytes: the next one fails, as on a disk that is full."""
    code = ended(child(work, VERBS[verb], lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))))
    assert code in (0, 1)
    assert code == 0 or limit == 20_000 or image(work / "OUT") != complete[verb]
    goes_on(work, verb, complete)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@every_verb
def test_a_folder_that_may_not_be_written(verb: str, work: Path, complete: dict[str, object]) -> None:
    assert ended(child(work, VERBS[verb], lambda: (os.setgid(65534), os.setuid(65534)))) == 1
    assert [item.name for item in work.iterdir() if "OUT" in item.name] == []
    goes_on(work, verb, complete)


@every_verb
def test_two_processes_with_one_output(verb: str, work: Path, complete: dict[str, object]) -> None:
    """One of them at least ends well; what stands there is one whole output."""
    for turn in range(3):
        both = [child(work, VERBS[verb]) for _ in range(2)]
        codes = sorted(ended(process) for process in both)
        assert codes[0] == 0, (turn, codes)
        assert codes[1] in (0, 1, 2), (turn, codes)
        goes_on(work, verb, complete)
        clear(work)


def overtaken(name: str, make: Callable[[Path], object], work: Path) -> None:
    """From now on another process's output is there just before this one's gets its name."""
    real = getattr(atomic, name)
    setattr(atomic, name, lambda *paths: (make(work / "OUT"), real(*paths))[1])


@pytest.mark.parametrize(
    ("verb", "name", "make"),
    [("finetune", "_to_disk", Path.mkdir), ("localize", "_publish_file", Path.touch)],
    ids=["finetune", "localize"],
)
def test_who_was_overtaken_leaves_nothing(verb: str, name: str, make: Callable[[Path], object], work: Path) -> None:
    """A run that resumes would need a snapshot; where the output is there already, nobody will."""
    assert ended(child(work, VERBS[verb], lambda: overtaken(name, make, work))) == 2
    assert [item.name for item in work.iterdir() if "OUT" in item.name] == ["OUT"]
    assert (work / "OUT").stat().st_size == 0 or list((work / "OUT").iterdir()) == []


@every_verb
def test_a_clock_that_goes_back(verb: str, work: Path, complete: dict[str, object]) -> None:
    """A run is killed; what it left is of 2040, and the next run lives in 1970."""
    rng = random.Random(verb)
    for _ in range(3):
        began = time.monotonic()
        process = child(work, VERBS[verb])
        time.sleep(rng.uniform(0.2, 1.5))
        os.kill(process, signal.SIGKILL)
        ended(process)
        assert time.monotonic() > began
        for item in work.iterdir():
            if "OUT" in item.name:
                for each in (item, *item.rglob("*")):
                    os.utime(each, (2_200_000_000, 2_200_000_000))
        if image(work / "OUT") != complete[verb]:
            assert ended(child(work, VERBS[verb], lambda: setattr(time, "time", lambda: 0.0))) == 0
        goes_on(work, verb, complete)
        clear(work)
