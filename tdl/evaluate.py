"""Reference evaluation of descriptions in NumPy, at all points of the iteration space at once; and derivatives.

Each index variable is an axis. A value is an array over these axes (size 1 along variables it does not depend on), with
a mask of the points at which all its reads were inside their tensors. If a read is outside, or at a non-integer point,
a reducer skips the iteration; outside reducers the read returns zero.

Derivatives of expressions are in reverse mode, with one rule per function. If a condition selects a value, it also
selects the gradient. The gradient is not multiplied by zero, because that would turn infinity into NaN. At ties and
bounds the gradients are those of PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from operator import and_
from typing import Any

import numpy as np
from msgspec import Struct, field

from tdl.analysis import Output
from tdl.expr import FUNCTIONS, REDUCERS, Call, Constant, Coordinate, Element, Expr, OpaqueElement, Reduce, lift
from tdl.index import Affine, Bounds, Digits, Index, TDLError, Whole
from tdl.language import cos, cosh, exp, hypot, log, power, sigmoid, sign, sin, sinh, sqrt, trunc, where

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


Gradients = dict[int, Expr]
"""The gradient of each leaf that a value depends on, by the leaf's number."""


def gradients(value: Expr, arriving: Expr, leaves: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the gradient of each leaf, given the gradient that arrives at the value.

    Leaves are expressions in `value`, compared by identity. Raises TDLError if a function has no derivative.
    """
    numbers = {id(leaf): number for number, leaf in enumerate(leaves)}
    passed = _passed(value, arriving, numbers)
    return tuple(passed.get(number, Constant(0.0)) for number in range(len(leaves)))


def _passed(value: Expr, arriving: Expr, numbers: Mapping[int, int]) -> Gradients:
    if id(value) in numbers:
        return {numbers[id(value)]: arriving}
    if not isinstance(value, Call) or not _reads(value, numbers):
        return {}
    if value.function == "where":
        return _chosen(value.arguments[0], *(_passed(part, arriving, numbers) for part in value.arguments[1:]))
    if value.function == "multiply" and value.arguments[0] is not value.arguments[1]:
        return _of_product(value.arguments, arriving, numbers)
    total: Gradients = {}
    if value.function not in RULES:
        raise TDLError(f"{value.function} has no derivative")
    shares = RULES[value.function](arriving, value, *value.arguments)
    for argument, share in zip(value.arguments, shares, strict=True):
        if _reads(argument, numbers) and not isinstance(share, Constant):
            for number, gradient in _passed(argument, share, numbers).items():
                total[number] = total[number] + gradient if number in total else gradient
    return total


def _of_product(factors: Sequence[Expr], arriving: Expr, numbers: Mapping[int, int]) -> Gradients:
    """Return the gradients of a product.

    The other factor is applied last, because a large factor often meets a small one.
    """
    a, b = factors
    total = {number: _times(gradient, b) for number, gradient in _passed(a, arriving, numbers).items()}
    for number, gradient in _passed(b, arriving, numbers).items():
        share = _times(gradient, a)
        total[number] = total[number] + share if number in total else share
    return total


def _reads(value: Expr, numbers: Mapping[int, int]) -> bool:
    return id(value) in numbers or any(_reads(child, numbers) for child in value.children)


def _chosen(condition: Expr, first: Gradients, second: Gradients) -> Gradients:
    zero = Constant(0)
    numbers = sorted({*first, *second})
    return {number: where(condition, first.get(number, zero), second.get(number, zero)) for number in numbers}


def _times(gradient: Expr, *factors: Expr | float) -> Expr:
    """Return a product with all constants merged into one, which comes last."""
    for factor in map(lift, factors):
        inner, constant = _parted(gradient)
        if isinstance(factor, Constant):
            scale = constant * float(factor.value)
            gradient = inner if scale == 1 else inner * scale
        else:
            gradient = inner * factor if constant == 1 else inner * factor * constant
    return gradient


def _over(gradient: Expr, divisor: Expr) -> Expr:
    """Return a quotient with constants moved to the end."""
    if isinstance(divisor, Constant):
        return _times(gradient, 1 / float(divisor.value))
    inner, constant = _parted(gradient)
    return _times(inner / divisor, constant)


def _parted(gradient: Expr) -> tuple[Expr, float]:
    """Split an expression into a factor without a constant, and the constant."""
    match gradient:
        case Call("multiply", (inner, Constant(value))):
            return inner, float(value)
    return gradient, 1.0


def _difference(a: Expr, b: Expr) -> Expr:
    return a if isinstance(b, Constant) and b.value == 0 else a - b


def _quotient(g: Expr, result: Expr, a: Expr, b: Expr) -> tuple[Expr, ...]:
    share = _over(g, b)
    if isinstance(a, Constant):
        return share, _times(_over(g, b * b), -float(a.value))
    return share, _times(share, result, -1.0)


def _of_greater(g: Expr, a: Expr, b: Expr) -> Expr:
    """Return the share of a gradient that goes to a: all if a is greater, half if they are equal, otherwise none."""
    return where(a < b, 0, where(a == b, 0.5 * g, g))


def _power(g: Expr, result: Expr, a: Expr, b: Expr) -> tuple[Expr, ...]:
    """Return the gradients of base and exponent. The exponent's is zero for base 0 and a non-negative power."""
    base = where(b == 0, 0, _times(g, power(a, b - 1), b))
    if isinstance(b, Constant):
        root = a if b.value == 2 else power(a, b.value - 1)
        base = _times(g, root, b) if b.value else where(a == g, 0.0, 0.0)  # zeros with the index variables of both
    exponent = _times(g, result, log_of(float(a.value)) if isinstance(a, Constant) else log(a))
    if isinstance(a, Constant):
        return base, exponent if a.value else where(b >= 0, 0, exponent)
    return base, where((a == 0) & (b >= 0), 0, exponent)


def log_of(value: float) -> float:
    """Return the logarithm of any number, as NumPy would: -inf for 0 and nan for negative numbers."""
    return math.log(value) if value > 0 else math.nan if value < 0 else -math.inf


def _angle(g: Expr, _: Expr, a: Expr, b: Expr) -> tuple[Expr, ...]:
    """Return the gradients of an angle. They are zero if both coordinates are zero."""
    squares = a * a + b * b
    share = where(squares == 0, 0, g / squares)
    return share * b, -share * a


RULES: Mapping[str, Callable[..., tuple[Expr, ...]]] = {
    "add": lambda g, r, a, b: (g, g),
    "subtract": lambda g, r, a, b: (g, _times(g, -1.0)),
    "multiply": lambda g, r, x, _: (_times(g, x, 2.0), Constant(0)),
    "divide": _quotient,
    "negative": lambda g, r, x: (_times(g, -1.0),),
    "absolute": lambda g, r, x: (_times(g, sign(x)),),
    "maximum": lambda g, r, a, b: (_of_greater(g, a, b), _of_greater(g, b, a)),
    "minimum": lambda g, r, a, b: (_of_greater(g, b, a), _of_greater(g, a, b)),
    "power": _power,
    "remainder": lambda g, r, a, b: (g, _times(g, a // b, -1.0)),
    "fmod": lambda g, r, a, b: (g, _times(g, trunc(a / b), -1.0)),
    "atan2": _angle,
    "hypot": lambda g, r, a, b: (_times(g, a / r), _times(g, b / r)),
    "logaddexp": lambda g, r, a, b: (_times(g, sigmoid(_difference(a, b))), _times(g, sigmoid(_difference(b, a)))),
    "exp": lambda g, r, x: (_times(g, r),),
    "expm1": lambda g, r, x: (_times(g, exp(x)),),
    "log": lambda g, r, x: (_over(g, x),),
    "log1p": lambda g, r, x: (_over(g, x + 1),),
    "log2": lambda g, r, x: (_times(_over(g, x), 1 / math.log(2)),),
    "log10": lambda g, r, x: (_times(_over(g, x), 1 / math.log(10)),),
    "sqrt": lambda g, r, x: (_times(_over(g, r), 0.5),),
    "rsqrt": lambda g, r, x: (_times(g, r, r, r, -0.5),),
    "cbrt": lambda g, r, x: (_times(_over(g, r * r), 1 / 3),),
    "sin": lambda g, r, x: (_times(g, cos(x)),),
    "cos": lambda g, r, x: (_times(g, sin(x), -1.0),),
    "tan": lambda g, r, x: (_times(g, 1 + r * r),),
    "asin": lambda g, r, x: (_over(g, sqrt((1 - x) * (1 + x))),),
    "acos": lambda g, r, x: (_times(_over(g, sqrt((1 - x) * (1 + x))), -1.0),),
    "atan": lambda g, r, x: (_over(g, 1 + x * x),),
    "sinh": lambda g, r, x: (_times(g, cosh(x)),),
    "cosh": lambda g, r, x: (_times(g, sinh(x)),),
    "tanh": lambda g, r, x: (_times(g, 1 - r * r),),
    "asinh": lambda g, r, x: (_over(g, hypot(x, 1)),),
    "acosh": lambda g, r, x: (_over(g, sqrt((x - 1) * (x + 1))),),
    "atanh": lambda g, r, x: (_over(g, (1 - x) * (1 + x)),),
    "sigmoid": lambda g, r, x: (_times(g, r, 1 - r),),
    "erf": lambda g, r, x: (_times(g, exp(-(x * x)), 2 / math.sqrt(math.pi)),),
}
"""By function, the gradients of its arguments, from the arriving gradient, the result and the arguments."""
