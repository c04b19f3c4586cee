"""A model before its weights are loaded: where it is, its configuration, its tokenizer or image processor.

A folder, a hub name and a GGUF file are one thing here: each ends in the same `from_pretrained` call. Nothing is unpickled
and no code that comes with a model is run. transformers stays silent while it loads; what matters is raised or returned.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from skillgraft.errors import FormatError, InputError, SkillgraftError, listed
from skillgraft.files.gguf_header import check_gguf
from skillgraft.files.regular import VOCABULARY_BYTES, read_text
from skillgraft.folders.checkpoint import Checkpoint, read_json
from skillgraft.folders.hub import HubName, folder_at
from skillgraft.opening.compat import can_load, hub_file

TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
    *("bpe.codes", "spm.model", "vocab.model"),
)
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True)
class Source:
    """`name` is a folder or a hub name, as transformers takes it; `gguf` the file in it, if the weights are GGUF."""

    name: str
    gguf: str | None = None

    @classmethod
    def of(cls, base: str | Path) -> Source:
        """The model of that folder, hub name, or `.gguf` file."""
        if HubName.of(base):
            base = folder_at(base)
        path = Path(base)
        if path.suffix == ".gguf" and path.is_file():
            return cls(str(path.parent), path.name)
        if path.is_dir():
            return cls(str(path), _gguf_in(path))
        if isinstance(base, Path) or not _can_be_hub_name(base):
            raise InputError(f"{base}: there is no such model folder or .gguf file")
        return cls(base)

    @property
    def folder(self) -> Path | None:
        """The local folder; None for a hub name."""
        path = Path(self.name)
        return path if path.is_dir() else None

    def file(self, name: str) -> Path | None:
        """A file beside the weights, fetched if the model is on the hub; None if there is none."""
        if self.folder:
            path = self.folder / name
            return path if path.is_file() else None
        found = hub_file(self.name, name)
        return Path(found) if found else None

    def json(self, name: str, *, default: Any = None) -> Any:
        """The content of a JSON file beside the weights; `default` if there is none."""
        path = self.file(name)
        if path is None:
            return default
        try:
            return json.loads(read_text(path, limit=VOCABULARY_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            raise FormatError(f"{path} cannot be read as JSON: {error}") from None

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """config.json as it stands (empty for GGUF): cheap, where `config` may take seconds."""
        if self.gguf:
            return {}
        with self._reading("config.json"):
            path = self.file("config.json")
        if path is not None:
            return read_json(path)
        if self.folder:
            raise InputError(f"{self.name} has no config.json; expected a model folder as save_pretrained writes it")
        raise InputError(
            f"{self.name}: there is no such folder, and no config.json of that name could be had from the hub"
        )

    @cached_property
    def config(self) -> Any:
        """The configuration as transformers reads it."""
        from transformers import AutoConfig

        self._check_gguf_package()
        with self._reading("the configuration"):
            return AutoConfig.from_pretrained(self.name, trust_remote_code=False, **self._gguf_option)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's own tokenizer. transformers makes an empty one where there is none: that is refused."""
        from transformers import AutoTokenizer

        self._check_gguf_package()
        missing = (
            f"{self.name} has no tokenizer: looked for {listed(TOKENIZER_FILES, most=9)}; copy the base's files there"
        )
        if self.folder and not self.gguf and not any(self.file(name) for name in TOKENIZER_FILES):
            raise InputError(missing)
        with self._reading("the tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(self.name, trust_remote_code=False, **self._gguf_option)
        if len(tokenizer) <= len(tokenizer.all_special_tokens):
            raise InputError(missing)
        return tokenizer

    @cached_property
    def image_processor(self) -> Any:
        """The model's own image processor, on the PIL backend: the same numbers with and without torchvision."""
        from transformers import AutoImageProcessor

        if self.folder and not any(self.file(name) for name in PROCESSOR_FILES):
            raise InputError(f"{self.name} has no image processor: looked for {' and '.join(PROCESSOR_FILES)}")
        with self._reading("the image processor"):
            return AutoImageProcessor.from_pretrained(self.name, trust_remote_code=False, backend="pil")

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """The weights of a local folder, their headers read and checked; None for a hub name and a GGUF file."""
        return Checkpoint.open(self.folder) if self.folder and not self.gguf else None

    @property
    def format(self) -> str:
        """The number format of the weights: that of most entries of a folder; float32 for GGUF, which is dequantised."""
        if self.checkpoint is not None:
            return str(self.checkpoint.format)
        stated = None if self.gguf else getattr(self.config, "dtype", None)
        return str(stated or "float32").removeprefix("torch.")

    @property
    def gguf_digest(self) -> str:
        """SHA-256 of the GGUF file's bytes."""
        assert self.gguf is not None
        with (Path(self.name) / self.gguf).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def load(self, loader: str, **options: Any) -> tuple[Any, Mapping[str, Any]]:
        """The model through that Auto class of transformers, and what transformers says about missing tensors."""
        import transformers

        auto_class = getattr(transformers, loader)
        if not can_load(auto_class, self.config):
            raise InputError(
                f"{self.name}: a {self.config.model_type} model cannot be loaded with transformers' {loader}"
            )
        weights = self._gguf_option or {"use_safetensors": True}
        with self._reading("the weights"):
            model, info = auto_class.from_pretrained(
                self.name, trust_remote_code=False, output_loading_info=True, **weights, **options
            )
        if self.gguf:
            _forget_quantisation(model)
        return model, info

    def skeleton(self, architecture: str) -> Any:
        """A model of that class of transformers without numbers: its modules and their names, on no device."""
        import torch
        import transformers

        kind = getattr(transformers, architecture, None)
        if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
            raise InputError(
                f"{self.name}: transformers {transformers.__version__} has no model class {architecture!r}"
            )
        with self._reading("the architecture"), torch.device("meta"):
            return kind(self.config)

    @property
    def _gguf_option(self) -> dict[str, Any]:
        return {"gguf_file": self.gguf} if self.gguf else {}

    def _check_gguf_package(self) -> None:
        if not self.gguf:
            return
        if importlib.util.find_spec("gguf") is None:
            raise InputError(f"{self.gguf} needs the package gguf: pip install 'skillgraft[gguf]'")
        check_gguf(Path(self.name) / self.gguf)

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """transformers, silenced; its errors as ours, with the first line of what it says."""
        try:
            with silence():
                yield
        except SkillgraftError:
            raise
        except Exception as error:  # damaged files end in errors of every kind, deep in other packages
            # KeyError prints its argument in quotes, and some messages run over a page.
            reason = str(error.args[0] if error.args else error).strip().partition("\n")[0]
            kind = "folder" if self.folder else "name (no such folder here; tried the hub)"
            raise InputError(f"{self.name}: {what} cannot be read from this {kind}: {reason}") from error


@contextmanager
def silence() -> Iterator[None]:
    """No log lines and no progress bars of transformers while it reads or writes; the settings found are put back."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _forget_quantisation(model: Any) -> None:
    """transformers gives a GGUF file's weights back in floating point, yet refuses to save them while these say otherwise."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _gguf_in(folder: Path) -> str | None:
    """The folder's one GGUF file, when it has no configuration of its own."""
    files = sorted(path.name for path in folder.glob("*.gguf"))
    if not files or (folder / "config.json").is_file():
        return None
    if len(files) > 1:
        raise InputError(f"{folder} has {len(files)} .gguf files: {listed(files)}; name the one to load")
    return files[0]


def _can_be_hub_name(base: str) -> bool:
    """`owner/name` or `name`: nothing that only a path can be."""
    return base.count("/") <= 1 and "\\" not in base and not base.startswith((".", "/", "~")) and bool(base)
