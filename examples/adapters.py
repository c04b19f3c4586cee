"""Grafts as LoRA adapters on real models: their ranks, what PEFT makes of them, and what a limit on the rank costs.

    SKILLGRAFT_DATA=… OMP_NUM_THREADS=1 python examples/adapters.py ranks|peft|narrow WORK MiniLM=BASE [MPNet=BASE,TUNED …]

`ranks` tables the rank of the entries that moved most at each density (examples/ranks.py), `peft` base and adapter in PEFT beside
the applied folder, `narrow` the validation scores of searches with and without `--max-rank`. A base without a TUNED is tuned
first, shortly: language models on nl2bash with AdamW, encoders on sst2 with SGD. Every step is a `skillgraft` command whose
output is kept in WORK: finished steps are not run again. The table stands at the end, in Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from language_models import SHORT, Work
from ranks import table

from skillgraft import Graft, apply, export_lora
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.interop.lora import REMAINDER
from skillgraft.values.numbers import bits

# Kind of model → its rows, how it is tuned, its task, and the scale at which its grafts are put on.
ROWS: Mapping[str, tuple[str, ...]] = {
    "causal": ("--train-rows", "400", "--validation-rows", "40", "--max-length", "128"),
    "encoder": ("--train-rows", "400", "--validation-rows", "200", "--max-length", "64"),
}
TUNING: Mapping[str, tuple[str, ...]] = {
    "causal": ("--optimizer", "adamw", "--lr", "2e-4", "--schedule", "linear", "--steps", "30", "--batch-size", "4"),
    "encoder": ("--lr", "0.02", "--clip-norm", "1", "--steps", "60", "--batch-size", "16"),
}
TASKS, SCALES = {"causal": "nl2bash", "encoder": "sst2"}, {"causal": "8", "encoder": "1"}
SEARCH = ("--method", "movement", "--density", "1e-3", "--scope", "matrices")
RANKS = (None, 64, 16)
GIVEN: dict[str, Path] = {}  # fine-tunes named on the command line


def kind(base: Path) -> str:
    """Whether a folder holds a language model or an encoder."""
    architectures = Checkpoint.open(base).config.get("architectures") or [""]
    return "causal" if str(architectures[0]).endswith(("ForCausalLM", "LMHeadModel")) else "encoder"


def tuned(work: Work, name: str) -> Path:
    """The fine-tune of a base: the one that was given, or a short one."""
    if name in GIVEN:
        return GIVEN[name]
    how = kind(work.base)
    asked = ("--task", TASKS[how], *ROWS[how], *TUNING[how])
    work.step(f"tuned-{name}", "finetune", work.base, *asked, "-o", f"tuned-{name}")
    return work.folder / f"tuned-{name}"


def ranks(works: Mapping[str, Work]) -> Iterator[str]:
    """Ranks at four densities."""
    yield from table({name: (work.base, tuned(work, name)) for name, work in works.items()})


def narrow(works: Mapping[str, Work]) -> Iterator[str]:
    """The same search with any rank, and within fewer and fewer lines of each matrix."""
    yield "| model | rank allowed | rank used | adapter | tuned | graft | the base |"
    yield "|---|---|---|---|---|---|---|"
    for name, work in works.items():
        how = kind(work.base)
        for most in RANKS:
            step = f"{name}-{most or 'any'}"
            limit = ("--max-rank", str(most)) if most else ()
            asked = ("--task", TASKS[how], *ROWS[how], *SEARCH, "--scale", SCALES[how], *limit)
            work.step(step, "localize", work.base, tuned(work, name), *asked, "-o", f"{step}.safetensors")
            export = ("export", f"{step}.safetensors", "--to", "lora", "--base", work.base)
            made = work.step(f"{step}-lora", *export, "-o", f"{step}-lora")
            scores = Graft.load(work.folder / f"{step}.safetensors").info["scores"]["validation"]
            size = sum(file.stat().st_size for file in (work.folder / f"{step}-lora").iterdir()) / 1e6
            shown = " | ".join(_score(scores[model]) for model in ("tuned", "graft", "base"))
            yield f"| {name} | {most or 'any'} | {made['rank']} | {size:.1f} MB | {shown} |"


def _score(scores: Mapping[str, Any]) -> str:
    """Accuracy where there is one, and NLL: figures, or figures with what they were measured on."""
    figures = {name: found.get("value") if isinstance(found, Mapping) else found for name, found in scores.items()}
    accuracy = [f"{figures['accuracy']:.1%}"] if "accuracy" in figures else []
    return ", ".join([*accuracy, f"NLL {figures['nll']:.4f}"])


def peft(works: Mapping[str, Work]) -> Iterator[str]:
    """Grafts of 1e-4: base and adapter in PEFT, in float32, beside the applied folder; merged by it in the base's format."""
    yield "| model | entries | rank | ‖difference‖ / ‖output‖ | the base without it | merged otherwise | with the remainder |"
    yield "|---|---|---|---|---|---|---|"
    for name, work in works.items():
        folder = tuned(work, name)
        step = f"{name}-1e-4"
        asked = ("--density", "1e-4", "--scope", "matrices", "-o", f"{step}.safetensors")
        work.step(step, "extract", work.base, folder, *asked)
        yield in_peft(name, work.base, Graft.load(work.folder / f"{step}.safetensors").without_heads()).row


