"""Language models tuned on prompts and answers: damage repaired, a skill unlearned, two skills in one, search without labels.

    SKILLGRAFT_DATA=… OMP_NUM_THREADS=1 python examples/language_models.py repair|unlearn|two-skills|match BASE WORK [--short]

BASE is a folder with a causal language model. Every step is a `skillgraft` command; what it printed is kept in WORK, finished
steps are not run again, and a step that was killed goes on where it was. At the end stands a table in Markdown; with `--out` it
is written to a page there, beside the JSON of what the commands measured. `--short` shows that it works, in minutes, and says
nothing about how well.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from skillgraft.files import atomic

SCALES = ("0.25", "0.5", "0.75")  # of WiSE


@dataclass(frozen=True)
class Size:
    """How long everything is; the options of the verbs as words. `gently` is how people should tune, `carelessly` how some do."""

    gently: tuple[str, ...]
    carelessly: tuple[str, ...]
    lora: tuple[str, ...]
    rows: tuple[str, ...]
    search: tuple[str, ...]
    test: tuple[str, ...]
    scale: str
    texts: int


def adamw(options: str) -> tuple[str, ...]:
    """The words of a tuning by AdamW."""
    return tuple(f"--optimizer adamw --clip-norm 1 {options}".split())


FULL = Size(
    gently=adamw("--lr 1e-4 --batch-size 8 --steps 320 --schedule linear"),
    carelessly=adamw("--lr 3e-4 --batch-size 8 --epochs 4"),
    lora=adamw("--lr 2e-3 --batch-size 8 --epochs 4 --method lora"),
    rows=("--train-rows", "800", "--validation-rows", "64"),
    search=("--steps", "24", "--batch-size", "12"),
    test=("--test-rows", "200"),
    scale="auto",
    texts=400,
)
SHORT = Size(
    gently=adamw("--lr 1e-4 --batch-size 4 --steps 24 --schedule linear"),
    carelessly=adamw("--lr 1e-3 --batch-size 4 --steps 24"),
    lora=adamw("--lr 5e-3 --batch-size 4 --steps 24 --method lora"),
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
    made: list[str] = field(default_factory=list)

    def step(self, name: str, *words: str | Path) -> Any:
        """What a command printed as JSON, now or in an earlier run."""
        printed = self.folder / f"{name}.json"
        self.made.append(name)
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

    def tuned(self, name: str, *tasks: str, how: Sequence[str]) -> Path:
        named = [word for task in tasks for word in ("--task", task)]
        asked = ("finetune", self.base, *named, *self.size.rows, *how, "--snapshot-seconds", "600")
        self.step(f"tuned-{name}", *asked, "-o", f"tuned-{name}")
        return self.folder / f"tuned-{name}"

    def gently(self, task: str) -> Path:
        """One task's fine-tune that hurts little."""
        return self.tuned(f"{task}-gently", task, how=self.size.gently)

    def graft(
        self, name: str, tuned: Path, *words: str, base: Path | None = None, density: str = "1e-2", scale: str = ""
    ) -> Path:
        rest = ("--density", density, "--scale", scale or self.size.scale)
        self.step(
            name, "localize", base or self.base, tuned, *words, *self.size.rows, *rest, "-o", f"{name}.safetensors"
        )
        return self.folder / f"{name}.safetensors"

    def searched(self, name: str, tuned: Path, *words: str, **where: Any) -> Path:
        return self.graft(name, tuned, *words, "--method", "budgeted", *self.size.search, **where)

    def scale(self, name: str) -> str:
        """The scale that an earlier search chose."""
        return str(self.step(name, "localize")["scale"])

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


def repair(work: Work, task: str, other: str) -> Iterator[str]:
    """Tuned carelessly on one task until text and another skill suffer; what grafts keep of it and give back."""
    train, test = work.texts()
    tuned = work.tuned(task, task, how=work.size.carelessly)
    lora = work.tuned(f"{task}-lora", task, how=work.size.lora)
    found = {
        f"{task}-movement": work.graft(f"{task}-movement", tuned, "--task", task, "--method", "movement"),
        f"{task}-graft": work.searched(f"{task}-graft", tuned, "--task", task),
    }
    # Strengths are tried at the scale that suited the search without controls.
    controlled, scale = ("--control", str(train), "--control", other), work.scale(f"{task}-graft")
    found[f"{task}-repaired"] = work.searched(f"{task}-repaired", tuned, "--task", task, *controlled, scale=scale)
    work.step(f"{task}-dense", "extract", work.base, tuned, "-o", f"{task}-dense.safetensors")
    for scale in SCALES:  # WiSE: part of the whole change
        name = f"{task}-wise-{scale}"
        work.step(name, "combine", f"{task}-dense.safetensors", "--scale", scale, "-o", f"{name}.safetensors")
        found[name] = work.folder / f"{name}.safetensors"
    models = ("--tuned", tuned, "--tuned", lora, *grafts_of(found.values()))
    controls = ("--control", test, "--control", other, "--no-generate")
    asked = ("evaluate", work.base, "--task", task, *models, *controls, *work.size.test)
    measured = work.step(f"{task}-repair", *asked)
    yield f"\n### {task}, tuned carelessly\n"
    yield from table(measured)
    yield from repairs(measured)


