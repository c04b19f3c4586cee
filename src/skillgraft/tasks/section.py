"""One table of a TOML file, read key by key: wrong types and unknown keys are errors that name file, table and key."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from skillgraft.errors import InputError, did_you_mean
from skillgraft.files.regular import TASK_BYTES, read_text
from skillgraft.tasks.tables import shown

T = TypeVar("T")
_MOST_DOTS = 5_000


def _parsed(text: str) -> dict[str, Any]:
    # tomllib takes time with the square of a dotted key's length.
    if text.count(".") > _MOST_DOTS:
        raise ValueError(f"{text.count('.'):,} dots in it, the most that is read is {_MOST_DOTS:,}")
    return tomllib.loads(text)


@dataclass(frozen=True)
class Section:
    """A table, the file it is in, and its name there ("" for the top of the file)."""

    file: Path
    name: str
    values: Mapping[str, Any]

    @classmethod
    def of_file(cls, path: Path) -> Section:
        """The whole file. It must be TOML in UTF-8."""
        try:
            return cls(path, "", _parsed(read_text(path, limit=TASK_BYTES, encoding="utf-8-sig")))
        except FileNotFoundError:
            raise InputError(f"{path}: there is no such task file") from None
        except (
            OSError,
            ValueError,
        ) as error:  # not UTF-8, not TOML, a number of thousands of digits, a NUL in the path
            raise InputError(f"{path}: cannot be read as TOML: {error}") from error
        except RecursionError:
            raise InputError(f"{path}: cannot be read as TOML: nested too deeply") from None

    def wrong(self, message: str) -> InputError:
        """The error to raise about this table."""
        return InputError(f"{self.file}: {f'[{self.name}]: ' if self.name else ''}{message}")

    def only(self, known: Collection[str]) -> None:
        """Refuses every key that is not in `known`."""
        for key in self.values:
            if key not in known:
                raise self.wrong(f"unknown key {key!r}: {did_you_mean(key, known)}")

    def text(self, key: str, default: str | None = None) -> str:
        """A string; without a default it must be there."""
        value = self.values.get(key, default)
        if value is None:
            raise self.wrong(f"the key {key!r} is missing")
        return self._of_type(key, value, str, "a string")

    def texts(self, key: str) -> tuple[str, ...]:
        """A string or a list of strings, as a tuple; empty when the key is absent."""
        value = self.values.get(key, [])
        items = [value] if isinstance(value, str) else self._of_type(key, value, list, "a string or a list of strings")
        return tuple(self._of_type(key, item, str, "a list of strings") for item in items)

    def count(self, key: str, default: int) -> int:
        """A whole number above 0."""
        value = self._of_type(key, self.values.get(key, default), int, "a whole number")
        if isinstance(value, bool) or value < 1:
            raise self.wrong(f"{key!r} must be a whole number above 0; found {shown(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return self._of_type(key, self.values.get(key, default), bool, "true or false")

    def section(self, key: str) -> Section:
        """The table under `key`; empty when it is absent."""
        values = self._of_type(key, self.values.get(key, {}), dict, "a table")
        return Section(self.file, f"{self.name}.{key}" if self.name else key, values)

    def _of_type(self, key: str, value: object, kind: type[T], expected: str) -> T:
        if not isinstance(value, kind):
            raise self.wrong(f"{key!r} must be {expected}; found {shown(value)}")
        return value
