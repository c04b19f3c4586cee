"""Arguments that several verbs share, so that one thing is spelt one way everywhere.

    @sharing(data=ROWS, run_as=MACHINE)
    def run(base: ModelName, *, data: RowsAsked, run_as: MachineAsked, json: Json = False) -> None: ...

takes `--shots`, `--seed` … and gives a `Data`, `--device` and `--dtype` and gives a dict.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from skillgraft.tasks.data import Data

    RowsAsked = Data
else:
    RowsAsked = Any  # typer reads signatures at the start, where numpy would cost time
MachineAsked = dict[str, Any]

_row_option = partial(typer.Option, rich_help_panel="Rows")
_machine_option = partial(typer.Option, rich_help_panel="Machine")

Base = Annotated[Path, typer.Argument(metavar="BASE", help="The pre-trained model: folder (safetensors) or hub name.")]
GraftFile = Annotated[Path, typer.Argument(metavar="G", help="A graft file, or a hub name.")]
GraftFiles = Annotated[list[Path], typer.Argument(metavar="G...", help="Graft files, or hub names.")]
NamedGrafts = Annotated[
    list[str], typer.Argument(metavar="G...", help="Graft files, or hub names; NAME=G to call one so.")
]
Out = Annotated[Path, typer.Option("-o", "--out", help="Where to write; must not exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
NoSync = Annotated[
    bool, typer.Option("--no-sync", help="Do not wait until the disk has it; a power cut may lose the output.")
]
Head = Annotated[
    Path | None, typer.Option("--head", metavar="G", help="Whose heads to keep where grafts bring different ones.")
]
ModelName = Annotated[str, typer.Argument(metavar="BASE", help="Model folder or hub name.")]
TaskNames = Annotated[
    list[str], typer.Option("--task", metavar="T", help="Catalogue name or TOML file; may be repeated.")
]
Tuned = Annotated[
    Path, typer.Argument(metavar="TUNED", help="Fine-tuned model: folder, PEFT adapter, patch or hub name.")
]
Density = Annotated[float | None, typer.Option("--density", help="Entries as a share of the scope: 1e-4 is 0.01 %.")]
Entries = Annotated[int | None, typer.Option("--entries", help="Entries as a count: 8500.")]
ScopeName = Annotated[str, typer.Option("--scope", help="layers, matrices, biases, all, upper:layers, or a pattern.")]
Convert = Annotated[bool, typer.Option("--convert", help="Round TUNED to BASE's number format.")]
ReadoutName = Annotated[str, _row_option("--readout", help="auto, masked, causal, choice, linear, text-head, …")]
Shots = Annotated[int | None, _row_option("--shots", help="Training rows per class.")]
TrainRows = Annotated[
    int | None, _row_option("--train-rows", help="Training rows in natural proportion (instead of --shots).")
]
ValidationRows = Annotated[int | None, _row_option("--validation-rows", help="Validation rows of a task at most.")]
TestRows = Annotated[int | None, _row_option("--test-rows", help="Test rows of a task at most, a seeded sample.")]
Seed = Annotated[int, _row_option("--seed", help="Seed that draws the rows.")]
MaxLength = Annotated[int | None, _row_option("--max-length", help="Tokens at most, instead of the task's own.")]
Points = Annotated[int, typer.Option("--points", help="Searching a scale: how many to try, from 0 up.")]
DeviceName = Annotated[
    str | None, _machine_option("--device", help="cpu, cuda, cuda:1, mps …; by default what there is.")
]
FormatName = Annotated[
    str | None, _machine_option("--dtype", help="float32, bfloat16 or float16; by default that of the model's folder.")
]
MixedPrecisionName = Annotated[str | None, _machine_option(help="bf16: matrix products in bfloat16.")]
Shard = Annotated[
    bool, _machine_option("--shard", help="Split the model over the processes that torchrun started (FSDP).")
]
SnapshotSeconds = Annotated[float, typer.Option("--snapshot-seconds", hidden=True)]

# Options that stand together in a signature: name → (annotation, default).
Shared = Mapping[str, tuple[Any, Any]]
ROWS: Shared = {
    "shots": (Shots, None),
    "train_rows": (TrainRows, None),
    "validation_rows": (ValidationRows, None),
    "seed": (Seed, 0),
    "readout": (ReadoutName, "auto"),
    "max_length": (MaxLength, None),
}
ROWS_200: Shared = {**ROWS, "validation_rows": (ValidationRows, 200)}  # what searching a scale looks at
ROWS_AND_TESTS: Shared = {"test_rows": (TestRows, None), **ROWS}
MACHINE: Shared = {"device": (DeviceName, None), "dtype": (FormatName, None)}
MACHINES: Shared = {**MACHINE, "shard": (Shard, False)}

_table_option = partial(typer.Option, rich_help_panel="Tables", metavar="FILE")
TABLES: Shared = {
    "csv": (Annotated[Path | None, _table_option("--csv", help="Also as CSV, a line for each number, in full.")], None),
    "latex": (Annotated[Path | None, _table_option("--latex", help="Also as LaTeX tables (booktabs).")], None),
}
TablesAsked = dict[str, Path | None]


def sharing(**groups: Shared) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A verb whose parameters of these names are filled from several options each; `data` becomes a `Data`, others a dict."""

    def decorated(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def run(**given: Any) -> None:
            made = {name: {option: given.pop(option) for option in options} for name, options in groups.items()}
            verb(**given, **{name: _data(**values) if name == "data" else values for name, values in made.items()})

        del run.__dict__["__wrapped__"]  # its signature is not this one's
        run.__annotations__ = {}
        keywords = list(_expanded(verb, groups))
        run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        return run

    return decorated


def _expanded(verb: Callable[..., None], groups: Mapping[str, Shared]) -> Iterator[inspect.Parameter]:
    """The verb's parameters, each group's options in the position of its name."""
    for each in inspect.signature(verb, eval_str=True).parameters.values():
        if each.name not in groups:
            yield each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, (annotation, default) in groups.get(each.name, {}).items():
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _data(**asked: Any) -> Any:
    from skillgraft.tasks.data import Data

    return Data(**asked)
