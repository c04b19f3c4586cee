"""The command line as a user meets it: every verb, JSON, errors, exit codes, help, start-up."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from importlib.metadata import metadata, version
from pathlib import Path
from typing import Any

import pytest

from skillgraft import combine, load, load_region, save_region
from skillgraft.cli import output
from skillgraft.cli.main import app
from skillgraft.compose.rules import RULES, options_of
from skillgraft.errors import EXTRA_OF

from .family import LAYER_ENTRIES, write_family
from .model_folders import QUERY, content, same_weights
from .running import Ended, Run, runner

DOCUMENT = Path(__file__).parents[1] / "docs" / "cli.md"
VERBS = [command.name or "" for command in app.registered_commands]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`skillgraft …` in this process, in a folder that holds BASE, TUNED and OTHER."""
    write_family(tmp_path)
    return runner(tmp_path, monkeypatch, capsys)


def done(ended: Ended) -> Ended:
    assert (ended.code, ended.err) == (0, "")
    return ended


@pytest.fixture
def grafts(run: Run) -> tuple[str, str]:
    done(run("extract", "BASE", "TUNED", "--entries", 4, "-o", "a.safetensors"))
    done(run("extract", "BASE", "OTHER", "--entries", 2, "-o", "b.safetensors"))
    return "a.safetensors", "b.safetensors"


def started(*words: object, **rest: Any) -> subprocess.CompletedProcess[str]:
    """`python -m skillgraft …` as a process of its own."""
    command = [sys.executable, "-m", "skillgraft", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **rest)


# The verbs


def test_extract(run: Run) -> None:
    found = done(run("extract", "BASE", "TUNED", "--density", 0.07, "-o", "g.safetensors", "--json")).json
    g = load("g.safetensors")
    assert found == {
        "out": "g.safetensors",
        "entries": 3,  # 0.07 of 44 entries
        "density": 3 / LAYER_ENTRIES,
        "scope": "layers",
        "bytes": Path("g.safetensors").stat().st_size,
        "heads": ["classifier.bias", "classifier.weight"],
        "removed": [],
        "outside_scope": {"embeddings.word_embeddings.weight": 4},
        "base_fingerprint": g.base_fingerprint,
        "digest": g.digest,
    }
    assert g.region.sites[QUERY].tolist() == [1, 3, 7]
    assert g.info["command"] == "skillgraft extract BASE TUNED --density 0.07 -o g.safetensors --json"
    assert g.info["recipe"] == {"density": 0.07, "entries": None, "scope": "layers", "convert": False}


def test_extract_for_people(run: Run) -> None:
    lines = done(run("extract", "BASE", "TUNED", "--entries", 4, "-o", "g.safetensors")).out.splitlines()
    assert lines[0].startswith("g.safetensors: 4 entries, density 9.09e-02 of 'layers', ")
    assert lines[0].endswith(" kB")
    assert lines[1:] == [
        "heads that travel whole: classifier.bias, classifier.weight",
        "left out, changed outside the scope: 4 entries in embeddings.word_embeddings.weight",
        f"digest of g.safetensors: {load('g.safetensors').digest}",
    ]


def test_extract_in_a_region_or_scope(run: Run, grafts: tuple[str, str]) -> None:
    region = load_region(grafts[1])
    save_region(region, "r.safetensors")
    for file in (grafts[1], "r.safetensors"):  # a graft file serves as a region file
        out = f"from-{file}"
        assert done(run("extract", "BASE", "TUNED", "--region", file, "-o", out, "--json")).json["entries"] == 2
        assert load(out).region == region
    found = done(run("extract", "BASE", "TUNED", "--scope", "*.dense.*", "-o", "d.safetensors", "--json")).json
    assert (found["entries"], found["scope"]) == (1, "*.dense.*")


