"""What the rows of a batch change in one module, added to the module's output.

W · x was computed once for all rows by the model itself. One gather takes what the changed entries read of every token, one
product weighs it, and one scatter-add brings it to the outputs: three operations, whatever the number of skills.

Two layouts were kept of those tried on two cores (64 rows of 32 tokens, 1e-4 of 768 × 768 and 3072 × 768). *Rectangular*: every
row has as many entries as the fullest one, and each token's are neighbours in memory; the fastest where rows are alike. *Flat*:
no room is lost to padding; for decoding, batches with base rows, and rows that are unlike. Sorting entries along the wider side
matters most: it took a scatter into 3072 outputs from 7.6 to 1.3 ms. Slower were a transposed copy with embedding_bag (up to
10 ms), a block-diagonal sparse product in CSR (36 ms), a product by small dense matrices over each skill's own rows and
columns (as fast at best, 15 ms at worst), and one row after the other (dispatch).
"""

from __future__ import annotations

import torch
from torch import Tensor

from skillgraft.live.row_entries import BatchEntries, EntryLayout
from skillgraft.live.row_forms import RowModule

_PADDING = 2.0  # the rectangle holds at most so many times the entries themselves


def layout_for(entries: BatchEntries, index: int, tokens: int, *, every_row: bool) -> EntryLayout:
    """The faster layout for a module's entries; a row without a skill is never touched, so `every_row` must have one."""
    if tokens > 1 and every_row and entries.padding(index) <= _PADDING:
        return entries.rectangle(index, tokens)
    return entries.flat(index, tokens)


def added(layout: EntryLayout, given: Tensor, output: Tensor, tokens: int) -> Tensor:
    """The output plus what the entries make of `given`; entries of row i see its tokens alone."""
    if layout.inputs.dim() == 3:
        return _rectangular(layout, given, output, tokens)
    return _flat(layout, given, output, tokens)


def embedded(entries: BatchEntries, index: int, ids: Tensor, output: Tensor, module: RowModule) -> Tensor:
    """The embeddings plus what each row's skill adds to its own tokens, found by (row, token) in a sorted list."""
    keys, outputs, delta = (part.to(ids.device) for part in entries.by_token(index))
    rows = len(entries.counts)
    row = torch.arange(rows, device=ids.device)[:, None]
    asked = (row * module.input_width + ids.reshape(rows, -1)).view(-1)
    low = torch.searchsorted(keys, asked)
    counts = torch.searchsorted(keys, asked, right=True) - low
    tokens = torch.repeat_interleave(torch.arange(len(asked), device=ids.device), counts)
    first = torch.repeat_interleave(low - (counts.cumsum(0) - counts), counts)
    found = first + torch.arange(len(tokens), device=ids.device)
    flat = output.reshape(-1).clone()
    flat.index_add_(0, tokens * module.output_width + outputs[found], (delta[found] * module.scale).to(flat.dtype))
    return flat.view(output.shape)


def _flat(layout: EntryLayout, given: Tensor, output: Tensor, tokens: int) -> Tensor:
    """Entries one after the other, token by token: positions in the flattened tensors."""
    inputs, outputs = layout.inputs, layout.outputs
    if tokens > 1:  # made anew: kept, they would take eight bytes for every entry of every token
        step = torch.arange(tokens, device=inputs.device)[:, None]
        inputs, outputs = (inputs + step * given.shape[-1]).view(-1), (outputs + step * output.shape[-1]).view(-1)
    flat = output.view(-1)
    taken = given.reshape(-1).index_select(0, inputs).view(tokens, -1)
    flat.index_add_(0, outputs, _weighed(taken, layout, flat.dtype).view(-1))
    return output


def _rectangular(layout: EntryLayout, given: Tensor, output: Tensor, tokens: int) -> Tensor:
    rows = len(layout.inputs)
    taken = given.reshape(rows, tokens, -1).gather(2, layout.inputs)
    output.view(rows, tokens, -1).scatter_add_(2, layout.outputs, _weighed(taken, layout, output.dtype))
    return output


def _weighed(taken: Tensor, layout: EntryLayout, dtype: torch.dtype) -> Tensor:
    """taken · delta + constant, rounded once; in place where no graph is recorded."""
    delta, constant = layout.delta, layout.constant
    if torch.is_grad_enabled():
        product = taken * delta if constant is None else torch.addcmul(constant, taken, delta)
        return product.to(dtype)
    if constant is None:
        return taken.mul_(delta)
    return torch.addcmul(constant, taken, delta, out=taken)
