"""Run an operator in parts, as workers would, and put the results together: the ground truth for its strategies.

Everything here is by enumeration: what a worker needs is found by evaluating index expressions at every iteration,
and results are placed and combined element by element, so nothing is shared with the code that plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from types import ModuleType
from typing import Any, cast

import numpy as np

from executor.backend import asnumpy
from executor.cases import Array, Case, Draw
from executor.kernels import Kernel, KernelCall, run
from executor.kernels.call import OutputError
from planner.graph.ir import Value
from planner.layout import Runs
from tdl import REDUCERS, Affine, Description, Digits, Index

Iterations = Mapping[str, Runs]
"""The runs of every index variable that one worker computes."""


class PartError(ValueError):
    """The parts do not make up the whole: an element is computed by no part, or by several without a reducer."""


@dataclass(frozen=True)
class Subject:
    """What is run: a kernel, its description at given ranks, one case, and the extents of the whole."""

    kernel: Kernel
    description: Description
    case: Case
    extents: Mapping[str, int]
    xp: ModuleType

    def attributes(self) -> dict[str, Value]:
        """Return the case's attributes with the extent of every variable."""
        return {**self.case.attributes, "extents": self.extents}

    def whole(self) -> dict[str, Runs]:
        """Every iteration."""
        return {variable: ((0, extent),) for variable, extent in self.extents.items()}

    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the outputs."""
        return self.description.output_shapes(self.extents)

    @cached_property
    def output_dtypes(self) -> list[np.dtype[Any]]:
        """Each output's dtype, as the description says."""
        operands = [str(operand.dtype) for operand in self.case.operands]
        return [np.dtype(dtype) for dtype in self.description.output_dtypes(operands)]

    @cached_property
    def indices(self) -> list[list[tuple[Index, ...]]]:
        """The distinct indices of every dimension of every operand."""
        return [self._indices(number) for number in range(len(self.case.operands))]

    def _indices(self, number: int) -> list[tuple[Index, ...]]:
        accessed = [access.index for access in self.description.accesses if access.operand == number]
        if not accessed:
            return [()] * self.case.operands[number].ndim
        return [tuple(dict.fromkeys(indices)) for indices in zip(*accessed, strict=True)]


def deal(draw: Draw, extent: int, parts: int, scattered: bool) -> list[Runs]:
    """Cut range(extent) unevenly into `parts` non-empty parts; scattered parts have several runs each if possible."""
    pieces = min(extent, 2 * parts if scattered else parts)
    inner = sorted(int(cut) for cut in 1 + draw.generator.permutation(extent - 1)[: pieces - 1])
    runs = list(zip([0, *inner], [*inner, extent], strict=True))
    return [tuple(runs[part::parts]) for part in range(min(parts, pieces))]


def run_in_parts(subject: Subject, cuts: Mapping[str, list[Runs]], draw: Draw) -> tuple[Array, ...]:
    """Run every combination of the parts that `cuts` gives for some variables, and assemble the whole outputs."""
    wholes = [
        Assembled(np.zeros(shape, dtype), np.zeros(shape, int))
        for shape, dtype in zip(subject.output_shapes(), subject.output_dtypes, strict=True)
    ]
    reducer = _reducer(subject.description, tuple(cuts))
    for chosen in product(*cuts.values()):
        iterations = subject.whole() | dict(zip(cuts, chosen, strict=True))
        for runs, arrays in run_worker(subject, iterations, frozenset(cuts), draw):
            for output, whole, array in zip(subject.description.outputs, wholes, arrays, strict=True):
                where = np.ix_(*(_positions(index, runs, subject.extents) for index in output.index))
                whole.put(where, array, reducer)
    for number, whole in enumerate(wholes):
        if whole.counts.min() < 1:
            raise PartError(f"output {number} has elements that no part computes")
        if reducer is None and whole.counts.max() > 1:
            raise PartError(f"output {number} has elements that several parts compute, and no reducer")
    return tuple(whole.values for whole in wholes)


