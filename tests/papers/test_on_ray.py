"""Steps on a Ray cluster on loopback: nodes that die, drivers that are killed, stores that go on without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillgraft import map_steps
from skillgraft.errors import InputError, RunError
from skillgraft.opening.executors import Needs, OnRay, executor
from skillgraft.papers import Step, Store
from skillgraft.papers.run import run

from .toys import add, added, crash, fail, slow, slow_step

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.long
# Read when Ray is imported: the driver, too, keeps to the loopback address.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
ray = pytest.importorskip("ray")
_NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of one core each, known by their address."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    found = Cluster(
        initialize_head=True,
        head_node_args={**_NODE, "node_ip_address": "127.0.0.1", "include_dashboard": False},
    )
    found.second = found.add_node(**_NODE, node_ip_address="127.0.0.1")
    monkeypatch.setenv("RAY_ADDRESS", found.address)
    yield found
    ray.shutdown()
    found.shutdown()


def graph(count: int = 12) -> list[Step]:
    """As many slow steps, and one that needs the first few."""
    words = [slow_step(f"word {number}") for number in range(count)]
    return [*words, added(1, added(2, added(3)))]


def content(store: Store, steps: list[Step]) -> list[str]:
    found = []
    for step in steps:
        result = store.read(step)
        found.append(
            "".join(sorted(f.read_text() for f in result.glob("part-*"))) if isinstance(result, Path) else result
        )
    return found


def test_a_node_that_dies_in_the_middle_changes_nothing(cluster: Any, tmp_path: Path) -> None:
    steps = graph()
    here = Store(tmp_path / "here")
    run(steps, here)
    ended: list[str] = []

    def kill_one(step: Step, _n: int, _of: int) -> None:
        ended.append(step.title)
        if len(ended) == 4:
            cluster.remove_node(cluster.second, allow_graceful=False)

    with executor(on="ray") as workers:
        assert workers.slots == 2
        store = Store(tmp_path / "there", workers.threads)
        assert run(steps, store, executor=workers, on_step=kill_one) == {}
        deadline = time.monotonic() + 60
        while workers.slots > 1 and time.monotonic() < deadline:  # the cluster takes some seconds to notice
            time.sleep(0.5)
        assert workers.slots == 1
    assert len(ended) == len({*steps, *(needed for step in steps for needed in step.needs)}) + 1
    assert content(store, steps) == content(here, steps)
    assert list((tmp_path / "there").glob("*.work")) == []
    # Gone on with without the cluster, nothing is repeated.
    assert all(map(store.has, steps))
    with executor() as workers:
        again: list[object] = []
        run(steps, Store(tmp_path / "there", workers.threads), on_step=lambda *each: again.append(each))
        assert again == [] or workers.threads != store.threads


@pytest.mark.usefixtures("cluster")
def test_errors_are_what_they_are_here(tmp_path: Path) -> None:
    with executor(on="ray") as workers:
        failures = run([Step(fail, {"why": "no such rows"})], Store(tmp_path / "s", workers.threads), executor=workers)
        assert list(failures.values()) == ["no such rows"]
        with pytest.raises(ZeroDivisionError, match="a bug"):
            run([Step(crash, {})], Store(tmp_path / "s", workers.threads), executor=workers)


@pytest.mark.usefixtures("cluster")
def test_a_sweep_on_the_cluster_is_a_sweep_here(tmp_path: Path) -> None:
    calls = [{"number": number, "seed": seed} for number in (1.0, 2.0) for seed in range(3)]
    here = map_steps(add, calls, store=tmp_path / "here")
    assert map_steps(add, calls, store=tmp_path / "there", on="ray", needs=Needs(cores=1)) == here
    assert here == [1.0, 2.0, 3.0, 2.0, 3.0, 4.0]


@pytest.mark.usefixtures("cluster")
def test_a_driver_that_is_killed_leaves_no_orphan_and_is_gone_on_with(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from skillgraft import map_steps; from tests.papers.toys import slow\n"
        "map_steps(slow, [{'word': f'w{n}', 'seconds': 0.5} for n in range(12)], store=Path(sys.argv[1]), on='ray')"
    )
    driver = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "s")], cwd=REPOSITORY)
    steps = [Step(slow, {"word": f"w{n}", "seconds": 0.5}) for n in range(12)]
    store = Store(tmp_path / "s", threads=1)
    deadline = time.monotonic() + 300
    while sum(map(store.has, steps)) < 3 and time.monotonic() < deadline:
        time.sleep(0.2)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    done = {step.key: store.path(step).stat().st_mtime_ns for step in steps if store.has(step)}
    assert 3 <= len(done) < 12
    time.sleep(5)
    after = sum(map(store.has, steps))
    time.sleep(3)
    assert sum(map(store.has, steps)) == after, "a worker went on without its driver"
    with executor(on="ray") as workers:
        assert isinstance(workers, OnRay)
        assert run(steps, store, executor=workers) == {}
    for step in steps:
        if step.key in done:
            assert store.path(step).stat().st_mtime_ns == done[step.key], "a finished step ran again"
        assert sorted((store.read(step) / "log").read_text().split())[0] == "0"


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="--jobs is for this machine"), executor(2, on="ray"):
        pass
    with pytest.raises(InputError, match="work runs on 'ray' or on a cluster's address"), executor(on="slurm"):
        pass
    with pytest.raises(InputError, match="are for a cluster: add --on ray"), executor(needs=Needs(2)):
        pass
    with pytest.raises(InputError, match="at least one core"):
        Needs(cores=0)
    assert RunError.exit_code == 1
