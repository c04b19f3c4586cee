"""Images to pixel values, through the model's own processor.

Resizing and cropping are done once. What is kept are bytes, a quarter of the memory of floats; the processor's rescaling and
normalising, plain arithmetic, happens when a batch is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from skillgraft.errors import InputError
from skillgraft.readouts.readout import Batch, Encoded
from skillgraft.readouts.source import Source
from skillgraft.readouts.text_rows import labels_of
from skillgraft.tasks import Examples, Task

_AT_ONCE = 256  # images handed to the processor together: bounds its memory


@dataclass(frozen=True)
class ImageRows:
    """The column that holds the images, the processor, and the number of channels that its model wants."""

    field: str
    processor: Any
    channels: int

    @classmethod
    def of(cls, source: Source, task: Task) -> ImageRows:
        config = getattr(source.config, "vision_config", None) or source.config
        return cls(task.inputs[0], source.image_processor, getattr(config, "num_channels", 3))

    @property
    def settings(self) -> Mapping[str, Any]:
        return {}

    @property
    def keeps_bytes(self) -> bool:
        """Whether the processor ends with the usual rescaling and normalising, which can wait for the batch."""
        usual = getattr(self.processor, "do_rescale", False) and getattr(self.processor, "do_normalize", False)
        return bool(usual) and len(self._per_channel("image_mean")) == self.channels

    def encode(self, examples: Examples) -> list[Encoded]:
        column = examples.columns[self.field]
        later = {"do_rescale": False, "do_normalize": False} if self.keeps_bytes else {}
        rows: list[Encoded] = []
        for low in range(0, len(examples), _AT_ONCE):
            images = [self._with_channels(image, row) for row, image in enumerate(column[low : low + _AT_ONCE], low)]
            pixels = self.processor(images, return_tensors="np", input_data_format="channels_last", **later)[
                "pixel_values"
            ]
            labels = examples.labels[low : low + _AT_ONCE].tolist()
            rows += [Encoded({"pixel_values": one}, label, 1) for one, label in zip(pixels, labels, strict=True)]
        return rows

    def batch(self, rows: Sequence[Encoded]) -> Batch:
        pixels = torch.from_numpy(np.stack([row.inputs["pixel_values"] for row in rows])).float()
        if self.keeps_bytes:
            mean, std = (torch.tensor(self._per_channel(name)).view(-1, 1, 1) for name in ("image_mean", "image_std"))
            pixels = (pixels * self.processor.rescale_factor - mean) / std
        return {"pixel_values": pixels, "labels": labels_of(rows)}

    def _per_channel(self, name: str) -> list[float]:
        value = getattr(self.processor, name)
        return [value] * self.channels if isinstance(value, float) else list(value)

    def _with_channels(self, image: NDArray[np.uint8], row: int) -> NDArray[np.uint8]:
        """(height, width, channels); grey is repeated where the model wants colours."""
        deep = image[..., None] if image.ndim == 2 else image
        if deep.shape[-1] == 1:
            deep = np.repeat(deep, self.channels, -1)
        if deep.shape[-1] != self.channels:
            raise InputError(f"image {row}: expected grey or {self.channels} channels; found {deep.shape[-1]}")
        return deep