@dataclass(frozen=True, slots=True)
class Assembled:
    """An output that is put together of parts, and how many of them each element was put into."""

    values: Array
    counts: Array

    def put(self, where: Any, part: Array, reducer: str | None) -> None:
        """Put one part into its place, combining it with what is there already if there is a reducer."""
        before = self.counts[where]
        part = part.reshape(before.shape)
        if reducer is not None and before.any():
            part = np.where(before > 0, REDUCERS[reducer].numpy(self.values[where], part), part)
        self.values[where] = part
        self.counts[where] += 1


def _reducer(description: Description, variables: tuple[str, ...]) -> str | None:
    """Return the reducer that the strategies of these variables agree on; None where all concatenate."""
    reducers = {description.strategies[variable].reducer for variable in variables} - {None}
    if len(reducers) > 1:
        raise PartError(f"variables {', '.join(variables)} have different reducers {sorted(map(str, reducers))}")
    return next(iter(reducers), None)


def run_worker(
    subject: Subject, iterations: Iterations, split: frozenset[str], draw: Draw
) -> Iterator[tuple[Iterations, tuple[Array, ...]]]:
    """Give one worker the operands it needs and call the kernel once per contiguous run; yield each call's outputs."""
    description, kept = subject.description, None if draw.flag() else split
    local = [_needed(subject, number, iterations, kept) for number in range(len(subject.case.operands))]
    held = [
        subject.xp.asarray(operand[np.ix_(*rows)]) for operand, rows in zip(subject.case.operands, local, strict=True)
    ]
    separate = [variable for variable in iterations if variable in description.contiguous]
    for chosen in product(*(iterations[variable] for variable in separate)):
        runs = dict(iterations) | {variable: (run,) for variable, run in zip(separate, chosen, strict=True)}
        slices, origins = [], []
        for number, rows in enumerate(local):
            wanted = _needed(subject, number, runs, kept)
            placed = [_slice(have, want) for have, want in zip(rows, wanted, strict=True)]
            slices.append(held[number][(..., *placed)])
            origins.append(
                tuple(int(have[cut.start]) if cut.stop else 0 for have, cut in zip(rows, placed, strict=True))
            )
        yield runs, call_kernel(subject, runs, tuple(slices), tuple(origins))


def call_kernel(
    subject: Subject, runs: Iterations, inputs: tuple[Any, ...], origins: tuple[tuple[int, ...], ...]
) -> tuple[Array, ...]:
    """Call the kernel on outputs that are slices of larger arrays, filled with what no result should hold.

    Raises OutputError where it leaves elements as they were.
    """
    outputs = tuple(
        blank(subject.xp, [_length(index, runs) for index in output.index], dtype)
        for output, dtype in zip(subject.description.outputs, subject.output_dtypes, strict=True)
    )
    ranges = {}
    for variable, spans in runs.items():
        length = sum(stop - start for start, stop in spans)
        # Of the others only the length means anything; a start that no tensor reaches shows who uses it.
        start = spans[0][0] if variable in subject.description.contiguous else 1_000_000
        ranges[variable] = (start, start + length)
    run(subject.kernel, KernelCall(subject.xp, inputs, outputs, subject.attributes(), ranges, origins))
    written = tuple(asnumpy(output) for output in outputs)
    for number, output in enumerate(written):
        _require_written(number, output)
    return written


UNWRITTEN = {
    **{"f2": 0x7E5A, "V2": 0x7FDA, "f4": 0x7FC0_5A5A, "f8": 0x7FF8_0000_5A5A_5A5A},
    **{"i4": 0xA5A5_A5A5, "b1": 0xA5},
}
"""Bits of what was never written, by dtype (V2: bfloat16): a NaN that nothing computes, a number that is no index."""


