"""The main path on a published pair: a BERT over reactions and its fine-tune, taken from the package rxnfp.

Base and tuned are pickles there; transformers converts them once, to float32, to bfloat16, and to shards with an index.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from skillgraft import load

from .model_folders import content, same_weights

pytestmark = pytest.mark.model
VARIANTS = ["float32", "bfloat16", "sharded"]
CLASSES = {"bert_pretrained": "BertForMaskedLM", "bert_ft_10k_25s": "BertForSequenceClassification",
           "bert_ft": "BertForSequenceClassification"}  # fmt: skip
NAMES = {"bert_pretrained": "BASE", "bert_ft_10k_25s": "TUNED", "bert_ft": "OTHER"}
DOCUMENT = Path(__file__).parents[1] / "docs" / "cli.md"

# Loads pairs of folders where importing skillgraft fails, and exits with an error unless their logits have the same bits.
PLAIN_LOADER = """
import sys
sys.modules["skillgraft"] = None
import torch, transformers
torch.set_num_threads(2)
tokens = torch.arange(20, 84).view(2, 32)
for out, tuned in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    logits = []
    for folder in (out, tuned):
        model, notes = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
        assert not any(notes[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), (folder, notes)
        with torch.no_grad():
            logits.append(model.eval()(tokens).logits)
    assert logits[0].shape == (2, 50) and torch.equal(*(l.view(torch.uint8) for l in logits)), (out, tuned)
"""


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """variant/BASE, TUNED and OTHER as folders of safetensors."""
    spec = importlib.util.find_spec("rxnfp")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package rxnfp")
    import torch
    import transformers

    root = tmp_path_factory.mktemp("published")
    for source, name in NAMES.items():
        folder = Path(spec.origin).parent / "models" / "transformers" / source
        model = getattr(transformers, CLASSES[source]).from_pretrained(folder)
        model.save_pretrained(root / "float32" / name)
        model.save_pretrained(root / "sharded" / name, max_shard_size="5MB")
        model.to(torch.bfloat16).save_pretrained(root / "bfloat16" / name)
    return root


def skillgraft(*words: object, cwd: Path) -> str:
    command = [sys.executable, "-m", "skillgraft", *map(str, words)]
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_small_graft_goes_on_and_off(published: Path, variant: str, tmp_path: Path) -> None:
    base, tuned = published / variant / "BASE", published / variant / "TUNED"
    before = content(published / variant)
    found = json.loads(
        skillgraft("extract", base, tuned, "--density", "1e-4", "-o", "g.safetensors", "--json", cwd=tmp_path)
    )
    assert (found["entries"], found["scope"]) == (633, "layers")  # 1e-4 of 6,325,248
    assert len(load(tmp_path / "g.safetensors")) == 633
    skillgraft("apply", base, "g.safetensors", "-o", "OUT", cwd=tmp_path)
    skillgraft("remove", "OUT", "g.safetensors", "-o", "BACK", cwd=tmp_path)
    assert not same_weights(tmp_path / "OUT", base)
    assert same_weights(tmp_path / "BACK", base)
    assert json.loads((tmp_path / "BACK/config.json").read_text()) == json.loads((base / "config.json").read_text())
    assert content(published / variant) == before  # inputs are never touched


def test_the_whole_difference_is_the_tuned_model_also_without_skillgraft(published: Path, tmp_path: Path) -> None:
    pairs = []
    for variant in VARIANTS:
        base, tuned, folder = published / variant / "BASE", published / variant / "TUNED", tmp_path / variant
        folder.mkdir()
        skillgraft("extract", base, tuned, "-o", "g.safetensors", cwd=folder)
        skillgraft("apply", base, "g.safetensors", "-o", "OUT", cwd=folder)
        assert same_weights(folder / "OUT", tuned)
        skillgraft("remove", "OUT", "g.safetensors", "-o", "BACK", cwd=folder)
        assert same_weights(folder / "BACK", base)
        pairs += [str(folder / "OUT"), str(tuned)]
    ended = subprocess.run([sys.executable, "-c", PLAIN_LOADER, *pairs], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_documented_output_is_the_real_one(published: Path, tmp_path: Path) -> None:
    """docs/cli.md's console blocks, in order, on the pair that it names."""
    for name in NAMES.values():
        (tmp_path / name).symlink_to(published / "float32" / name)
    blocks = re.findall(r"```console\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 8
    for block in blocks:
        for command, shown in re.findall(r"^\$ (skillgraft .*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE):
            said = skillgraft(*command.split()[1:], cwd=tmp_path)
            assert re.fullmatch(_pattern(shown), said), f"{command}\n{said}"


def _pattern(shown: str) -> str:
    """What the output must look like: `…` alone stands for any lines, behind a space for the rest of one.

    A file's size follows the versions noted in it.
    """

    def of_line(line: str) -> str:
        if line == "…":
            return r"(.*\n)*"
        start, rest = line.removesuffix(" …"), " .*" if line.endswith(" …") else ""
        return re.sub(r"[\d\\.]+\\ kB", r"[\\d.]+ kB", re.escape(start)) + rest + "\n"

    return "".join(map(of_line, shown.splitlines()))
