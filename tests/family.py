"""One tiny base and two fine-tunes of it, as a user has them: BASE, TUNED and OTHER in one folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .model_folders import DENSE, EMBEDDING, QUERY, body, write_folder

LAYER_ENTRIES = 16 + 4 + 24


def write_family(folder: Path) -> Path:
    """TUNED has a classifier, labels and a changed embedding; OTHER has the base's architecture.

    Of the layers, TUNED moves query entries 1, 3, 7 and dense entry 2; OTHER query entries 3 and 4, further than TUNED.
    """
    base = body(prefix="bert.")
    write_folder(folder / "BASE", base)
    tuned = {name: array.copy() for name, array in base.items()}
    tuned[f"bert.{QUERY}"].reshape(-1)[[1, 3, 7]] += np.float32([0.5, 0.25, -1.0])
    tuned[f"bert.{DENSE}"].reshape(-1)[2] += np.float32(0.125)
    tuned[f"bert.{EMBEDDING}"][0] += np.float32(1.0)
    tuned |= {"classifier.weight": np.ones((2, 4), np.float32), "classifier.bias": np.zeros(2, np.float32)}
    labels = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "bad", "1": "good"}}
    write_folder(folder / "TUNED", tuned, config=labels)
    other = {name: array.copy() for name, array in base.items()}
    other[f"bert.{QUERY}"].reshape(-1)[[3, 4]] += np.float32([2.0, 1.5])
    write_folder(folder / "OTHER", other)
    return folder
