"""Operators that other frameworks have and the kernels' catalog has not, in the same language.

They are described, analysed and evaluated as every other; there is no kernel for them, so that no training graph uses
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from results.operator_coverage.operators import (
    layout,
    matrix,
    opaque,
    optimizer,
    pointwise,
    random,
    reduction,
    selection,
    spatial,
    windows,
)
from tdl.catalog import catalog
from tdl.index import TDLError
from tdl.operator import Operator

_FAMILIES = (pointwise, optimizer, layout, reduction, matrix, selection, spatial, windows, opaque, random)

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {op.name: op for family in _FAMILIES for op in vars(family).values() if isinstance(op, Operator)}
)


def operator(name: str) -> Operator:
    """Return an operator of the catalog, else one of these; TDLError where neither has it."""
    op = catalog.get(name) or OPERATORS.get(name)
    if op is None:
        raise TDLError(f"unknown operator '{name}'")
    return op
