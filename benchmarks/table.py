"""What is measured, how good it must be, and what it stands beside: one row per benchmark, one bar per figure.

A benchmark is the file `benchmarks/<name>.py` with a function `measure(settings) -> Measured` whose figures have the names of its
bars. To add one: write the file, add its row here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """One figure of a benchmark and its limit: at most (or at least) so much, beside something that users know."""

    figure: str
    job: str
    limit: float
    unit: str
    compared_with: str = "—"
    at_least: bool = False

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def stated(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}"


@dataclass(frozen=True)
class Benchmark:
    """What a benchmark does, in a phrase, and the bars of its figures."""

    about: str
    bars: tuple[Bar, ...]
    needs: str = ""  # an environment variable without which it is left out, unless it is asked for by name


BENCHMARKS: dict[str, Benchmark] = {
    "apply": Benchmark(
        "put a graft on a model folder",
        (
            Bar("ratio", "apply a 10⁻⁴ graft to a warm 2 GB sharded checkpoint, after imports", 1.3, "×", "`cp -r`"),
            Bar("durable", "the same, forced to the disk", 1.3, "×", "`cp -r` + `sync -f`"),
            Bar("command_adds", "what the command adds to that", 0.8, "s", "the same call inside Python"),
        ),
    ),
    "extract": Benchmark(
        "lift the most moved entries out of a tuned folder",
        (
            Bar(
                "ratio",
                "extract the exact top 10⁻⁴ of 2 × 2 GB, warm",
                3.0,
                "×",
                "one chunked numpy subtraction of the same files",
            ),
        ),
    ),
    "memory": Benchmark(
        "peak anonymous memory of apply and extract at two sizes",
        (
            Bar("apply", "peak memory of apply, larger of 2 GB and 6 GB", 400, "MB"),
            Bar("apply_growth", "the same at both sizes: peak at 6 GB − peak at 2 GB", 40, "MB"),
            Bar("extract", "peak memory of extract, larger of 2 GB and 6 GB", 400, "MB"),
            Bar("extract_growth", "the same at both sizes: peak at 6 GB − peak at 2 GB", 40, "MB"),
        ),
    ),
    "full_deltas": Benchmark(
        "whole deltas of a bfloat16 model, streamed and packed",
        (
            Bar("extract", "extract everything, every entry changed", 1.5, "×", "subtraction + writing as many bytes"),
            Bar("apply", "apply that, --no-sync", 1.5, "×", "`cp -r` + reading the graft"),
            Bar("durable", "apply that, forced to the disk", 1.5, "×", "`cp -r` + `sync -f` + reading the graft"),
            Bar("peak", "the highest anonymous peak of these and of the packed jobs", 400, "MB"),
            Bar("packed_share", "`extract --pack` after small steps: bytes", 0.2, "× the tuned file"),
            Bar("packed_extract", "extract packed", 200, "MB/s", "zstd alone", at_least=True),
            Bar("packed_apply", "apply packed", 200, "MB/s", at_least=True),
        ),
    ),
    "ties": Benchmark(
        "TIES of three whole deltas",
        (
            Bar("time", "`combine --rule ties --trim tensor` of three grafts", 0.4, "×", "mergekit's TIES"),
            Bar("peak", "its highest anonymous memory", 0.3, "×", "mergekit's TIES"),
        ),
        needs="MERGEKIT",
    ),
    "switch": Benchmark(
        "switch grafts on a live model",
        (
            Bar("held_1", "switch a graft of 8,500 entries, 85 M-entry model, 1 held", 2.0, "ms", "peft (last column)"),
            Bar("held_64", "the same with 64 grafts held", 2.0, "ms", "peft (last column)"),
        ),
    ),
    "bank": Benchmark(
        "a batch in which every row has another skill",
        (
            Bar(
                "minilm",
                "64 skills of 10⁻⁴ in one batch of 64 × 32 tokens, MiniLM",
                0.90,
                "×",
                "the base alone",
                at_least=True,
            ),
            Bar("mpnet", "the same, MPNet", 0.95, "×", "the base alone", at_least=True),
            Bar(
                "smollm2", "32 skills, one token for 32 sequences, SmolLM2", 0.85, "×", "the base alone", at_least=True
            ),
            Bar("held", "a batch with 1,000 skills held", 1.05, "×", "1 held"),
            Bar("bytes", "memory of a skill, per entry", 40, "bytes", "—"),
        ),
    ),
    "startup": Benchmark(
        "how long Python and the command take to start",
        (
            Bar("import", '`python -c "import skillgraft"`', 0.4, "s"),
            Bar("help", "`skillgraft --help`", 0.4, "s"),
        ),
    ),
    "evaluation": Benchmark(
        "run a model over a split",
        (
            Bar(
                "throughput",
                "evaluate 600 rows of varied length, rows per second",
                0.95,
                "×",
                "a bare loop over batches prepared beforehand",
                at_least=True,
            ),
        ),
    ),
    "evaluate_tuned": Benchmark(
        "measure a tuned folder beside its base",
        (
            Bar("time", "evaluate --tuned, 600 rows", 1.1, "×", "loading that folder and predicting"),
            Bar("peak", "its peak memory, after imports", 1.3, "×", "loading that folder and predicting"),
        ),
    ),
    "region_training": Benchmark(
        "a training step inside a region, and what its optimizer holds",
        (
            Bar("step", "a step of AdamW in a random 10 % region, 16 × 32 tokens", 1.05, "×", "full AdamW"),
            Bar("moments", "AdamW's moments there", 10.5, "%", "full AdamW's"),
            Bar("state", "the same with the indices of the entries", 16, "%", "full AdamW's"),
        ),
    ),
    "serve": Benchmark(
        "the server: 32 clients, labels, each request another skill",
        (
            Bar("p50", "median time of a request, 32 clients, each request another skill", 1.3, "×", "without skills"),
            Bar("throughput", "requests per second, the same", 0.85, "×", "without skills", at_least=True),
        ),
    ),
    "fisher": Benchmark(
        "the exact Fisher diagonal, per example",
        (
            Bar("plain", "Fisher diagonal, 32 × 32 tokens", 2.0, "×", "one plain forward + backward pass"),
            Bar("authors", "the authors' loop", 8.0, "×", "ours", at_least=True),
            Bar("single", "a batch-1 loop", 1.5, "×", "ours", at_least=True),
        ),
    ),
    "mask_step": Benchmark(
        "learning a region",
        (
            Bar("step", "one step of region learning, 64 examples", 1.10, "×", "plain forward + backward"),
            Bar("run", "a whole run, steps compared on the rounded region", 1.35, "×", "as many plain passes"),
            Bar("authors", "the authors' loop, written again", 1.0, "×", "ours", at_least=True),
        ),
    ),
    "learning_memory": Benchmark(
        "peak memory of learning a region",
        (
            Bar(
                "copies",
                "peak memory of region learning beyond the rest of the model and activations, in copies of the scope",
                5.0,
                "×",
                "weights, gradients, S, delta (the reference in its file)",
            ),
            Bar("authors", "peak of the authors' loop, written again", 1.0, "×", "ours", at_least=True),
        ),
    ),
    "candidate_search": Benchmark(
        "searching among candidates in a bfloat16 language model",
        (
            Bar("step", "a step among 5 % of the layers, budgeted", 1.10, "×", "forward + backward in bfloat16"),
            Bar("memory", "peak memory of the search less the activations, in sizes of the model", 1.6, "×"),
            Bar("full", "the same of the learned region over the whole scope", 6.0, "×"),
        ),
    ),
    "training_cost": Benchmark(
        "a step of each of P2's training methods",
        (
            Bar("step", "a step of AdamW in TaLoS's 10 % region, 16 × 32 tokens", 1.05, "×", "full fine-tuning"),
            Bar("peak", "its peak of tensors", 1.0, "×", "full fine-tuning"),
            Bar("linear_step", "a step of linearised training", 1.5, "×", "TaLoS", at_least=True),
            Bar("linear_peak", "its peak of tensors", 1.0, "×", "TaLoS", at_least=True),
        ),
    ),
}
