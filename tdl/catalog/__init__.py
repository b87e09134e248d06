"""The catalog: the description of each operator, by name. Operators of core ATen have their ATen names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tdl.catalog import attention, compound, elementwise, reduction, selection
from tdl.index import TDLError
from tdl.operator import Operator

_FAMILIES = (elementwise, attention, reduction, compound, selection)

_operators = {
    operator.name: operator
    for family in _FAMILIES
    for operator in vars(family).values()
    if isinstance(operator, Operator)
}
_operators |= {**elementwise.OPERATORS, **compound.OPERATORS}

BUILT_IN = tuple(_operators)
"""The names of the operators that the catalog contains by default."""

catalog: Mapping[str, Operator] = MappingProxyType(_operators)


def register(operator: Operator) -> Operator:
    """Add a user-defined operator to the catalog and return it. Raises TDLError if the name is taken."""
    if not isinstance(operator, Operator):
        shown = getattr(operator, "__name__", repr(operator))
        raise TDLError(f"{shown}: only operators can be registered; put @tdl.op between @tdl.register and the function")
    if operator.name in _operators:
        raise TDLError(
            f"{operator.name}: name clash: the catalog has an operator of this name, "
            f"described in {_operators[operator.name].function.__module__}; choose another name"
        )
    _operators[operator.name] = operator
    return operator
