"""The Python of docs/serving.md's section on SkillBank runs as it stands."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from skillgraft import grafted
from tests.live.skills import distance, random_skill

PAGE = (Path(__file__).parents[1] / "docs" / "serving.md").read_text(encoding="utf-8")


def test_the_example_of_the_bank_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertModel(BertConfig(vocab_size=50, **sizes)).eval()
    grafts = {name: random_skill(model, seed) for seed, name in enumerate(("reviews", "questions", "topics"))}
    for name, graft in grafts.items():
        graft.save(tmp_path / f"{name}.safetensors")
    section = PAGE.split("## From Python: `SkillBank`")[1].split("\n## ")[0]
    batch = {"input_ids": torch.arange(15).view(3, 5)}
    (tmp_path / "example.py").write_text(re.findall(r"```python\n(.*?)```", section, re.S)[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path("example.py", {"model": model, "batch": batch})
    assert capsys.readouterr().out.startswith(f"['questions', 'topics'] {grafts['topics'].digest} ")
    with torch.no_grad(), grafted(model, 0.5 * grafts["reviews"] + grafts["questions"]):
        wanted = model(**batch).last_hidden_state[2]
    assert distance(found["output"].last_hidden_state[2], wanted) <= 1e-5
