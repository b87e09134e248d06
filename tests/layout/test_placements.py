"""Axes and placements of a mesh, read as DTensor reads them, name the very elements that a layout gives a worker."""

from itertools import product

import numpy as np
import pytest

from planner.graph.ir import groups
from planner.layout import PARTIAL, REPLICATE, Shard, Ways, owned
from planner.layout.region import coarser
from planner.layout.ways import Axis, StridedShard, interleaved_twice, mesh_axes, uneven

WAYS = [Ways(factors) for factors in ((2,), (2, 2), (2, 2, 2), (4, 2), (3, 2, 2), (2, 3))]
PLACEMENTS = (Shard(0), Shard(1), REPLICATE)


def axes_of(layout, ways):
    """The axes of a tensor whose dimensions are seen as they are."""
    return mesh_axes(layout, ways, (1, 1), ((0,), (1,)))


def held(shape, axes, worker):
    """What a mesh's coordinate holds, dimension by dimension: each axis shares out what those before it left."""
    coordinates = np.unravel_index(worker, tuple(axis.ways for axis in axes))
    indices = [np.arange(extent) for extent in shape]
    for axis, coordinate in zip(axes, coordinates, strict=True):
        if isinstance(axis.placement, Shard | StridedShard):
            dim, chunks = axis.placement.dim, getattr(axis.placement, "split_factor", 1)
            parts = [np.array_split(chunk, axis.ways)[coordinate] for chunk in np.array_split(indices[dim], chunks)]
            indices[dim] = np.concatenate(parts)
    return [index.tolist() for index in indices]


def by_layout(shape, layout, ways, worker):
    return [[i for start, stop in runs for i in range(start, stop)] for runs in owned(shape, layout, ways, worker)]


@pytest.mark.parametrize("ways", WAYS, ids=str)
def test_a_mesh_holds_what_a_layout_says(ways):
    workers = ways.workers
    shape = (2 * workers, workers)
    for layout in product(PLACEMENTS, repeat=len(ways)):
        assert uneven(shape, layout, ways) is None
        for worker in range(workers):
            assert held(shape, axes_of(layout, ways), worker) == by_layout(shape, layout, ways, worker)


@pytest.mark.parametrize("ways", WAYS, ids=str)
def test_what_is_called_even_is_held_alike(ways):
    """Whatever extent is not refused, a mesh holds rightly; and some extent is refused of every split."""
    workers = ways.workers
    for layout in product(PLACEMENTS, repeat=len(ways)):
        refused = [uneven((extent, 2 * workers), layout, ways) for extent in range(1, 2 * workers + 1)]
        assert any(refused) == (Shard(0) in layout)
        for extent, reason in enumerate(refused, start=1):
            if reason is None:
                shape = (extent, 2 * workers)
                by_mesh = [held(shape, axes_of(layout, ways), worker) for worker in range(workers)]
                assert by_mesh == [by_layout(shape, layout, ways, worker) for worker in range(workers)]


def test_adjacent_steps_with_the_same_placement_are_one_axis():
    ways = Ways((2, 3, 2, 2))
    assert axes_of((REPLICATE, Shard(0), Shard(0), REPLICATE), ways) == (
        Axis(2, REPLICATE, (0,)),
        Axis(6, StridedShard(0, 2), (1, 2)),
        Axis(2, REPLICATE, (3,)),
    )
    assert axes_of((Shard(1), Shard(1), PARTIAL, Shard(1)), ways) == (
        Axis(6, Shard(1), (0, 1)),
        Axis(2, PARTIAL, (2,)),
        Axis(2, StridedShard(1, 2), (3,)),
    )
    assert [str(StridedShard(0, 2)), axes_of((), ())] == ["S0/2", ()]


def test_what_is_interleaved_along_several_axes_is_named():
    assert interleaved_twice(axes_of((REPLICATE, Shard(0), Shard(0)), (2, 2, 2))) is None
    assert interleaved_twice(axes_of((Shard(1), Shard(0), REPLICATE, Shard(1)), (2, 2, 2, 2))) is None
    assert interleaved_twice(axes_of((REPLICATE, Shard(0), REPLICATE, Shard(0)), (2, 2, 2, 2))) == (
        "dimension 0: expected to be interleaved along one axis, found 2"
    )
    assert interleaved_twice(mesh_axes((Shard(1), Shard(0)), (2, 2), (4, 4), ((0, 1),))) is not None


def test_an_uneven_extent_is_named():
    assert uneven((6, 4), (REPLICATE, Shard(0)), Ways((2, 2))) == (
        "dimension 0: expected an extent that 4 parts divide, found 6"
    )
    assert uneven((6, 4), (Shard(0), REPLICATE), Ways((2, 2))) is None
    assert uneven((7, 4), (Shard(0), Shard(1)), Ways((2, 2))) == (
        "dimension 0: expected an extent that 2 parts divide, found 7"
    )


@pytest.mark.parametrize("ways", [Ways(factors) for factors in ((2, 2), (4, 2), (2, 2, 2), (3, 2, 2))], ids=str)
@pytest.mark.parametrize(("fine", "coarse"), [((3, 24, 2), (144,)), ((3, 24, 2, 12), (72, 24)), ((24, 12), (24, 12))])
def test_a_view_with_coarser_dimensions_holds_the_same(ways, fine, coarse):
    for layout in product((REPLICATE, *map(Shard, range(len(fine)))), repeat=len(ways)):
        if uneven(fine, layout, ways) is not None:
            continue
        axes = mesh_axes(layout, ways, fine, groups(coarse, fine))
        for worker in range(ways.workers):
            region = coarser(owned(fine, layout, ways, worker), fine, coarse)
            expected = [[i for start, stop in runs for i in range(start, stop)] for runs in region]
            assert held(coarse, axes, worker) == expected
