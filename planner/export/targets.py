"""What an engine that a plan is exported to can split by itself, and what it does with the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tdl
from planner.layout import Signature


@dataclass(frozen=True, slots=True)
class Target:
    """An engine: what it is called, its template, and of an operator the variables that it splits and why no others."""

    name: str
    template: str
    splits: Callable[[Signature], tuple[tuple[str, ...], str]]


def leading(index: tdl.Index) -> str | None:
    """Return the variable that an index is, or of which it has the leading digit."""
    if index.is_plain or isinstance(index, tdl.Digits):
        return next(iter(index.variables), None)
    return None


def _of_samples_only(signature: Signature) -> str | None:
    """Return the variable of samples of an operator of which DTensor takes nothing else split, rightly or at all."""
    if signature.category == "convolution" or signature.op.startswith("batch_norm"):
        return leading(signature.description.accesses[0].index[0])
    return None


def dims_to_hold(signature: Signature, indices: Sequence[tdl.Index]) -> frozenset[int] | None:
    """Return the dimensions that a tensor, which DTensor's operator reads or writes by these indices, may be split in.

    None where that is left to the operator.
    """
    samples = _of_samples_only(signature)
    if samples is None:
        return None
    return frozenset(dim for dim, index in enumerate(indices) if leading(index) == samples)


def _contiguous(signature: Signature) -> tuple[str, ...]:
    """Return the variables whose parts are contiguous parts of a dimension, of all that they index."""
    description = signature.description
    indices = [index for access in description.accesses for index in access.index]
    indices += [index for output in description.outputs for index in output.index]
    return tuple(
        name
        for name in description.strategies
        if all(leading(index) == name for index in indices if name in index.variables)
    )


def _dtensor(signature: Signature) -> tuple[tuple[str, ...], str]:
    """DTensor 2.13: measured."""
    if signature.op.startswith("batch_norm"):
        return (), "batch norm reads its batch whole: gathered"
    if samples := _of_samples_only(signature):
        return (samples,), "convolutions are split by samples only"
    found = _contiguous(signature)
    why = "a dimension that is cut up or joined can be split in its first part only"
    return found, "" if len(found) == len(signature.description.strategies) else why


def _jax(signature: Signature) -> tuple[tuple[str, ...], str]:
    return _contiguous(signature), ""


TARGETS = {
    "dtensor": Target("PyTorch's DTensor", "dtensor.txt", _dtensor),
    "jax": Target("JAX", "jax.txt", _jax),
}
