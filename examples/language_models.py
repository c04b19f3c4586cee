"""Language models tuned on prompts and answers: damage repaired, a skill unlearned, two skills in one, search without labels.

    SKILLGRAFT_DATA=… OMP_NUM_THREADS=1 python examples/language_models.py repair|unlearn|two-skills|match BASE WORK [--short]

BASE is a folder with a causal language model. Every step is a `skillgraft` command; what it printed is kept in WORK, finished
steps are not run again, and a step that was killed goes on where it was. At the end stands a table in Markdown. `--short` shows
that it works, in minutes, and says nothing about how well.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DENSITY = "1e-2"
SCALES = ("0.25", "0.5", "0.75")  # of WiSE


@dataclass(frozen=True)
class Size:
    """How long everything is; the options of the verbs as words."""

    tuning: tuple[str, ...]
    lora: tuple[str, ...]
    rows: tuple[str, ...]
    search: tuple[str, ...]
    test: tuple[str, ...]
    scale: str
    texts: int


# Tuned as carelessly as people do: a high constant rate, many passes.
FULL = Size(
    tuning=("--optimizer", "adamw", "--lr", "3e-4", "--batch-size", "8", "--epochs", "4", "--clip-norm", "1"),
    lora=(
        "--optimizer",
        "adamw",
        "--lr",
        "2e-3",
        "--batch-size",
        "8",
        "--epochs",
        "4",
        "--clip-norm",
        "1",
        "--method",
        "lora",
    ),
    rows=("--train-rows", "2000", "--validation-rows", "200"),
    search=("--steps", "40", "--batch-size", "16"),
    test=("--test-rows", "300"),
    scale="auto",
    texts=400,
)
SHORT = Size(
    tuning=("--optimizer", "adamw", "--lr", "1e-3", "--batch-size", "4", "--steps", "24", "--schedule", "linear"),
    lora=(
        "--optimizer",
        "adamw",
        "--lr",
        "5e-3",
        "--batch-size",
        "4",
        "--steps",
        "24",
        "--schedule",
        "linear",
        "--method",
        "lora",
    ),
    rows=("--train-rows", "200", "--validation-rows", "16"),
    search=("--steps", "4", "--batch-size", "4"),
    test=("--test-rows", "16"),
    scale="8",
    texts=40,
)


@dataclass(frozen=True)
class Work:
    """A folder of finished steps."""

    base: Path
    folder: Path
    size: Size

    def step(self, name: str, *words: str | Path) -> Any:
        """What a command printed as JSON, now or in an earlier run."""
        printed = self.folder / f"{name}.json"
        if not printed.exists():
            command = [sys.executable, "-m", "skillgraft", *map(str, words), "--json"]
            print("+", shlex.join(command[2:]), file=sys.stderr, flush=True)
            done = subprocess.run(command, cwd=self.folder, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                sys.exit(f"{name} failed: {done.stdout.strip()}")
            partial = printed.with_suffix(".part")
            partial.write_text(done.stdout, encoding="utf-8")
            partial.rename(printed)
        return json.loads(printed.read_text(encoding="utf-8"))

    def tuned(self, name: str, *tasks: str, options: Sequence[str] | None = None) -> Path:
        named = [word for task in tasks for word in ("--task", task)]
        how = self.size.tuning if options is None else options
        self.step(f"tuned-{name}", "finetune", self.base, *named, *self.size.rows, *how, "-o", f"tuned-{name}")
        return self.folder / f"tuned-{name}"

    def graft(self, name: str, tuned: Path, *words: str, base: Path | None = None, density: str = DENSITY) -> Path:
        scale = ("--scale", self.size.scale)
        asked = ("localize", base or self.base, tuned, *words, *self.size.rows, "--density", density, *scale)
        self.step(name, *asked, "-o", f"{name}.safetensors")
        return self.folder / f"{name}.safetensors"

    def searched(self, name: str, tuned: Path, *words: str, **where: Any) -> Path:
        return self.graft(name, tuned, *words, "--method", "budgeted", *self.size.search, **where)

    def texts(self) -> tuple[Path, Path]:
        """Plain text to keep and to test on: news, of which no task here knows anything."""
        files = []
        for split in ("train", "test"):
            file = self.folder / f"news-{split}.txt"
            if not file.exists():
                source = Path(os.environ["SKILLGRAFT_DATA"]) / "ag_news" / f"{split}.jsonl.gz"
                with gzip.open(source, "rt", encoding="utf-8") as lines:
                    rows = [
                        " ".join(json.loads(line)["text"].split())
                        for line, _ in zip(lines, range(self.size.texts), strict=False)
                    ]
                file.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
            files.append(file)
        return files[0], files[1]


def repair(work: Work) -> Iterator[str]:
    """Tuned carelessly on one task until text and another skill suffer; what grafts keep of it and give back."""
    for task, other in (("nl2bash", "pronounce"), ("countries", "nl2bash")):
        train, test = work.texts()
        tuned, lora = work.tuned(task, task), work.tuned(f"{task}-lora", task, options=work.size.lora)
        found = {
            f"{task}-movement": work.graft(f"{task}-movement", tuned, "--task", task, "--method", "movement"),
            f"{task}-graft": work.searched(f"{task}-graft", tuned, "--task", task),
            f"{task}-repaired": work.searched(
                f"{task}-repaired", tuned, "--task", task, "--control", str(train), "--control", other
            ),
        }
        work.step(f"{task}-dense", "extract", work.base, tuned, "-o", f"{task}-dense.safetensors")
        for scale in SCALES:  # WiSE: part of the whole change
            name = f"{task}-wise-{scale}"
            work.step(name, "combine", f"{task}-dense.safetensors", "--scale", scale, "-o", f"{name}.safetensors")
            found[name] = work.folder / f"{name}.safetensors"
        grafts = [word for graft in found.values() for word in ("--graft", str(graft))]
        models = ("--tuned", str(tuned), "--tuned", str(lora), *grafts)
        controls = ("--control", str(test), "--control", other)
        measured = work.step(
            f"{task}-repair",
            "evaluate",
            work.base,
            "--task",
            task,
            *models,
            *controls,
            *work.size.test,
            "--no-generate",
        )
        yield f"\n### {task}, tuned carelessly\n"
        yield from table(measured)
        yield from repairs(measured)


def unlearn(work: Work) -> Iterator[str]:
    """One model tuned on two tasks; the one is taken out by a search back to BASE, with the other as a control."""
    train, test = work.texts()
    both = work.tuned("both", "countries", "nl2bash")
    controls = ("--control", "nl2bash", "--control", str(train))
    graft = work.searched("unlearn", work.base, "--task", "countries", "--labels", "tuned", *controls, base=both)
    models = ("--tuned", str(work.base), "--graft", str(graft))
    tasks = ("--task", "countries", "--task", "nl2bash")
    measured = work.step("unlearned", "evaluate", both, *tasks, *models, *work.size.test, "--control", str(test))
    yield "\n### countries taken out of a model tuned on countries and nl2bash\n"
    yield "`base` is here the model tuned on both, and the folder that stands for a tuned one the real base.\n"
    yield from table(measured)


def two_skills(work: Work) -> Iterator[str]:
    """Two grafts of two fine-tunes in one model, at the scale that suits both."""
    grafts = [
        work.searched(f"{task}-skill", work.tuned(task, task), "--task", task, density="1e-3")
        for task in ("nl2bash", "countries")
    ]
    tasks = ("--task", "nl2bash", "--task", "countries")
    rows = work.size.rows
    asked = ("combine", *grafts, "--scale", "auto", "--base", work.base, *tasks, *rows, "--points", "6")
    work.step("both-skills", *asked, "-o", "both-skills.safetensors")
    named = [word for graft in [*grafts, work.folder / "both-skills.safetensors"] for word in ("--graft", str(graft))]
    tuned = ("--tuned", str(work.folder / "tuned-nl2bash"), "--tuned", str(work.folder / "tuned-countries"))
    measured = work.step("two-skills", "evaluate", work.base, *tasks, *tuned, *named, *work.size.test)
    yield "\n### Two skills in one model\n"
    yield from table(measured)


def match(work: Work) -> Iterator[str]:
    """The same search with labels, with tuned's answers on the same prompts, and with its answers on plain text."""
    train, _ = work.texts()
    tuned = work.tuned("nl2bash", "nl2bash")
    kinds = {"labels": ("--task", "nl2bash"), "answers": ("--match", "nl2bash"), "text": ("--match", str(train))}
    grafts = [work.searched(f"match-{kind}", tuned, *words, density="1e-3") for kind, words in kinds.items()]
    named = [word for graft in grafts for word in ("--graft", str(graft))]
    asked = ("evaluate", work.base, "--task", "nl2bash", "--tuned", tuned, *named, *work.size.test)
    measured = work.step("match", *asked)
    yield "\n### The same fine-tune searched with labels, with its answers on the same prompts, with its answers on news\n"
    yield from table(measured)