def test_diff(run: Run) -> None:
    before = content(Path())
    found = done(run("diff", "BASE", "TUNED", "--json")).json
    assert (found["entries"], found["changed"], found["scope"]) == (LAYER_ENTRIES, 4, "layers")
    assert found["norm"] == pytest.approx((0.5**2 + 0.25**2 + 1 + 0.125**2) ** 0.5)
    assert {name: each["changed"] for name, each in found["by_layer"].items()} == {
        "encoder.layer.0": 3,
        "encoder.layer.1": 1,
    }
    assert found["outside_scope"]["embeddings.word_embeddings.weight"]["changed"] == 4
    assert found["added"] == ["classifier.bias", "classifier.weight"]
    assert found["config"].keys() == {"architectures", "id2label"}
    lines = done(run("diff", "BASE", "TUNED")).out.splitlines()
    assert lines[0].startswith("BASE -> TUNED: 4 of 44 entries of 'layers' changed (9.1%), norm 1.152 (")
    assert "tensors added: classifier.bias, classifier.weight" in lines
    assert "config keys that differ: architectures, id2label" in lines
    assert content(Path()) == before


def test_apply_and_remove(run: Run) -> None:
    done(run("extract", "BASE", "TUNED", "-o", "g.safetensors"))
    found = done(run("apply", "BASE", "g.safetensors", "-o", "OUT", "--json")).json
    assert found == {
        "out": "OUT",
        "entries": 8,
        "whole_tensors": ["classifier.bias", "classifier.weight"],
        "left_out": [],
        "digests": {"g.safetensors": load("g.safetensors").digest},
    }
    assert same_weights(Path("OUT"), Path("TUNED"))
    found = done(run("remove", "OUT", "g.safetensors", "-o", "BACK", "--json")).json
    assert (found["out"], found["entries"]) == ("BACK", 8)
    assert content(Path("BACK")) == content(Path("BASE"))


def test_apply_several_scaled(run: Run, grafts: tuple[str, str]) -> None:
    lines = done(run("apply", "BASE", *grafts, "--scale", 0.5, "-o", "OUT")).out.splitlines()
    assert lines == [
        "OUT: 5 entries and 2 whole tensors written",
        "whole tensors: classifier.bias, classifier.weight",
        *(f"digest of {file}: {load(file).digest}" for file in grafts),
    ]
    line = done(run("remove", "OUT", *grafts, "-o", "BACK")).out
    assert line.startswith("BACK: 5 entries and ")
    assert content(Path("BACK")) == content(Path("BASE"))


def test_apply_names_what_it_leaves_out(run: Run, grafts: tuple[str, str]) -> None:
    Path("BASE/pytorch_model.bin").write_bytes(b"other weights")
    lines = done(run("apply", "BASE", grafts[0], "-o", "OUT")).out.splitlines()
    assert lines[-1] == "left out, weights in another format: pytorch_model.bin"
    assert not Path("OUT/pytorch_model.bin").exists()


def test_check(run: Run, grafts: tuple[str, str]) -> None:
    found = done(run("check", "BASE", grafts[0], "--json")).json
    assert found == {
        "base": "BASE",
        "graft": grafts[0],
        "digest": load(grafts[0]).digest,
        "fits": True,
        "same_fingerprint": True,
        "entries": 4,
        "differing": {},
        "problem": "",
        "reach": {
            "replaced": [],
            "appended": [],
            "added": ["classifier.bias", "classifier.weight"],
            "removed": [],
            "config": found["reach"]["config"],
            "chat": [],
        },
    }
    assert found["reach"]["config"].keys() == {"architectures", "id2label", "label2id"}
    assert done(run("check", "BASE", grafts[0])).out.splitlines() == [
        "a.safetensors fits BASE: 4 sites, same fingerprint",
        "adds whole: classifier.bias, classifier.weight",
        "sets in config.json: architectures, id2label, label2id",
        f"digest of a.safetensors: {found['digest']}",
    ]
    ended = run("check", "BASE", grafts[0], "--strict")
    assert ended.code == 2
    assert ended.out.startswith("a.safetensors changes more than its sites: adds whole: classifier.bias")


def test_check_of_a_misfit_ends_with_3(run: Run, grafts: tuple[str, str]) -> None:
    ended = run("check", "OTHER", grafts[0], "--json")
    assert ended.code == 3
    assert (ended.json["fits"], ended.json["differing"]) == (False, {QUERY: 1})
    ended = run("check", "OTHER", grafts[0])
    assert ended.code == 3
    assert f"in {QUERY} 1 of 3 sites" in ended.out


