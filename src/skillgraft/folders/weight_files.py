"""Which files of a model folder hold its weights: one safetensors file, or several with an index.

Refused: pickled weights (with the command that converts them), adapters, an index that disagrees with its files or points
elsewhere.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from skillgraft.errors import FormatError, InputError, listed
from skillgraft.files.regular import CONFIG_BYTES, read_text
from skillgraft.files.tensors import TensorFile
from skillgraft.values import strict_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter.safetensors"  # bottleneck adapters, beside the weights of the base that they were trained on
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# Other copies of the same weights: formats, variants such as model.fp16.safetensors, and folders of exported models.
_OTHER_WEIGHTS = (
    *_PICKLES,
    *("*.h5", "*.msgpack", "*.onnx", "*.gguf", "*.tflite", "*.ot", "onnx", "openvino"),
    *("model*.safetensors", "consolidated*.safetensors", "*.index.json"),
)


def open_weights(folder: Path, config: Mapping[str, Any]) -> tuple[TensorFile, ...]:
    """The weight files of a model folder, their headers read and checked."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}; expected a model folder with config.json and model.safetensors")
    # transformers prefers the single file where both are there, and so must we.
    if (folder / SINGLE).is_file():
        return (TensorFile.open(folder / SINGLE),)
    if (folder / INDEX).is_file():
        return _indexed_files(folder, folder / INDEX)
    if (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{folder} is a PEFT adapter; it can be TUNED, beside the BASE it was trained on, but not a base"
        )
    pickles = [file for pattern in _PICKLES for file in folder.glob(pattern)]
    if pickles:
        raise InputError(_convert_hint(folder, pickles[0], config))
    found = listed(sorted(file.name for file in folder.iterdir())) or "nothing"
    raise InputError(f"{folder} has no {SINGLE} and no {INDEX}; found {found}")


def other_weights(folder: Path, own: Iterable[TensorFile] = ()) -> list[Path]:
    """What holds weights in the folder beside its `own` files: it would not match changed ones and is never copied."""
    keep = {folder / INDEX, *(file.path for file in own)} if own else set()
    return sorted({file for pattern in _OTHER_WEIGHTS for file in folder.glob(pattern)} - keep)


def has_adapters(folder: str | Path) -> bool:
    """Whether the folder is a base with bottleneck adapters beside it."""
    return (Path(folder) / ADAPTER).is_file()


def refuse_adapters(folder: str | Path) -> None:
    """Refuses such a folder where entries are compared or changed: its skill lies in none of them."""
    if has_adapters(folder):
        raise InputError(
            f"{folder} holds bottleneck adapters ({ADAPTER}), which add parameters to the base rather than change its own: "
            "there is no delta in it. `evaluate` takes it as --tuned; elsewhere give its base, or a fine-tune by another method"
        )


def _convert_hint(folder: Path, pickle: Path, config: Mapping[str, Any]) -> str:
    """A command that a user may well run, so nothing of the folder's own words gets into it unquoted."""
    match config.get("architectures"):
        case [str(name), *_] if name.isidentifier():
            kind = name
        case _:
            kind = "AutoModel"
    old, new = json.dumps(str(folder)), json.dumps(f"{folder.resolve()}-safetensors")
    code = f"import transformers as t; t.{kind}.from_pretrained({old}).save_pretrained({new})"
    return (
        f"{folder} holds its weights in {pickle.name}, a pickle: loading one can run any code, so skillgraft never does. "
        f"If you trust it, convert it: python -c {shlex.quote(code)}"
    )


def _indexed_files(folder: Path, index: Path) -> tuple[TensorFile, ...]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(f"{index}: expected a weight_map from tensor to file")
    promised = {(tensor, str(name)) for tensor, name in weight_map.items()}
    names = sorted({name for _, name in promised})
    odd = [name for name in names if Path(name).name != name]
    if odd:
        raise FormatError(f"{index}: {listed(odd)} are not plain file names beside it")
    missing = [name for name in names if not os.path.isfile(folder / name)]  # False, too, for a name that is too long
    if missing:
        raise InputError(f"{folder}: the index names {listed(missing)}, which are not there; is the download complete?")
    files = tuple(TensorFile.open(folder / name) for name in names)
    held = {(tensor, file.path.name) for file in files for tensor in file.entries}
    wrong = sorted({tensor for tensor, _ in held ^ promised})
    if wrong:
        raise FormatError(f"{index}: disagrees with its files about {listed(wrong)}; is the download complete?")
    return files


def read_json(path: Path, *, limit: int = CONFIG_BYTES) -> dict[str, Any]:
    """A JSON object from an ordinary file of at most `limit` bytes, or an error that names the file."""
    try:
        text = read_text(path, limit=limit)
        strict_json.refuse_bombs(text)
        content = json.loads(text)
        if "\\ud" in text or "\\uD" in text:  # half a character has no bytes: it could be written nowhere
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not valid JSON: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(content, dict):
        raise FormatError(f"{path}: expected a JSON object")
    return content
