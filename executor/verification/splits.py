"""Split an operator along every strategy by enumeration, and compare with the unsplit result.

Parts are uneven, contiguous or scattered over several runs; strategies are taken alone and in pairs. Besides the kernel
the description itself is evaluated in parts: a kernel may hide what a strategy gets wrong, by ignoring its variable.
What strategies say of halos must cover what parts read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from math import ceil, floor, prod
from typing import cast

import numpy as np

from executor.cases import Array, Draw
from executor.verification.check import EXACT, Application, Check, compared, difference
from executor.verification.parts import PartError, Subject, deal, run_in_parts
from tdl import REDUCERS, Affine, Halo, Output, Strategy
from tdl.index import Rational


def split_checks(application: Application, draw: Draw) -> Iterator[Check]:
    """Yield the checks of every strategy that the extents of this case permit."""
    subject = application.subject
    names = [name for name in subject.description.strategies if subject.extents[name] > 1]
    pairs = list(combinations(names, 2))
    chosen = [pairs[number] for number in draw.generator.permutation(len(pairs))[: application.pairs]]
    for together in [*((name,) for name in names), *chosen]:
        for scattered in (False, True):
            yield split_check(application, draw, together, scattered=scattered)
    for name in names:
        yield from meaning_checks(application, draw, name)


def split_check(application: Application, draw: Draw, together: Sequence[str], *, scattered: bool) -> Check:
    """Check the kernel on random parts along some variables, each of extent 2 or more."""
    subject = application.subject
    cuts = {name: deal(draw, subject.extents[name], draw.size(2, 3), scattered) for name in together}
    return compared(f"split {','.join(together)}", partial(run_in_parts, subject, cuts, draw), application.expected)


def meaning_checks(application: Application, draw: Draw, name: str) -> Iterator[Check]:
    """Yield the checks of one strategy that need no kernel: the description in two parts, and its halos."""
    subject = application.subject
    strategy = subject.description.strategies[name]
    cut = draw.size(1, subject.extents[name] - 1)
    parts = ((0, cut), (cut, subject.extents[name]))
    if strategy.reducer is None:
        part = parts[draw.size(0, 1)]
        yield Check(f"meaning of {name}", partial(part_differs, application, name, part))
    else:
        compute = partial(reduce_parts, subject, strategy, parts)
        yield compared(f"meaning of {name}", compute, application.expected)
    if strategy.halos:
        stop = draw.size(1, subject.extents[name])
        yield Check(f"halo of {name}", partial(uncovered, subject, strategy, (draw.size(0, stop - 1), stop)))


def reduce_parts(subject: Subject, strategy: Strategy, parts: Sequence[tuple[int, int]]) -> list[Array]:
    """Evaluate the description in two parts, and combine them by the strategy's reducer: no kernel runs."""
    results = [_evaluate(subject, strategy.variable, part) for part in parts]
    combine = REDUCERS[cast(str, strategy.reducer)].numpy
    return [np.asarray(combine(*pair)) for pair in zip(*results, strict=True)]


def part_differs(application: Application, variable: str, part: tuple[int, int]) -> str | None:
    """Evaluate the description in one part, and say how it differs from the same part of the whole, or None."""
    subject = application.subject
    expected = [
        _part_of(whole, subject, variable, (output, part))
        for whole, output in zip(application.expected, subject.description.outputs, strict=True)
    ]
    return difference(_evaluate(subject, variable, part), expected, EXACT)


def _evaluate(subject: Subject, variable: str, part: tuple[int, int]) -> tuple[Array, ...]:
    case = subject.case
    return subject.description.evaluate(case.operands, case.attributes, subject.extents, {variable: part})


def _part_of(whole: Array, subject: Subject, variable: str, place: tuple[Output, tuple[int, int]]) -> Array:
    """Cut along a variable's own axis: a mixed-radix dimension is taken apart and merged again."""
    output, (start, stop) = place
    names = [name for index in output.index for name in index.variables]
    if variable not in names:
        raise PartError(f"parts of {variable} are to be concatenated, but no output dimension runs over it")
    sizes = dict(subject.extents) | {variable: stop - start}
    apart = whole.reshape([subject.extents[name] for name in names])
    cut = apart[tuple(slice(start, stop) if name == variable else slice(None) for name in names)]
    return cut.reshape([prod(sizes[name] for name in index.variables) for index in output.index])


def uncovered(subject: Subject, strategy: Strategy, part: tuple[int, int]) -> str | None:
    """Say which index a part reads beyond the halos that a strategy states, or None."""
    for access in subject.description.accesses:
        for dimension, index in enumerate(access.index):
            if not isinstance(index, Affine) or strategy.variable not in index.variables or index.is_plain:
                continue
            image = index.image(
                {name: (0, extent) for name, extent in subject.extents.items()} | {strategy.variable: part}
            )
            factor = dict(index.terms)[strategy.variable]
            halos = [h for h in strategy.halos if (h.operand, h.dimension) == (access.operand, dimension)]
            reach = [_share(halo, factor, part, subject) for halo in halos]
            if image[0] < image[1] and not any(low <= image[0] and image[1] <= high for low, high in reach):
                return f"{part} reads {image} of operand {access.operand}, dimension {dimension}; halos say {reach}"
    return None


def _share(halo: Halo, factor: Rational, part: tuple[int, int], subject: Subject) -> tuple[int, int]:
    """Return the part's own share of a dimension, widened by the halo."""
    below, above = halo.widths(subject.extents)
    ends = [factor * end for end in part] if factor > 0 else [factor * (end - 1) for end in reversed(part)]
    return floor(ends[0]) - below, ceil(ends[1]) + above
