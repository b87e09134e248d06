"""Immediate inference: which placements of operands give which placement of the result, from the description alone.

DistPar writes these tables by hand (its Table 1 is that of a matrix product); here they follow from what TDL finds: one
row per variable that an operator can be split along, one per set of operands in which it is linear.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tdl
from planner.layout.geometry import EVERYWHERE, TERMS
from planner.layout.ways import PARTIAL, REPLICATE, Placement, Shard
from planner.search.partial_sums import linear_sets


@dataclass(frozen=True, slots=True)
class Inference:
    """One choice at one step: where the operands lie so that nothing need move, and where the results then are."""

    choice: str
    operands: tuple[Placement, ...]
    outputs: tuple[Placement, ...]


def inferences(description: tdl.Description) -> tuple[Inference, ...]:
    """Return what an operator allows at a step: its variables, terms of partial operands, everything everywhere.

    An operand indexed by a window is sharded along it, and its halo moves all the same. Results that are reduced
    otherwise than by a sum have no placement.
    """
    operands, outputs = len(description.operands), len(description.outputs)
    split = (name for name, how in description.strategies.items() if how.reducer in (None, "Sum"))
    choices = [_split(description, name) for name in split]
    for chosen in linear_sets(description):
        placements = tuple(PARTIAL if operand in chosen else REPLICATE for operand in range(operands))
        choices.append(Inference(TERMS, placements, (PARTIAL,) * outputs))
    choices.append(Inference(EVERYWHERE, (REPLICATE,) * operands, (REPLICATE,) * outputs))
    return tuple(choices)


def _split(description: tdl.Description, name: str) -> Inference:
    operands = tuple(
        _along((access.index for access in description.accesses if access.operand == operand), name)
        for operand in range(len(description.operands))
    )
    if description.strategies[name].reducer is not None:
        return Inference(name, operands, (PARTIAL,) * len(description.outputs))
    return Inference(name, operands, tuple(_along((output.index,), name) for output in description.outputs))


def _along(accesses: Iterable[tuple[tdl.Index, ...]], name: str) -> Placement:
    """Return the placement along the first dimension that the variable indexes; replicated if it indexes none."""
    for indices in accesses:
        for dim, index in enumerate(indices):
            if not isinstance(index, tdl.Whole) and name in index.variables:
                return Shard(dim)
    return REPLICATE
