import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft.errors import DataError, InputError
from skillgraft.tasks import Task, load_task, pictures, read_examples, training_split
from skillgraft.tasks.pictures import pixels

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


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every cell that was decoded since, in order."""
    cells: list[Any] = []

    def counting(cell: Any) -> Any:
        cells.append(cell)
        return pixels(cell)

    monkeypatch.setattr(pictures, "pixels", counting)
    return cells


def photographs(folder: Path, count: int = 6) -> list[Path]:
    """Files of several sizes and kinds, two of them the same picture, half of them turned by their EXIF tag."""
    image = pytest.importorskip("PIL.Image")
    draw, files = np.random.default_rng(0), []
    for number in range(count):
        file = folder / ("bad", "good")[number % 2] / f"{number}.{('png', 'jpg', 'gif')[number % 3]}"
        file.parent.mkdir(parents=True, exist_ok=True)
        turned = image.Exif()
        turned[0x0112] = 6 if number % 3 == 1 else 1
        image.fromarray(draw.integers(0, 256, (3 + number, 5, 3), np.uint8)).save(file, exif=turned)
        files.append(file)
    (folder / "good" / "twin.png").write_bytes(files[0].read_bytes())
    return sorted([*files, folder / "good" / "twin.png"])


def test_nothing_is_decoded_before_it_is_looked_at(tmp_path: Path, decoded: list[Any]) -> None:
    files = photographs(tmp_path / "pictures")
    task = image_task(tmp_path, "pictures")
    examples = read_examples(task, "train")
    split = training_split(task, shots=1, seed=3)
    assert len(split.train.digest) == 64
    assert decoded == []
    images = examples.columns["image"]
    assert images[2].shape == images[2:3][0].shape
    assert decoded == [files[2]] * 2
    for row in split.train.rows():
        assert row["image"].dtype == np.uint8
    assert len(decoded) == 2 + 2


def test_the_same_picture_does_not_train_and_validate(tmp_path: Path, decoded: list[Any]) -> None:
    """Of seven files two are the same picture, one under each label: whichever trains, its twin does not validate."""
    photographs(tmp_path / "pictures")
    task = image_task(tmp_path, "pictures")
    for seed in range(8):
        split = training_split(task, shots=3, seed=seed)
        shared = {*split.train.columns["image"].keys()} & {*split.validation.columns["image"].keys()}
        assert shared == set()
    assert decoded == []


def test_lazy_images_are_those_that_were_decoded_at_once(tmp_path: Path) -> None:
    """Folder and Parquet as PIL reads the files; saved datasets as their package does, which turns pictures upright."""
    image, parquet = pytest.importorskip("PIL.Image"), pytest.importorskip("pyarrow.parquet")
    datasets, pyarrow = pytest.importorskip("datasets"), pytest.importorskip("pyarrow")
    files = photographs(tmp_path / "pictures")
    labels = [file.parent.name for file in files]
    cells = [{"bytes": file.read_bytes()} for file in files]
    parquet.write_table(pyarrow.table({"image": cells, "label": labels}), tmp_path / "rows.parquet")
    saved = datasets.Dataset.from_dict({"image": cells, "label": labels}).cast_column("image", datasets.Image(mode="L"))
    saved.save_to_disk(tmp_path / "saved")
    plain = [np.asarray(image.open(file).convert("RGB")) for file in files]
    upright = [np.asarray(one.convert("RGB")) for one in saved["image"]]
    assert [one.shape for one in plain] != [one.shape for one in upright]
    for source, expected in (("pictures", plain), ("rows.parquet", plain), ("saved", upright)):
        found = read_examples(image_task(tmp_path, source), "train").columns["image"]
        assert len(found) == len(expected)
        assert all(np.array_equal(one, two) for one, two in zip(found, expected, strict=True)), source


def test_a_picture_that_breaks_off(tmp_path: Path) -> None:
    """Its first bytes are fine, so it is found out when it is decoded, by name."""
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    file = next(file for file in photographs(tmp_path / "pictures") if file.suffix == ".png")
    broken = file.read_bytes()[:-30]  # its end mark, and the end of its pixels
    parquet.write_table(pyarrow.table({"image": [{"bytes": broken}], "label": [1]}), tmp_path / "rows.parquet")
    examples = read_examples(image_task(tmp_path, "rows.parquet"), "train")
    with pytest.raises(DataError, match=r"rows\.parquet, row 1, column 'image': it cannot be decoded as an image"):
        examples.row(0)


def test_arrays_and_files_one_after_the_other(tmp_path: Path, decoded: list[Any]) -> None:
    photographs(tmp_path / "pictures")
    np.savez(tmp_path / "rows.npz", images=np.full((2, 4, 4), 7, np.uint8), labels=np.array([0, 1]))
    text = REVIEWS.replace('"train.jsonl"', '["rows.npz", "pictures"]').replace('text = "text"', 'image = "image"')
    examples = read_examples(load_task(write_task(tmp_path, text)), "train")
    assert (len(examples), decoded) == (9, [])
    assert [image.shape[-1] for image in examples.select([1, 8, 0]).columns["image"]] == [4, 3, 4]


def test_a_picture_object_becomes_colour_pixels() -> None:
    image = pytest.importorskip("PIL.Image")
    found = pixels(image.new("L", (3, 2), 9))
    assert found.shape == (2, 3, 3)
    assert found.dtype == np.uint8
    assert int(found[0, 0, 0]) == 9
    with pytest.raises(ValueError, match="no image"):
        pixels(np.zeros((2, 2)))


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "pictures")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"pip install 'skillgraft\[train\]'"):
        read_examples(image_task(tmp_path, "pictures"), "train")
