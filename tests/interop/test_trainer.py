"""GraftCallback: a run that is saved as grafts, killed and resumed has the numbers of one that never stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skillgraft import Graft, GraftCallback, apply
from skillgraft.errors import InputError
from tests.families.architectures import FAMILIES, write
from tests.model_folders import real_model, same_weights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

CLASSIFIER = transformers.AutoModelForSequenceClassification
ROWS = [{"input_ids": [3 + (7 * n + k) % 30 for k in range(6)], "labels": n % 2} for n in range(12)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_model("BertForSequenceClassification", tmp_path_factory.mktemp("models") / "BASE")


class Killed(BaseException):
    """The process is gone."""


class Killing(transformers.TrainerCallback):
    """Ends a run right after a checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del args, control
        if state.global_step == self.step:
            raise Killed


def trainer(base: Path, out: Path, *callbacks: Any, train: str = "", **settings: Any) -> Any:
    """Six steps of two rows, a checkpoint every second; of the parameters whose names hold `train`."""
    asked = {"save_steps": 2, "max_steps": 6, "save_strategy": "steps", **settings}
    arguments = transformers.TrainingArguments(
        str(out), per_device_train_batch_size=2, learning_rate=1e-2, report_to=[], disable_tqdm=True, use_cpu=True,
        logging_strategy="no", seed=3, **asked,
    )  # fmt: skip
    model = CLASSIFIER.from_pretrained(base)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(train in name)
    return transformers.Trainer(model, arguments, train_dataset=ROWS, callbacks=list(callbacks))


@pytest.mark.parametrize("pack", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_killed_run_resumes_with_the_same_numbers(pack: bool, base: Path, tmp_path: Path) -> None:
    trainer(base, tmp_path / "whole").train()
    callback = GraftCallback(base, replace=True, pack=pack)
    with pytest.raises(Killed):
        trainer(base, tmp_path / "out", callback, Killing(4)).train()
    checkpoint = tmp_path / "out" / "checkpoint-4"
    assert not list(checkpoint.glob("model*.safetensors"))
    apply(base, checkpoint / "graft.safetensors", out=tmp_path / "ON")
    assert same_weights(tmp_path / "ON", tmp_path / "whole" / "checkpoint-4")
    again = GraftCallback(base, replace=True, pack=pack)
    trainer(base, tmp_path / "out", again).train(resume_from_checkpoint=again.restore(checkpoint))
    assert not list((tmp_path / "out").glob("checkpoint-*/model*.safetensors"))
    apply(base, tmp_path / "out" / "checkpoint-6" / "graft.safetensors", out=tmp_path / "END")
    assert same_weights(tmp_path / "END", tmp_path / "whole" / "checkpoint-6")
    assert not same_weights(tmp_path / "END", tmp_path / "ON")


def test_beside_the_model_file_it_changes_nothing(base: Path, tmp_path: Path) -> None:
    trainer(base, tmp_path / "out", GraftCallback(base), train="query").train()
    for step in (2, 4, 6):
        folder = tmp_path / "out" / f"checkpoint-{step}"
        graft = Graft.load(folder / "graft.safetensors")
        assert all("query" in name for name in graft.region)
        assert (folder / "graft.safetensors").stat().st_size < (folder / "model.safetensors").stat().st_size
        apply(base, graft, out=tmp_path / f"on{step}")
        assert same_weights(tmp_path / f"on{step}", folder)
        assert GraftCallback(base).restore(folder) == str(folder)


def test_a_density_is_to_look_at(base: Path, tmp_path: Path) -> None:
    callback = GraftCallback(base, density=0.01)
    trainer(base, tmp_path / "out", callback, max_steps=2).train()
    folder = tmp_path / "out" / "checkpoint-2"
    graft = Graft.load(folder / "graft.safetensors")
    assert len(graft) == round(0.01 * graft.region.scope.size)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="cannot give the model back"):
        callback.restore(folder)


