"""Packed sequences as padded batches with a mask of their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from planner.errors import GraphError
from planner.pytorch.capture.autograd_functions import define

KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""PyTorch functions that take packed sequences."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Replaces `batch_sizes` of a PackedSequence; holds the lengths of the sequences, which are data.

    The packed rows are those of a padded batch [time, sample, ...] where `mask` [time, sample] is true.
    """

    lengths: Tensor
    mask: Tensor

    device = torch.device("cpu")

    def __getitem__(self, step: int) -> int:
        """Return the number of samples at the first step, which has all of them."""
        if step != 0:
            raise GraphError("batch_sizes of a packed sequence are data: read the padded sequence")
        return self.mask.shape[1]

    def size(self, dim: int = 0) -> int:
        """Return the number of steps of the padded batch, that is, of its longest sequence."""
        return self.mask.shape[0]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a recurrent layer, or pad."""
        name = function.__name__
        if name == "_pad_packed_sequence":
            return _padded(*args, **(kwargs or {}))
        if name in KINDS:
            return _run(name, *args, **(kwargs or {}))
        raise GraphError(f"{name} of a packed sequence's batch_sizes, which are data: read the padded sequence")


def packed(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Lengths]:
    """Return the rows of a padded batch within the sequences' lengths, in order of time."""
    x = x.transpose(0, 1) if batch_first else x
    lengths = torch.as_tensor(lengths)
    mask = torch.arange(x.shape[0])[:, None] < lengths
    return x[mask], Lengths(lengths, mask)


def _rows_as_batch(rows: Tensor, mask: Tensor, filling: float = 0.0) -> Tensor:
    """Return packed rows as a padded batch [time, sample, ...]."""
    batch = torch.full((*mask.shape, *rows.shape[1:]), filling, dtype=rows.dtype, device=rows.device)
    batch[mask] = rows
    return batch


def _padded(rows: Tensor, sizes: Lengths, batch_first: bool, filling: float, total: int) -> tuple[Tensor, Tensor]:
    batch = _rows_as_batch(rows, sizes.mask, filling)
    if total == sizes.size():
        # PyTorch pads to the longest sequence: this fails at run time if that is shorter than the batch.
        longest = torch.repeat_interleave(sizes.lengths.max()[None], output_size=total)
        batch = batch + longest.to(batch.dtype).view(-1, *[1] * (batch.ndim - 1))
    if (missing := total - batch.shape[0]) > 0:
        more = torch.full((missing, *batch.shape[1:]), filling, dtype=rows.dtype, device=rows.device)
        batch = torch.cat([batch, more])
    return batch.transpose(0, 1) if batch_first else batch, sizes.lengths


def _run(
    kind: str, rows: Tensor, sizes: Lengths, hx: Any, params: Sequence[Tensor], *settings: Any
) -> tuple[Tensor, ...]:
    """Run a recurrent layer on packed rows.

    `settings` are: has biases, layers, dropout, training, bidirectional.
    """
    batch, states = _rows_as_batch(rows, sizes.mask), [hx] if isinstance(hx, Tensor) else list(hx)
    output, *last = torch.ops.planner.recurrent(batch, sizes.lengths, states, list(params), kind, *settings)
    return output[sizes.mask], *last


def recurrent_kernel(
    x: Tensor, lengths: Tensor, hx: list[Tensor], params: list[Tensor], kind: str, *settings: Any
) -> list[Tensor]:
    """Run a recurrent layer on a padded batch of sequences of different lengths."""
    size = x.shape[0]
    function: Mapping[str, Callable[..., Any]] = {name: getattr(torch, name) for name in KINDS}
    state = hx if kind == "lstm" else hx[0]
    result = function[kind](x, state, params, *settings, False)
    output, *last = result
    return [output.new_zeros(size, *output.shape[1:]), *(torch.zeros_like(final) for final in last)]


LIBRARY = define({
    (
        "recurrent(Tensor input, Tensor lengths, Tensor[] hx, Tensor[] params, str kind, bool has_biases, "
        "int num_layers, float dropout, bool train, bool bidirectional) -> Tensor[]"
    ): recurrent_kernel,
})  # fmt: skip
