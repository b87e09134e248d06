"""The catalog: every operator's description, by name (core ATen's where it has one)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tdl.catalog import convolution, elementwise, examples, loss, matrix, normalisation, reduction, shape
from tdl.operator import Operator

_FAMILIES = (elementwise, matrix, convolution, reduction, normalisation, loss, shape, examples)

catalog: Mapping[str, Operator] = MappingProxyType(
    {found.name: found for family in _FAMILIES for found in vars(family).values() if isinstance(found, Operator)}
)
