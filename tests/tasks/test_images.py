import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft.errors import DataError, InputError
from skillgraft.tasks import Task, load_task, read_examples
from skillgraft.tasks.image_files import pixels

from .making import REVIEWS, write_task


def image_task(folder: Path, source: str) -> Task:
    text = REVIEWS.replace("train.jsonl", source).replace('text = "text"', 'image = "image"')
    return load_task(write_task(folder, text))


def test_npz(tmp_path: Path) -> None:
    images = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    np.savez(tmp_path / "rows.npz", images=images, labels=np.array([1, 0]))
    examples = read_examples(image_task(tmp_path, "rows.npz"), "train")
    assert np.array_equal(examples.columns["image"], images)
    assert examples.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 3, 4)), np.zeros(2, int), "'images' must be uint8"),
        (np.zeros((2, 3, 4, 4), np.uint8), np.zeros(2, int), "'images' must be uint8"),
        (np.zeros((2, 3), np.uint8), np.zeros(2, int), "'images' must be uint8"),
        (np.zeros((2, 3, 4), np.uint8), np.zeros(3, int), "2 images but labels of shape (3,)"),
        (np.zeros((2, 3, 4), np.uint8), np.array([None, None]), "expected an .npz file"),
        (np.zeros((0, 3, 4), np.uint8), np.zeros(0, int), "it has no rows"),
        (np.zeros((2, 3, 4), np.uint8), np.array([0, 7]), "row 2, column 'label': unknown label 7"),
    ],
)
def test_a_wrong_npz(tmp_path: Path, images: Any, labels: Any, message: str) -> None:
    np.savez(tmp_path / "rows.npz", images=images, labels=labels)
    with pytest.raises(DataError) as caught:
        read_examples(image_task(tmp_path, "rows.npz"), "train")
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK nothing", b"\x80\x04N."])
def test_not_an_npz(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rows.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"expected an \.npz file with 'images' and 'labels'"):
        read_examples(image_task(tmp_path, "rows.npz"), "train")


def test_an_npz_without_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", images=np.zeros((1, 2, 2), np.uint8))
    with pytest.raises(DataError, match=r"expected an \.npz file with 'images' and 'labels'"):
        read_examples(image_task(tmp_path, "rows.npz"), "train")


def write_images(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for label, shade in (("bad", 0), ("good", 255)):
        (folder / label).mkdir(parents=True)
        image.new("L", (3, 2), shade).save(folder / label / "one.png")


def test_image_folder(tmp_path: Path) -> None:
    write_images(tmp_path / "pictures")
    examples = read_examples(image_task(tmp_path, "pictures"), "train")
    assert examples.labels.tolist() == [0, 1]
    assert [image.shape for image in examples.columns["image"]] == [(2, 3, 3)] * 2
    assert int(examples.columns["image"][1].min()) == 255


def test_image_folder_errors(tmp_path: Path) -> None:
    write_images(tmp_path / "pictures")
    task = image_task(tmp_path, "pictures")
    (tmp_path / "pictures" / "bad" / "two.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"two\.png: it cannot be decoded"):
        read_examples(task, "train")
    (tmp_path / "pictures" / "bad" / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"not images: notes\.txt"):
        read_examples(task, "train")


def test_encoded_images_in_a_column(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    write_images(tmp_path / "pictures")
    encoded = (tmp_path / "pictures" / "good" / "one.png").read_bytes()
    parquet.write_table(pyarrow.table({"image": [{"bytes": encoded}], "label": [1]}), tmp_path / "rows.parquet")
    assert read_examples(image_task(tmp_path, "rows.parquet"), "train").columns["image"][0].shape == (2, 3, 3)
    parquet.write_table(pyarrow.table({"image": [5], "label": [1]}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="row 1, column 'image': expected an image; found 5"):
        read_examples(image_task(tmp_path, "rows.parquet"), "train")


def test_a_picture_object_becomes_colour_pixels() -> None:
    image = pytest.importorskip("PIL.Image")
    found = pixels(image.new("L", (3, 2), 9))
    assert found is not None
    assert found.shape == (2, 3, 3)
    assert found.dtype == np.uint8
    assert int(found[0, 0, 0]) == 9
    assert pixels(np.zeros((2, 2))) is None


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "pictures")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"pip install 'skillgraft\[train\]'"):
        read_examples(image_task(tmp_path, "pictures"), "train")