def test_combine(run: Run, grafts: tuple[str, str]) -> None:
    found = done(run("combine", *grafts, "-o", "sum.safetensors", "--json")).json
    assert found == {
        "out": "sum.safetensors",
        "entries": 5,
        "density": 5 / LAYER_ENTRIES,
        "form": "arithmetic",
        "digest": load("sum.safetensors").digest,
        "rule": "sum",
        "scale": 1.0,
    }
    a, b = map(load, grafts)
    assert load("sum.safetensors").digest == (a + b).digest
    recipe = load("sum.safetensors").info["recipe"]
    assert recipe == {"rule": "sum", "conflict": "refuse", "scale": 1.0, "grafts": [a.digest, b.digest]}


def test_combine_negates_unites_and_restricts(run: Run, grafts: tuple[str, str]) -> None:
    a, b = map(load, grafts)
    assert (
        done(run("combine", grafts[0], "--scale", -1, "-o", "m.safetensors")).out.splitlines()[0].endswith("exact form")
    )
    assert load("m.safetensors").digest == (-a).digest
    done(run("combine", *grafts, "--rule", "union", "--conflict", "largest", "-o", "u.safetensors"))
    assert load("u.safetensors").delta(QUERY)[1] == b.delta(QUERY)[0]
    done(run("combine", grafts[0], "--inside", grafts[1], "-o", "in.safetensors"))
    done(run("combine", grafts[0], "--outside", grafts[1], "-o", "out.safetensors"))
    assert load("in.safetensors").region.sites[QUERY].tolist() == [3]
    assert load("out.safetensors").region == a.region - b.region


def test_combine_by_della_and_by_stitching(run: Run, grafts: tuple[str, str]) -> None:
    both = list(map(load, grafts))
    done(run("combine", *grafts, "--rule", "stitch", "-o", "s.safetensors"))
    assert load("s.safetensors").digest == combine(both, rule="stitch").digest
    done(run("combine", *grafts, "--rule", "stitch", "--keep", 2 / LAYER_ENTRIES, "-o", "few.safetensors"))
    assert len(load("few.safetensors")) <= 4
    asked = {"keep": 0.5, "epsilon": 0.4, "seed": 3}
    words = ("--keep", 0.5, "--epsilon", 0.4, "--draw-seed", 3)
    done(run("combine", *grafts, "--rule", "della", *words, "-o", "d.safetensors"))
    found = load("d.safetensors")
    assert found.digest == combine(both, rule="della", **asked).digest
    assert found.info["recipe"].items() >= {"rule": "della", **asked}.items()


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_and_its_options_are_in_the_help_and_on_the_page(rule: str, run: Run) -> None:
    page = DOCUMENT.read_text(encoding="utf-8").split("## combine\n")[1]
    rows = {row.split("`")[1]: row for row in page.split("\n## ")[0].splitlines() if row.startswith("| `")}
    assert f"--rule {rule}" in rows
    for option in options_of(rule):
        spelt = "--draw-seed" if option == "seed" else f"--{option}"
        assert spelt in rows[f"--rule {rule}"]
        assert spelt in done(run("combine", "--help")).out
    assert rule in done(run("combine", "--help")).out


def test_combine_chooses_a_head(run: Run, grafts: tuple[str, str]) -> None:
    done(run("extract", "BASE", "TUNED", "--entries", 1, "-o", "c.safetensors"))
    done(run("combine", grafts[0], grafts[1], "--head", grafts[1], "-o", "headless.safetensors"))
    assert not load("headless.safetensors").heads


