"""lm-evaluation-harness: base + graft gives the numbers of the applied folder, on the harness's own kinds of task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skillgraft import apply, extract
from skillgraft.errors import InputError
from tests.interop.test_lora import pair

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

CHOICE = """
task: films
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}} it was"
doc_to_choice: [bad, good]
doc_to_target: label
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
TEXT = """
task: texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list: [{{metric: word_perplexity}}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"text": f"the film number {n} {'shone' if n % 3 else 'dragged'}", "label": n % 2} for n in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    for name, text in (("films", CHOICE), ("texts", TEXT)):
        (tmp_path / "tasks" / f"{name}.yaml").write_text(text.format(rows=tmp_path / "rows.jsonl"))
    return tmp_path


def results(model: str, arguments: str, folder: Path) -> dict[str, Any]:
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    import skillgraft.interop.lm_eval  # noqa: F401

    manager = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=["films", "texts"],
        task_manager=manager,
        device="cpu",
        bootstrap_iters=0,
    )
    return {
        name: {key: value for key, value in row.items() if isinstance(value, float)}
        for name, row in found["results"].items()
    }


def test_base_and_graft_give_the_applied_folder_s_numbers(folder: Path) -> None:
    base, other = pair("llama", folder)
    g = extract(base, other)
    g.save(folder / "g.safetensors")
    apply(base, g, out=folder / "on")
    ours = results("skillgraft", f"base={base},grafts={folder / 'g.safetensors'},dtype=float32", folder)
    assert ours == results("hf", f"pretrained={folder / 'on'},dtype=float32", folder)
    assert ours != results("hf", f"pretrained={base},dtype=float32", folder)
    assert ours["texts"]["word_perplexity,none"] > 1


def test_a_base_alone_is_the_harness_s_own_model(folder: Path) -> None:
    with pytest.raises(InputError, match="for a base alone use --model hf"):
        results("skillgraft", f"base={folder}", folder)
