"""Work on numbers shared out over two threads: numpy, hashlib, zstd and the kernel let others run while they are at it.

    together(count, names)      # every result, in the order of the items
    ahead(packed, stretches)    # the same one by one, a few worked out before they are asked for

More threads only get into each other's way on a busy machine: the work is moving bytes. The results never depend on the number.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = max(1, min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # what mallopt calls them


def _keep_memory() -> None:
    """Arrays of a window are made and let go all the time; where the C library would give each back to the system, the next one's
    pages have to be made anew, which takes longer than filling them. It keeps up to 32 MB now."""
    if os.name != "posix":  # where the program itself is no library to look into
        return
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc alone
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 32 << 20)
        mallopt(_MMAP_THRESHOLD, 8 << 20)


def together(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """`work` of each item, in order; the first that fails is the error, and what was not begun is left out."""
    _keep_memory()
    with ThreadPoolExecutor(THREADS) as pool:
        jobs = [pool.submit(work, item) for item in items]
        try:
            return [job.result() for job in jobs]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def ahead(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`work` of each item, in order; at most a few are held, whatever the number of items."""
    _keep_memory()
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > THREADS + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class SharedProgress:
    """What several threads have done of one total, told to one callback, one call at a time."""

    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self._progress, self._total, self._done, self._lock = progress, total, 0, Lock()

    def add(self, amount: int) -> None:
        if self._progress is not None:
            with self._lock:
                self._done += amount
                self._progress(self._done, self._total)
