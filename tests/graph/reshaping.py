"""Attributes of a reshape from the two shapes."""

from itertools import accumulate, pairwise
from math import prod
from operator import mul

from tdl import TDLError


def reshape_attributes(shape, new_shape):
    """Return `source`, `target` and `extents` of the reshape from one shape to another.

    Every dimension of both shapes becomes a mixed-radix tuple of common factors, so that each factor is a strategy.
    Raises TDLError where the shapes have no common factors, such as (4, 6) and (6, 4): go by way of one dimension.
    """
    if prod(shape) != prod(new_shape) or 0 in shape:
        raise TDLError(f"reshape: {shape} has {prod(shape)} elements and {new_shape} has {prod(new_shape)}")
    # The elements that one step of a dimension skips; a factor lies between any two neighbours of either shape's.
    steps = sorted({*accumulate(reversed(shape), mul), *accumulate(reversed(new_shape), mul), 1}, reverse=True)
    factors = [(high, low) for high, low in pairwise(steps)]
    if any(high % low for high, low in factors):
        raise TDLError(f"reshape: {shape} and {new_shape} have no common factors; reshape to ({prod(shape)},) between")
    names = {high: f"v{number}" for number, (high, _) in enumerate(factors)}

    def grouping(dims):
        ends = list(accumulate(reversed(dims), mul, initial=1))[::-1]
        return tuple(tuple(names[step] for step in steps if low < step <= high) for high, low in pairwise(ends))

    extents = {names[high]: high // low for high, low in factors}
    return {"source": grouping(shape), "target": grouping(new_shape), "extents": extents}