def table(measured: Mapping[str, Any]) -> Iterator[str]:
    """Models as rows; NLL, exact match and the share of tuned's improvement for each task."""
    found = measured.get("repaired", {})
    controls = next(iter(found.values()))["controls"] if found else {}
    tasks = {task: models for task, models in measured["tasks"].items() if task not in controls}
    columns = [f"{task} {what}" for task in tasks for what in ("NLL", "exact", "gain kept")]
    yield "| model | " + " | ".join(columns) + " |"
    yield "|---|" + "---|" * len(columns)
    for model in next(iter(tasks.values())):
        cells = []
        for models in tasks.values():
            one = models[model]
            cells += [number(one["nll"], 3), percent(one.get("exact_match")), percent(one.get("relative_gain"))]
        yield f"| {model} | " + " | ".join(cells) + " |"


def repairs(measured: Mapping[str, Any]) -> Iterator[str]:
    """What each model keeps, damages and gives back."""
    found = measured["repaired"]
    first = next(iter(found.values()))
    columns = [f"{task} kept" for task in first["tasks"]]
    columns += [f"{control} {what}" for control in first["controls"] for what in ("damage", "given back")]
    yield ""
    yield "| model | " + " | ".join(columns) + " |"
    yield "|---|" + "---|" * len(columns)
    for model, one in found.items():
        cells = [percent(task["kept"]) for task in one["tasks"].values()]
        for control in one["controls"].values():
            cells += [number(control["damage"], 3), percent(control["given_back"])]
        yield f"| {model} | " + " | ".join(cells) + " |"


def number(found: Any, digits: int) -> str:
    return f"{found['value']:.{digits}f}"


def percent(found: Any) -> str:
    return f"{100 * found['value']:.1f} %" if found and found.get("value") is not None else "–"


PARTS: Mapping[str, Callable[[Work], Iterator[str]]] = {
    "repair": repair,
    "unlearn": unlearn,
    "two-skills": two_skills,
    "match": match,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("base", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--short", action="store_true", help="minutes; shows that it works")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    work = Work(given.base.absolute(), given.work.absolute(), SHORT if given.short else FULL)
    for line in PARTS[given.part](work):
        print(line)


if __name__ == "__main__":
    main()
