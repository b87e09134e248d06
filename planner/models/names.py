"""Reading the numbers in model names, and scaling published widths."""

from fractions import Fraction

from planner.errors import GraphError


def width(text: str) -> int:
    """Return the number written in decimal, or in units of 1024 with a "k"."""
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


def scaled(units: int, factor: float) -> int:
    """Return `units` times the option `width`; GraphError unless that is a positive integer."""
    product = units * Fraction(factor)
    if product.denominator != 1 or product < 1:
        raise GraphError(f"option width must make {units} units a positive integer, found {factor!r}")
    return int(product)
