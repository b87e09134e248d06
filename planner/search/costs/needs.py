"""What operators need of tensors, where their results land, and classes of strategies that differ in neither."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

import tdl
from planner.layout import Signature
from planner.layout.split import REMEMBERED
from planner.search.costs.counts import Reach, interned_reach_of_indices
from planner.search.costs.domains import Strategies
from planner.search.costs.tables import Table

Need = tuple[Reach, ...]
"""What one operand needs of a tensor: one Reach per dimension."""


@lru_cache(maxsize=REMEMBERED)
def needs_of_operands(signature: Signature, operands: tuple[int, ...]) -> tuple[Need, ...]:
    """Return the distinct needs of a node that reads a tensor through these operands."""
    return tuple(dict.fromkeys(operand_need(signature, operand) for operand in operands))


@lru_cache(maxsize=REMEMBERED)
def operand_need(signature: Signature, operand: int) -> Need:
    """Return what a node needs of an operand: per dimension, everything that its accesses reach."""
    accesses = [access for access in signature.description.accesses if access.operand == operand]
    return tuple(
        _reach_of_indices(signature, extent, tuple(dict.fromkeys(access.index[dim] for access in accesses)))
        for dim, extent in enumerate(signature.shapes[operand])
    )


@lru_cache(maxsize=REMEMBERED)
def output_reach(signature: Signature, output: int) -> Need:
    """Return where a node's iterations land in an output: per dimension, a Reach."""
    indices = signature.description.outputs[output].index
    return tuple(
        _reach_of_indices(signature, extent, (index,))
        for index, extent in zip(indices, signature.outputs[output], strict=True)
    )


def _reach_of_indices(signature: Signature, extent: int, indices: tuple[tdl.Index, ...]) -> Reach:
    variables = dict.fromkeys(chain.from_iterable(index.variables for index in indices))
    return interned_reach_of_indices(extent, indices, tuple((name, signature.extents[name]) for name in variables))


class Classes(Struct, frozen=True):
    """Classes of strategies with equal masks: `of` maps [state] to a class, `masks` is [class, column]."""

    of: NDArray[np.intp]
    masks: Table


def classes_of_equal_columns(columns: Sequence[NDArray[np.int64]], states: int) -> Classes:
    """Return the classes of states with equal values in all columns [state]."""
    numbers: dict[tuple[int, ...], int] = {}
    rows = zip(*(column.tolist() for column in columns), strict=True) if columns else [()] * states
    of = [numbers.setdefault(row, len(numbers)) for row in rows]
    masks = np.array(list(numbers), dtype=np.int64).reshape(len(numbers), len(columns))
    return Classes(np.array(of, dtype=np.intp), masks)


def strategy_classes_by_need(needs: tuple[Need, ...], strategies: Strategies, more: Sequence[Table] = ()) -> Classes:
    """Return the classes of strategies with equal masks of each need's variables and equal columns `more`."""
    names = [name for need in needs for dimension in need for name in dimension.variables]
    return classes_of_equal_columns([*map(strategies.steps_choosing, names), *more], len(strategies.states))


Demand = tuple[tuple[Reach, tuple[int, ...]], ...]
"""What a class of strategies reaches of one dimension: per need, the Reach and the mask of each of its variables."""


def demands_of_classes(needs: tuple[Need, ...], masks: Table) -> list[list[Demand]]:
    """Return what the strategies of each class reach: [dimension][class], with an entry per need."""
    demands: list[list[Demand]] = [[] for _ in needs[0]]
    for chosen in masks.tolist():
        at = iter(chosen)
        per_need = [[(dimension, tuple(next(at) for _ in dimension.variables)) for dimension in need] for need in needs]
        for dim, term in enumerate(zip(*per_need, strict=True)):
            demands[dim].append(term)
    return demands
