import csv
import gzip
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from skillgraft.errors import DataError, InputError
from skillgraft.tasks import load_task, read_examples
from skillgraft.tasks.pictures import Pictures
from skillgraft.tasks.sources import read_table

from .making import REVIEWS, make_task, write_lines, write_task

ROWS = [{"text": 'fine, "really"', "label": "good"}, {"text": "dull\tfilm", "label": "bad"}]


def text_of(kind: str) -> str:
    if kind == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in ROWS)
    if kind == "csv":
        return 'label,text\ngood,"fine, ""really"""\nbad,dull\tfilm\n'
    return 'label\ttext\ngood\tfine, "really"\nbad\tdull film\n'


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv"])
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_text_files(tmp_path: Path, kind: str, zipped: bool, mark: str) -> None:
    path = tmp_path / (f"rows.{kind}.gz" if zipped else f"rows.{kind}")
    encoded = (mark + text_of(kind)).encode()
    path.write_bytes(gzip.compress(encoded) if zipped else encoded)
    table = read_table(str(path), ("text", "label"))
    assert list(table.column("label")) == ["good", "bad"]
    assert list(table.column("text")) == ['fine, "really"', "dull film" if kind == "tsv" else "dull\tfilm"]


def test_a_record_is_named_by_the_line_it_begins_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('text,label\n\n"two\nlines",good\nx,bad\n', encoding="utf-8")
    table = read_table(str(path), ("text", "label"))
    assert (list(table.numbers), table.column("text")[0]) == ([3, 5], "two\nlines")


def test_the_csv_limit_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"text,label\n{'x' * 200_000},good\n", encoding="utf-8")
    before = csv.field_size_limit()
    assert len(read_table(str(path), ("text",)).column("text")[0]) == 200_000
    assert csv.field_size_limit() == before
    path.write_text('text,label\n"x\n', encoding="utf-8")
    with pytest.raises(DataError):
        read_table(str(path), ("text",))
    assert csv.field_size_limit() == before


WRONG_FILES: list[tuple[str, bytes, str]] = [
    ("rows.jsonl", b'{"text": "' + b"x" * 10_000_000 + b'", "label": 0}\n', "line 1: longer than 5,000,000 bytes"),
    ("rows.csv", b"text,label\nx,0\n" + b"y" * 10_000_000 + b",1\n", "line 3: longer than 5,000,000 bytes"),
    ("rows.jsonl", '{"text": "café", "label": 0}\n'.encode("latin-1"), "line 1: not UTF-8 (byte 0xe9 at position 14)"),
    ("rows.csv", "text,label\nx,0\ncafé,1\n".encode("latin-1"), "line 3: not UTF-8"),
    ("rows.tsv", "text\tlabel\nx\t0\n".encode("utf-16"), "line 1: it holds a NUL byte"),
    ("rows.jsonl", b'{"text": "a\0b", "label": 0}\n', "line 1: it holds a NUL byte"),
    ("rows.jsonl", b'{"text": "a", "label": 0}\n{"text": "b"\n', "line 2: expected one JSON object"),
    ("rows.jsonl", b"[1, 2]\n", "line 1: expected one JSON object; found [1, 2]"),
    ("rows.jsonl", b"[" * 100_000 + b"\n", "line 1: expected one JSON object"),
    ("rows.jsonl", b'{"txt": "a", "label": 0}\n', "there is no column 'text': did you mean 'txt'?"),
    ("rows.jsonl", b'{"text": "a", "label": 0}\n\n{"text": "b"}\n', "line 3: there is no 'label'; this row has text"),
    ("rows.csv", b"txt,label\na,0\n", "there is no column 'text': did you mean 'txt'?"),
    ("rows.csv", b"text,text,label\na,b,0\n", "its header names a column twice"),
    ("rows.csv", b"text,label\na,0\nb\n", "line 3: expected 2 fields as in the header; found 1"),
    ("rows.csv", b'text,label\na,0\n"b,1\nc,0\n', "record that begins on line 3"),
    ("rows.csv", b"text,label\na,0\nb,\n", "line 3, column 'label': the label is missing"),
    ("rows.jsonl", b'{"text": "a", "label": null}\n', "line 1, column 'label': the label is missing; found None"),
    ("rows.jsonl", b'{"text": "a", "label": [0]}\n', "line 1, column 'label': the label is missing; found [0]"),
    ("rows.jsonl", b'{"text": "a", "label": NaN}\n', "line 1, column 'label': the label is missing; found nan"),
    ("rows.csv", b"text,label\na,0\nb,fair\n", "line 3, column 'label': unknown label 'fair'; expected bad, good"),
    ("rows.jsonl", b'{"text": "a", "label": 2}\n', "line 1, column 'label': unknown label 2; expected bad, good, or"),
    ("rows.jsonl", b'{"text": "a", "label": 0.5}\n', "unknown label 0.5"),
    ("rows.jsonl", b'{"text": "a", "label": ' + b"9" * 400 + b"}\n", "unknown label 999"),
    ("rows.jsonl", b'{"text": "a", "label": Infinity}\n', "unknown label inf"),
    ("rows.jsonl", b'{"text": 7, "label": 0}\n', "line 1, column 'text': expected text; found 7"),
    ("rows.jsonl", b'{"text": "a \\ud800", "label": 0}\n', "line 1, column 'text': half a character"),
    ("rows.jsonl", b"", "it has no rows"),
    ("rows.csv", b"", "it has no rows"),
    ("rows.csv", b"text,label\n", "it has no rows"),
    ("rows.jsonl.gz", gzip.compress(b'{"text": "a", "label": 0}\n' * 9)[:-9], "cannot be read after line"),
    ("rows.csv.gz", b"text,label\n", "cannot be read after line 0"),
    ("rows.npz", b"PK nothing", "there is no column 'text': Known: image, label"),
    ("rows.parquet", b"PAR1 nothing", "cannot be read"),
    ("rows.odt", b"x", "no reader for files that end in '.odt'"),
]


