"""Class scores from a model: one file per readout, one table that lists them.

`auto` chooses the readout and `choose_readout` says why. A readout is made when a `TaskModel` is opened.
"""

from skillgraft.readouts.readout import Batch, Encoded, Readout, loss_of, predicted
from skillgraft.readouts.readouts import READOUTS, choose_readout

__all__ = ["READOUTS", "Batch", "Encoded", "Readout", "choose_readout", "loss_of", "predicted"]