def test_inspect(run: Run, grafts: tuple[str, str]) -> None:
    found = done(run("inspect", grafts[0], "--json")).json
    assert found["by_layer"] == {"encoder.layer.0": 3, "encoder.layer.1": 1}
    assert found["by_kind"] == {"bias": 0, "query": 3, "MLP out": 1}
    assert (found["entries"], found["scope_entries"], found["form"]) == (4, LAYER_ENTRIES, "exact")
    assert found["heads"] == {"classifier.bias": [2], "classifier.weight": [2, 4]}
    assert found["digest"] == load(grafts[0]).digest
    text = done(run("inspect", grafts[0])).out
    assert "exact form, scale 1, norm 1.152" in text
    assert "  query    3  75.0%\n" in text
    assert "  labels: ['bad', 'good']\n" in text


def test_inspect_a_region(run: Run, grafts: tuple[str, str]) -> None:
    save_region(load_region(grafts[0]), "r.safetensors", base_fingerprint="ab" * 32)
    found = done(run("inspect", "r.safetensors", "--json")).json
    assert (found["entries"], found["base_fingerprint"]) == (4, "ab" * 32)
    assert "form" not in found
    assert "form" not in done(run("inspect", "r.safetensors")).out


def test_long_items_are_cut_for_people_only(run: Run, grafts: tuple[str, str]) -> None:
    from skillgraft import save

    save(load(grafts[0]).with_info(labels=[f"label {n}" for n in range(99)]), "long.safetensors")
    assert max(map(len, done(run("inspect", "long.safetensors")).out.splitlines())) < 210
    assert len(done(run("inspect", "long.safetensors", "--json")).json["made"]["labels"]) == 99


def test_compare(run: Run, grafts: tuple[str, str]) -> None:
    found = done(run("compare", *grafts, "--json")).json
    assert found["grafts"] == ["a", "b"]
    assert found["coverage"] == [[1.0, 0.5], [0.25, 1.0]]
    assert found["jaccard"] == [[1.0, 0.2], [0.2, 1.0]]
    cosine = 0.25 * 2 / (0.25 + 0.0625 + 1 + 0.015625) ** 0.5 / 2.5
    assert found["cosine"][0][1] == pytest.approx(cosine, rel=1e-5)
    text = done(run("compare", *grafts)).out
    assert text.splitlines()[:3] == ["coverage      a      b", "a         1.000  0.500", "b         0.250  1.000"]
    Path("again").mkdir()
    Path("again/a.safetensors").write_bytes(Path(grafts[0]).read_bytes())
    names = done(run("compare", grafts[0], "again/a.safetensors", "--json")).json["grafts"]
    assert names == ["a.safetensors", "again/a.safetensors"]


def test_export(run: Run, grafts: tuple[str, str]) -> None:
    found = done(run("export", grafts[0], "--to", "patch", "--base", "BASE", "-o", "p.safetensors", "--json")).json
    heads = ["classifier.bias", "classifier.weight"]
    assert found == {
        "out": "p.safetensors",
        "to": "patch",
        "entries": 4,
        "heads": heads,
        "digest": load(grafts[0]).digest,
    }
    done(run("export", grafts[0], "--to", "checkpoint", "--base", "BASE", "-o", "FOLDER"))
    done(run("apply", "BASE", grafts[0], "-o", "OUT"))
    assert content(Path("FOLDER")) == content(Path("OUT"))


def test_doctor(run: Run) -> None:
    found = done(run("doctor", "--json")).json
    assert found["packages"]["numpy"][1] == "everything"
    assert found["cores"] >= 1
    assert found["memory_gb"] > 0.1
    assert found["devices"][0] == "cpu"
    text = done(run("doctor")).out
    assert text.startswith(f"skillgraft {found['skillgraft']}\npython {sys.version.split()[0]} on ")


def test_doctor_without_torch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from skillgraft.opening import doctor

    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "torch" else "1")
    found = done(run("doctor", "--json")).json
    assert (found["devices"], found["packages"]["torch"][0]) == (["cpu"], None)
    assert "torch         missing  live models" in done(run("doctor")).out


