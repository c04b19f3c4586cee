"""Readers of Parquet files, saved `datasets` folders and hub names. All need the extra `data`."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skillgraft.errors import DataError, InputError, SkillgraftError
from skillgraft.files.regular import opened
from skillgraft.tasks.pictures import Undecoded
from skillgraft.tasks.tables import Table, needed

# Plain names alone: `..` would lead out of the hub's own folders.
_PART = r"(?!\.+(?:[/:]|$))[\w.-]{1,96}"
_HUB_NAME = re.compile(
    rf"hf:(?P<name>{_PART}/{_PART})(/(?P<config>{_PART}))?:(?P<split>[\w.\[\]:%+-]{{1,200}})", re.ASCII
)
_LONGEST_REASON = 400  # characters of another package's message


def read_parquet(path: Path, paths: tuple[str, ...]) -> Table:
    """A Parquet file; only the columns that are needed are read."""
    parquet = _imported("pyarrow.parquet", str(path))
    _ordinary(path)
    with _as_data_error(str(path)):
        names = needed(paths, parquet.read_schema(path).names, str(path))
        table = parquet.read_table(path, columns=names)
        table.validate(full=True)
        columns = {name: _cells(table.column(name)) for name in names}
    return Table(str(path), columns, range(1, table.num_rows + 1))


def parquet_columns(path: Path) -> list[str]:
    """The names of a Parquet file's columns."""
    parquet = _imported("pyarrow.parquet", str(path))
    _ordinary(path)
    with _as_data_error(str(path)):
        return list(parquet.read_schema(path).names)


def _ordinary(path: Path) -> None:
    try:
        opened(path).close()
    except (OSError, ValueError, InputError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def read_saved(path: Path, paths: tuple[str, ...]) -> Table:
    """A folder that `Dataset.save_to_disk` wrote."""
    datasets = _imported("datasets", str(path))
    for item in path.rglob("*"):
        if not item.is_dir():
            _ordinary(item)
    with _as_data_error(str(path)):
        dataset = datasets.load_from_disk(str(path))
    return _table(dataset, paths, str(path))


def read_hub(source: str, paths: tuple[str, ...]) -> Table:
    """`hf:owner/name:split` or `hf:owner/name/config:split`, from the hub or its local cache. No remote code is run."""
    found = _HUB_NAME.fullmatch(source)
    if not found:
        raise InputError(
            f"{source!r}: expected hf:owner/name:split or hf:owner/name/config:split, in letters, digits and _ . -"
        )
    datasets = _imported("datasets", source)
    with _as_data_error(source), _progress_on_a_terminal(datasets):
        dataset = datasets.load_dataset(f"hf://datasets/{found['name']}", found["config"], split=found["split"])
    return _table(dataset, paths, source)


def _table(dataset: Any, paths: tuple[str, ...], source: str) -> Table:
    names = needed(paths, dataset.column_names, source)
    features = dataset.features
    class_names = {name: tuple(features[name].names) for name in names if hasattr(features[name], "names")}
    with _as_data_error(source):
        # Its files are mapped as they are: an offset that leads out of a buffer would end the process.
        dataset.data.table.select(names).validate(full=True)
        columns = {name: _dataset_column(dataset, name) for name in names}
    return Table(source, columns, range(1, len(dataset) + 1), class_names=class_names)


def _dataset_column(dataset: Any, name: str) -> Sequence[Any]:
    """A column as a list; images stay where they are, for the package `datasets` to decode one by one (EXIF and all)."""
    from datasets import Image

    feature = dataset.features[name]
    if not isinstance(feature, Image):
        return list(dataset[name])
    return Undecoded(dataset.cast_column(name, Image(decode=False))[name], Image(mode=feature.mode).decode_example)


class _ArrowCells(Sequence[Any]):
    """Cells that become Python values when they are asked for."""

    def __init__(self, column: Any) -> None:
        self.column = column

    def __getitem__(self, place: Any) -> Any:
        return self.column[place].as_py()

    def __len__(self) -> int:
        return len(self.column)


def _cells(column: Any) -> Sequence[Any]:
    """A Parquet column: encoded images (a table with `bytes` in each cell) are left in Arrow's memory."""
    fields = {field.name for field in column.type} if hasattr(column.type, "fields") else set()
    return _ArrowCells(column) if "bytes" in fields else column.to_pylist()


def _imported(module: str, source: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(
            f"{source}: reading it needs the package {package!r}: pip install 'skillgraft[data]'"
        ) from error


@contextmanager
def _as_data_error(source: str) -> Iterator[None]:
    """Both packages raise many kinds (offline, unknown name, no such split, corrupt file): one of ours, with the cause."""
    try:
        yield
    except SkillgraftError:
        raise
    except Exception as error:  # both packages also raise errors of their own, of which many are plain exceptions
        reason = " ".join(str(error).split())  # some messages run over many lines
        raise DataError(f"{source}: cannot be read: {reason[:_LONGEST_REASON]}") from error


@contextmanager
def _progress_on_a_terminal(datasets: Any) -> Iterator[None]:
    """The package shows how far a download is; only where someone can see it. The setting found is put back."""
    silenced = not sys.stderr.isatty() and not datasets.are_progress_bars_disabled()
    if silenced:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if silenced:
            datasets.enable_progress_bars()
