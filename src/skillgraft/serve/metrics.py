"""What a server counts, as Prometheus reads it: counters, gauges and histograms in plain text.

    metrics = Metrics()
    metrics.request("/v1/classify", 200, seconds=0.02)
    metrics.text()          # the page of GET /metrics

Names and labels are the server's own: nothing that a client wrote becomes a label, so the page cannot grow without end.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

PREFIX = "skillgraft_"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_Labels = tuple[tuple[str, str], ...]


class MetricHistogram:
    """How often a value was at most each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: _Labels) -> Iterator[str]:
        seen = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            limit = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f"{name}_bucket{_written((*labels, ('le', limit)))} {seen}"
        yield f"{name}_sum{_written(labels)} {self.sum:.9g}"
        yield f"{name}_count{_written(labels)} {seen}"


class Metrics:
    """Safe to use from the server's and the model's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, tuple[str, Counter[_Labels]]] = {}
        self._histograms: dict[str, tuple[str, dict[_Labels, MetricHistogram]]] = {}
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def request(self, path: str, status: int, *, seconds: float) -> None:
        self.count("requests_total", "Requests by path and status.", path=path, status=str(status))
        self._histogram("request_seconds", "Time of a request.", _SECONDS, {"path": path}, seconds)

    def batch(self, kind: str, rows: int, seconds: float) -> None:
        self._histogram("batch_rows", "Rows of a forward pass.", _ROWS, {"kind": kind}, rows)
        self._histogram("batch_seconds", "Time of a forward pass.", _SECONDS, {"kind": kind}, seconds)

    def count(self, name: str, about: str, *, by: int = 1, **labels: str) -> None:
        with self._lock:
            self._counters.setdefault(name, (about, Counter()))[1][tuple(labels.items())] += by

    def gauge(self, name: str, about: str, value: Callable[[], float]) -> None:
        self._gauges[name] = about, value

    def text(self) -> str:
        with self._lock:
            return "\n".join((*self._lines(), ""))

    def _histogram(
        self, name: str, about: str, bounds: tuple[float, ...], labels: Mapping[str, str], value: float
    ) -> None:
        with self._lock:
            every = self._histograms.setdefault(name, (about, {}))[1]
            key = tuple(labels.items())
            if key not in every:
                every[key] = MetricHistogram(bounds)
            every[key].add(value)

    def _lines(self) -> Iterator[str]:
        for name, (about, counter) in self._counters.items():
            yield from _head(name, about, "counter")
            yield from (f"{PREFIX}{name}{_written(labels)} {count}" for labels, count in counter.items())
        for name, (about, value) in self._gauges.items():
            yield from _head(name, about, "gauge")
            yield f"{PREFIX}{name} {value():g}"
        for name, (about, histograms) in self._histograms.items():
            yield from _head(name, about, "histogram")
            for labels, histogram in histograms.items():
                yield from histogram.lines(PREFIX + name, labels)


def _head(name: str, about: str, kind: str) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {about}"
    yield f"# TYPE {PREFIX}{name} {kind}"


def _written(labels: _Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""
