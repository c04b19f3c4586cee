"""PEFT adapters that only PEFT can read (DoRA, IA3, adapted embeddings, sparse ones …), merged into their base.

The base is loaded, PEFT puts the adapter on and merges it, and the result is a folder that lives as long as somebody reads it.
What transformers had to make up (a classifier that neither base nor adapter has) is left out.

    merged(Path("adapter"), Checkpoint.open("BASE"))       # a Checkpoint, like that of any fine-tuned folder

Refused: adapters that PEFT cannot merge (prompts, prefixes), pickled weights.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skillgraft.errors import InputError, RunError
from skillgraft.files.tensors import TensorFile
from skillgraft.folders.checkpoint import Checkpoint, read_json
from skillgraft.opening.source import Source, silence
from skillgraft.values.names import is_head

_ROOT, _WEIGHTS = "base_model.model.", "adapter_model.safetensors"
# What loads a model for a task, as PEFT calls it, and for an architecture without one.
_TASKS = {
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
}
_ARCHITECTURES = {
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
}


def merged(adapter: Path, base: Checkpoint) -> Checkpoint:
    """The folder that PEFT makes of base and adapter."""
    settings = read_json(adapter / "adapter_config.json")
    if not (adapter / _WEIGHTS).is_file():
        raise InputError(f"{adapter} has no {_WEIGHTS}; save the adapter with safe_serialization=True")
    own = {name.removeprefix(_ROOT): entry.shape for name, entry in TensorFile.open(adapter / _WEIGHTS).entries.items()}
    model, info = Source.of(base.path).load(_loader(settings, base), **_options(own, base))
    whole = _merge(model, adapter, str(settings.get("peft_type")))
    made_up = set(info.get("missing_keys", ())) - own.keys()
    state = {name: tensor for name, tensor in whole.state_dict().items() if name not in made_up}
    room = tempfile.TemporaryDirectory(prefix="skillgraft-merged-")
    folder = Path(room.name) / adapter.resolve().name
    with silence():
        whole.save_pretrained(folder, state_dict=state)
    checkpoint = Checkpoint.open(folder)
    weakref.finalize(checkpoint, room.cleanup)
    return checkpoint


def _loader(settings: Mapping[str, Any], base: Checkpoint) -> str:
    """The Auto class of transformers that makes the model which the adapter was trained on."""
    architecture = str((base.config.get("architectures") or [""])[0])
    by_task = _TASKS.get(str(settings.get("task_type")))
    return by_task or next((auto for end, auto in _ARCHITECTURES.items() if architecture.endswith(end)), "AutoModel")


def _options(own: Mapping[str, tuple[int, ...]], base: Checkpoint) -> dict[str, Any]:
    """The base's number format, and as many classes as the adapter's head has."""
    options: dict[str, Any] = {"dtype": str(base.format)}
    classes = min((shape[0] for name, shape in own.items() if is_head(name) and len(shape) == 2), default=0)
    return {**options, "num_labels": classes, "ignore_mismatched_sizes": True} if classes else options


def _merge(model: Any, adapter: Path, kind: str) -> Any:
    """The model with the adapter in its weights; PEFT's errors as ours, with the first line of what it says."""
    try:
        from peft import PeftModel
    except ImportError:
        raise RunError(f"a {kind} adapter is read through peft: pip install 'skillgraft[train]'") from None
    try:
        with silence():
            wrapped = PeftModel.from_pretrained(model, str(adapter))
            merge = getattr(wrapped.base_model, "merge_and_unload", None)
            if merge is None:
                raise NotImplementedError("it adds to the model rather than change its weights")
            return merge()
    except Exception as error:  # PEFT takes what it reads as it stands, so anything can come of a damaged adapter
        why = str(error.args[0] if error.args else error).strip().partition("\n")[0] or "it has no merge"
        raise InputError(
            f"{adapter} is a {kind} adapter that peft cannot merge into {model.name_or_path}: {why}"
        ) from error
