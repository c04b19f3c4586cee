"""A safetensors file taken apart, so that a test can put it together wrongly, and the usual ways to do so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from skillgraft.values.numbers import DTYPES, Array

WEIGHT, BIAS = "encoder.layer.0.query.weight", "encoder.layer.0.query.bias"


@dataclass
class RawFile:
    """The header as Python values and the bytes after it; anything may be changed."""

    header: dict[str, Any]
    data: bytes

    @classmethod
    def of(cls, content: bytes) -> Self:
        length = int.from_bytes(content[:8], "little")
        return cls(json.loads(content[8 : 8 + length]), content[8 + length :])

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.of(path.read_bytes())

    @property
    def metadata(self) -> dict[str, Any]:
        return self.header["__metadata__"]

    @property
    def names(self) -> list[str]:
        return [name for name in self.header if name != "__metadata__"]

    def content(self) -> bytes:
        """The file's bytes. Lone surrogates and NaN go through as Python writes them."""
        return with_header(json.dumps(self.header).encode(), self.data)

    def array(self, name: str) -> Array:
        low, high = self.header[name]["data_offsets"]
        return np.frombuffer(self.data[low:high], DTYPES[self.header[name]["dtype"]]).copy()

    def put(self, name: str, array: Array) -> None:
        """Overwrite a tensor's numbers in place."""
        low, high = self.header[name]["data_offsets"]
        assert array.nbytes == high - low
        self.data = self.data[:low] + array.tobytes() + self.data[high:]

    def append(self, name: str, array: Array, tag: str) -> None:
        """One more tensor at the end."""
        low = len(self.data)
        self.data += array.tobytes()
        self.header[name] = {"dtype": tag, "shape": list(array.shape), "data_offsets": [low, len(self.data)]}

    def rename(self, old: str, new: str) -> None:
        self.header = {new if name == old else name: value for name, value in self.header.items()}


def with_header(header: bytes, data: bytes = b"") -> bytes:
    """Any header, valid or not, behind its length."""
    return len(header).to_bytes(8, "little") + header + data


# What to do to a file taken apart; bytes that it returns stand for the whole file.
Change = Callable[[RawFile], object]


def put(name: str, *, at: dict[int, float]) -> Change:
    """Overwrite entries of a tensor: place → number."""

    def change(raw: RawFile) -> None:
        array = raw.array(name)
        array[list(at)] = list(at.values())
        raw.put(name, array)

    return change


def entry(name: str, **fields: Any) -> Change:
    return lambda raw: raw.header[name].update(fields)


def metadata(**items: Any) -> Change:
    return lambda raw: raw.metadata.update(items)


def without(key: str) -> Change:
    return lambda raw: raw.metadata.pop(key)
