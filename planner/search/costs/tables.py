"""Interned cost tables: equal tables have one number, so work on repeated layers is done once.

Every operation caches its results by the numbers of its operands. A term is a table with the variables of its axes:
`Term = (scope, number)`, scope strictly ascending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from hashlib import sha256
from math import prod
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Table = NDArray[np.int64]
Packed = Table | NDArray[np.uint32]
"""A table as stored: large tables use 32 bits if their values fit."""

AnyTable = TypeVar("AnyTable", bound=Packed)
Scope = tuple[int, ...]
Term = tuple[Scope, int]
Shape = tuple[tuple[int, Scope], ...]
"""Terms seen from one variable: table numbers, and the positions of their axes among that variable and its neighbours.

"""

SMALL_ELEMENTS = 1 << 16
"""Up to this many sums, a minimum is computed at once and not block by block."""

CACHED_ELEMENTS = 1 << 15
SPLIT_ELEMENTS = 1 << 22
CHECKED_STATES = 4

DIGESTED_ELEMENTS = 1 << 8
"""From this size on, an array is identified by a digest of its contents."""

LARGE_ELEMENTS = 1 << 16
"""From this size on, an array is stored in 32 bits if its values fit."""


class Tables:
    """Tables by number, with cached results of operations on them.

    A number stays valid for the lifetime of the object, which also holds the memory.
    """

    def __init__(self) -> None:
        self._arrays: list[Packed] = []
        self._numbers: dict[tuple[tuple[int, ...], bytes], int] = {}
        self._computed: dict[object, tuple[int, ...]] = {}
        self._parts: dict[int, tuple[tuple[Scope, int], ...]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(array.nbytes for array in self._arrays)

    def __getitem__(self, number: int) -> Table:
        return _unpacked_table(self._arrays[number])

    def entry(self, number: int, index: tuple[int, ...]) -> int:
        """Return one entry of a table."""
        return int(self._arrays[number].item(index))

    def part_of_table(self, number: int, index: tuple[Any, ...]) -> Table:
        """Return part of a table without unpacking the rest of a large one."""
        return _unpacked_table(self._arrays[number][index])

    def intern(self, array: Table) -> int:
        """Return the number of the table with these contents."""
        packed = _packed_table(np.asarray(array, dtype=np.int64, order="C"))
        key = (packed.shape, packed.tobytes() if packed.size < DIGESTED_ELEMENTS else sha256(packed.data).digest())
        number = self._numbers.setdefault(key, len(self._arrays))
        if number == len(self._arrays):
            packed.flags.writeable = False
            self._arrays.append(packed)
        return number

    def remembered_tables(self, key: object, compute: Callable[[], Iterable[Table]]) -> tuple[int, ...]:
        """Return the numbers of the tables computed under this key; compute them the first time."""
        numbers = self._computed.get(key)
        if numbers is None:
            numbers = self._computed[key] = tuple(self.intern(array) for array in compute())
        return numbers

    def weighted_sum(self, terms: tuple[tuple[int, int], ...]) -> int:
        """Return the number of the sum of weight * table over (number, weight); all tables have one shape."""
        return self.remembered_tables(
            ("sum", terms), lambda: [reduce(np.add, [self[number] * weight for number, weight in terms])]
        )[0]

    def sum_of_terms(self, terms: Shape, rank: int) -> int:
        """Return the number of the sum of terms whose axes lie at given positions; one term spans all `rank` axes."""
        if len(terms) == 1:
            return terms[0][0]
        views = (table_with_axes_spread(self[number], positions, rank) for number, positions in terms)
        return self.remembered_tables(("added", terms), lambda: [reduce(np.add, views)])[0]

    def with_axes_arranged(self, number: int, positions: Scope) -> int:
        """Return the table with axis i moved to position positions[i]; axes of equal position become their diagonal."""
        order = sorted(set(positions))
        if list(positions) == order:
            return number
        return self.remembered_tables(
            ("arranged", number, positions), lambda: [np.einsum(self[number], list(positions), order)]
        )[0]

    def restricted_to_states(self, number: int, kept: tuple[tuple[int, ...] | None, ...]) -> int:
        """Return the table restricted, along each axis, to the kept states (None: all)."""
        if all(states is None for states in kept):
            return number

        def restricted_table() -> Iterable[Table]:
            array = self[number]
            for axis, states in enumerate(kept):
                if states is not None:
                    array = array.take(states, axis=axis)
            yield array

        return self.remembered_tables(("taken", number, kept), restricted_table)[0]

    def minimum_over_other_axes(self, number: int, kept: Scope, parts: int) -> int:
        """Return the minimum over all axes but the kept ones, divided by `parts` and rounded down."""
        others = tuple(axis for axis in range(self[number].ndim) if axis not in kept)
        return self.remembered_tables(
            ("lowest", number, kept, parts), lambda: [self[number].min(axis=others) // parts]
        )[0]

    def separable_parts(self, number: int) -> tuple[tuple[Scope, int], ...]:
        """Return simpler tables whose sum is the table, each with the axes it spans; none of them has an idle axis."""
        if number not in self._parts:
            self._parts[number] = self._split_into_parts(number)
        return self._parts[number]

    def _split_into_parts(self, number: int) -> tuple[tuple[Scope, int], ...]:
        array = self[number]
        axes = [axis for axis in range(array.ndim) if array.shape[axis] > 1 and not _is_axis_idle(array, axis)]
        reduced = array[tuple(slice(None) if axis in axes else 0 for axis in range(array.ndim))]
        if len(axes) == 2 and reduced.size <= SPLIT_ELEMENTS:
            rows, columns = reduced[:, 0], reduced[0] - reduced[0, 0]
            if bool((reduced == rows[:, None] + columns).all()):
                return ((axes[0],), self.intern(rows)), ((axes[1],), self.intern(columns))
        return (((tuple(axes)), self.intern(reduced)),)

    def minimum_over_first_axis(self, terms: Shape, sizes: tuple[int, ...]) -> tuple[int, int]:
        """Minimize the sum of terms over axis 0; the axes of the terms lie at given positions and have given sizes.

        Return the overall minimum, and the number of the table of what each entry exceeds it by.
        """
        least, beyond = self.remembered_tables(
            ("minimum", terms, sizes),
            lambda: _least_and_table_of_excess(self._minimum_over_first_axis_of_sum(terms, sizes)),
        )
        return int(self[least]), beyond

    def _minimum_over_first_axis_of_sum(self, terms: Shape, sizes: tuple[int, ...]) -> Table:
        views = [table_with_axes_spread(self._arrays[number], positions, len(sizes)) for number, positions in terms]
        if prod(sizes) <= SMALL_ELEMENTS:
            return np.asarray(
                np.broadcast_to(reduce(np.add, [_unpacked_table(view) for view in views]), sizes).min(axis=0)
            )
        return _blockwise_minimum(views, sizes)

    def sum_along_first_axis(self, terms: Shape, at: Sequence[int], size: int) -> Table:
        """Return the sum of terms along axis 0, with the states of the other axes given by `at`."""
        total = np.zeros(size, dtype=np.int64)
        for number, positions in terms:
            index = tuple(slice(None) if position == 0 else at[position - 1] for position in positions)
            total += self.part_of_table(number, index)
        return total


def _packed_table(array: Table) -> Packed:
    if array.size < LARGE_ELEMENTS or array.min() < 0 or array.max() > np.iinfo(np.uint32).max:
        return array
    return array.astype(np.uint32)


def _unpacked_table(array: Packed) -> Table:
    return np.asarray(array, dtype=np.int64)


def _least_and_table_of_excess(array: Table) -> tuple[Table, Table]:
    """Return the minimum of a table, and the table of what each entry exceeds it by."""
    least = array.min()
    return least, np.subtract(array, least, out=array)


def _is_axis_idle(array: Table, axis: int) -> bool:
    first = array[(*(slice(None),) * axis, slice(1))]
    return bool((array == first).all())


def table_with_axes_spread(array: AnyTable, positions: Scope, rank: int) -> AnyTable:
    """Return a view of a table with its axes at the given positions among `rank`, of length 1 elsewhere."""
    shape = [1] * rank
    for position, size in zip(positions, array.shape, strict=True):
        shape[position] = size
    return array.transpose(sorted(range(array.ndim), key=positions.__getitem__)).reshape(shape)  # type: ignore[return-value]


def _blockwise_minimum(views: Sequence[Packed], sizes: tuple[int, ...]) -> Table:
    """Return the minimum over axis 0 of the sum of views, computed block by block so that each block stays in cache.

    The leading axes of the result are looped over one index at a time, the trailing ones are handled at once.
    """
    split = 1
    while prod(sizes[split:]) > CACHED_ELEMENTS:
        split += 1
    parts = [_Part(view, split) for view in views]
    result = np.empty(sizes[1:], dtype=np.int64)
    for index in np.ndindex(sizes[1:split]):
        all_blocks = [part.block_at(index) for part in parts]
        base = np.zeros(sizes[0], dtype=np.int64)
        for block in all_blocks:
            if block.is_single:
                base = base + block.low
        blocks = [block for block in all_blocks if not block.is_single]
        result[index] = _least_sum_over_states(blocks, base, sizes[split:])
    return result


class _Block(Struct, frozen=True):
    """Costs [state, ...], and the minimum of each state: [state]."""

    costs: Table
    low: Table

    @property
    def is_single(self) -> bool:
        """True if there is one cost per state."""
        return self.costs.size == len(self.costs)


class _Part:
    """One view's blocks."""

    def __init__(self, view: Packed, split: int) -> None:
        self._view = view
        self._sizes = view.shape[1:split]
        self._met_again = 1 in self._sizes
        self._blocks: dict[tuple[int, ...], _Block] = {}

    def block_at(self, index: tuple[int, ...]) -> _Block:
        at = tuple(i if size > 1 else 0 for i, size in zip(index, self._sizes, strict=True))
        block = self._blocks.get(at)
        if block is None:
            costs = _unpacked_table(self._view[(slice(None), *at)])  # type: ignore[arg-type]
            block = _Block(costs, costs.reshape(len(costs), -1).min(axis=1))
            if self._met_again:
                self._blocks[at] = block
        return block


def _least_sum_over_states(blocks: Sequence[_Block], base: Table, shape: tuple[int, ...]) -> Table:
    """Return the minimum over states of base + blocks; skip states whose minimum is already too large."""
    if not blocks:
        return np.full(shape, base.min())
    low = base + reduce(np.add, [block.low for block in blocks])
    best = np.full(shape, np.iinfo(np.int64).max)
    total = np.empty(shape, dtype=np.int64)
    for tried, state in enumerate(np.argsort(low, kind="stable").tolist()):
        if tried % CHECKED_STATES == 0 and low[state] >= best.max():
            break
        np.add(blocks[0].costs[state], base[state], out=total)
        for block in blocks[1:]:
            np.add(total, block.costs[state], out=total)
        np.minimum(best, total, out=best)
    return best
