"""Running a model over a split with `predict`, beside a bare loop over batches that were prepared beforehand.

600 made-up sentences of the lengths of reviews, tokenised before any timing, through MiniLM and its frozen text head, 64 at
once. The bare loop finds its rows sorted by length, padded and turned into tensors; `predict` does all of that within its
time, puts the scores back into the rows' order and makes `Predictions` of them.
"""

from __future__ import annotations

import statistics

import numpy as np
import torch
from torch import Tensor, nn

from measuring import Figure, Measured, Settings, command, interleaved, median_ratio
from minilm import minilm
from skillgraft.errors import RunError
from skillgraft.predictions.predict import by_length, predict
from skillgraft.readouts.readout import Batch
from skillgraft.readouts.text_head import TextHead
from skillgraft.tasks import Examples

_ROWS = 600
_BATCH = 64
_TEXT = "a the film plot is was not quite dull funny and moving cast but slow end never great terrible it to of"


def measure(settings: Settings) -> Measured:
    """throughput: rows per second of `predict` / rows per second of the bare loop."""
    opened, readout = minilm()
    model = opened.model
    assert isinstance(readout, TextHead)
    rows = readout.encode(_sentences(settings.scaled(_ROWS)))
    order = list(by_length(rows, _BATCH))
    batches = [readout.collate([rows[row] for row in some]) for some in order]
    _check(predict(model, readout, rows, batch_size=_BATCH).scores, _bare(model, readout, batches), order)
    jobs = {
        "predict": lambda: predict(model, readout, rows, batch_size=_BATCH),
        "bare": lambda: _bare(model, readout, batches),
    }
    seconds = interleaved(jobs, rounds=settings.rounds)
    speed = {name: len(rows) / statistics.median(found) for name, found in seconds.items()}
    tokens = sum(row.length for row in rows)
    absolute = (
        f"predict {speed['predict']:.0f}, bare loop {speed['bare']:.0f} rows/s ({tokens / len(rows):.0f} tokens each)"
    )
    throughput = 1 / median_ratio(seconds["predict"], seconds["bare"])
    return Measured({"throughput": Figure(throughput, absolute)}, {"rows_per_second": speed, "seconds": seconds})


def _sentences(count: int) -> Examples:
    """Sentences of 2 to 60 words, most of them short."""
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(2.7, 0.6, count), 2, 60).astype(int)
    words = _TEXT.split()
    texts = tuple(" ".join(draw.choice(words, length)) for length in lengths)
    return Examples("sst2", {"text": texts}, draw.integers(0, 2, count), ("negative", "positive"))


def _bare(model: nn.Module, readout: TextHead, batches: list[Batch]) -> list[Tensor]:
    """Scale × cosine of mean token states with the label embeddings, with nothing around it."""
    assert readout.head is not None
    scores = []
    with torch.inference_mode():
        for batch in batches:
            mask = batch["attention_mask"]
            states = model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).to(states.dtype)
            mean = (states * weights).sum(1) / weights.sum(1)
            scores.append(readout.scale * nn.functional.normalize(mean, dim=-1) @ readout.head.T)
    return scores


def _check(ours: np.ndarray, bare: list[Tensor], order: list[list[int]]) -> None:
    """Both computed the same scores, whatever their order."""
    if not np.allclose(ours[np.concatenate(order)], torch.cat(bare).numpy(), atol=1e-4):
        raise RunError("predict and the bare loop disagree about the scores")


if __name__ == "__main__":
    command("evaluation", measure)
