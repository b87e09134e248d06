"""Every strategy gives the unsplit result: evaluate parts of the range, concatenate or reduce, compare."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

import tdl
from tdl import REDUCERS, Affine, Digits
from tests.tdl.cases import CASES, Case


def parts(extent: int) -> Iterator[tuple[int, int]]:
    """Three uneven parts, or as many as there are elements."""
    cuts = sorted({0, extent // 3, extent // 2, extent})
    yield from pairwise(cuts)


def split_results(case: Case) -> Iterator[tuple[str, list[np.ndarray], list[np.ndarray]]]:
    found = tdl.catalog[case.op].describe([a.ndim for a in case.arrays], case.attributes)
    extents = found.extents([a.shape for a in case.arrays], case.attributes)
    whole = found.evaluate(case.arrays, case.attributes, extents)
    for name, strategy in found.strategies.items():
        pieces = [
            found.evaluate(case.arrays, case.attributes, extents, {name: bounds}) for bounds in parts(extents[name])
        ]
        joined = []
        for number, output in enumerate(found.outputs):
            own = [piece[number] for piece in pieces]
            if strategy.reducer:
                joined.append(REDUCERS[strategy.reducer].numpy.reduce(own, axis=0))
            else:
                joined.append(concatenate(own, output, name, extents, pieces=list(parts(extents[name]))))
        yield name, joined, list(whole)


def concatenate(own, output, name, extents, pieces):
    """Concatenate along the variable's own axis: a mixed-radix dimension is taken apart and merged again."""
    names = [variable for index in output.index for variable in index.variables]
    axis = names.index(name)
    apart = [
        piece.reshape([stop - start if n == name else extents[n] for n in names])
        for piece, (start, stop) in zip(own, pieces, strict=True)
    ]
    shape = [int(np.prod([extents[n] for n in index.variables])) for index in output.index]
    return np.concatenate(apart, axis).reshape(shape)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_strategy_gives_the_unsplit_result(case):
    for name, joined, whole in split_results(case):
        for result, right in zip(joined, whole, strict=True):
            np.testing.assert_allclose(result, right, rtol=1e-12, atol=1e-12, err_msg=name)


def cells(index: tdl.Index, size: int, bounds: dict[str, tuple[int, int]], extents: dict[str, int]) -> slice:
    """What a part needs of one dimension: the hull of the image; whole where no split variable occurs."""
    if isinstance(index, Affine):
        low, high = index.image(bounds)
        return slice(max(low, 0), max(min(high, size), 0))
    if isinstance(index, Digits):
        first = last = 0
        for name in index.variables:
            first, last = first * extents[name] + bounds[name][0], last * extents[name] + bounds[name][1] - 1
        return slice(first, last + 1)
    return slice(0, size)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_part_reads_nothing_outside_its_access_regions(case):
    """Poison all that the access regions of a part do not name: the part's result does not change."""
    found = tdl.catalog[case.op].describe([a.ndim for a in case.arrays], case.attributes)
    extents = found.extents([a.shape for a in case.arrays], case.attributes)
    for name in found.strategies:
        for part in parts(extents[name]):
            bounds = {n: (0, e) for n, e in extents.items()} | {name: part}
            poisoned = [np.full_like(a, np.nan if a.dtype.kind == "f" else -999) for a in case.arrays]
            for access in found.accesses:
                array = case.arrays[access.operand]
                region = tuple(
                    cells(i, size, bounds, extents) for i, size in zip(access.index, array.shape, strict=True)
                )
                poisoned[access.operand][region] = array[region]
            clean = found.evaluate(case.arrays, case.attributes, extents, {name: part})
            dirty = found.evaluate(poisoned, case.attributes, extents, {name: part})
            for one, other in zip(clean, dirty, strict=True):
                np.testing.assert_array_equal(one, other, err_msg=name)
