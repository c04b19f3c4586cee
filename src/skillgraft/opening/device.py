"""On which device a model runs and in which number format it is held; decided here and nowhere else."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from skillgraft.errors import InputError, listed
from skillgraft.opening.processes import Processes
from skillgraft.opening.runtime import MixedPrecision

# What torchrun and accelerate launch set in each of several processes.
_LAUNCHED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def find_device(device: str | torch.device | None, *, shard: bool = False) -> tuple[torch.device, Processes]:
    """The device that was asked for, or the one that accelerate finds, and which of how many processes this is.

    `shard`: the model will be split over the processes.
    """
    from accelerate import PartialState

    wanted = None if device is None else _checked(device)
    _check_launch()
    state = PartialState(cpu=wanted is not None and wanted.type == "cpu")
    if shard and state.num_processes < 2:
        raise InputError(
            "--shard splits a model over processes, found one alone; start them: torchrun --nproc-per-node 2 -m skillgraft …"
        )
    return wanted or state.device, Processes(state.process_index, state.num_processes, shard)


def _check_launch() -> None:
    """Refuse an environment that speaks of several processes but does not say how they meet."""
    if os.environ.get("WORLD_SIZE", "1") == "1" or torch.distributed.is_initialized():
        return
    missing = [name for name in _LAUNCHED if name not in os.environ]
    if missing:
        raise InputError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {listed(missing)} are not set: start the processes with "
            "torchrun or accelerate launch, which set them, or unset WORLD_SIZE"
        )


def torch_dtype(name: str | torch.dtype) -> torch.dtype:
    """`bfloat16` as torch has it; a GGUF or hub model says its format in the same words."""
    if isinstance(name, torch.dtype):
        return name
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise InputError(f"{name!r} is not a floating-point format; expected float32, bfloat16 or float16")
    return found


def working_format(own: str, asked: str | None, *, wide: bool = False) -> str:
    """The number format to train or search in: the folder's own, or a wider one.

    float16 folders work in float32, where gradients have room. A narrower format than the folder's is refused: it would change
    every number before anything is learned.
    """
    needed = "float32" if own == "float16" or (wide and torch_dtype(own).itemsize < 4) else own
    if asked is None or asked == needed or is_wider(asked, needed):
        return asked or needed
    rounds = f"would round the {own} numbers of the base before training or searching"
    narrow = "leaves gradients too little room in training and searching"
    raise InputError(
        f"dtype {asked} {narrow if asked == own else rounds}; use {needed}, or for speed mixed_precision bf16"
    )


def autocast(device: torch.device, precision: MixedPrecision) -> AbstractContextManager[Any]:
    """Matrix products in bfloat16 where that is asked for; the model's own numbers stay as they are."""
    if precision == "no":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def is_wider(one: str | torch.dtype, other: str | torch.dtype) -> bool:
    """Whether a number format holds every number of another one, and more."""
    wide, narrow = torch_dtype(one), torch_dtype(other)
    return wide != narrow and torch.promote_types(wide, narrow) == wide


def _checked(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
        torch.empty(1, device=found).cpu()  # "meta" has no numbers to give back
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"device {str(device)!r} cannot be used here ({reason}); `skillgraft doctor` lists the devices"
        ) from None
    return found
