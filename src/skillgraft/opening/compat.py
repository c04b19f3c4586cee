"""The private names of transformers and torch that skillgraft uses: one function each, and nowhere else.

A private name may go with any release, so this page is what to read when a new one comes out. A name that is missing is one
error: what was expected, what was found, what to install. Nothing heavy is imported before it is needed.

The tests of this page and of what builds on it (slots, live) pass with transformers 5.6.0, 5.7.0, 5.9.0, 5.14.0, 5.16.0, 5.18.0,
5.20.0, 5.22.2 and 5.23.0 under torch 2.13.0. All names are there from 5.0.0 on, but 5.0.0 to 5.5.4 write a loaded BERT's
LayerNorms under other names than they read (gamma, beta): there a live BERT is not what its folder is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from skillgraft.errors import RunError
from skillgraft.values.info import versions

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

# The ranges of pyproject.toml.
EXPECTED = {"transformers": ">=5.0,<6", "torch": ">=2.6"}


def stored_form(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's tensors as its folder stores them: names, parts and order as they were before transformers loaded them.

    A tensor that is only renamed stays the same object. A model that nobody loaded has its architecture's default form.
    """
    revert = _private("transformers.core_model_loading", "revert_weight_conversion")
    form: dict[str, Tensor] = revert(model, dict(tensors))
    return form


def can_load(auto_class: Any, config: Any) -> bool:
    """Whether that Auto class of transformers has a model for this configuration."""
    try:
        return type(config) in auto_class._model_mapping
    except AttributeError as error:
        raise _missing("transformers", f"{auto_class.__name__}._model_mapping") from error


def hub_file(model: str, file: str) -> str | None:
    """The local path of a file of a model on the hub, fetched if need be; None if the model has no such file."""
    from transformers.utils import cached_file

    option = "_raise_exceptions_for_missing_entries"
    try:
        found: str | None = cached_file(model, file, **{option: False})
    except TypeError as error:
        if option not in str(error):
            raise
        raise _missing("transformers", f"cached_file({option}=False)") from error
    return found


def tables(model: nn.Module) -> Iterator[tuple[str, dict[str, Any], set[str]]]:
    """Each module's path with its own tables of parameters and buffers, and the keys there that are never saved."""
    for path, module in model.named_modules(remove_duplicate=False):
        yield path, module._parameters, set()
        yield path, module._buffers, module._non_persistent_buffers_set


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """A module's own table of parameters, its submodules' left out; None stands for one that it does without."""
    return module._parameters


def table_ids(model: nn.Module) -> list[int]:
    """Which tables of parameters a model has: another answer means that a submodule came, went or was replaced.

    Asked at every switch of grafts, so it walks the modules itself: `named_modules` takes ten times as long.
    """
    modules: list[nn.Module | None] = [model]
    for module in modules:
        if module is not None and module._modules:
            modules.extend(module._modules.values())
    return [id(module._parameters) for module in modules if module is not None]


def watched_operations(see: Callable[[list[Any]], None]) -> AbstractContextManager[Any]:
    """While it is entered, `see` gets what goes into every torch operation, and then what comes out of it."""
    mode = _private("torch.utils._python_dispatch", "TorchDispatchMode")
    leaves = _private("torch.utils._pytree", "tree_leaves")

    def dispatch(_mode: Any, func: Callable[..., Any], _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        see(leaves((args, kwargs)))
        result = func(*args, **(kwargs or {}))
        see(leaves(result))
        return result

    watched: AbstractContextManager[Any] = type("Watched", (mode,), {"__torch_dispatch__": dispatch})()
    return watched


def in_one_format(model: nn.Module, dtype: torch.dtype) -> None:
    """Parameters that transformers made in float32 though their architecture does not ask for it, in the model's own format.

    DeBERTa's q_bias and XLNet's attention are such: beside parameters in bfloat16 their own code fails. What an architecture
    keeps in float32 on purpose (T5's wo) stays.
    """
    kept = {
        *(getattr(model, "_keep_in_fp32_modules", None) or ()),
        *(getattr(model, "_keep_in_fp32_modules_strict", None) or ()),
    }
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != dtype and not kept.intersection(name.split(".")):
            parameter.data = parameter.data.to(dtype)


def key_value_cache(layers: list[Any], new: Callable[[], Any]) -> Any:
    """A cache of transformers over layers of our own, each with `append`, `length`; `new` makes those that are missing.

    transformers asks a cache for three things only: to take keys and values in, its length, and the sizes of a mask.
    """
    cache_class = _private("transformers.cache_utils", "Cache")

    def update(_cache: Any, keys: Tensor, values: Tensor, layer_idx: int, *_args: Any, **_options: Any) -> Any:
        while len(layers) <= layer_idx:
            layers.append(new())
        return layers[layer_idx].append(keys, values)

    def length(_cache: Any, _layer_idx: int = 0, **_options: Any) -> int:
        return int(layers[0].length) if layers else 0

    def mask_sizes(_cache: Any, query_length: int, _layer_idx: int = 0) -> tuple[int, int]:
        return length(_cache) + query_length, 0

    own = {"update": update, "get_seq_length": length, "get_query_offset": length, "get_mask_sizes": mask_sizes}
    return type("OwnCache", (cache_class,), own)(layers=[])


def encoder_decoder_cache(config: Any) -> Any:
    """An empty cache of an encoder-decoder: what its decoder has seen of itself, and of the encoder."""
    own, crossed = (_private("transformers.cache_utils", "DynamicCache")(config=config) for _ in range(2))
    return _private("transformers.cache_utils", "EncoderDecoderCache")(own, crossed)


def _private(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise _missing(module.partition(".")[0], f"{module}.{name}") from error


def _missing(package: str, name: str) -> RunError:
    wanted = f"{package}{EXPECTED[package]}"
    return RunError(
        f"expected {wanted}, which has {name}; found {package} {versions().get(package, '(none)')}, which has not; "
        f"install one that fits: pip install '{wanted}'"
    )
