"""The page: its sections, its order, that it escapes, repeats itself byte for byte, and survives damage."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from skillgraft.errors import InputError
from skillgraft.report.page import SECTIONS, report

from .making import EVIL
from .test_blocks import Reader


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "page.html"
    assert report([runs], out, title="Two skills").sections == tuple(SECTIONS)
    return out.read_text(encoding="utf-8")


def section(page: str, name: str) -> str:
    return page.split(f'<section id="{name}"')[1].split("</section>")[0]


def test_every_section_is_there_with_a_link(page: str) -> None:
    for name, (title, _) in SECTIONS.items():
        assert f'<a href="#{name}">{title}</a>' in page
        assert f'<h2 id="{name}-title">{title}</h2>' in section(page, name)
    assert "<title>Two skills</title>" in page
    assert '<html lang="en">' in page


def test_the_first_screen_says_what_there_is(page: str, runs: Path) -> None:
    """One sentence for each graft, one chart of all models, one map of all skills; nothing else."""
    text = section(page, "overview")
    models = json.loads((runs / "scores.json").read_text())["tasks"]["toy"]
    with_it = 100 * models["a.safetensors"]["score"]["value"]
    size = f"4 numbers, {(runs / 'a.safetensors').stat().st_size / 1000:.1f} kB ("
    assert f"<strong>a:</strong> {size}" in text
    assert f"toy {with_it:.1f} % (base {100 * models['base']['score']['value']:.1f} %)" in text
    assert "<strong>b:</strong> 2 numbers" in text
    assert "no scores were found" in text
    figures = re.findall(r'data-draws="([^"]+)"', text)
    assert figures == ["overview-scores", "overview-where"]
    assert "<figcaption>Accuracy on test rows: base, tuned and grafts</figcaption>" in text
    assert "1 file could not be read" in text


def test_files_are_compared_with_the_base(page: str, runs: Path) -> None:
    text = section(page, "files")
    base = sum(file.stat().st_size for file in (runs / "BASE").iterdir())
    share = 100 * (runs / "b.safetensors").stat().st_size / base
    row = text.split('<th scope="row">runs/b.safetensors</th>')[1].split("</tr>")[0]
    assert f">{share:.0f}</td>" in row
    assert ">2</td>" in row
    assert '<th scope="row">runs/TUNED</th><td>tuned model</td><td>toy</td>' in text
    assert '<th scope="row">runs/BASE</th><td>base model</td>' in text


def test_what_is_said_twice_is_shown_once(page: str, runs: Path) -> None:
    text = section(page, "scores")
    captions = [part.split("</caption>")[0] for part in text.split("<caption>")[1:]]
    # Evaluation and predictions are about the same test rows; localize and its graft about the same validation rows.
    assert captions == [
        "toy, 60 test rows", "toy, 60 validation rows", "Accuracy on validation rows: base, tuned and grafts (%)",
    ]  # fmt: skip
    assert text.index("<h3>Test rows") < text.index("toy, 60 test rows") < text.index("<h3>Validation rows")
    scores = json.loads((runs / "scores.json").read_text())["tasks"]["toy"]["TUNED"]
    assert f">{100 * scores['score']['value']:.1f}<span" in text
    assert f"Majority class: {100 * scores['majority']:.1f} %." in text


def test_no_column_is_all_dashes_and_no_figure_stands_twice(page: str) -> None:
    for table in re.findall(r"<table>.*?</table>", page, flags=re.DOTALL):
        rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in table.split("<tbody>")[1].split("</tr>")[:-1]]
        columns = list(zip(*rows, strict=True))
        assert not [column for column in columns if set(column) == {"–"}], table[:200]
    drawn = re.findall(r"<figcaption>(.*?)</figcaption>.*?data-draws=[^>]*>(.*?)</script>", page, flags=re.DOTALL)
    assert len(set(drawn)) == len(drawn)


def test_sections_hold_their_figures(page: str) -> None:
    figures = {name: section(page, name).count("data-draws=") for name in SECTIONS}
    assert figures == {
        "overview": 2, "scores": 1, "calibration": 4, "density": 1, "where": 3, "shared": 2, "results": 3, "scales": 1,
        "disentanglement": 1, "files": 1, "made": 0, "aside": 0,
    }  # fmt: skip


def test_every_figure_has_its_numbers_in_a_table(page: str) -> None:
    for name in SECTIONS:
        for figure in section(page, name).split("<figure>")[1:]:
            assert "<table>" in figure.split("</figure>")[0]


def test_results_show_the_paper_and_the_reasons(page: str) -> None:
    text = section(page, "results")
    assert '50.0<span class="remark"> [40.0, 60.0] paper 55.0</span>' in text
    assert '<p class="note">(a) no skill to localise</p>' in text
    assert '<p class="note">CPU profile.</p>' in text


def test_provenance(page: str) -> None:
    text = section(page, "made")
    assert "<code>skillgraft extract</code>" in text
    assert "<code>skillgraft reproduce table2</code>" in text
    assert "&#34;skillgraft&#34;: &#34;0.1.0&#34;" in text
    assert "toy--base.npz" in text


def test_files_that_are_not_shown_are_listed(page: str) -> None:
    text = section(page, "aside")
    assert "runs/damaged.safetensors" in text
    assert '<th scope="row">runs/notes.txt</th><td>a report does not read .txt</td>' in text


def test_names_from_files_stay_text(page: str) -> None:
    found = Reader(page)
    assert EVIL in found.text
    assert found.elements.count("script") == 2 + page.count("data-draws=")
    assert "b" not in found.elements
    assert not [value for name, value in found.attributes if name.startswith("on")]


def test_names_of_elements_are_unique(page: str) -> None:
    names = [value for name, value in Reader(page).attributes if name == "id"]
    assert len(set(names)) == len(names)


def test_nothing_points_outside(page: str) -> None:
    found = Reader(page)
    assert "link" not in found.elements
    assert "img" not in found.elements
    assert [
        value for name, value in found.attributes if name in ("src", "href") and not str(value).startswith("#")
    ] == []


def test_the_same_inputs_give_the_same_bytes(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "elsewhere" / "runs")
    report([runs], tmp_path / "1.html")
    report([tmp_path / "elsewhere" / "runs"], tmp_path / "2.html")
    assert (tmp_path / "1.html").read_bytes() == (tmp_path / "2.html").read_bytes()


def test_no_folder_of_this_machine_is_on_the_page(page: str, runs: Path) -> None:
    assert str(runs.parent) not in page


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("predictions", ("overview", "scores", "calibration", "made")),
        ("scores.json", ("overview", "scores")),
        ("a.safetensors", ("overview", "scores", "where", "files", "made")),
        ("b.safetensors", ("overview", "where", "files", "made")),
        ("scales.json", ("overview", "scales")),
        ("BASE", ("overview", "files")),
        ("damaged.safetensors", ("overview", "aside")),
    ],
)
def test_sections_without_data_are_left_out(runs: Path, tmp_path: Path, name: str, sections: tuple[str, ...]) -> None:
    assert report([runs / name], tmp_path / "page.html").sections == sections


def test_predictions_of_other_rows_are_not_compared(tmp_path: Path) -> None:
    from ..measure.making import random_predictions

    for rows, model in ((20, "base"), (30, "other")):
        random_predictions(rows, 2, made_by={"model": model, "split": "test"}).save(tmp_path / "p" / f"{model}.npz")
    report([tmp_path / "p"], tmp_path / "page.html")
    assert "toy, 20 test rows" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"a": "graft", "b": "graft", "c": "base"}, ["base", "a", "b"]),
        ({"a": "graft", "b": "graft", "c": "a"}, ["p/a.npz", "p/b.npz", "p/c.npz"]),
    ],
)
def test_models_of_one_name_go_by_their_files(tmp_path: Path, files: dict[str, str], names: list[str]) -> None:
    from ..measure.making import random_predictions

    for file, model in files.items():
        random_predictions(20, 2, made_by={"model": model, "split": "test"}).save(tmp_path / "p" / f"{file}.npz")
    report([tmp_path / "p"], tmp_path / "page.html")
    text = section((tmp_path / "page.html").read_text(), "scores")
    assert re.findall(r'<th scope="row">([^<]*)</th><td', text)[: len(names)] == names


def test_scales_of_several_grafts_are_a_table(tmp_path: Path) -> None:
    points = [{"scale": [0.5, 1.0], "accuracy": {"toy": 0.7}, "normalised": 0.9}]
    (tmp_path / "x.json").write_text(
        json.dumps({"format": "skillgraft scales 1", "scale": [0.5, 1.0], "search": {"points": points}})
    )
    report([tmp_path / "x.json"], tmp_path / "page.html")
    text = section((tmp_path / "page.html").read_text(), "scales")
    assert "data-draws" not in text
    assert '<th scope="row">0.5, 1</th><td class="number" data-sort="0.7">70.0</td>' in text
    assert "Chosen: 0.5, 1." in text


def test_nothing_to_show_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "notes.txt").write_text("")
    with pytest.raises(InputError, match=r"expected grafts, regions, .* found 1 files of other kinds"):
        report([tmp_path / "x"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_exists_is_untouched(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        report([runs], tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "mine"