@pytest.mark.parametrize(("name", "content", "message"), WRONG_FILES, ids=range(len(WRONG_FILES)))
def test_what_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    task = load_task(write_task(tmp_path, REVIEWS.replace("train.jsonl", name)))
    start = time.perf_counter()
    with pytest.raises(DataError) as caught:
        read_examples(task, "train")
    assert time.perf_counter() - start < 2
    assert message in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["none.jsonl", "none.csv.gz", "none.npz", "none"])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        read_table(str(tmp_path / name), ("image", "label"))


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    cells = {"text": ["a", "b"], "other": [1, 2], "choices": [{"text": ["x", "y"]}] * 2}
    parquet.write_table(pyarrow.table(cells), path)
    table = read_table(str(path), ("text", "choices.text"))
    assert (table.column("text"), table.column("choices.text")) == (["a", "b"], [["x", "y"]] * 2)
    assert "other" not in table.columns
    with pytest.raises(DataError, match=r"row 1, column 'choices': expected an entry 'texts' in it"):
        table.column("choices.texts")


def saved_dataset(folder: Path, names: list[str]) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
    datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [0, 1, 1]}, features=features).save_to_disk(folder)


def read_saved(tmp_path: Path, names: list[str]) -> list[int]:
    saved_dataset(tmp_path / "saved", names)
    task = load_task(write_task(tmp_path, REVIEWS.replace("train.jsonl", "saved")))
    labels: list[int] = read_examples(task, "train").labels.tolist()
    return labels


def test_a_saved_dataset_that_states_its_order_is_believed(tmp_path: Path) -> None:
    assert read_saved(tmp_path, ["good", "bad"]) == [1, 0, 0]


def test_a_saved_dataset_with_other_names_goes_by_position(tmp_path: Path) -> None:
    assert read_saved(tmp_path, ["neg", "pos"]) == [0, 1, 1]


def test_a_saved_dataset_with_another_number_of_classes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"it states 3 classes \(x, y, z\), but the task 2 \(bad, good\)"):
        read_saved(tmp_path, ["x", "y", "z"])


def test_a_saved_dataset_with_several_splits(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text("{}")
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match=r"name one of them: .*train"):
        read_table(str(tmp_path), ("text",))


