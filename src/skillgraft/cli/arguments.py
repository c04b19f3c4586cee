"""Arguments that several verbs share, so that one thing is spelt one way everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Base = Annotated[Path, typer.Argument(metavar="BASE", help="Folder of the pre-trained model (safetensors).")]
GraftFile = Annotated[Path, typer.Argument(metavar="G", help="A graft file.")]
GraftFiles = Annotated[list[Path], typer.Argument(metavar="G...", help="Graft files.")]
Out = Annotated[Path, typer.Option("-o", "--out", help="Where to write; must not exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Head = Annotated[
    Path | None, typer.Option("--head", metavar="G", help="Whose heads to keep where grafts bring different ones.")
]
ModelName = Annotated[str, typer.Argument(metavar="BASE", help="Model folder or hub name.")]
TaskNames = Annotated[
    list[str], typer.Option("--task", metavar="T", help="Catalogue name or TOML file; may be repeated.")
]
ReadoutName = Annotated[str, typer.Option("--readout", help="auto, masked, causal, choice, linear, text-head, …")]
Shots = Annotated[int | None, typer.Option("--shots", help="Rows per class.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed that draws the rows.")]
MaxLength = Annotated[int | None, typer.Option("--max-length", help="Tokens at most, instead of the task's own.")]
Points = Annotated[int, typer.Option("--points", help="Searching a scale: how many to try from 0 to 1.")]
JudgedRows = Annotated[
    int, typer.Option("--rows", help="Searching a scale: at most so many validation rows of each task.")
]
TrainRows = Annotated[
    int | None, typer.Option("--train-rows", help="Rows that the grafts were trained on (finetune --rows).")
]
