"""Split an operator along every strategy by enumeration, and compare with the unsplit result.

Parts are uneven, contiguous or scattered over several runs; strategies are taken alone and in pairs. What strategies
say of halos must cover what parts read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations
from math import ceil, floor

from executor.verify_cases import Draw
from executor.verify_check import Application, Check, compared
from executor.verify_parts import Subject, deal, run_in_parts
from tdl import Affine, Halo, Strategy
from tdl.index import Rational


def split_checks(application: Application, draw: Draw) -> Iterator[Check]:
    """Yield the checks of every strategy that the extents of this case permit."""
    subject = application.subject
    names = [name for name in subject.description.strategies if subject.extents[name] > 1]
    pairs = list(combinations(names, 2))
    chosen = [pairs[number] for number in draw.generator.permutation(len(pairs))[: application.pairs]]
    for together in [*((name,) for name in names), *chosen]:
        for scattered in (False, True):
            cuts = {name: deal(draw, subject.extents[name], draw.size(2, 3), scattered) for name in together}
            compute = partial(run_in_parts, subject, cuts, draw)
            yield compared(f"split {','.join(together)}", compute, application.expected)
    for name in names:
        strategy = subject.description.strategies[name]
        if strategy.halos:
            stop = draw.size(1, subject.extents[name])
            yield Check(f"halo of {name}", partial(uncovered, subject, strategy, (draw.size(0, stop - 1), stop)))


def uncovered(subject: Subject, strategy: Strategy, part: tuple[int, int]) -> str | None:
    """Say which index a part reads beyond the halos that a strategy states, or None."""
    for access in subject.description.accesses:
        for dimension, index in enumerate(access.index):
            if not isinstance(index, Affine) or strategy.variable not in index.variables or index.is_plain:
                continue
            image = index.image(
                {name: (0, extent) for name, extent in subject.extents.items()} | {strategy.variable: part}
            )
            own = dict(index.terms)[strategy.variable]
            halos = [h for h in strategy.halos if (h.operand, h.dimension) == (access.operand, dimension)]
            reach = [_share(halo, own, part, subject) for halo in halos]
            if image[0] < image[1] and not any(low <= image[0] and image[1] <= high for low, high in reach):
                return f"{part} reads {image} of operand {access.operand}, dimension {dimension}; halos say {reach}"
    return None


def _share(halo: Halo, factor: Rational, part: tuple[int, int], subject: Subject) -> tuple[int, int]:
    """Return the part's own share of a dimension, widened by the halo."""
    below, above = halo.widths(subject.extents)
    ends = [factor * end for end in part] if factor > 0 else [factor * (end - 1) for end in reversed(part)]
    return floor(ends[0]) - below, ceil(ends[1]) + above
