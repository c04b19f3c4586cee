"""Bottleneck adapters on a live torch model: small layers behind its output matrices, the model's own numbers untouched.

    adapters = Adapters.fresh(model, "houlsby", bottleneck=16)
    adapters.attach(model)      # up = 0 at the start: the model gives exactly the base's outputs
    adapters.save("adapter.safetensors", base_fingerprint=...)

Behind a matrix whose output is x stands x + up(act(down(x))), before dropout, residual sum and LayerNorm. "houlsby" has one
behind every attention output (a decoder's cross-attention included) and every MLP output, "pfeiffer" behind MLP outputs
alone: Houlsby et al. 2019 and Pfeiffer et al. 2021, which P1's tables 6 and 7 compare with grafts. Of the published variants
two things are left out: Houlsby's also train the LayerNorms, and AdapterHub's Pfeiffer reads its x behind a LayerNorm.
Layers that share one matrix (ALBERT) share its adapter.

Written here because every release of the package `adapters` pins transformers 4 (1.3.0 asks for ~=4.57.6), and skillgraft
needs 5. Refused: a model without the matrices, a file whose tensors do not belong together or do not fit the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from skillgraft.errors import FormatError, InputError, WrongBase, did_you_mean, listed
from skillgraft.files import tensors as tensor_file
from skillgraft.files.tensors import TensorFile
from skillgraft.live.grafted import as_numpy, as_torch, parameter_names
from skillgraft.values.names import in_layers, kind_of
from skillgraft.values.numbers import Array

FORMAT = "skillgraft-adapter"
FORMAT_VERSION = "1"
_SPREAD = 0.02  # standard deviation of a fresh down-projection, that of BERT's own matrices
_PARTS = ("down.bias", "down.weight", "up.bias", "up.weight")


@dataclass(frozen=True)
class Design:
    """Behind which kinds of matrices adapters stand, and the function between their two projections."""

    behind: tuple[str, ...]
    activation: Callable[[Tensor], Tensor]


# The functions are those that AdapterHub gives the two designs.
DESIGNS: Mapping[str, Design] = {
    "houlsby": Design(("attention output", "MLP out"), nn.functional.silu),
    "pfeiffer": Design(("MLP out",), nn.functional.relu),
}


class Bottleneck(nn.Module):
    """x + up(act(down(x))): 2 · width · bottleneck + width + bottleneck numbers."""

    def __init__(self, width: int, bottleneck: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.down, self.up = _empty_linear(width, bottleneck), _empty_linear(bottleneck, width)
        self.activation = activation

    def start(self, generator: torch.Generator) -> None:
        """A random down-projection; everything else 0, so that nothing is added yet."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
            self.down.weight.normal_(std=_SPREAD, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.up(self.activation(self.down(x)))
        return x + added


@dataclass(frozen=True, eq=False)
class Adapters:
    """The adapters of one model; `layers` has them by the prefix-free name of the module that they stand behind."""

    design: str
    bottleneck: int
    layers: Mapping[str, Bottleneck]

    @classmethod
    def fresh(cls, model: nn.Module, design: str, *, bottleneck: int, seed: int = 0) -> Adapters:
        """Adapters for this model that add nothing yet; the same seed gives the same start on every device."""
        if design not in DESIGNS:
            raise InputError(f"no adapter design {design!r}; {did_you_mean(design, DESIGNS)}")
        generator = torch.Generator().manual_seed(seed)
        layers = {}
        for name, module in _places(model, design).items():
            layer = Bottleneck(_width(module), bottleneck, DESIGNS[design].activation)
            layer.start(generator)
            layers[name] = layer
        return cls(design, bottleneck, layers)

    @property
    def tensors(self) -> dict[str, nn.Parameter]:
        """Every number of the adapters: `encoder.layer.0.output.dense.up.weight`."""
        return {f"{name}.{part}": p for name, layer in self.layers.items() for part, p in layer.named_parameters()}

    def __len__(self) -> int:
        """How many numbers they have."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    @property
    def description(self) -> dict[str, Any]:
        """What skillgraft.json says about them."""
        return {
            "design": self.design,
            "bottleneck": self.bottleneck,
            "adapters": len(self.layers),
            "numbers": len(self),
        }

    def attach(self, model: nn.Module) -> list[RemovableHandle]:
        """Put them behind the model's matrices, on its device and in its format; `remove` on each handle takes them off.

        They are no part of the model: its parameters and what it saves stay those of the base.
        """
        places = _places(model, self.design)
        self._check_fit(places, type(model).__name__)
        handles = []
        for name, layer in self.layers.items():
            weight = places[name].weight
            layer.to(weight.device, weight.dtype)  # type: ignore[arg-type]
            handles.append(places[name].register_forward_hook(_behind(layer)))
        return handles

    def save(self, path: Path, *, base_fingerprint: str) -> None:
        """One safetensors file that needs no flags to be read again. Law: `Adapters.load(path)` has the same bits."""
        metadata = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "design": self.design,
            "bottleneck": str(self.bottleneck),
            "base_fingerprint": base_fingerprint,
        }
        tensor_file.write(path, {name: as_numpy(tensor) for name, tensor in self.tensors.items()}, metadata)

    @classmethod
    def load(cls, path: Path) -> Adapters:
        """The adapters of a file, every tensor checked."""
        file = TensorFile.open(path)
        design, bottleneck = _stated(file)
        layers = {name: _layer(file, name, design, bottleneck) for name in _modules(file)}
        return cls(design, bottleneck, layers)

    def _check_fit(self, places: Mapping[str, nn.Module], model: str) -> None:
        missing, bare = sorted(self.layers.keys() - places.keys()), sorted(places.keys() - self.layers.keys())
        if missing or bare:
            raise WrongBase(
                f"these {self.design} adapters are of another model: {listed(missing or ['nothing'], most=2)} are missing "
                f"in this {model}, {listed(bare or ['nothing'], most=2)} have no adapter"
            )
        for name, layer in self.layers.items():
            if layer.up.out_features != _width(places[name]):
                raise WrongBase(
                    f"{name} gives {_width(places[name])} numbers in this {model}, its adapter takes "
                    f"{layer.up.out_features}: it is of another model"
                )


def stated_base(path: Path) -> str:
    """The fingerprint of the base that a file's adapters were trained on; "" where that had none (a hub name)."""
    file = TensorFile.open(path)
    _stated(file)
    return file.metadata["base_fingerprint"]


def _empty_linear(width_in: int, width_out: int) -> nn.Linear:
    """Without numbers yet: nn.Linear would draw them from torch's own random state, which is the caller's."""
    return nn.Linear(width_in, width_out, device="meta").to_empty(device="cpu")


def _behind(layer: Bottleneck) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        adapted: Tensor = layer(output)
        return adapted

    return hook


def _places(model: nn.Module, design: str) -> dict[str, nn.Module]:
    """Prefix-free name, as in the model's folder, → the module that an adapter stands behind."""
    names = {id(parameter): name for name, parameter in parameter_names(model).items()}
    found = {}
    for module in model.modules():
        name = names.get(id(getattr(module, "weight", None)), "")
        if in_layers(name) and kind_of(name) in DESIGNS[design].behind and _is_matrix(module):
            found[name.removesuffix(".weight")] = module
    absent = set(DESIGNS[design].behind) - {kind_of(f"{name}.weight") for name in found}
    if absent:
        raise InputError(
            f"{design} adapters stand behind {' and '.join(DESIGNS[design].behind)} matrices; "
            f"found no {' and no '.join(sorted(absent))} in {type(model).__name__}"
        )
    return found


def _is_matrix(module: nn.Module) -> bool:
    """Whether the module multiplies by one matrix; a stack of experts or a convolution has no single width."""
    return isinstance(module, nn.Linear) or hasattr(module, "nf")


def _width(module: nn.Module) -> int:
    """How many numbers the module gives: GPT-2's Conv1D stores its matrix the other way round."""
    width = module.out_features if isinstance(module, nn.Linear) else module.nf
    assert isinstance(width, int)
    return width


def _stated(file: TensorFile) -> tuple[str, int]:
    """Design and bottleneck, once the file is known to be one of ours."""
    metadata = file.metadata
    if (metadata.get("format"), metadata.get("format_version")) != (FORMAT, FORMAT_VERSION):
        found = f"{metadata.get('format', 'none')} {metadata.get('format_version', '')}".strip()
        raise FormatError(f"{file.path}: expected the format {FORMAT} {FORMAT_VERSION}, found {found}")
    design, bottleneck = metadata.get("design", ""), metadata.get("bottleneck", "")
    if design not in DESIGNS or not bottleneck.isdecimal() or "base_fingerprint" not in metadata:
        raise FormatError(
            f"{file.path}: expected a design ({', '.join(DESIGNS)}), a bottleneck and a base_fingerprint in its "
            f"metadata, found {design!r} and {bottleneck!r}"
        )
    return design, int(bottleneck)


def _modules(file: TensorFile) -> list[str]:
    """The modules that a file has adapters for, all four tensors of each."""
    ending = tuple(f".{part}" for part in _PARTS)
    modules = sorted({name.rsplit(".", 2)[0] for name in file.entries if name.endswith(ending)})
    expected = {f"{module}.{part}" for module in modules for part in _PARTS}
    wrong = sorted(expected ^ file.entries.keys())
    if wrong or not modules:
        raise FormatError(
            f"{file.path}: an adapter is {', '.join(_PARTS)}; lonely or strange: {listed(wrong) or 'all'}"
        )
    return modules


def _layer(file: TensorFile, module: str, design: str, bottleneck: int) -> Bottleneck:
    arrays: dict[str, Array] = {part: file.read(f"{module}.{part}") for part in _PARTS}
    width = arrays["up.bias"].size
    layer = Bottleneck(width, bottleneck, DESIGNS[design].activation)
    for part, parameter in layer.named_parameters():
        if arrays[part].shape != tuple(parameter.shape):
            raise FormatError(
                f"{file.path}: {module}.{part} is {list(arrays[part].shape)}, expected {list(parameter.shape)} for a "
                f"bottleneck of {bottleneck} at width {width}"
            )
    numbers = {part: as_torch(array) for part, array in arrays.items()}
    layer.load_state_dict(numbers, assign=True)
    return layer
