"""Readers of Parquet files, saved `datasets` folders and hub names. All need the extra `data`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skillgraft.errors import DataError, InputError
from skillgraft.tasks.table import Table, needed

_HUB_NAME = re.compile(r"hf:(?P<name>[^/:]+/[^/:]+)(/(?P<config>[^:]+))?:(?P<split>.+)")


def read_parquet(path: Path, paths: tuple[str, ...]) -> Table:
    """A Parquet file; only the columns that are needed are read."""
    parquet = _imported("pyarrow.parquet", str(path))
    with _as_data_error(str(path)):
        names = needed(paths, parquet.read_schema(path).names, str(path))
        table = parquet.read_table(path, columns=names)
        columns = {name: table.column(name).to_pylist() for name in names}
    return Table(str(path), columns, range(1, table.num_rows + 1))


def read_saved(path: Path, paths: tuple[str, ...]) -> Table:
    """A folder that `Dataset.save_to_disk` wrote."""
    datasets = _imported("datasets", str(path))
    with _as_data_error(str(path)):
        dataset = datasets.load_from_disk(str(path))
    return _table(dataset, paths, str(path))


def read_hub(source: str, paths: tuple[str, ...]) -> Table:
    """`hf:owner/name:split` or `hf:owner/name/config:split`, from the hub or its local cache. No remote code is run."""
    found = _HUB_NAME.fullmatch(source)
    if not found:
        raise InputError(f"{source!r}: expected hf:owner/name:split or hf:owner/name/config:split")
    datasets = _imported("datasets", source)
    with _as_data_error(source):
        dataset = datasets.load_dataset(found["name"], found["config"], split=found["split"])
    return _table(dataset, paths, source)


def _table(dataset: Any, paths: tuple[str, ...], source: str) -> Table:
    names = needed(paths, dataset.column_names, source)
    features = dataset.features
    class_names = {name: tuple(features[name].names) for name in names if hasattr(features[name], "names")}
    with _as_data_error(source):
        columns = {name: list(dataset[name]) for name in names}
    return Table(source, columns, range(1, len(dataset) + 1), class_names=class_names)


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
    except (OSError, ValueError, KeyError, RuntimeError, NotImplementedError) as error:
        raise DataError(f"{source}: cannot be read: {error}") from error
