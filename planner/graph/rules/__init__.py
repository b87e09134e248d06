"""Gradient rules: for each differentiable operator, the catalog nodes that compute its operands' gradients.

A rule sees one forward node and returns one gradient per operand, None where none flows. Compound operators (batch
norm, softmax, cross entropy) are differentiated whole: they return the total derivative, through the statistics too,
so that the nodes which compute the statistics get no gradient of their own.
"""

from planner.graph.rules import attention, compound, elementwise, matrix, reduction, shape
from planner.graph.rules.base import (
    Backward,
    Gradient,
    Gradients,
    Rule,
    apply_rule,
    flat,
    level,
    materialize,
    zeros,
)

_FAMILIES = (elementwise, matrix, reduction, shape, compound, attention)
RULES: dict[str, Rule] = {op: rule for family in _FAMILIES for op, rule in family.RULES.items()}

UNBOUNDED = frozenset((
    "acos", "acosh", "asin", "atanh", "cbrt", "cosh", "div", "exp", "expm1", "hypot", "log", "log10", "log1p", "log2",
    "pow", "pow_scalar", "reciprocal", "rpow_scalar", "rsqrt", "sinh", "sqrt", "torch_call",
))  # fmt: skip
"""Operators of which some operands of ordinary size, or any that are not known here, have no finite result or slope."""

__all__ = [
    "RULES",
    "UNBOUNDED",
    "Backward",
    "Gradient",
    "Gradients",
    "Rule",
    "apply_rule",
    "flat",
    "level",
    "materialize",
    "zeros",
]
