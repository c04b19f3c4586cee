"""The wheel, installed into an environment of its own: all files are in it, and what an extra brings works there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pandas
import pytest

from .families.architectures import FAMILIES, write
from .family import write_family
from .hub_server import Hub

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "skillgraft"
# Extra → what its verbs do there, in a folder with BASE, TUNED, a graft g.safetensors, a model that loads and a Parquet file.
TRIED = {
    "": (["inspect", "g.safetensors"], ["apply", "BASE", "g.safetensors", "-o", "ON"], ["diff", "BASE", "TUNED"]),
    "report": (["report", ".", "-o", "page.html"],),
    "hub": (["upload", "g.safetensors", "me/skill"], ["download", "me/skill", "-o", "h.safetensors"]),
    "data": (["task", "init", "rows.parquet", "-o", "task.toml"],),
    "train,gguf": (
        ["finetune", "MODEL", "--task", "reviews", "--shots", "2", "--steps", "2", "--readout", "linear", "-o", "OUT"],
        ["extract", "MODEL", "OUT", "--scope", "matrices", "--entries", "9", "-o", "s.safetensors"],
        ["export", "s.safetensors", "--to", "lora", "--base", "MODEL", "-o", "adapter"],
    ),
}
pytestmark = pytest.mark.long


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        yield server


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: what an earlier build left in the tree would get into this one."""
    folder, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(source),
    ]
    subprocess.run(build, check=True)
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    real = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("skillgraft/")}
    assert packed == real


@pytest.mark.parametrize("extra", TRIED)
def test_verbs_work_where_the_wheel_is_installed(extra: str, wheel: Path, hub: Hub, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    install = [python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wanted]
    subprocess.run(install, check=True, env=environment)
    environment |= {"HF_ENDPOINT": hub.address, "HF_TOKEN": "hf_test", "HF_HOME": str(tmp_path / "cache")}
    write_family(tmp_path)
    write(FAMILIES["bert"], tmp_path / "MODEL", "float32")
    texts = {"text": [f"text {n}" for n in range(40)], "label": ["good", "bad"] * 20}
    pandas.DataFrame(texts).to_parquet(tmp_path / "rows.parquet")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [python, "-m", "skillgraft", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    made = run("extract", "BASE", "TUNED", "--entries", "4", "-o", "g.safetensors", "--json")
    assert json.loads(made.stdout)["entries"] == 4, made.stderr
    for words in TRIED[extra]:
        ended = run(*words)
        assert ended.returncode == 0, ended.stderr
    if "train" in extra:
        return
    # What is not installed is one line.
    ended = run("finetune", "BASE", "--task", "reviews", "-o", "OUT")
    assert ended.returncode == 1
    assert "pip install 'skillgraft[train]'" in ended.stderr
    assert ended.stderr.count("\n") == 1