@pytest.mark.usefixtures("grafts")
@pytest.mark.parametrize(
    "words",
    [
        "extract BASE TUNED -o x",
        "check BASE a.safetensors",
        "apply BASE a.safetensors -o x",
        "combine a.safetensors -o x",
        "inspect a.safetensors",
        "compare a.safetensors b.safetensors",
        "export a.safetensors --to patch -o x",
        "doctor",
    ],
)
def test_the_documented_fields_are_the_real_ones(run: Run, words: str) -> None:
    section = DOCUMENT.read_text(encoding="utf-8").split(f"\n## {words.split()[0]}\n")[1]
    named = section.split("JSON fields: ")[1].split(".")[0]
    assert re.findall(r"`(\w+)`", named) == list(done(run(*words.split(), "--json")).json)


# What goes wrong


@pytest.mark.usefixtures("grafts")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("extract NOWHERE TUNED -o x", "NOWHERE does not exist; expected a model folder"),
        ("extract BASE TUNED --density 0 -o x", "a density is a share of the scope, above 0 and at most 1; found 0"),
        ("extract BASE TUNED --density 4 -o x", "found 4.0: for a count use entries=4 (--entries)"),
        (
            "extract BASE TUNED --entries 0 -o x",
            "entries is a whole number of 1 or more, found 0; for a share use density",
        ),
        ("extract BASE TUNED --entries 1000000000 -o x", "more than the 44 of the scope 'layers'"),
        ("extract BASE TUNED --entries 4 --density 0.1 -o x", "give a density or a number of entries, not both"),
        (
            "extract BASE TUNED --entries 4 --region a.safetensors -o x",
            "a density, a number of entries or a region, one of",
        ),
        ("extract BASE TUNED --scope bias -o x", "did you mean 'biases'?"),
        ("apply OTHER a.safetensors -o x", "OTHER is not the base of a.safetensors"),
        ("apply BASE NOTHING.safetensors -o x", "NOTHING.safetensors cannot be read: No such file"),
        ("apply BASE BASE/config.json -o x", "BASE/config.json: "),
        ("apply BASE BASE/model.safetensors -o x", "not a graft: "),
        ("apply BASE a.safetensors --scale nan -o x", "scale must be a finite number"),
        ("remove BASE a.safetensors -o x", "a.safetensors is not on BASE"),
        ("combine a.safetensors b.safetensors --rule unoin -o x", "unknown rule 'unoin'; did you mean 'union'?"),
        ("combine a.safetensors b.safetensors --rule union -o x", "1 entries are in more than one graft"),
        ("compare a.safetensors a.safetensors", "a.safetensors, a.safetensors have one name"),
        ("export a.safetensors --to checkpoint -o x", "add --base BASE"),
        ("export a.safetensors --to patch --remainder -o x", "--remainder is for lora"),
        ("export a.safetensors --to gguf -o x", "'gguf' is not one of 'lora', 'supertuning'"),
        ("inspect BASE", "BASE is a folder, expected an ordinary file"),
        ("extrct BASE TUNED -o x", "No such command 'extrct'. Did you mean 'extract'"),
        ("extract BASE TUNED --desnity 4 -o x", "No such option: --desnity (Possible options: --density"),
        ("extract BASE TUNED", "Missing option '-o'"),
        ("extract BASE TUNED --entries many -o x", "Invalid value for '--entries'"),
        ("extract BASE TUNED --density many -o x", "Invalid value for '--density'"),
        ("apply BASE -o x", "Missing argument"),
    ],
)
def test_wrong_input_is_one_or_two_lines(run: Run, words: str, expected: str, tmp_path: Path) -> None:
    before = content(tmp_path)
    ended = run(*words.split())
    assert (ended.code, ended.out) == (3 if "is not the base" in expected else 2, "")
    assert expected in ended.err
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") <= 2
    assert "Traceback" not in ended.err
    assert content(tmp_path) == before  # nothing written, nothing touched


@pytest.mark.usefixtures("grafts")
@pytest.mark.parametrize(
    "words",
    [
        "extract BASE TUNED -o a.safetensors",
        "combine a.safetensors b.safetensors -o a.safetensors",
        "apply BASE a.safetensors -o TUNED",
        "export a.safetensors --to patch -o b.safetensors",
        "export a.safetensors --to checkpoint --base BASE -o OTHER",
    ],
)
def test_an_output_that_exists_is_untouched(run: Run, words: str, tmp_path: Path) -> None:
    before = content(tmp_path)
    ended = run(*words.split())
    assert ended.code == 2
    assert "exists already; choose another output" in ended.err
    assert content(tmp_path) == before


