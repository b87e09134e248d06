"""Reference evaluation of descriptions in NumPy, at all points of the iteration space at once.

Each index variable is an axis. A value is an array over these axes (size 1 along variables it does not depend on), with
a mask of the points at which all its reads were inside their tensors. If a read is outside, or at a non-integer point,
a reducer skips the iteration; outside reducers the read returns zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from operator import and_
from typing import Any

import numpy as np
from msgspec import Struct, field

from tdl.analysis import Output
from tdl.expr import FUNCTIONS, REDUCERS, Call, Constant, Coordinate, Element, Expr, OpaqueElement, Reduce
from tdl.index import Affine, Bounds, Digits, Index, TDLError, Whole

Array = np.ndarray[Any, np.dtype[Any]]


class Masked(Struct, frozen=True):
    """A value at each point, and the mask of points whose reads were inside.

    Both broadcast over the variables' axes.
    """

    value: Array
    inside: Array


class Evaluator(Struct, frozen=True):
    """Evaluates expressions within given bounds of each variable, in axis order."""

    arrays: Sequence[Array]
    extents: Mapping[str, int]
    bounds: Bounds
    known: dict[int, tuple[Expr, Masked]] = field(default_factory=dict)

    def output(self, output: Output, variables: Sequence[str]) -> Array:
        """Return one output within the bounds of the output variables, in the order of its coordinates."""
        sizes = {name: stop - start for name, (start, stop) in self.bounds.items()}
        value = self.evaluate(output.value).value
        names = [name for index in output.index for name in index.variables]
        axes = [name for name in variables if name in names]
        space = [sizes[name] if name in axes else 1 for name in self.bounds]
        grid = np.broadcast_to(value, space).reshape([sizes[name] for name in axes])
        order = [axes.index(name) for name in names]
        shape = [prod(sizes[name] for name in index.variables) for index in output.index]
        return grid.transpose(order).reshape(shape)

    def evaluate(self, node: Expr) -> Masked:
        """Return the node's value. Each node is computed once."""
        if id(node) not in self.known:
            self.known[id(node)] = (node, self._evaluate(node))
        return self.known[id(node)][1]

    def _evaluate(self, node: Expr) -> Masked:
        match node:
            case Constant(value):
                return self._always(np.asarray(value if isinstance(value, int) else float(value)))
            case Coordinate(affine):
                scaled = self._scaled(affine)
                return self._always(scaled if affine.denominator == 1 else scaled / affine.denominator)
            case Element():
                return self._gather(self.arrays[node.operand], node.index)
            case Call(function, arguments):
                parts = [self.evaluate(argument) for argument in arguments]
                inside = reduce(and_, (part.inside for part in parts))
                return Masked(np.asarray(FUNCTIONS[function].numpy(*(part.value for part in parts))), inside)
            case Reduce():
                return self._reduce(node)
            case OpaqueElement():
                return self._opaque(node)
        raise TypeError(node)

    def _always(self, value: Array) -> Masked:
        value = value.reshape((1,) * (len(self.bounds) - value.ndim) + value.shape)
        return Masked(value, np.ones((1,) * len(self.bounds), dtype=bool))

    def _grid(self, name: str) -> Array:
        """Return all values of a variable, along its own axis."""
        return np.arange(*self.bounds[name]).reshape([-1 if variable == name else 1 for variable in self.bounds])

    def _scaled(self, affine: Affine) -> Array:
        """Return the index times its denominator, as integers."""
        total: Array = np.full((1,) * len(self.bounds), affine.offset)
        for name, factor in affine.numerators:
            total = total + factor * self._grid(name)
        return total

    def _position(self, index: Affine | Digits, size: int) -> Masked:
        """Return the positions an index points to, clamped to the dimension, and the mask of those inside."""
        if isinstance(index, Digits):
            scaled, scale = np.zeros((1,) * len(self.bounds), dtype=int), 1
            for name in index.variables:
                scaled = scaled * self.extents[name] + self._grid(name)
        else:
            scaled, scale = self._scaled(index), index.denominator
        inside = (scaled % scale == 0) & (scaled >= 0) & (scaled < size * scale)
        return Masked(np.where(inside, scaled // scale, 0), inside)

    def _gather(self, array: Array, index: tuple[Index, ...]) -> Masked:
        """Return elements of an array (or slices, as trailing axes), zero outside of it."""
        names = [own.variables[0] for own in index if own.is_plain]
        if len(set(names)) == len(index) and self._within(names, array.shape):
            return self._always(self._slices(array, names))
        whole = [d for d, i in enumerate(index) if isinstance(i, Whole)]
        places = [(d, i) for d, i in enumerate(index) if not isinstance(i, Whole)]
        ordered = array.transpose([d for d, _ in places] + whole)
        positions = [self._position(i, size) for (_, i), size in zip(places, ordered.shape, strict=False)]
        inside = reduce(and_, (position.inside for position in positions), self._always(np.asarray(True)).inside)
        if 0 in ordered.shape[: len(places)]:
            return Masked(np.zeros(inside.shape + ordered.shape[len(places) :], array.dtype), inside)
        value = ordered[tuple(np.broadcast_to(p.value, inside.shape) for p in positions)]
        if not positions:
            value = value.reshape(inside.shape + value.shape)
        kept = inside.reshape(inside.shape + (1,) * len(whole))
        return Masked(np.where(kept, value, np.zeros((), array.dtype)), inside)

    def _within(self, names: Sequence[str], shape: Sequence[int]) -> bool:
        """Return True if no value of the variables, one per dimension, is outside its dimension."""
        bounds = (self.bounds[name] for name in names)
        return all(start >= 0 and stop <= size for (start, stop), size in zip(bounds, shape, strict=True))

    def _slices(self, array: Array, names: Sequence[str]) -> Array:
        """Return the elements of an array that is indexed by distinct variables, one per dimension."""
        part = array[tuple(slice(*self.bounds[name]) for name in names)]
        own = [name for name in self.bounds if name in names]
        return part.transpose([names.index(name) for name in own]).reshape(
            [part.shape[names.index(name)] if name in names else 1 for name in self.bounds]
        )

    def _reduce(self, node: Reduce) -> Masked:
        body = self.evaluate(node.body)
        combine = REDUCERS[node.reducer]
        value = body.value.astype(int) if body.value.dtype == bool else body.value
        space = [stop - start if name in node.variables else 1 for name, (start, stop) in self.bounds.items()]
        shape = np.broadcast_shapes(value.shape, body.inside.shape, tuple(space))
        kept = np.where(body.inside, value, _identity(combine.identity, value.dtype))
        axes = tuple(axis for axis, name in enumerate(self.bounds) if name in node.variables)
        initial = _identity(combine.identity, value.dtype)
        reduced = combine.numpy.reduce(np.broadcast_to(kept, shape), axis=axes, keepdims=True, initial=initial)
        return self._always(np.asarray(reduced))

    def _opaque(self, node: OpaqueElement) -> Masked:
        """Call the function once per combination of its operands' variables, then index the results."""
        axes = len(self.bounds)
        parts = [self.evaluate(operand) for operand in node.operands]
        batch = np.broadcast_shapes(*(part.value.shape[:axes] for part in parts))
        stacked = [np.broadcast_to(part.value, batch + part.value.shape[axes:]) for part in parts]
        results = self._called(node, stacked, batch)
        if results.ndim != axes + len(node.index):
            raise TDLError(f"{node.name} returned {results.ndim - axes} dimensions, indexed by {len(node.index)}")
        positions = [self._position(i, size) for i, size in zip(node.index, results.shape[axes:], strict=True)]
        own: tuple[Array, ...] = np.ix_(*(np.arange(n) for n in batch))
        inside = np.logical_and.reduce(np.broadcast_arrays(*(p.inside for p in (*parts, *positions))))
        value = results[(*own, *(p.value for p in positions))]
        return Masked(np.where(inside, value, np.zeros((), value.dtype)), np.asarray(inside))

    def _called(self, node: OpaqueElement, stacked: Sequence[Array], batch: tuple[int, ...]) -> Array:
        """Return the results of an opaque function for all combinations of its operands' variables.

        Raises TDLError if the function has no NumPy meaning, or if it raises an exception.
        """
        if node.function is None:
            raise TDLError(f"{node.name} has no reference function; give one: OpaqueFunction(function)")
        if 0 in batch:
            return np.zeros(batch + (1,) * len(node.index))
        try:
            called = [np.asarray(node.function(*(part[at] for part in stacked))) for at in np.ndindex(batch)]
            results: Array = np.stack(called)
        except Exception as error:  # the function is the user's
            shapes = ", ".join(str(part.shape[len(batch) :]) for part in stacked)
            raise TDLError(f"{node.name} of shapes {shapes}: {type(error).__name__}: {error}") from error
        return results.reshape(batch + results.shape[1:])


def _identity(identity: float, dtype: np.dtype[Any]) -> Any:
    """Return the reducer's identity in a dtype. Integers use their limits instead of infinity."""
    if np.issubdtype(dtype, np.integer) and np.isinf(identity):
        limits = np.iinfo(dtype)
        return dtype.type(limits.max if identity > 0 else limits.min)
    return dtype.type(identity)
