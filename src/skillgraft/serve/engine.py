"""The model on a thread of its own: requests that wait share batches, rows that are done leave them.

    engine = Engine(model, bank, limits, ends=frozenset({2}), pad_id=0)
    engine.start()
    engine.submit(ticket)            # from any thread; QueueFull where too many wait
    engine.run(lambda: bank.add(…))  # a future: everything that touches the model happens on its thread
    engine.stop()                    # what was submitted is finished first

A turn: what was asked of the bank, the next rows of one forward pass, new texts' prompts, one more token of every text. A row
whose skills cannot be put together fails alone; a batch that fails takes its own rows with it and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from skillgraft.serve.decoding import Decoding
from skillgraft.serve.encoded import EncodedDecoding, encodes
from skillgraft.serve.limits import Limits
from skillgraft.serve.metrics import Metrics
from skillgraft.serve.questions import READERS
from skillgraft.serve.refusals import Refused
from skillgraft.serve.sampling import choose
from skillgraft.serve.work import Failed, ReadOut, ReadRow, Spec, Ticket, WriteRow

T = TypeVar("T")


class RowBank(Protocol):
    """What the engine needs of a bank: a batch in which every row has its own skills."""

    def rows(self, rows: Sequence[Spec]) -> AbstractContextManager[None]: ...


class Engine:
    """`ends` are the tokens that end a text."""

    def __init__(
        self, model: nn.Module, bank: RowBank, limits: Limits, *, ends: frozenset[int], pad_id: int, metrics: Metrics
    ) -> None:
        self.model, self.bank, self.limits, self.metrics = model, bank, limits, metrics
        self._ends = ends
        self._wake = threading.Condition()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._tickets: deque[Ticket] = deque()
        self._reads: deque[ReadRow] = deque()
        self._prompts: deque[WriteRow] = deque()
        self._writing: list[WriteRow] = []
        self._decoding: Any = (EncodedDecoding if encodes(model) else Decoding)(model, pad_id=pad_id)
        self._entering: AbstractContextManager[None] | None = (
            None  # made anew when a row comes or goes, not for every token
        )
        self._waiting = 0  # rows that were submitted and have not begun
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="model", daemon=True)
        metrics.gauge("queue_rows", "Rows that wait.", lambda: self._waiting)
        metrics.gauge("writing_rows", "Texts being written.", lambda: len(self._writing))

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, seconds: float | None = None) -> None:
        """Finish what was submitted, then end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(seconds)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, ticket: Ticket) -> None:
        """Put a request in the queue, or refuse it because the queue is full."""
        with self._wake:
            if self._stopping or not self.alive:
                raise Refused(503, "stopping", "the server is stopping; ask again later", headers={"Retry-After": "5"})
            if self._waiting and self._waiting + ticket.rows > self.limits.queue_rows:
                raise Refused(
                    429, "queue_full",
                    f"{self._waiting} rows wait and at most {self.limits.queue_rows} may; ask again in a moment",
                    headers={"Retry-After": "1"},
                )  # fmt: skip
            self._waiting += ticket.rows
            self._tickets.append(ticket)
            self._wake.notify()

    def run(self, call: Callable[[], T]) -> Future[T]:
        """Call something on the model's thread, between two batches."""
        future: Future[T] = Future()
        with self._wake:
            if self._stopping or not self.alive:
                future.set_exception(Refused(503, "stopping", "the server is stopping"))
                return future
            self._calls.append((call, future))
            self._wake.notify()
        return future

    def _loop(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # a mistake of ours: nobody may wait for ever, and /health must tell
            self._abandon(error)
            raise

    def _turn(self) -> bool:
        with self._wake:
            while not self._has_work() and not self._stopping:
                self._wake.wait()
            if not self._has_work():
                return False
            calls, self._calls = self._calls, deque()
            tickets, self._tickets = self._tickets, deque()
        for call, future in calls:
            _answer(call, future)
        for ticket in tickets:
            self._prepare(ticket)
        self._read()
        self._begin()
        self._write()
        return True

    def _abandon(self, error: BaseException) -> None:
        with self._wake:
            self._stopping = True
            rows: list[ReadRow | WriteRow] = [*self._reads, *self._prompts, *self._writing]
            tickets = {id(ticket): ticket for ticket in (*self._tickets, *(row.ticket for row in rows))}
        for ticket in tickets.values():
            ticket.deliver(Failed(RuntimeError(f"the model's thread ended: {error!r}")))
        for _, future in self._calls:
            future.cancel()

    def _has_work(self) -> bool:
        return bool(self._calls or self._tickets or self._reads or self._prompts or self._writing)

    def _prepare(self, ticket: Ticket) -> None:
        try:
            rows = [] if ticket.gone else ticket.prepare(ticket)
            for spec in {id(row.spec): row.spec for row in rows if _is_sum(row.spec)}.values():
                self.bank.rows([spec])  # skills that cannot be put together fail here, before others are touched
        except Exception as error:
            self._leave_queue(ticket.rows)
            ticket.deliver(Failed(error))
            return
        self._leave_queue(ticket.rows - len(rows))
        self._reads += [row for row in rows if isinstance(row, ReadRow)]
        self._prompts += [row for row in rows if isinstance(row, WriteRow)]

    def _leave_queue(self, rows: int) -> None:
        with self._wake:
            self._waiting -= rows

    def _read(self) -> None:
        """One forward pass of the rows that wait longest and can share it."""
        rows = self._next_reads()
        if not rows:
            return
        began = time.perf_counter()
        try:
            with torch.no_grad(), self.bank.rows([row.spec for row in rows]):
                outputs = READERS[rows[0].reader](self.model, rows[0].readout, [row.encoded for row in rows])
            host = outputs.float().cpu()
            answers = [ReadOut(row.row, row.values(host[at]), row.encoded.length) for at, row in enumerate(rows)]
        except Exception as error:
            _fail(rows, error)
            return
        self.metrics.batch("read", len(rows), time.perf_counter() - began)
        for row, answer in zip(rows, answers, strict=True):
            row.ticket.deliver(answer)

    def _next_reads(self) -> list[ReadRow]:
        """In the order of arrival, of one reader, as many as the limits of a batch allow."""
        chosen: list[ReadRow] = []
        longest = 0
        while self._reads and len(chosen) < self.limits.batch_rows:
            row = self._reads[0]
            longest = max(longest, row.encoded.length)
            if chosen and (row.reader != chosen[0].reader or longest * (len(chosen) + 1) > self.limits.batch_tokens):
                break
            self._reads.popleft()
            self._leave_queue(1)
            if not row.ticket.gone:
                chosen.append(row)
        return chosen

    def _begin(self) -> None:
        """The prompts of new texts, and their first tokens."""
        new = self._next_prompts()
        if not new:
            return
        began = time.perf_counter()
        try:
            with self.bank.rows([row.spec for row in new]):
                logits, batch = self._decoding.prefill([row.prompt for row in new])
            choices = choose(logits, [row.sampler for row in new])
        except Exception as error:
            _fail(new, error)
            return
        self._decoding.absorb(batch)
        self._writing += new
        self._entering = None
        self.metrics.batch("prompt", len(new), time.perf_counter() - began)
        self._take(choices, new, first=len(self._writing) - len(new))

    def _next_prompts(self) -> list[WriteRow]:
        chosen: list[WriteRow] = []
        longest = 0
        if self._writing and not self._decoding.joins:
            return chosen
        while self._prompts and len(self._writing) + len(chosen) < self.limits.batch_rows:
            row = self._prompts[0]
            longest = max(longest, len(row.prompt))
            if chosen and longest * (len(chosen) + 1) > self.limits.batch_tokens:
                break
            self._prompts.popleft()
            self._leave_queue(1)
            if not row.ticket.gone:
                chosen.append(row)
        return chosen

    def _write(self) -> None:
        """One more token of every text."""
        self._keep([not row.ticket.gone for row in self._writing])
        rows = self._writing
        if not rows:
            return
        began = time.perf_counter()
        try:
            if self._entering is None:
                self._entering = self.bank.rows([row.spec for row in rows])
            with self._entering:
                logits = self._decoding.step([row.written[-1] for row in rows])
            choices = choose(logits, [row.sampler for row in rows])
        except Exception as error:
            self._keep([False] * len(rows))
            _fail(rows, error)
            return
        self.metrics.batch("write", len(rows), time.perf_counter() - began)
        self._take(choices, rows, first=0)

    def _take(self, choices: Sequence[Any], rows: Sequence[WriteRow], *, first: int) -> None:
        """Give each row its token, deliver what can be shown, and let go of the rows that ended."""
        kept = [True] * len(self._writing)
        for at, (row, choice) in enumerate(zip(rows, choices, strict=True), first):
            piece = row.take(choice, self._ends)
            if piece is not None:
                row.ticket.deliver(piece)
                kept[at] = not piece.finish
        self._keep(kept)

    def _keep(self, kept: Sequence[bool]) -> None:
        if all(kept):
            return
        self._decoding.keep([at for at, stays in enumerate(kept) if stays])
        self._entering = None
        self._writing = [row for row, stays in zip(self._writing, kept, strict=True) if stays]


def _is_sum(spec: Spec) -> bool:
    """Whether skills have to be put together: one by itself is held as it is."""
    return spec is not None and (len(spec) > 1 or any(scale != 1.0 for scale in spec.values()))


def _answer(call: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():  # who asked has gone
        return
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)


def _fail(rows: Sequence[ReadRow | WriteRow], error: Exception) -> None:
    for ticket in {id(row.ticket): row.ticket for row in rows}.values():
        ticket.gone = True
        ticket.deliver(Failed(error))
