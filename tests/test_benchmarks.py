"""The benchmarks run to their end at a twentieth of their size and write what they measured; their speed is not compared here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FIGURES = {
    "apply": {"ratio", "durable", "command_adds"},
    "extract": {"ratio"},
    "memory": {"apply", "apply_growth", "extract", "extract_growth"},
    "switch": {"held_1", "held_64"},
    "bank": {"minilm", "mpnet", "smollm2", "held", "bytes"},
    "startup": {"import", "help"},
    "evaluation": {"throughput"},
    "evaluate_tuned": {"time", "peak"},
    "region_training": {"step", "moments", "state"},
    "serve": {"p50", "throughput"},
    "learning_memory": {"copies", "authors"},
    "candidate_search": {"step", "memory", "full"},
    "training_cost": {"step", "peak", "linear_step", "linear_peak"},
}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, BENCHMARKS / "run.py", *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_the_list_names_every_benchmark_and_each_has_its_file() -> None:
    listed = [line.split()[0] for line in run("--list").stdout.splitlines()]
    assert FIGURES.keys() <= set(listed)
    assert all((BENCHMARKS / f"{name}.py").is_file() for name in listed)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    done = run("aply")
    assert done.returncode == 2
    assert "did you mean 'apply'?" in done.stderr


def test_a_disk_without_room_is_refused_before_any_work() -> None:
    code = (
        "from pathlib import Path; from measuring import Settings, work_folder\n"
        "with work_folder(Settings(Path('.')), needed_bytes=10**18): pass"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert "1000000000.0 GB are needed; name a folder on another disk with --workdir" in done.stderr


@pytest.mark.long
def test_a_small_run_of_all_measures_every_figure_and_leaves_nothing_behind(tmp_path: Path) -> None:
    page, work = tmp_path / "results.md", tmp_path / "work"
    work.mkdir()
    done = run(*FIGURES, "--small", "--workdir", work, "--results", page)
    assert done.returncode == 0, done.stderr
    found = json.loads(page.with_suffix(".json").read_text())
    assert {name: set(measured["figures"]) for name, measured in found.items()} == FIGURES
    values = {
        (name, of): figure["value"] for name, measured in found.items() for of, figure in measured["figures"].items()
    }
    assert all(value > 0 for (_, of), value in values.items() if not of.endswith(("_growth", "_adds")))
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(values)
    assert list(work.iterdir()) == []


@pytest.mark.long
def test_running_one_again_keeps_the_rows_of_the_others(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    assert run("startup", "extract", "--small", "--workdir", tmp_path, "--results", page).returncode == 0
    before = json.loads(page.with_suffix(".json").read_text())
    assert run("startup", "--small", "--workdir", tmp_path, "--results", page).returncode == 0
    after = json.loads(page.with_suffix(".json").read_text())
    assert after["extract"] == before["extract"]
    assert after["startup"] != before["startup"]
