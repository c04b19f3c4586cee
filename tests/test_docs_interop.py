"""docs/interop.md tells the truth: its commands and its code run as they stand, on a tiny Llama."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from skillgraft import Graft, apply
from skillgraft.values.cover import ranks
from tests.families.architectures import FAMILIES, tuned, write
from tests.model_folders import same_weights
from tests.regions.films import making

PAGE = (Path(__file__).parents[1] / "docs" / "interop.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's commands have run, in its order."""
    place = tmp_path_factory.mktemp("page")
    tuned(write(FAMILIES["llama"], place / "BASE", "float32"), place / "TUNED")
    making.write_films(place)
    for language, text in re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL):
        lines = [["-c", text]] if language == "python" else [["-m", *shlex.split(line)] for line in text.splitlines()]
        for words in lines:
            ended = subprocess.run([sys.executable, *words], cwd=place, capture_output=True, text=True, check=False)
            assert ended.returncode == 0, (words, ended.stderr[-2000:])
    return place


def test_adapters_merge_and_come_back(folder: Path) -> None:
    wanted = Graft.load(folder / "skill.safetensors")
    assert len(wanted) == 40
    assert not same_weights(folder / "merged", folder / "BASE")
    for name in ("from-adapter", "from-patch"):
        found = Graft.load(folder / f"{name}.safetensors")
        assert {n: at.tolist() for n, at in found.region.sites.items()} == {
            n: at.tolist() for n, at in wanted.region.sites.items()
        }


def test_with_the_remainder_the_merge_is_the_graft(folder: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model, names = (
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder / "BASE"), folder / "exact"),
        ["default"],
    )
    if (folder / "exact" / "remainder").is_dir():
        model.load_adapter(folder / "exact" / "remainder", "remainder")
        names.append("remainder")
    model.merge_and_unload(adapter_names=names).save_pretrained(folder / "exactly")
    apply(folder / "BASE", folder / "skill.safetensors", out=folder / "on")
    assert same_weights(folder / "exactly", folder / "on")


def test_a_search_within_a_rank_has_that_rank(folder: Path) -> None:
    assert max(ranks(Graft.load(folder / "narrow.safetensors").region).values()) <= 4
    assert json.loads((folder / "narrow-adapter" / "adapter_config.json").read_text())["r"] <= 4


@pytest.mark.parametrize("run", ["out", "sft"])
def test_both_trainers_save_grafts_and_no_models(folder: Path, run: str) -> None:
    saved = sorted(path.name for path in (folder / run).glob("checkpoint-*"))
    assert saved == ["checkpoint-2", "checkpoint-4"]
    assert all((folder / run / name / "graft.safetensors").is_file() for name in saved)
    assert not list((folder / run).glob("checkpoint-*/model*.safetensors"))
