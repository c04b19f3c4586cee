"""How much of skillgraft a command walks through: its files and functions, counted with Python's profiler.

    python benchmarks/touched.py                     # a table
    python benchmarks/touched.py localize --list     # which functions, file by file

Commands run in this process on MiniLM and the starter task `reviews`, at their defaults but for fewer rows and steps. A
function counts once it has run; lambdas and comprehensions count with the function around them, imports not at all.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import skillgraft
from minilm import minilm_folder
from skillgraft.cli.main import main as skillgraft_main

SOURCE = Path(skillgraft.__file__).parent
# Command → the most files and functions that it should walk through.
BARS = {"localize": (40, 420), "evaluate": (30, None), "reproduce": (60, None)}
Touched = set[tuple[str, str]]


@contextmanager
def touched() -> Iterator[Touched]:
    """Fills a set with (file, function) of all that runs inside, in every thread."""
    found: Touched = set()
    root = f"{SOURCE}/"

    def look(frame: FrameType, event: str, _arg: Any) -> None:
        code: CodeType = frame.f_code
        # Bodies of modules and classes run once, when they are imported: these are not optimised, functions are.
        if event == "call" and code.co_filename.startswith(root) and code.co_flags & CO_OPTIMIZED:
            name = code.co_qualname.split(".<locals>.<")[0]
            if not name.startswith("<"):
                found.add((code.co_filename.removeprefix(root), name))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def run(*words: object) -> None:
    """One command, silently; it must succeed."""
    printed, before = io.StringIO(), sys.argv
    sys.argv = ["skillgraft", *map(str, words)]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            skillgraft_main()
    except SystemExit as ended:
        if ended.code:
            raise SystemExit(f"skillgraft {words[0]} failed: {printed.getvalue()[-2000:]}") from None
    finally:
        sys.argv = before


def commands(folder: Path) -> dict[str, tuple[list[Any], list[Any]]]:
    """What is run before (not counted), and what is counted."""
    base, tuned, graft = minilm_folder(), folder / "TUNED", folder / "graft.safetensors"
    rows = ["--task", "reviews", "--shots", 8]
    tune = ["finetune", base, *rows, "--steps", 4, "-o", tuned]
    cut = ["localize", base, tuned, *rows, "--density", 1e-4, "--steps", 4, "-o", graft]
    ask = ["evaluate", base, "--task", "reviews", "--test-rows", 24, "--tuned", tuned, "--graft", graft]
    table = ["reproduce", "table2", "--base", base, "--task", "reviews", "--profile", "smoke", "-o", folder / "results"]
    return {"localize": (tune, cut), "evaluate": (["extract", base, tuned, "-o", graft], ask), "reproduce": ([], table)}


def measure(name: str) -> Touched:
    with tempfile.TemporaryDirectory() as folder:
        first, counted = commands(Path(folder))[name]
        if name == "evaluate":
            run(*commands(Path(folder))["localize"][0])
        if first:
            run(*first)
        with touched() as found:
            run(*counted)
    return found


def report(name: str, found: Touched, say: Callable[[str], Any]) -> None:
    files = {file for file, _ in found}
    most_files, most_functions = BARS[name]
    bars = f"at most {most_files} files" + (f", {most_functions} functions" if most_functions else "")
    say(f"{name:10} {len(files):4} files {len(found):5} functions   ({bars})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*BARS, []], help="which commands; all by default")
    parser.add_argument("--list", action="store_true", help="name every function")
    given = parser.parse_args()
    for name in given.names or BARS:
        found = measure(name)
        report(name, found, print)
        if given.list:
            for file in sorted({file for file, _ in found}):
                print(f"  {file}: {', '.join(sorted(each for where, each in found if where == file))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
