"""What analysis says of strategies, halos, accesses and linearity holds for random descriptions."""

from __future__ import annotations

from collections import Counter
from math import prod
from types import SimpleNamespace

import numpy as np
from operator_verification.application import Application
from operator_verification.splits import uncovered

import tdl
from executor.cases import Case
from tdl import REDUCERS, Affine, Digits, Max, Min, Prod, Sum, maximum, pad, where

DESCRIPTIONS = 1500
ITERATIONS = 20_000
REDUCING = {"Sum": Sum, "Max": Max, "Min": Min, "Prod": Prod}
FAR = 40

FUNCTIONS = {
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "maximum": maximum,
    "where": lambda a, b: where(a > b, b, a * 2),
    "negative": lambda a, b: -a,
    "scale": lambda a, b: a * 2,
    "turn": lambda a, b: -3 * a,
    "share": lambda a, b: a / 4,
}


class Writer:
    """Writes random expressions over two operands; names of reduced variables may occur in several reducers."""

    def __init__(self, random, operands):
        self.random, self.operands, self.names = random, operands, []

    def pick(self, among):
        return among[self.random.integers(len(among))]

    def expression(self, scope, depth):
        kind = self.random.random()
        if depth == 0 or kind < 0.15:
            return (
                self.element(scope) if scope and self.random.random() < 0.85 else tdl.expr.lift(self.pick((2.0, -0.5)))
            )
        if kind < 0.55:
            names = self.variables([str(variable) for variable in scope])
            reducer = REDUCING[self.pick(("Sum", "Sum", "Sum", "Max", "Min", "Prod"))]
            terms = [reducer(lambda *k: self.expression([*scope, *k], depth - 1), names=names) for _ in range(2)]
            return terms[0] if kind < 0.45 else terms[0] + terms[1]
        function = FUNCTIONS[self.pick(list(FUNCTIONS))]
        return function(self.expression(scope, depth - 1), self.expression(scope, depth - 1))

    def variables(self, scope):
        """One or two new names, or one that another reducer has."""
        known = [name for name in self.names if name not in scope]
        if known and self.random.random() < 0.6:
            return [self.pick(known)]
        new = [f"k{len(self.names) + number}" for number in range(self.random.integers(1, 3))]
        self.names += new
        return new

    def element(self, scope):
        if self.random.random() < 0.1:
            return self.pick(scope) * 0.5
        operand = self.pick(self.operands)
        return operand[tuple(self.index(scope) for _ in range(operand.rank))]

    def index(self, scope):
        kind, variable, other = self.random.random(), self.pick(scope), self.pick(scope)
        if kind < 0.55:
            return variable
        if kind < 0.85:
            own, along = self.pick((1, 2, -1, 3)), self.pick((0, 1, -1, 2))
            return pad(variable * own + other * along + int(self.random.integers(-2, 4)), FAR, FAR)
        if kind < 0.93:
            return pad(variable / self.pick((2, 3)) + int(self.random.integers(2)), FAR, FAR)
        return pad(int(self.random.integers(2)), FAR, FAR)


def described(random):
    """A random operator's description, operands and extents; None where shapes and extents contradict each other."""
    ranks = random.integers(1, 3, 2)
    names = [f"i{number}" for number in range(random.integers(3))]
    outputs = random.integers(1, 3)

    def random_operator(x, y):
        writer = Writer(random, (x, y))
        return tdl.tensor(lambda *i: tuple(writer.expression(list(i), 3) for _ in range(outputs)), names=names)

    arrays = [random.integers(-8, 9, random.integers(1, 5, rank)) / 4 for rank in ranks]
    description = tdl.op(random_operator).describe(ranks)
    plain = {name for name, _ in description.extent_rules.plain}
    given = {name: int(random.integers(1, 5)) for name in description.variables if name not in plain}
    try:
        extents = description.extents([array.shape for array in arrays], {"extents": given})
    except tdl.TDLError:
        return None
    return (description, arrays, extents) if prod(extents.values()) <= ITERATIONS else None


def wrong_strategies(description, arrays, extents, random, held):
    """Yield what is wrong of one description's strategies; count in `held` what was compared, by reducer."""
    whole = description.evaluate(arrays, None, extents)
    operator = SimpleNamespace(describe=lambda ranks, attributes: description)
    application = Application(operator, None, Case(tuple(arrays), {"extents": extents}))
    for name, strategy in description.strategies.items():
        if extents[name] == 1:
            continue
        cut = int(random.integers(1, extents[name]))
        parts = [(0, cut), (cut, extents[name])]
        pieces = [description.evaluate(arrays, None, extents, {name: part}) for part in parts]
        for number, output in enumerate(description.outputs):
            own = [piece[number] for piece in pieces]
            if all(np.isfinite(piece).all() for piece in (whole[number], *own)):
                combine = REDUCERS[strategy.reducer].numpy if strategy.reducer else None
                joined = combine(*own) if combine else concatenate(own, output, name, extents, pieces=parts)
                held[strategy.reducer] += 1
                if differ(joined, whole[number]):
                    yield f"{name}, {strategy.reducer}"
        if uncovered(application, strategy, parts[1]):
            yield f"halo of {name}"
        held["halos"] += bool(strategy.halos)
        if reads_elsewhere(description, arrays, extents, {name: parts[0]}):
            yield f"accesses along {name}"


def differ(values, wanted):
    """Whether finite results differ by more than another order of adding makes."""
    return not np.allclose(values, wanted, rtol=1e-9, atol=1e-9 * np.max(np.abs(wanted), initial=1))


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


def reads_elsewhere(description, arrays, extents, part):
    """Whether a part's result depends on what its access regions do not name."""
    bounds = {name: (0, extent) for name, extent in extents.items()} | part
    poisoned = [np.full_like(array, np.nan) for array in arrays]
    for access in description.accesses:
        array = arrays[access.operand]
        sized = zip(access.index, array.shape, strict=True)
        region = tuple(cells(index, size, bounds, extents) for index, size in sized)
        poisoned[access.operand][region] = array[region]
    clean, dirty = (description.evaluate(own, None, extents, part) for own in (arrays, poisoned))
    return not all(np.array_equal(first, second, equal_nan=True) for first, second in zip(clean, dirty, strict=True))


def claims_wrongly(description, arrays, extents, random, held):
    """Yield the operands in which an operator is said to be linear, and is not."""
    for operands in ({0}, {1}, {0, 1}):
        if description.linear(frozenset(operands)):
            other = [random.permuted(array) if own in operands else array for own, array in enumerate(arrays)]
            mixed = [
                a / 2 + 3 * b if own in operands else a for own, (a, b) in enumerate(zip(arrays, other, strict=True))
            ]
            results = (description.evaluate(own, None, extents) for own in (arrays, other, mixed))
            for first, second, both in zip(*results, strict=True):
                if all(np.isfinite(result).all() for result in (first, second, both)):
                    held["linear"] += 1
                    if differ(first / 2 + 3 * second, both):
                        yield operands


def test_what_is_derived_from_random_descriptions():
    random, held = np.random.default_rng(0), Counter()
    for _ in range(DESCRIPTIONS):
        drawn = described(random)
        if drawn is not None:
            assert list(wrong_strategies(*drawn, random, held)) == [], (str(drawn[0]), drawn[2])
            assert list(claims_wrongly(*drawn, random, held)) == [], (str(drawn[0]), drawn[2])
    assert min(held[kind] for kind in (None, "Sum", "Max", "Min", "Prod", "halos", "linear")) >= 25
