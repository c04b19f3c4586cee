"""From a source string to a `Table`: one reader per kind of file, in one table.

reviews.jsonl, .csv, .tsv, .txt (each also .gz), .parquet, .npz  a file
folder                                                           a saved `datasets` folder, or images by label
hf:owner/name:split, hf:owner/name/config:split                  a public dataset
data:sst2/train.jsonl.gz                                         below the folder that SKILLGRAFT_DATA names
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from skillgraft.errors import DataError, InputError, did_you_mean
from skillgraft.tasks.arrow_files import read_hub, read_parquet, read_saved
from skillgraft.tasks.pictures import read_image_folder, read_npz
from skillgraft.tasks.tables import Table, read_csv, read_jsonl, read_tsv, read_txt
from skillgraft.tasks.task import Origin, Task

DATA_FOLDER = "SKILLGRAFT_DATA"
READERS: Mapping[str, Callable[[Path, tuple[str, ...]], Table]] = {
    ".jsonl": read_jsonl,
    ".jsonl.gz": read_jsonl,
    ".csv": read_csv,
    ".csv.gz": read_csv,
    ".tsv": read_tsv,
    ".tsv.gz": read_tsv,
    ".txt": read_txt,
    ".txt.gz": read_txt,
    ".parquet": read_parquet,
    ".npz": read_npz,
}


def read_table(source: str, paths: tuple[str, ...]) -> Table:
    """The rows of one source, with at least the columns that `paths` name."""
    if source.startswith("hf:"):
        return read_hub(source, paths)
    path = source_path(source)
    if path.is_dir():
        return _read_folder(path, paths)
    return _reader(path)(path, paths)


def origin_of(task: Task) -> Origin:
    """The task's data, or its hub names where the data lie below SKILLGRAFT_DATA and that is not set."""
    below = [source for source in (*task.data.train, *task.data.test, *task.data.validation) if _is_below(source)]
    if not below or os.environ.get(DATA_FOLDER):
        return task.data
    if task.hub is None:
        raise InputError(
            f"task {task.name!r} reads {below[0]}, but {DATA_FOLDER} is not set and the task has no [hub] table: "
            f"set {DATA_FOLDER} to the folder that holds its data, or write a task file that names your own"
        )
    return task.hub


def _is_below(source: str) -> bool:
    return source.startswith("data:")


def source_path(source: str) -> Path:
    """Where a source that is no public dataset lies."""
    if not _is_below(source):
        return Path(source)
    folder = os.environ.get(DATA_FOLDER)
    if not folder:
        raise InputError(f"{source}: {DATA_FOLDER} is not set; set it to the folder that holds this file")
    return Path(folder) / source.removeprefix("data:")


def _reader(path: Path) -> Callable[[Path, tuple[str, ...]], Table]:
    ending = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if ending in READERS:
        return READERS[ending]
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    raise DataError(f"{path}: no reader for files that end in {ending!r}: {did_you_mean(ending, READERS)}")


def _read_folder(path: Path, paths: tuple[str, ...]) -> Table:
    if (path / "dataset_dict.json").exists():
        splits = ", ".join(sorted(str(folder) for folder in path.iterdir() if folder.is_dir()))
        raise DataError(f"{path}: a saved dataset with several splits; name one of them: {splits}")
    reader = read_saved if (path / "state.json").exists() else read_image_folder
    return reader(path, paths)
