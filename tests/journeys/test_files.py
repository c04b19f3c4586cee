"""A new user with files of others: a published adapter, a stranger's graft, a graft of another model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from skillgraft.opening.source import silence
from tests.family import write_family
from tests.journeys.terminal import Terminal
from tests.model_folders import content
from tests.readouts import making

pytestmark = pytest.mark.long


def published(base: Path, folder: Path) -> Path:
    """A LoRA adapter as PEFT saves it."""
    import torch
    from peft import LoraConfig, get_peft_model

    with silence():
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        torch.manual_seed(0)
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.05)
        adapted.save_pretrained(folder)
    return folder


def test_a_published_adapter_on_and_off_again(terminal: Terminal) -> None:
    """Journey 3: a LoRA becomes a graft; put on and taken off, the weight file is the base's to the last byte."""
    published(making.llama(terminal.folder / "BASE"), terminal.folder / "adapter")
    terminal("skillgraft diff BASE adapter")
    terminal("skillgraft extract BASE adapter -o skill.safetensors")
    said = terminal("skillgraft inspect skill.safetensors")
    assert "would change" in said
    assert "cannot: run code" in said
    terminal("skillgraft apply BASE skill.safetensors -o GRAFTED")
    terminal("skillgraft remove GRAFTED skill.safetensors -o BACK")
    assert terminal.digest("BACK") == terminal.digest("BASE") != terminal.digest("GRAFTED")
    assert content(terminal.folder / "BACK") == content(terminal.folder / "BASE")


def test_a_strangers_graft_is_looked_at_before_it_goes_on(terminal: Terminal) -> None:
    """Journey 5: `inspect` and `check` say what it would do; --strict refuses what goes beyond its sites, by name."""
    write_family(terminal.folder)
    terminal("skillgraft extract BASE TUNED --entries 4 -o theirs.safetensors")
    assert "would change: 4 entries" in terminal("skillgraft inspect theirs.safetensors")
    said = terminal("skillgraft check BASE theirs.safetensors")
    assert "adds whole: classifier.bias, classifier.weight" in said
    said = terminal("skillgraft check BASE theirs.safetensors --strict", code=2)
    assert "changes more than its sites" in said
    assert "classifier.weight" in said
    terminal("skillgraft apply BASE theirs.safetensors -o GRAFTED")
    assert "theirs.safetensors" in (terminal.folder / "GRAFTED" / "README.md").read_text("utf-8")
    again = terminal("skillgraft apply GRAFTED theirs.safetensors -o TWICE", code=2)
    assert "is on GRAFTED already" in again


def test_a_graft_of_another_model_is_refused_before_anything_is_written(terminal: Terminal) -> None:
    """Journey 6: the wrong base; exit code 3, the tensor by name, and what to do."""
    write_family(terminal.folder)
    terminal("skillgraft extract BASE TUNED --entries 4 -o skill.safetensors")
    before = content(terminal.folder)
    said = terminal("skillgraft apply OTHER skill.safetensors -o GRAFTED", code=3)
    assert "OTHER is not the base of skill.safetensors" in said
    assert "sites" in said
    assert "BASE" in said.split("sites", 1)[1]
    ended = terminal("skillgraft apply OTHER skill.safetensors -o GRAFTED --json", code=3)
    assert json.loads(ended.splitlines()[0])["error"]["exit_code"] == 3
    assert content(terminal.folder) == before
    assert "does not exist" in terminal("skillgraft apply BSAE skill.safetensors -o GRAFTED", code=2)