def test_failed_work_ends_with_1(run: Run, grafts: tuple[str, str], tmp_path: Path) -> None:
    assert run("inspect", grafts[0]).code == 0
    before = content(tmp_path)
    no_room = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))  # noqa: E731
    ended = started("apply", "BASE", grafts[0], "-o", "OUT", preexec_fn=no_room)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "OUT could not be written: File too large" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert content(tmp_path) == before


def test_debug_shows_the_traceback_wherever_it_stands(run: Run) -> None:
    for words in (["--debug", "check", "BASE", "no.safetensors"], ["check", "BASE", "--debug", "no.safetensors"]):
        ended = run(*words)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith("Traceback")
        assert "InputError: no.safetensors cannot be read" in ended.err


def test_exit_codes_of_the_process(run: Run) -> None:
    done(run("extract", "BASE", "TUNED", "-o", "g.safetensors"))
    ended = started("check", "BASE", "g.safetensors", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["fits"] is True
    ended = started("check", "BASE", "no.safetensors")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: no.safetensors cannot be read: No such file or directory\n"
    assert started("check", "OTHER", "g.safetensors").returncode == 3
    ended = started("apply", "OTHER", "g.safetensors", "-o", "OUT", "--json")
    assert ended.returncode == 3
    error = json.loads(ended.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("WrongBase", 3)
    assert ended.stderr == f"error: {error['message']}\n"


def test_the_version_is_the_package_s(run: Run) -> None:
    assert done(run("--version")).out == f"skillgraft {version('skillgraft')}\n"


def test_a_package_that_is_not_there_is_named_with_its_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ModuleNotFoundError("No module named 'peft'", name="peft.utils")

    monkeypatch.setattr("skillgraft.opening.doctor.examine", broken)
    ended = run("doctor")
    assert (ended.code, ended.out) == (1, "")
    assert (
        ended.err == "error: this needs the package 'peft', which is not installed: pip install 'skillgraft[train]'\n"
    )


def test_extras_are_those_of_the_package() -> None:
    known = set(metadata("skillgraft").get_all("Provides-Extra") or ())
    assert set(EXTRA_OF.values()) <= known


def test_without_a_terminal_progress_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.0, 4.0, 12.0, 20.0, 25.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(clock))
    with output.running("localizing") as runtime:
        for step in range(1, 5):
            runtime.progress(step, 40, {"loss": 0.5 / step})
    assert capsys.readouterr().err.splitlines() == [
        "localizing: 2 of 40, loss 0.2500, 3:48 left",
        "localizing: 4 of 40, loss 0.1250, 3:45 left",
    ]


def test_quiet_shows_no_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LINE_SECONDS", 0.0)
    output.set_volume(quiet=True, verbose=False)
    try:
        with output.running("localizing") as runtime:
            runtime.progress(1, 2, {})
    finally:
        output.set_volume(quiet=False, verbose=False)
    assert capsys.readouterr().err == ""


def test_flags_of_the_whole_command_stand_anywhere(run: Run) -> None:
    done(run("extract", "BASE", "TUNED", "-o", "g.safetensors"))
    assert (
        done(run("check", "-q", "BASE", "g.safetensors")).out == done(run("-q", "check", "BASE", "g.safetensors")).out
    )


def test_no_verb_s_line_in_the_help_is_cut_off(run: Run) -> None:
    lines = done(run("--help")).out.partition("Commands:")[2].splitlines()
    assert len([line for line in lines if line.strip()]) == len(VERBS) + len(app.registered_groups)
    assert not [line for line in lines if line.endswith("...")]


def test_a_bug_says_that_it_is_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise KeyError("memory")

    monkeypatch.setattr("skillgraft.opening.doctor.examine", broken)
    ended = run("doctor")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "error: KeyError: 'memory'\nThis looks like a bug; run again with --debug to see where.\n"
    ended = run("doctor", "--debug")
    assert ended.code == 1
    assert "in broken\n" in ended.err


def test_an_interrupt_leaves_nothing_behind(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = content(tmp_path)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("skillgraft.files.graft_stream.write_at", interrupted)
    ended = run("extract", "BASE", "TUNED", "-o", "g.safetensors")
    assert (ended.code, ended.out, ended.err.strip()) == (130, "", "interrupted")
    assert content(tmp_path) == before


# Help and start-up


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.usefixtures("wide")
def test_help_lists_every_verb_in_a_line_of_its_own(run: Run) -> None:
    text = done(run("--help")).out
    assert all(f"\n  {verb} " in text for verb in VERBS)
    assert len(text.splitlines()) <= 50


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example_and_its_first_panels_fit_a_screen(run: Run, verb: str) -> None:
    text = done(run(verb, "--help")).out
    assert f"skillgraft {verb}" in text.split("Example", 1)[1].split("Options:")[0]
    lines = text.splitlines()
    panels = [line for line in lines if re.fullmatch(r"[A-Z][a-zA-Z ]+:", line)]
    first = text.split("\n\n" + panels[2])[0].splitlines() if len(panels) > 2 else lines  # Arguments and Options
    assert len(first) <= 44
    assert len(lines) <= 90
    assert "--json" in text


def test_nothing_typed_shows_the_help(run: Run) -> None:
    ended = run()
    assert ended.code == 2
    assert ended.err.startswith("Usage: skillgraft")


@pytest.mark.parametrize("words", [["--help"], ["extract", "--help"], ["extrct"]])
def test_start_up_is_light(words: list[str]) -> None:
    heavy = ["torch", "numpy", "ml_dtypes", "transformers", "datasets", "sklearn", "pyarrow", "PIL"]
    code = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print('loaded:', *sorted(set({heavy}) & set(sys.modules))))\n"
        f"sys.argv = ['skillgraft', *{words}]\n"
        "from skillgraft.cli.main import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout.endswith("loaded:\n")


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys; before = set(sys.modules); import skillgraft; print(*sorted(set(sys.modules) - before))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name for name in ended.stdout.split() if name.startswith("skillgraft")} == {"skillgraft"}
    assert "numpy" not in ended.stdout


