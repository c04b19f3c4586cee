"""Where steps run: in this process, or in several. An executor is anything with `submit` and `slots`, so that another place to
run the same steps (a cluster) is one small class.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, Protocol

from skillgraft.errors import InputError


class Executor(Protocol):
    """Takes calls and gives futures; at most `slots` run at a time."""

    slots: int

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]: ...


class InProcess:
    """Runs each call at once, here."""

    slots = 1

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class InProcesses:
    """Runs calls side by side in fresh processes that share the cores out between them."""

    def __init__(self, pool: ProcessPoolExecutor, slots: int) -> None:
        self.pool, self.slots = pool, slots

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        return self.pool.submit(function, *arguments)


@contextmanager
def executor(jobs: int) -> Iterator[Executor]:
    """The executor for so many jobs at a time."""
    if jobs < 1:
        raise InputError(f"the number of jobs must be at least 1, found {jobs}")
    if jobs == 1:
        yield InProcess()
        return
    threads = max(1, len(os.sched_getaffinity(0)) // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_begin, initargs=(threads,)) as pool:
        yield InProcesses(pool, jobs)


def _begin(threads: int) -> None:
    """Runs first in a fresh process."""
    _share_cores(threads)
    Thread(target=_end_with_the_program, daemon=True).start()


def _share_cores(threads: int) -> None:
    """Torch reads this when a step loads it, and steps that need no torch do not wait for it."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:  # the program itself loads it, so it was read already
        sys.modules["torch"].set_num_threads(threads)


def _end_with_the_program() -> None:
    """A program that is killed cannot stop its workers: they would hold their steps' locks, and cores, until they are done."""
    program = parent_process()
    if program is not None:
        program.join()
        os._exit(1)
