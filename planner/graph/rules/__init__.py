"""Gradient rules: for each differentiable operator, the catalog nodes that compute its operands' gradients.

A rule sees one forward node and returns one gradient per operand, or None where no gradient flows. Compound operators
(batch norm, softmax, cross entropy) are differentiated whole: they return the total derivative, including that through
the statistics, so the nodes that compute the statistics get no gradient of their own.
"""

from planner.graph.rules import compound, elements, matrix
from planner.graph.rules.base import (
    Backward as Backward,
    Gradient as Gradient,
    Gradients as Gradients,
    Rule as Rule,
    apply_rule as apply_rule,
    flat as flat,
    level as level,
    materialize as materialize,
)

_FAMILIES = (elements, matrix, compound)
RULES: dict[str, Rule] = {op: rule for family in _FAMILIES for op, rule in family.RULES.items()}

UNBOUNDED = frozenset((
    "acos", "acosh", "asin", "atanh", "cbrt", "cosh", "div", "exp", "expm1", "hypot", "log", "log10", "log1p", "log2",
    "pow", "pow_scalar", "reciprocal", "rpow_scalar", "rsqrt", "sinh", "sqrt", "torch_call",
))  # fmt: skip
"""Operators without a finite result or slope for some operands of ordinary size, or that are unknown here."""
