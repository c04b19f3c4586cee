"""Kill -9 at random moments, counted and resumable: outputs are complete or absent, resumed runs end with the same bits.

    python -m tests.attacks.kills --kills 500 --work WORK        # goes on where it was
    python -m tests.attacks.kills finetune --kills 70 --work WORK

Each verb runs as a user runs it, in a process of its own that is killed; then the output is looked at, and the same command is
run to its end. What it leaves must be what a run that nobody killed leaves, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from skillgraft.cli.main import main as skillgraft
from skillgraft.compose.store import ContinualStore
from skillgraft.errors import SkillgraftError
from tests.model_folders import content
from tests.readouts import making

TUNE = ("--optimizer", "adamw", "--lr", "1e-2", "--batch-size", "8", "--steps", "12", "--seed", "0")
LEARN = ("--shots", "12", "--optimizer", "adamw", "--lr", "1e-2", "--batch-size", "8", "--steps", "8", "--inside-steps", "5",
         "--density", "0.05", "--mask-steps", "3", "--mask-lr", "1e5", "--start", "empty")  # fmt: skip
SEARCH = ("--entries", "40", "--steps", "40", "--lr", "1e5", "--look-every", "2", "--snapshot-seconds", "0")
VERBS: Mapping[str, tuple[str, ...]] = {
    "extract": ("extract", "BASE", "TUNED", "-o", "OUT"),
    "apply": ("apply", "BASE", "g.safetensors", "-o", "OUT"),
    "remove": ("remove", "GRAFTED", "g.safetensors", "-o", "OUT"),
    "combine": ("combine", "g.safetensors", "h.safetensors", "--head", "g.safetensors", "-o", "OUT"),
    "finetune": ("finetune", "BASE", "--task", "films.toml", *TUNE, "--snapshot-seconds", "0", "-o", "OUT"),
    "localize": ("localize", "BASE", "TUNED", "--task", "films.toml", "--method", "learned", *SEARCH, "-o", "OUT"),
    "continual": ("continual", "add", "OUT", "BASE", "--task", "films.toml", *LEARN),
}
# What differs between two whole runs: clock times in a training log, the number in a lock.
_APART = ("training.jsonl", ".lock")


def child(work: Path, words: tuple[str, ...], before: Callable[[], object] = lambda: None) -> int:
    """The command in a process of its own, everything imported already; `before` is called there first."""
    process = os.fork()
    if process:
        return process
    os.chdir(work)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.argv = ["skillgraft", *words]
    code = 99
    try:
        before()
        skillgraft()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        os._exit(code)


def ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def run(work: Path, words: tuple[str, ...]) -> None:
    code = ended(child(work, words))
    if code:
        raise SystemExit(f"`skillgraft {' '.join(words)}` ended with {code}")


def image(out: Path) -> object:
    if out.is_dir():
        return {name: sha for name, sha in content(out).items() if Path(name).name not in _APART}
    return out.read_bytes() if out.exists() else None


def prepare(work: Path) -> None:
    """The base, a tuned model, grafts and a grafted folder."""
    work.mkdir(parents=True, exist_ok=True)
    making.bert(work / "BASE")
    making.write_films(work)
    run(work, ("finetune", "BASE", "--task", "films.toml", *TUNE, "-o", "TUNED"))
    run(work, ("extract", "BASE", "TUNED", "-o", "g.safetensors"))
    run(work, ("combine", "g.safetensors", "--scale", "0.5", "-o", "h.safetensors"))
    run(work, ("apply", "BASE", "g.safetensors", "-o", "GRAFTED"))
    (work / "ready").write_text("")


def clear(work: Path) -> None:
    for item in work.iterdir():
        if item.name.lstrip(".").startswith("OUT"):
            shutil.rmtree(item) if item.is_dir() else item.unlink()


def whole(out: Path, complete: object) -> bool:
    """Whether what stands there after a kill may stand there: nothing, everything, or a store that reads."""
    if image(out) in (None, complete):
        return True
    try:
        return out.is_dir() and ContinualStore.open(out).tasks == ()
    except SkillgraftError:
        return out.is_dir() and not (out / "store.json").exists() and len(list(out.iterdir())) <= 2


def kill_once(work: Path, verb: str, *, seconds: float, complete: object, rng: random.Random) -> str:
    """Kill the verb at some moment, once or several times, then let it end; "" or what was wrong."""
    killed = 0
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        process = child(work, VERBS[verb])
        time.sleep(rng.uniform(0, 1.1 * seconds))
        os.kill(process, signal.SIGKILL)
        killed += ended(process) == -signal.SIGKILL
        if not whole(work / "OUT", complete):
            return f"{verb}: half an output after a kill: {sorted(map(str, work.rglob('OUT*')))}"
    if image(work / "OUT") != complete:
        run(work, VERBS[verb])
    if image(work / "OUT") != complete:
        return f"{verb}: the resumed run ended otherwise"
    left = [item.name for item in work.iterdir() if item.name.startswith(".OUT")]
    clear(work)
    return f"{verb}: left behind {left}" if left and not killed else ""


def measured(work: Path, verb: str) -> tuple[float, object]:
    """How long the verb takes, and what it leaves, twice the same."""
    images = []
    for _ in range(2):
        clear(work)
        begun = time.monotonic()
        run(work, VERBS[verb])
        seconds = time.monotonic() - begun
        images.append(image(work / "OUT"))
    clear(work)
    if images[0] != images[1]:
        raise SystemExit(f"{verb}: two whole runs differ")
    return seconds, images[0]


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill -9 at random moments over the verbs; goes on where it was.")
    parser.add_argument("verbs", nargs="*", help=f"of {', '.join(VERBS)}; all by default")
    parser.add_argument("--kills", type=int, default=500, help="in all")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--work", type=Path, default=Path("kills-work"))
    given = parser.parse_args()
    work, verbs = given.work.resolve(), given.verbs or list(VERBS)
    import transformers  # noqa: F401  (imported once, here, and not in every child)

    if not (work / "ready").exists():
        shutil.rmtree(work, ignore_errors=True)
        prepare(work)
    state = work / "state.json"
    counts: dict[str, int] = json.loads(state.read_text()) if state.exists() else {}
    begun: Callable[[], float] = time.monotonic
    end = begun() + given.seconds
    for verb in verbs:
        clear(work)
        seconds, complete = measured(work, verb)
        while counts.get(verb, 0) < -(-given.kills // len(verbs)) and begun() < end:
            number = counts.get(verb, 0)
            wrong = kill_once(work, verb, seconds=seconds, complete=complete, rng=random.Random(f"{verb} {number}"))
            if wrong:
                print(f"case {number}: {wrong}")
                return 1
            counts[verb] = number + 1
            state.write_text(json.dumps(counts))
    print("  ".join(f"{verb} {count}" for verb, count in counts.items()), f"({sum(counts.values())} in all)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
