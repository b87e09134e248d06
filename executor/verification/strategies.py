"""What a description says of its strategies, evaluated in two parts without a kernel, which may hide what is wrong.

The parts' results, concatenated or combined, must be the unsplit one; halos must cover what parts read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil, floor, prod
from typing import cast

import numpy as np

from executor.cases import Array, Draw
from executor.verification.application import EXACT, Application, Check, PartError, compared, difference
from tdl import REDUCERS, Affine, Halo, Output, Strategy
from tdl.index import Rational


def strategy_checks(application: Application, draw: Draw) -> Iterator[Check]:
    """Yield the checks of every strategy that the extents of this case permit."""
    for name in application.description.strategies:
        if application.extents[name] > 1:
            yield from meaning_checks(application, draw, name)


def meaning_checks(application: Application, draw: Draw, name: str) -> Iterator[Check]:
    """Yield the checks of one strategy, whose variable has an extent of 2 or more."""
    extent, strategy = application.extents[name], application.description.strategies[name]
    cut = draw.size(1, extent - 1)
    parts = ((0, cut), (cut, extent))
    if strategy.reducer is None:
        part = parts[draw.size(0, 1)]
        yield Check(f"meaning of {name}", partial(_part_differs, application, name, part))
    else:
        compute = partial(_reduce_parts, application, strategy, parts)
        yield compared(f"meaning of {name}", compute, application.expected)
    if strategy.halos:
        stop = draw.size(1, extent)
        yield Check(f"halo of {name}", partial(uncovered, application, strategy, (draw.size(0, stop - 1), stop)))


def _reduce_parts(application: Application, strategy: Strategy, parts: Sequence[tuple[int, int]]) -> list[Array]:
    """Evaluate the description in two parts, and combine them by the strategy's reducer."""
    results = [_evaluate(application, strategy.variable, part) for part in parts]
    combine = REDUCERS[cast(str, strategy.reducer)].numpy
    return [np.asarray(combine(*pair)) for pair in zip(*results, strict=True)]


def _part_differs(application: Application, variable: str, part: tuple[int, int]) -> str | None:
    """Evaluate the description in one part, and say how it differs from the same part of the whole, or None."""
    expected = [
        _part_of(whole, application, variable, (output, part))
        for whole, output in zip(application.expected, application.description.outputs, strict=True)
    ]
    return difference(_evaluate(application, variable, part), expected, EXACT)


def _evaluate(application: Application, variable: str, part: tuple[int, int]) -> tuple[Array, ...]:
    case = application.case
    return application.description.evaluate(case.operands, case.attributes, application.extents, {variable: part})


def _part_of(whole: Array, application: Application, variable: str, place: tuple[Output, tuple[int, int]]) -> Array:
    """Cut along a variable's own axis: a mixed-radix dimension is taken apart and merged again."""
    output, (start, stop) = place
    names = [name for index in output.index for name in index.variables]
    if variable not in names:
        raise PartError(f"parts of {variable} are to be concatenated, but no output dimension runs over it")
    sizes = dict(application.extents) | {variable: stop - start}
    apart = whole.reshape([application.extents[name] for name in names])
    cut = apart[tuple(slice(start, stop) if name == variable else slice(None) for name in names)]
    return cut.reshape([prod(sizes[name] for name in index.variables) for index in output.index])


def uncovered(application: Application, strategy: Strategy, part: tuple[int, int]) -> str | None:
    """Say which index a part reads beyond the halos that a strategy states, or None."""
    for access in application.description.accesses:
        for dimension, index in enumerate(access.index):
            if not isinstance(index, Affine) or strategy.variable not in index.variables or index.is_plain:
                continue
            image = index.image({**application.whole, strategy.variable: part})
            factor = dict(index.terms)[strategy.variable]
            halos = [h for h in strategy.halos if (h.operand, h.dimension) == (access.operand, dimension)]
            reach = [_share(halo, factor, part, application) for halo in halos]
            if image[0] < image[1] and not any(low <= image[0] and image[1] <= high for low, high in reach):
                return f"{part} reads {image} of operand {access.operand}, dimension {dimension}; halos say {reach}"
    return None


def _share(halo: Halo, factor: Rational, part: tuple[int, int], application: Application) -> tuple[int, int]:
    """Return the part's own share of a dimension, widened by the halo."""
    below, above = halo.widths(application.extents)
    ends = [factor * end for end in part] if factor > 0 else [factor * (end - 1) for end in reversed(part)]
    return floor(ends[0]) - below, ceil(ends[1]) + above
