"""Images that stay encoded until someone looks at them: a task's photographs need not fit in memory together.

A cell is pixels, a path, encoded `bytes` (or a `path`) in a table, or a PIL image. That a cell is an image at all is told from
its first bytes when a task is read; its pixels are decoded each time they are asked for, and are not kept.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from skillgraft.errors import DataError, InputError, listed
from skillgraft.files import archives
from skillgraft.files.regular import opened
from skillgraft.tasks.tables import Column, Pixels, Table, needed, shown

# What PIL's decoders raise on damaged bytes; UnidentifiedImageError is an OSError.
_UNDECODABLE = (
    *(
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        IndexError,
        KeyError,
        TypeError,
        OverflowError,
        MemoryError,
    ),
    *(struct.error, zlib.error, RuntimeError, AttributeError, ZeroDivisionError),
)


class Undecoded(Sequence[Any]):
    """A column of encoded images as a reader hands it over, with the reader's own way to decode a cell."""

    def __init__(self, cells: Sequence[Any], decode: Callable[[Any], Any]) -> None:
        self.cells, self.decode = cells, decode

    def __getitem__(self, place: Any) -> Any:
        return self.cells[place]

    def __len__(self) -> int:
        return len(self.cells)


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One image where it lies: a cell of a column, and what to call it in a message."""

    cells: Sequence[Any]
    place: int
    where: str

    def check(self) -> None:
        """Refuses what is no image; reads the first bytes alone."""
        cell = self.cells[self.place]
        file = _file(cell)
        if file is None and not _is_decoded(cell):
            raise DataError(f"{self.where}: expected an image; found {shown(cell)}")
        if file is not None:
            with self._reading(cell), _opened(file):
                pass

    def pixels(self) -> Pixels:
        """Height × width (× 3 colours), decoded now."""
        cell = self.cells[self.place]
        with self._reading(cell):
            return pixels(self.cells.decode(cell) if isinstance(self.cells, Undecoded) else cell)

    def key(self) -> str:
        """What tells it from other images, without decoding it: the bytes of its file, or pixels where there is none."""
        cell = self.cells[self.place]
        file = _file(cell)
        if file is None:
            array = np.ascontiguousarray(pixels(cell))
            return hashlib.sha256(f"{array.shape}".encode() + array.tobytes()).hexdigest()
        with self._reading(cell):
            return hashlib.sha256(file.getvalue() if isinstance(file, io.BytesIO) else file.read_bytes()).hexdigest()

    @contextmanager
    def _reading(self, cell: Any) -> Iterator[None]:
        """Whatever PIL raises about a damaged image as one of ours."""
        try:
            yield
        except _UNDECODABLE as error:
            name = cell if isinstance(cell, Path) else self.where
            raise DataError(f"{name}: it cannot be decoded as an image; mend or remove it") from error


class Pictures(Sequence[Pixels]):
    """A column of images: looks like their pixels, holds where they lie."""

    def __init__(self, pictures: Sequence[Picture]) -> None:
        self.pictures = tuple(pictures)

    @overload
    def __getitem__(self, place: int) -> Pixels: ...
    @overload
    def __getitem__(self, place: slice) -> list[Pixels]: ...
    def __getitem__(self, place: int | slice) -> Pixels | list[Pixels]:
        found = self.pictures[place]
        return found.pixels() if isinstance(found, Picture) else [picture.pixels() for picture in found]

    def __len__(self) -> int:
        return len(self.pictures)

    def chosen(self, places: Sequence[int]) -> Pictures:
        """Those images, in that order, undecoded."""
        return Pictures([self.pictures[place] for place in places])

    def keys(self) -> list[str]:
        """Each image's key."""
        return [picture.key() for picture in self.pictures]


def pictures_of(column: Sequence[Any] | Pixels, where: Callable[[int], str]) -> Pictures:
    """A column's cells as pictures; `where` names one in a message."""
    cells = list(column) if isinstance(column, np.ndarray) else column
    return Pictures([Picture(cells, place, where(place)) for place in range(len(cells))])


def pixels(value: Any) -> Pixels:
    """uint8 pixels of a cell, in colour where they are decoded here; ValueError for what is no image."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return value
    if hasattr(value, "convert"):
        return np.asarray(value.convert("RGB"))
    file = _file(value)
    if file is None:
        raise ValueError("no image")
    with _opened(file) as image:
        return np.asarray(image.convert("RGB"))


def _is_decoded(cell: Any) -> bool:
    return hasattr(cell, "convert") or (isinstance(cell, np.ndarray) and cell.dtype == np.uint8)


def _file(cell: Any) -> Path | io.BytesIO | None:
    """Where a cell's encoded bytes are; None for anything else."""
    if isinstance(cell, Mapping):
        content, path = cell.get("bytes"), cell.get("path")
        if isinstance(content, bytes):
            return io.BytesIO(content)
        return Path(path) if isinstance(path, str) else None
    return cell if isinstance(cell, Path) else None


def _opened(file: Path | io.BytesIO) -> Any:
    """The file as PIL sees it; its header is read, its pixels are not."""
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("images in files need the package 'pillow': pip install 'skillgraft[train]'") from error
    try:
        return Image.open(file if isinstance(file, io.BytesIO) else opened(file))
    except (Image.DecompressionBombError, InputError) as error:  # too many pixels, or no ordinary file
        raise ValueError(str(error)) from error


IMAGE, LABEL = "image", "label"
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm")


def read_npz(path: Path, paths: tuple[str, ...]) -> Table:
    """A numpy archive with `images` (uint8: n × height × width, or × 3) and `labels` (n). Never unpickles."""
    needed(paths, (IMAGE, LABEL), str(path))
    try:
        arrays = archives.read_npz(path, ("images", "labels"))
        images, labels = arrays["images"], arrays["labels"]
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, InputError) as error:
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
