"""Readers of images: `.npz` files (uint8 `images`, integer `labels`) and folders with one sub-folder per label.

Both give the columns `image` (uint8 arrays: height × width, or × 3 colours; of folders the files, not decoded yet) and `label`.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from skillgraft.errors import DataError, listed
from skillgraft.tasks.table import Column, Table, needed

IMAGE, LABEL = "image", "label"
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm")


def read_npz(path: Path, paths: tuple[str, ...]) -> Table:
    """A numpy archive with `images` (uint8: n × height × width, or × 3) and `labels` (n). Never unpickles."""
    needed(paths, (IMAGE, LABEL), str(path))
    try:
        with np.load(path, allow_pickle=False) as archive:
            images, labels = archive["images"], archive["labels"]
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: expected an .npz file with 'images' and 'labels': {error}") from error
    if images.dtype != np.uint8 or not (images.ndim == 3 or images.shape[3:] == (3,)):
        found = f"{images.dtype} of shape {images.shape}"
        raise DataError(f"{path}: 'images' must be uint8, n × height × width or n × height × width × 3; found {found}")
    if labels.shape != images.shape[:1]:
        raise DataError(
            f"{path}: {len(images)} images but labels of shape {labels.shape}; expected one label per image"
        )
    return Table(str(path), {IMAGE: images, LABEL: labels.tolist()}, range(1, len(images) + 1))


def read_image_folder(path: Path, paths: tuple[str, ...]) -> Table:
    """`folder/<label>/<any name>.png`: every image file, by label and then file name; a file of another kind is an error."""
    needed(paths, (IMAGE, LABEL), str(path))
    files = sorted(file for file in path.glob("*/*") if not file.name.startswith("."))
    strange = [file.name for file in files if file.suffix.lower() not in SUFFIXES]
    if strange:
        raise DataError(
            f"{path}: not images: {listed(strange)}; expected {', '.join(SUFFIXES)} in one sub-folder per label"
        )
    columns: dict[str, Column] = {
        IMAGE: files,
        LABEL: [file.parent.name for file in files],
    }
    return Table(str(path), columns, range(1, len(files) + 1), unit="image")
