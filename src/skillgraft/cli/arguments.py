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