@dataclass(frozen=True)
class InPeft:
    """What PEFT makes of an adapter: how far its outputs are from the applied folder's, and the sites that a merge misses."""

    name: str
    entries: int
    rank: int
    difference: float
    without: float
    merged_otherwise: int
    with_remainder: int

    @property
    def row(self) -> str:
        missed = f"{self.merged_otherwise:,} ({self.merged_otherwise / self.entries:.2%})"
        outputs = f"{self.difference:.1e} | {self.without:.1e}"
        return f"| {self.name} | {self.entries:,} | {self.rank} | {outputs} | {missed} | {self.with_remainder:,} |"


def in_peft(name: str, base: Path, graft: Graft) -> InPeft:
    """Export, load and merge the adapter by PEFT, and compare with the folder that `apply` writes."""
    from peft import PeftModel

    with tempfile.TemporaryDirectory() as room:
        on, adapter = Path(room) / "on", Path(room) / "adapter"
        made = export_lora(graft, base, adapter, remainder=True)
        apply(base, graft, out=on)
        wanted = outputs(opened(on, "float32"))
        found = outputs(PeftModel.from_pretrained(opened(base, "float32"), adapter))
        without = outputs(opened(base, "float32"))
        missed = [sites_missed(base, adapter, graft, Path(room) / str(both), both=both) for both in (False, True)]
    return InPeft(name, made.entries, made.rank, _off(found, wanted), _off(without, wanted), *missed)


def sites_missed(base: Path, adapter: Path, graft: Graft, whole: Path, *, both: bool) -> int:
    """At how many sites a merge by PEFT differs from the graft's numbers; `both` merges the remainder too, where there is one."""
    from peft import PeftModel

    model, names = PeftModel.from_pretrained(opened(base, "auto"), adapter), ["default"]
    if both and (adapter / REMAINDER).is_dir():
        model.load_adapter(adapter / REMAINDER, REMAINDER)
        names.append(REMAINDER)
    model.merge_and_unload(adapter_names=names).save_pretrained(whole)
    merged = Checkpoint.open(whole)
    pairs = ((merged.flat(tensor)[at], graft.written(tensor)) for tensor, at in graft.region.sites.items())
    return sum(int((bits(found) != bits(wanted)).sum()) for found, wanted in pairs)


def opened(folder: Path, dtype: str) -> Any:
    """The model in a folder, by its own kind."""
    import transformers

    auto = transformers.AutoModelForCausalLM if kind(folder) == "causal" else transformers.AutoModel
    return auto.from_pretrained(folder, dtype=dtype).eval()


def outputs(model: Any) -> Any:
    """Logits, or hidden states, of four rows of tokens drawn at random."""
    import torch

    most = int(model.config.vocab_size)
    tokens = torch.randint(5, most, (4, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(input_ids=tokens)[0].double()


def _off(found: Any, wanted: Any) -> float:
    return float((found - wanted).norm() / wanted.norm())


PARTS: Mapping[str, Callable[[Mapping[str, Work]], Iterator[str]]] = {"ranks": ranks, "peft": peft, "narrow": narrow}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("work", type=Path)
    parser.add_argument("bases", nargs="+", metavar="NAME=BASE[,TUNED]")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    works = {}
    for name, _, folders in (pair.partition("=") for pair in given.bases):
        base, _, fine = folders.partition(",")
        works[name] = Work(Path(base).absolute(), given.work.absolute(), SHORT)
        GIVEN.update({name: Path(fine).absolute()} if fine else {})
    for line in PARTS[given.part](works):
        print(line, flush=True)


if __name__ == "__main__":
    main()
