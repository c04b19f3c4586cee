"""Where independent pieces of work run: in this process, in several of this machine, or on a Ray cluster.

    with executor(jobs=2) as workers:            # or on="ray", on="ray://head:10001"
        futures = [workers.submit(function, each) for each in items]

Three rows behind one small interface. How many threads a piece of work takes is the executor's to say, because sums in another
order are other numbers. A program that is killed leaves no worker behind; a cluster's node that dies is replaced by another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, Protocol

from skillgraft.errors import InputError, RunError
from skillgraft.files.system import cores

RAY = "ray"
_RETRIES = 5  # of a piece of work whose node died


@dataclass(frozen=True)
class Needs:
    """What one piece of work takes on a cluster: cores (as many threads), memory in bytes, GPUs."""

    cores: int = 1
    memory: int = 0
    gpus: float = 0

    def __post_init__(self) -> None:
        if self.cores < 1 or self.memory < 0 or self.gpus < 0:
            raise InputError(f"a piece of work takes at least one core, and no negative memory or GPUs; found {self}")


class Executor(Protocol):
    """Takes calls and gives futures; at most `slots` run at a time, with so many `threads` each."""

    @property
    def slots(self) -> int: ...

    @property
    def threads(self) -> int: ...

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]: ...


class InProcess:
    """Runs each call at once, here."""

    slots = 1

    @property
    def threads(self) -> int:
        return threads_here()  # asked for late: what is refused before anything runs does not wait for torch

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class InProcesses(ProcessPoolExecutor):
    """Runs calls side by side in fresh processes that share the cores out between them."""

    def __init__(self, jobs: int) -> None:
        self.slots, self.threads = jobs, threads_of(jobs)
        super().__init__(jobs, get_context("spawn"), initializer=_begin, initargs=(self.threads,))


class OnRay:
    """Runs calls on a Ray cluster, each as one task of stated needs. What a dead node was at runs again elsewhere."""

    def __init__(self, ray: Any, needs: Needs) -> None:
        self._ray, self.needs, self.threads = ray, needs, needs.cores
        options: dict[str, Any] = {"num_cpus": needs.cores, "max_retries": _RETRIES}
        options |= {"memory": needs.memory} if needs.memory else {}
        options |= {"num_gpus": needs.gpus} if needs.gpus else {}
        self._task = ray.remote(_called).options(**options)

    @property
    def slots(self) -> int:
        """As many as the cluster has cores for now: nodes come and go."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 0)) // self.needs.cores)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        ours: Future[Any] = Future()

        def ended(theirs: Future[Any]) -> None:
            error = theirs.exception()
            if error is None:
                ours.set_result(theirs.result())
                return
            cause = getattr(error, "cause", None)  # what the work itself raised, under Ray's own error
            died = RunError(f"a piece of work was lost on the cluster, {_RETRIES} times over: {error}")
            ours.set_exception(cause if isinstance(cause, Exception) else died)

        self._task.remote(function, arguments).future().add_done_callback(ended)
        return ours


def _called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


@contextmanager
def executor(jobs: int = 1, *, on: str | None = None, needs: Needs | None = None) -> Iterator[Executor]:
    """The executor for so many jobs at a time, or for a cluster: `ray` (the one that RAY_ADDRESS names, else one on this machine
    alone) or its address, `ray://head:port`."""
    if on is not None:
        if jobs != 1:
            raise InputError(f"--jobs is for this machine; on {on} the cluster's cores decide. Give one of them")
        with _ray(on, needs or Needs()) as cluster:
            yield cluster
    elif needs is not None:
        raise InputError("cores, memory and GPUs of a piece of work are for a cluster: add --on ray")
    elif jobs == 1:
        yield InProcess()
    else:
        with InProcesses(jobs) as workers:
            yield workers


@contextmanager
def _ray(on: str, needs: Needs) -> Iterator[OnRay]:
    if on != RAY and not on.startswith("ray://"):
        raise InputError(f"work runs on 'ray' or on a cluster's address, 'ray://head:port'; found {on!r}")
    try:
        import ray
    except ImportError:
        raise InputError("--on ray needs Ray: pip install 'skillgraft[ray]'") from None
    threads = str(needs.cores)
    environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    already = ray.is_initialized()
    if not already:
        address = os.environ.get("RAY_ADDRESS") if on == RAY else on
        # A cluster of this machine alone listens on the loopback address and tells nobody about itself.
        alone = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        about: dict[str, Any] = {"address": address} if address else alone
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(**about, log_to_driver=False, runtime_env={"env_vars": environment})
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RunError(f"no Ray cluster answers at {address or 'this machine'}: {error}") from None
    try:
        yield OnRay(ray, needs)
    finally:
        if not already:
            ray.shutdown()


def threads_here() -> int:
    """How many threads torch takes in this process."""
    set_by_user = os.environ.get("OMP_NUM_THREADS", "")
    if "torch" not in sys.modules and set_by_user.isdigit():
        return int(set_by_user)
    import torch

    return torch.get_num_threads()


def threads_of(jobs: int) -> int:
    """How many threads a step has where so many run side by side."""
    if jobs < 1:
        raise InputError(f"the number of jobs must be at least 1, found {jobs}")
    return threads_here() if jobs == 1 else max(1, cores() // jobs)


def _begin(threads: int) -> None:
    """Runs first in a fresh process. Torch reads the environment when a step loads it; steps without torch do not wait for it."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:  # the program itself loads it, so it was read already
        sys.modules["torch"].set_num_threads(threads)
    Thread(target=_end_with_the_program, daemon=True).start()


def _end_with_the_program() -> None:
    """A program that is killed cannot stop its workers: they would hold their steps' locks, and cores, until they are done."""
    program = parent_process()
    if program is not None:
        program.join()
        os._exit(1)
