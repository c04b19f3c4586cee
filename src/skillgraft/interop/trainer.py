"""Checkpoints of Trainer and SFTTrainer as grafts: what changed since the base, beside the model file or instead of it.

    callback = GraftCallback("BASE", replace=True)
    trainer = Trainer(model, args, train_dataset=rows, callbacks=[callback])
    trainer.train()                                                    # every checkpoint holds graft.safetensors, no model
    trainer.train(resume_from_checkpoint=callback.restore("out/checkpoint-500"))

By default the graft is exact: base + graft is the checkpoint's model bit for bit, so that a resumed run computes the same
numbers. Where everything is trained, `pack` compresses it. `density` keeps only the entries that moved most, to look at while
training goes on. Where PEFT trains an adapter, the adapter's file is the small one already: it stays, and only `density` makes a
graft of it.

Refused, before the first step: a model of another number format than the base's, `replace` with what needs the model file.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from skillgraft.errors import InputError
from skillgraft.files.graft_file import load_info
from skillgraft.files.graft_stream import save_stream
from skillgraft.folders.apply import apply
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extracted, is_adapter
from skillgraft.folders.hub import folder_at
from skillgraft.folders.weight_files import INDEX, SINGLE

GRAFT = "graft.safetensors"


class GraftCallback(TrainerCallback):  # type: ignore[misc]
    """Writes graft.safetensors into every checkpoint. `base` is the folder or hub name that the model was loaded from."""

    def __init__(
        self, base: str | Path, *, replace: bool = False, pack: bool = False, density: float | None = None
    ) -> None:
        if (replace or pack) and density is not None:
            asked = "replace" if replace else "pack"
            raise InputError(f"{asked}=True needs the whole change: a graft of some density cannot give the model back")
        self.base, self.replace, self.pack, self.density = folder_at(base), replace, pack, density
        self.format = str(Checkpoint.open(self.base).format)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse what could not be saved; take away a model file that `restore` wrote."""
        del control
        if self.replace and args.load_best_model_at_end:
            raise InputError(
                "replace=True leaves no model files for load_best_model_at_end to load: leave out one of them"
            )
        found = str(getattr(kwargs.get("model"), "dtype", self.format)).removeprefix("torch.")
        if found != self.format and self.density is None:
            raise InputError(
                f"the model is {found} and {self.base} is {self.format}, so no graft can hold its exact numbers: load it with "
                f"dtype={self.format!r}, or give density= for a rounded one to look at"
            )
        if self.replace and state.is_world_process_zero:
            for checkpoint in Path(args.output_dir).glob("checkpoint-*"):
                if (checkpoint / GRAFT).is_file():
                    _remove_weights(checkpoint)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The checkpoint is written: make the graft of it."""
        del control
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if not state.is_world_process_zero or (is_adapter(checkpoint) and self.density is None):
            return
        rounded = self.density is not None
        graft = extracted(self.base, checkpoint, density=self.density, convert=rounded)
        graft = graft.with_info(recipe={"step": state.global_step, "density": self.density})
        (checkpoint / GRAFT).unlink(missing_ok=True)  # of a run that was killed: the model file is newer
        save_stream(graft, checkpoint / GRAFT, pack=self.pack, proved=graft.check_unchanged)
        if self.replace:
            _remove_weights(checkpoint)

    def restore(self, checkpoint: str | Path) -> str:
        """Write the model file of a checkpoint from base and graft, for Trainer to resume from; returns the checkpoint's path."""
        folder = Path(checkpoint)
        if not (folder / GRAFT).is_file():
            raise InputError(f"{folder} has no {GRAFT}; give a checkpoint that GraftCallback has saved")
        if any((folder / name).is_file() for name in (SINGLE, INDEX)):
            return str(folder)
        _, info = load_info(folder / GRAFT)
        if info.get("recipe", {}).get("density"):
            raise InputError(
                f"{folder / GRAFT} holds only the entries that moved most, which cannot give the model back"
            )
        with tempfile.TemporaryDirectory(prefix=".restoring-", dir=folder) as room:
            apply(self.base, folder / GRAFT, out=Path(room) / "model")
            # The index comes last: before that Trainer finds no model, after it a whole one.
            for file in sorted((Path(room) / "model").glob("model*.safetensors*"), key=lambda file: file.name == INDEX):
                shutil.move(file, folder / file.name)
        return str(folder)


def _remove_weights(checkpoint: Path) -> None:
    for file in (checkpoint / INDEX, *sorted(checkpoint.glob("model*.safetensors"))):
        file.unlink(missing_ok=True)