def test_what_would_not_be_exact_is_refused_before_the_first_step(base: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a graft of some density cannot give the model back"):
        GraftCallback(base, replace=True, density=0.1)
    with pytest.raises(InputError, match="pack=True needs the whole change"):
        GraftCallback(base, pack=True, density=0.1)
    with pytest.raises(InputError, match=r"has no graft\.safetensors; give a checkpoint"):
        GraftCallback(base).restore(tmp_path)
    run = trainer(base, tmp_path / "out", GraftCallback(base))
    run.model.to(torch.bfloat16)
    with pytest.raises(InputError, match=r"the model is bfloat16 and .* is float32, .* load it with dtype='float32'"):
        run.train()
    asked = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2}
    best = trainer(base, tmp_path / "best", GraftCallback(base, replace=True))
    for name, value in asked.items():
        setattr(best.args, name, value)
    with pytest.raises(InputError, match="leaves no model files for load_best_model_at_end"):
        best.train()
    assert not list(tmp_path.rglob("graft.safetensors"))


KILLED = """
import os, signal, sys
import torch, transformers
from skillgraft import GraftCallback

kind, base, out, dies, resume = sys.argv[1:]
torch.set_num_threads(1)

class Killing(transformers.TrainerCallback):
    def on_save(self, args, state, control, **_):
        if state.global_step == int(dies):
            os.kill(os.getpid(), signal.SIGKILL)

settings = dict(max_steps=6, save_steps=2, use_cpu=True, report_to=[], disable_tqdm=True, learning_rate=1e-2, seed=3,
                per_device_train_batch_size=2, output_dir=out)
model = transformers.AutoModelForCausalLM.from_pretrained(base)
callback = GraftCallback(base, replace=True)
callbacks = [callback, Killing()] if "whole" not in out else []
if kind == "trainer":
    rows = [{"input_ids": [5 + (3 * n + k) % 15 for k in range(6)]} for n in range(12)]
    rows = [{**row, "labels": row["input_ids"]} for row in rows]
    run = transformers.Trainer(model, transformers.TrainingArguments(**settings), train_dataset=rows, callbacks=callbacks)
else:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer
    words = ["a good film", "the bad film", "a long night", "the good night"]
    rows = Dataset.from_list([{"prompt": words[n % 4], "completion": " " + words[n % 3]} for n in range(12)])
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    arguments = SFTConfig(bf16=False, **settings)
    run = SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer, callbacks=callbacks)
run.train(resume_from_checkpoint=callback.restore(resume) if resume else None)
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["trainer", "sft"])
def test_a_process_that_is_killed_resumes_with_the_same_numbers(kind: str, tmp_path: Path) -> None:
    if kind == "sft":
        pytest.importorskip("trl")
    base = write(FAMILIES["llama"], tmp_path / "BASE", "float32")

    def run(out: str, dies: int = 0, resume: Path | str = "") -> int:
        words = [sys.executable, "-c", KILLED, kind, base, tmp_path / out, dies, resume]
        return subprocess.run([str(word) for word in words], capture_output=True, check=False).returncode

    assert run("whole") == 0
    assert run("out", dies=4) == -signal.SIGKILL
    checkpoint = tmp_path / "out" / "checkpoint-4"
    assert not list(checkpoint.glob("model*.safetensors"))
    assert run("out", resume=checkpoint) == 0
    apply(base, tmp_path / "out" / "checkpoint-6" / "graft.safetensors", out=tmp_path / "END")
    assert same_weights(tmp_path / "END", tmp_path / "whole" / "checkpoint-6")
    apply(base, checkpoint / "graft.safetensors", out=tmp_path / "ON")
    assert not same_weights(tmp_path / "END", tmp_path / "ON")


@pytest.mark.long
def test_an_adapter_stays_what_it_is(base: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    run = trainer(base, tmp_path / "out", GraftCallback(base), GraftCallback(base, density=0.05), max_steps=2)
    wrapped = peft.get_peft_model(run.model, peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False))
    run = transformers.Trainer(wrapped, run.args, train_dataset=ROWS, callbacks=[GraftCallback(base, density=0.05)])
    run.train()
    folder = tmp_path / "out" / "checkpoint-2"
    assert (folder / "adapter_model.safetensors").is_file()
    assert all("query" in name for name in Graft.load(folder / "graft.safetensors").region)