def unlearn(work: Work) -> Iterator[str]:
    """One model tuned on two tasks; the one is taken out by a search back to BASE, with the other as a control.

    The graft found goes on as it is, and at the scale that `forget` chooses.
    """
    train, test = work.texts()
    both = work.tuned("both", "countries", "nl2bash", how=work.size.gently)
    controls = ("--control", "nl2bash", "--control", str(train))
    graft = work.searched("unlearn", work.base, "--task", "countries", "--labels", "tuned", *controls, base=both)
    work.step("unlearned", "apply", both, graft, "-o", "unlearned")
    work.step("relearned", "combine", graft, "--scale", "-1", "-o", "relearned.safetensors")
    scales = ("--points", "9", "--most", "2", "--keep-control", "0.98")
    asked = ("forget", both, "relearned.safetensors", "--task", "countries", *controls, *work.size.rows, *scales)
    folders = [both, work.folder / "unlearned"]
    yield "\n### countries taken out of a model tuned on countries and nl2bash\n"
    try:
        work.step("forgotten-graft", *asked, "-o", "forgotten.safetensors")
    except SystemExit as refused:
        yield f"`forget` refuses: {refused}\n"
    else:
        work.step("forgotten", "apply", both, "forgotten.safetensors", "-o", "forgotten")
        folders.append(work.folder / "forgotten")
    tasks = ("--task", "countries", "--task", "nl2bash", "--control", test)
    measured = work.step("unlearning", "evaluate", work.base, *tasks, *tuned_of(folders), *work.size.test)
    yield from table(measured)
    yield from repairs(measured)


def two_skills(work: Work) -> Iterator[str]:
    """Two grafts of two fine-tunes in one model, at the scale that suits both."""
    names = ("nl2bash", "countries")
    folders = [work.gently(task) for task in names]
    grafts = [
        work.searched(f"{task}-skill", folder, "--task", task, density="1e-3")
        for task, folder in zip(names, folders, strict=True)
    ]
    tasks = ("--task", "nl2bash", "--task", "countries")
    asked = ("combine", *grafts, "--scale", "auto", "--base", work.base, *tasks, *work.size.rows, "--points", "6")
    work.step("both-skills", *asked, "-o", "both-skills.safetensors")
    models = (*tuned_of(folders), *grafts_of([*grafts, work.folder / "both-skills.safetensors"]))
    measured = work.step("two-skills", "evaluate", work.base, *tasks, *models, *work.size.test)
    yield "\n### Two skills in one model\n"
    yield from table(measured)


def match(work: Work) -> Iterator[str]:
    """The same search with labels, with tuned's answers on the same prompts, and with its answers on plain text."""
    train, _ = work.texts()
    tuned = work.gently("nl2bash")
    kinds = {"answers": ("--match", "nl2bash"), "text": ("--match", str(train))}
    grafts = [work.searched("nl2bash-skill", tuned, "--task", "nl2bash", density="1e-3")]
    grafts += [work.searched(f"match-{kind}", tuned, *words, density="1e-3") for kind, words in kinds.items()]
    models = ("--tuned", tuned, *grafts_of(grafts))
    measured = work.step("match", "evaluate", work.base, "--task", "nl2bash", *models, *work.size.test)
    yield "\n### The same fine-tune searched with labels, with its answers on the same prompts, with its answers on news\n"
    yield from table(measured)


def grafts_of(files: Iterable[Path]) -> list[str]:
    return [word for file in files for word in ("--graft", str(file))]


def tuned_of(folders: Iterable[Path]) -> list[str]:
    return [word for folder in folders for word in ("--tuned", str(folder))]


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
    "repair": partial(repair, task="nl2bash", other="pronounce"),
    "repair-countries": partial(repair, task="countries", other="nl2bash"),
    "unlearn": unlearn,
    "two-skills": two_skills,
    "match": match,
}


def save_page(work: Work, part: str, lines: Sequence[str], out: Path) -> None:
    """A page with the tables and the settings, and beside it everything that the commands measured."""
    out.mkdir(parents=True, exist_ok=True)
    printed = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(work.folder.glob("*.json"))}
    command = f"python examples/language_models.py {part} {work.base.name} WORK"
    settings = {
        "command": command,
        **{
            name: " ".join(map(str, value)) if isinstance(value, tuple) else value
            for name, value in vars(work.size).items()
        },
    }
    named = {name: found for name, found in printed.items() if name in work.made}
    for suffix, text in (
        (".json", json.dumps({"settings": settings, "printed": named}, indent=1) + "\n"),
        (".md", "\n".join([*lines, "", "```json", json.dumps(settings, indent=1), "```", ""]).lstrip("\n")),
    ):
        with atomic.new_file(out / f"language-models-{part}{suffix}", overwrite=True) as file:
            file.write_text(
                text.replace(f"{work.folder}/", "").replace(str(work.base), work.base.name), encoding="utf-8"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("base", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--short", action="store_true", help="minutes; shows that it works")
    parser.add_argument("--out", type=Path, help="folder for the page")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    work = Work(given.base.absolute(), given.work.absolute(), SHORT if given.short else FULL)
    lines = []
    for line in PARTS[given.part](work):
        print(line, flush=True)
        lines.append(line)
    if given.out:
        save_page(work, given.part, lines, given.out)


if __name__ == "__main__":
    main()
