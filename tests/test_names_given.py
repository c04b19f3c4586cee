"""NAME=PATH for every model and graft of a line, and --scale NAME=0.5 for one of them; the same scales by name in Python."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from skillgraft import Graft, apply, combine, load
from skillgraft.errors import InputError
from tests.family import write_family
from tests.measure.test_evaluate import moved
from tests.model_folders import content, same_weights
from tests.readouts import making
from tests.running import Run, runner


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """In a folder with BASE, a.safetensors and b.safetensors, and the same grafts under one file name: one/g, two/g."""
    write_family(tmp_path)
    here = runner(tmp_path, monkeypatch, capsys)
    for name, tuned, folder in (("a", "TUNED", "one"), ("b", "OTHER", "two")):
        assert here("extract", "BASE", tuned, "-o", f"{name}.safetensors").code == 0
        Path(folder).mkdir()
        shutil.copy(f"{name}.safetensors", f"{folder}/g.safetensors")
    return here


def refused(run: Run, *words: object) -> str:
    before = content(Path())
    ended = run(*words)
    assert (ended.code, ended.out) == (2, "")
    assert content(Path()) == before
    return ended.err


def test_compare_shows_the_names_that_were_given(run: Run) -> None:
    found = run("compare", "films=one/g.safetensors", "two/g.safetensors", "--json").json
    assert found["grafts"] == ["films", "g"]
    text = run("compare", "films=one/g.safetensors", "news=two/g.safetensors").out
    assert text.splitlines()[0].split() == ["coverage", "films", "news"]
    assert "digest of news: " in text
    assert run("compare", "one/g.safetensors", "two/g.safetensors", "--json").json["grafts"] == [
        "one/g.safetensors",
        "two/g.safetensors",
    ]


def test_a_path_that_exists_is_a_path_whatever_it_holds(run: Run) -> None:
    Path("lr=0.1").mkdir()
    shutil.copy("a.safetensors", "lr=0.1/g.safetensors")
    shutil.copy("b.safetensors", "seed=1.safetensors")
    found = run("compare", "lr=0.1/g.safetensors", "seed=1.safetensors", "--json").json
    assert found["grafts"] == ["g", "seed=1"]
    found = run("compare", "low=lr=0.1/g.safetensors", "high=seed=1.safetensors", "--json").json
    assert found["grafts"] == ["low", "high"]
    assert "runs/lr=0.2/g.safetensors" in refused(run, "compare", "runs/lr=0.2/g.safetensors", "b.safetensors")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("compare =a.safetensors b.safetensors", "found '=a.safetensors', which has no name before the '='"),
        ("compare films= b.safetensors", "found 'films=', which has nothing behind the '='"),
        ("compare two+two=a.safetensors b.safetensors", "a name has letters, digits, '_', '.' and '-', at most 100"),
        ("compare x=a.safetensors x=b.safetensors", "two of a.safetensors, b.safetensors have one name ('x')"),
        ("apply BASE a.safetensors --scale b=2 -o OUT", "a scale is given for 'b', which no graft is called"),
        ("apply BASE films=a.safetensors --scale film=2 -o OUT", "did you mean 'films'? Known: films"),
        ("apply BASE a.safetensors --scale a=1 --scale a=2 -o OUT", "two scales for one name"),
        ("apply BASE a.safetensors --scale 1 --scale 2 -o OUT", "one plain number for all, found 1 and 2"),
        ("apply BASE a.safetensors --scale a=half -o OUT", "NAME=NUMBER for one graft; found 'half'"),
        ("apply BASE a.safetensors --scale =2 -o OUT", "expected NAME=NUMBER, found no name"),
        ("apply BASE a.safetensors --scale a=nan -o OUT", "scale must be a finite number"),
        ("apply BASE one/g.safetensors two/g.safetensors --scale g=2 -o OUT", "are called 'g', and a scale is for one"),
        (
            "combine a.safetensors --scale auto --scale a=2 -o g.safetensors",
            "auto finds the scale: leave out those of a",
        ),
    ],
)
def test_wrong_names_and_scales_are_refused_in_words(run: Run, words: str, expected: str) -> None:
    assert expected in refused(run, *words.split())


def test_apply_scales_each_graft_by_its_name(run: Run) -> None:
    a, b = load("a.safetensors"), load("b.safetensors")
    given = ("films=one/g.safetensors", "news=two/g.safetensors")
    made = run(
        "apply", "BASE", *given, "--scale", "films=0.5", "--scale", "news=-1", "--scale", 2, "-o", "OUT", "--json"
    )
    assert made.json["digests"] == {"films": a.digest, "news": b.digest}
    apply("BASE", 1.0 * a + (-2.0 * b), out="WANTED", head=None)
    assert same_weights(Path("OUT"), Path("WANTED"))
    assert run("remove", "OUT", "a.safetensors", "b.safetensors", "-o", "BACK").code == 0
    assert content(Path("BACK")) == content(Path("BASE"))


def test_grafts_that_are_not_named_keep_the_scale_of_all(run: Run) -> None:
    assert run("apply", "BASE", "a.safetensors", "b.safetensors", "--scale", "b=0", "-o", "OUT").code == 0
    assert run("apply", "BASE", "a.safetensors", "-o", "ALONE").code == 0
    assert same_weights(Path("OUT"), Path("ALONE"))


def test_combine_scales_single_grafts_before_the_rule_and_all_after_it(run: Run) -> None:
    a, b = load("a.safetensors"), load("b.safetensors")
    words = ("combine", "a.safetensors", "b.safetensors", "--scale", "a=0.5", "--scale", "b=-1", "--scale", 3)
    found = run(*words, "-o", "sum.safetensors", "--json").json
    made = load("sum.safetensors")
    wanted = 3 * (0.5 * a.without_heads() + -1.0 * b.without_heads())
    assert made.without_heads().digest == wanted.digest
    assert (found["scale"], found["scales"]) == (made.scale, {"a.safetensors": 0.5, "b.safetensors": -1.0})
    assert made.info["recipe"]["scales"] == [0.5, -1.0]


def test_scales_by_name_in_python(run: Run) -> None:
    assert run
    a, b = load("a.safetensors"), load("b.safetensors")
    by_hand = 0.5 * a.without_heads() + b.without_heads()

    def body(graft: Graft) -> str:
        return graft.without_heads().digest

    assert body(combine(["a.safetensors", "b.safetensors"], scale={"a": 0.5})) == by_hand.digest
    assert body(combine({"films": a, "news": b}, scale={"films": 0.5})) == by_hand.digest
    assert body(combine([a, b], scale=-2.0)) == (-2.0 * (a.without_heads() + b.without_heads())).digest
    apply("BASE", "a.safetensors", "b.safetensors", out="OUT", scale={"a.safetensors": 0.5})
    apply("BASE", 0.5 * a + b, out="WANTED")
    assert same_weights(Path("OUT"), Path("WANTED"))
    with pytest.raises(InputError, match="did you mean 'films'"):
        combine({"films": a, "news": b}, scale={"filsm": 0.5})


def test_a_recorded_command_keeps_names_and_no_folders(run: Run) -> None:
    Path("lr=1").mkdir()
    shutil.copy("b.safetensors", "lr=1/g.safetensors")
    assert (
        run("combine", "films=one/g.safetensors", "lr=1/g.safetensors", "--scale=films=2", "-o", "c.safetensors").code
        == 0
    )
    made = load("c.safetensors").info["command"]
    assert made == "skillgraft combine films=g.safetensors g.safetensors --scale=films=2 -o c.safetensors"


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict]:
    """`evaluate` on a tiny encoder with two fine-tunes in one/model and two/model and films.toml, and what it printed."""
    making.bert(tmp_path / "base")
    for seed, name in enumerate(("one", "two")):
        moved(tmp_path / "base", tmp_path / name / "model", seed=seed)
    making.write_films(tmp_path, test=20)
    here = runner(tmp_path, monkeypatch, capsys)
    assert here("extract", "base", "one/model", "--density", 0.01, "-o", "g.safetensors").code == 0
    return lambda *words: here("evaluate", "base", "--task", "films.toml", "--readout", "masked", *words, "--json").json


def test_evaluate_shows_the_names_that_were_given(encoder: Callable[..., dict]) -> None:
    models = ("--tuned", "first=one/model", "--tuned", "second=two/model", "--graft", "small=g.safetensors")
    found = encoder(*models, "--graft", "g.safetensors", "--record")
    assert list(found["tasks"]["films"]) == ["base", "first", "second", "small", "g.safetensors"]
    assert list(found["models"]) == ["base", "first", "second", "small", "g.safetensors"]
    recorded = load("g.safetensors").info["scores"]["test"]["films"]
    assert recorded["score"] == found["tasks"]["films"]["small"]["score"]
