"""Whether a value is a boolean, an integer or a floating-point number."""

from __future__ import annotations

from collections.abc import Sequence

from tdl.expr import Call, Constant, Coordinate, Element, Expr, OpaqueElement, Reduce
from tdl.functions import FUNCTIONS

ORDER = ("bool", "int", "float")

SELECTING = ("where", "maximum", "minimum")
"""Functions whose result is one of their arguments, so that booleans give a boolean."""


def dtype_kind(dtype: str) -> str:
    """Return the kind of a dtype's elements: "bool", "int" or "float"."""
    return "bool" if dtype == "bool" else "float" if "float" in dtype else "int"


def element_kind(expression: Expr, operands: Sequence[str]) -> str:
    """Return the kind of an expression, given those of the operands: "bool", "int" or "float".

    A sum of booleans is "int".
    """
    kind = "float"
    match expression:
        case Constant(value):
            kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
        case Coordinate(affine):
            kind = "int" if affine.denominator == 1 else "float"
        case Element(operand):
            kind = operands[operand]
        case Reduce(_, _, _, body):
            kind = _counted(element_kind(body, operands))
        case OpaqueElement(kind=fixed, operands=parts):
            kind = _widest(parts, operands) if fixed == "same" else fixed
        case Call():
            kind = _kind_of_call(expression, operands)
    return kind


def _kind_of_call(call: Call, operands: Sequence[str]) -> str:
    fixed = FUNCTIONS[call.function].result
    if fixed != "same":
        return fixed
    kind = _widest(call.arguments[1:] if call.function == "where" else call.arguments, operands)
    return kind if call.function in SELECTING else _counted(kind)


def _widest(expressions: Sequence[Expr], operands: Sequence[str]) -> str:
    return max((element_kind(expression, operands) for expression in expressions), key=ORDER.index)


def _counted(kind: str) -> str:
    return "int" if kind == "bool" else kind