def test_hub_names(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[Any] = []

    def load_dataset(name: str, config: str | None, *, split: str) -> Any:
        asked.append((name, config, split))
        return datasets.Dataset.from_dict({"text": ["a"]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert list(read_table("hf:o/n:train", ("text",)).column("text")) == ["a"]
    read_table("hf:o/n/wsc.fixed:train[:10%]", ("text",))
    remote = "hf://datasets/o/n"  # the package reads no local folder for that
    assert asked == [(remote, None, "train"), (remote, "wsc.fixed", "train[:10%]")]
    with pytest.raises(DataError, match="hf:o/n:train: there is no column 'txt'"):
        read_table("hf:o/n:train", ("txt",))


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the hub: what is asked of the hub's `owner/name` is loaded from there."""
    datasets = pytest.importorskip("datasets")
    load = datasets.load_dataset
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name, *rest, **more: load(name.removeprefix("hf://datasets/"), *rest, **more)
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "owner" / "films").mkdir(parents=True)
    return tmp_path / "owner" / "films"


def test_a_hub_dataset_as_the_package_itself_loads_it(shelf: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for split, rows in (("train", ROWS), ("test", ROWS[:1])):
        write_lines(shelf / f"{split}.jsonl", rows)
    text = REVIEWS.replace("train.jsonl", "hf:owner/films:train")
    examples = read_examples(load_task(write_task(shelf.parent, text)), "train")
    assert examples.columns["text"] == tuple(row["text"] for row in ROWS)
    assert examples.labels.tolist() == [1, 0]
    assert len(read_table("hf:owner/films:train[:1]", ("text",))) == 1
    with pytest.raises(DataError, match=r'hf:owner/films:dev: cannot be read: .*"dev"'):
        read_table("hf:owner/films:dev", ("text",))
    assert capfd.readouterr().err == ""


def test_a_hub_dataset_with_configurations(shelf: Path) -> None:
    for name, rows in (("long", ROWS), ("short", ROWS[:1])):
        (shelf / name).mkdir()
        write_lines(shelf / name / "train.jsonl", rows)
    configs = "".join(f"- config_name: {name}\n  data_files: {name}/train.jsonl\n" for name in ("long", "short"))
    (shelf / "README.md").write_text(f"---\nconfigs:\n{configs}---\n", encoding="utf-8")
    assert [len(read_table(f"hf:owner/films/{name}:train", ("text",))) for name in ("long", "short")] == [2, 1]
    with pytest.raises(
        DataError, match=r"hf:owner/films:train: cannot be read: Config name is missing\. .*long.*short"
    ):
        read_table("hf:owner/films:train", ("text",))


def test_a_hub_dataset_never_runs_code_of_its_own(shelf: Path) -> None:
    (shelf / "films.py").write_text("raise SystemExit('this code was run')", encoding="utf-8")
    with pytest.raises(DataError, match="hf:owner/films:train: cannot be read"):
        read_table("hf:owner/films:train", ("text",))


def test_images_of_a_hub_dataset_stay_encoded(shelf: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for label, shade in (("bad", 0), ("good", 255)):
        (shelf / "train" / label).mkdir(parents=True)
        image.new("L", (3, 2), shade).save(shelf / "train" / label / "one.png")
    text = REVIEWS.replace("train.jsonl", "hf:owner/films:train").replace('text = "text"', 'image = "image"')
    examples = read_examples(load_task(write_task(shelf.parent, text)), "train")
    assert isinstance(examples.columns["image"], Pictures)
    assert [(pixels.shape, int(pixels.min())) for pixels in examples.columns["image"]] == [
        ((2, 3, 3), 0),
        ((2, 3, 3), 255),
    ]
    assert examples.labels.tolist() == [0, 1]


@pytest.mark.parametrize("source", ["hf:glue:train", "hf:o/n", "hf:o/n:"])
def test_a_wrong_hub_name(source: str) -> None:
    with pytest.raises(InputError, match="expected hf:owner/name:split"):
        read_table(source, ("text",))


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def load_dataset(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match="hf:o/n:train: cannot be read: no route"):
        read_table("hf:o/n:train", ("text",))


@pytest.mark.parametrize(("source", "module"), [("hf:o/n:train", "datasets"), ("x.parquet", "pyarrow.parquet")])
def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, source: str, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'skillgraft\[data\]'"):
        read_table(source, ("text",))


BELOW = REVIEWS.replace("train.jsonl", "data:mine/rows.jsonl")
HUB = '[hub]\ntrain = "other.jsonl"\ncolumns = { text = "sentence" }\ndata_labels = ["good", "bad"]\n'


def test_data_lie_below_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    write_lines(tmp_path / "mine" / "rows.jsonl", ROWS)
    monkeypatch.setenv("SKILLGRAFT_DATA", str(tmp_path))
    assert len(read_examples(make_task(tmp_path, BELOW + HUB), "train")) == 2


def test_the_hub_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKILLGRAFT_DATA", raising=False)
    write_lines(tmp_path / "other.jsonl", [{"sentence": "a", "label": 0}])
    examples = read_examples(make_task(tmp_path, BELOW + HUB), "train")
    assert (examples.columns["text"], examples.labels.tolist()) == (("a",), [1])


def test_neither_folder_nor_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKILLGRAFT_DATA", raising=False)
    with pytest.raises(
        InputError, match=r"reads data:mine/rows.jsonl, but SKILLGRAFT_DATA is not set and .* no \[hub\]"
    ):
        read_examples(make_task(tmp_path, BELOW), "train")
    with pytest.raises(InputError, match="SKILLGRAFT_DATA is not set"):
        read_table("data:mine/rows.jsonl", ("text",))


def test_twenty_thousand_rows_in_two_seconds(tmp_path: Path) -> None:
    rows = [{"text": f"sentence number {i} with a few words " * 4, "label": i % 2} for i in range(20_000)]
    task = make_task(tmp_path, train=rows)
    start = time.perf_counter()
    assert len(read_examples(task, "train")) == 20_000
    assert time.perf_counter() - start < 2