def blank(xp: ModuleType, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """Return an array that is not contiguous, full of what marks an element as unwritten."""
    kind = dtype.str[1:]
    larger = xp.full([extent + 1 for extent in shape], UNWRITTEN[kind], dtype=f"u{kind[1:]}").view(dtype)
    return larger[(..., *(slice(0, extent) for extent in shape))]


def _require_written(number: int, output: Array) -> None:
    kind = output.dtype.str[1:]
    left = output.view(f"u{kind[1:]}") == UNWRITTEN[kind]
    if left.any():
        where = "" if left.all() else f" at {[int(place) for place in np.argwhere(left)[0]]}"
        raise OutputError(
            f"the kernel does not write output {number}{where}: every element must be written, as by "
            f"call.outputs[{number}][...] = values or out=call.outputs[{number}], without reading what was there"
        )


def _length(index: Index, runs: Iterations) -> int:
    """How many coordinates of an output dimension these runs compute."""
    return prod(sum(stop - start for start, stop in runs[variable]) for variable in index.variables)


def _values(runs: Runs) -> Array:
    return np.concatenate([np.arange(start, stop) for start, stop in runs])


def _positions(index: Index, runs: Iterations, extents: Mapping[str, int]) -> Array:
    """Evaluate an index at every combination of its variables' values, first variable slowest; integers only."""
    if isinstance(index, Digits):
        points = np.zeros(1, dtype=int)
        for variable in index.variables:
            points = (points[:, None] * extents[variable] + _values(runs[variable])).reshape(-1)
        return points
    if index.is_plain:
        return _values(runs[index.variables[0]])
    affine = cast(Affine, index)
    scale = affine.denominator
    points = np.full(1, int(affine.constant * scale))
    for variable, factor in affine.terms:
        points = (points[:, None] + int(factor * scale) * _values(runs[variable])).reshape(-1)
    integral: Array = points[points % scale == 0] // scale
    return integral


def _needed(subject: Subject, number: int, runs: Iterations, split: frozenset[str] | None) -> list[Array]:
    """Return the indices needed of each dimension of an operand: hulls per combination of runs, clipped, united.

    Of a mixed-radix tuple it is just what the combinations of its digits reach. A dimension in which none of the
    variables `split` occurs is needed whole; with None every dimension is narrowed.
    """
    operand = subject.case.operands[number]
    dimensions = zip(operand.shape, subject.indices[number], strict=True)
    return [_marked(subject, extent, dim_indices, runs, split) for extent, dim_indices in dimensions]


def _marked(
    subject: Subject, extent: int, indices: tuple[Index, ...], runs: Iterations, split: frozenset[str] | None
) -> Array:
    """Return the places of one dimension that its indices need."""
    if any(
        not isinstance(index, Affine | Digits) or (split is not None and split.isdisjoint(index.variables))
        for index in indices
    ):
        return np.arange(extent)
    if len(indices) == 1 and indices[0].is_plain and runs[indices[0].variables[0]][-1][1] <= extent:
        return _values(runs[indices[0].variables[0]])
    marked = np.zeros(extent, dtype=bool)
    for index in indices:
        if isinstance(index, Digits):
            marked[_positions(index, runs, subject.extents)] = True
        elif index.is_plain:
            for start, stop in runs[index.variables[0]]:
                marked[start:stop] = True
        else:
            for chosen in product(*(runs[variable] for variable in index.variables)):
                single = {variable: (run,) for variable, run in zip(index.variables, chosen, strict=True)}
                points = _positions(index, single, subject.extents)
                if len(points):
                    marked[max(0, points.min()) : max(0, points.max() + 1)] = True
    return np.flatnonzero(marked)


def _slice(have: Array, want: Array) -> slice:
    """Find where `want` lies in `have`; it must be one slice of it."""
    if not len(want):
        return slice(0, 0)
    start = int(np.searchsorted(have, want[0]))
    cut = slice(start, start + len(want))
    if not np.array_equal(have[cut], want):
        raise PartError(f"one call reads indices {want.tolist()} of {have.tolist()}, which are not one slice")
    return cut