def test_python_dash_m_and_the_installed_command_agree() -> None:
    script = Path(sys.executable).parent / "skillgraft"
    if not script.exists():
        pytest.skip("the console script is not installed beside this Python")
    environment = {**os.environ, "COLUMNS": "100"}
    installed = subprocess.run([script, "--help"], capture_output=True, text=True, check=True, env=environment)
    assert started("--help", env=environment).stdout == installed.stdout


# How results are shown


def test_columns_put_numbers_to_the_right() -> None:
    assert output.columns([("a", "1,000", "50.0%"), ("bcd", "7", "x")], header=["name", "n", "what"]) == [
        "name      n  what",
        "a     1,000  50.0%",
        "bcd       7  x",
    ]
    assert output.columns([]) == []


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (336_100, "336.1 kB"), (2.5e9, "2.5 GB"), (7e12, "7000.0 GB")],
)
def test_human_bytes(count: float, text: str) -> None:
    assert output.human_bytes(count) == text


def test_the_recorded_command_has_no_folders_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["apply", "/home/me/BASE", "my grafts/g.safetensors", "--scale=0.5", "--out=/tmp/x/OUT", "--task", "sst2"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/skillgraft", *words])
    assert output.command_line() == "skillgraft apply BASE g.safetensors --scale=0.5 --out=OUT --task sst2"
    monkeypatch.setattr(sys, "argv", ["skillgraft", "evaluate", "BASE", "--task", "/data/songs.toml as my/films.toml"])
    assert output.command_line() == "skillgraft evaluate BASE --task 'songs.toml as films.toml'"


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("working") as progress:
        progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal_goes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with output.progress("working") as progress:
        progress(2, 2)
    written = capsys.readouterr()
    assert written.out == ""
    assert "working" in written.err
