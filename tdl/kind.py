"""Whether a value is a truth value, an integer or a floating-point number."""

from __future__ import annotations

from tdl.expr import Call, Constant, Coordinate, Element, Expr, Reduce
from tdl.functions import FUNCTIONS

ORDER = ("bool", "int", "float")


def element_kind(expression: Expr, integers: frozenset[int]) -> str:
    """Return "bool", "int" or "float", where the operands at these positions hold integers."""
    match expression:
        case Constant(value):
            return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
        case Coordinate(affine):
            return "int" if affine.denominator == 1 else "float"
        case Element(operand):
            return "int" if operand in integers else "float"
        case Reduce(_, _, _, body):
            return element_kind(body, integers)
        case Call(function, arguments):
            fixed = FUNCTIONS[function].result
            parts = arguments[1:] if function == "where" else arguments
            return fixed if fixed != "same" else max((element_kind(a, integers) for a in parts), key=ORDER.index)
    return "float"
