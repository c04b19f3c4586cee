"""Class scores from a model: one file per readout, one table that lists them.

opened = open_readouts("roberta-base", [load_task("sst2")])  # `auto` chooses the readout; `choose_readout` says why
rows = opened.readouts[0].encode(examples)                   # tokenised once
"""

from skillgraft.readouts.auto import choose_readout
from skillgraft.readouts.loading import READOUTS, Opened, open_readouts
from skillgraft.readouts.readout import Batch, Encoded, Readout, loss_of, predicted

__all__ = [
    "READOUTS",
    "Batch",
    "Encoded",
    "Opened",
    "Readout",
    "choose_readout",
    "loss_of",
    "open_readouts",
    "predicted",
]
