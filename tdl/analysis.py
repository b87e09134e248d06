"""Analysis of descriptions: accesses, partition strategies and refusals, halos, and structural properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tdl.expr import Call, Constant, Coordinate, Element, Expr, OpaqueElement, Reduce, walk
from tdl.index import Affine, Index, Rational
from tdl.trace import Traced


@dataclass(frozen=True, slots=True)
class Access:
    """One distinct way in which an operand is indexed."""

    operand: int
    index: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """One output: an index per dimension, and the reducer that combines partial results (None: no reducer)."""

    index: tuple[Index, ...]
    reducer: str | None
    value: Expr = field(compare=False)


@dataclass(frozen=True, slots=True)
class Halo:
    """How far the parts of a split reach into their neighbors' parts of an operand's dimension.

    `below` and `above` are affine in the extents of the index's other variables, which are written as their names.
    """

    operand: int
    dimension: int
    below: Affine
    above: Affine

    def widths(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Return the numbers of elements (below, above), both at least 0."""
        return max(0, -int(-self.below.value(extents) // 1)), max(0, int(self.above.value(extents) // 1))


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to split an operator: along one variable. Results are concatenated (reducer None) or reduced."""

    variable: str
    reducer: str | None
    halos: tuple[Halo, ...]


def accesses(traced: Traced) -> tuple[Access, ...]:
    """Return the distinct accesses, in the order in which they are written."""
    every = (Access(node.operand, node.index) for node in traced.nodes if isinstance(node, Element))
    return tuple(dict.fromkeys(every))


def outputs(traced: Traced) -> tuple[Output, ...]:
    """Return the coordinates, reducer and value of each output."""
    return tuple(
        Output(placed.coordinates, next(iter(combined(placed.value).values()), None), placed.value)
        for placed in traced.outputs
    )


def combined(expression: Expr) -> dict[str, str]:
    """Return the reduction variables whose partial results can be combined, with the reducer that combines them.

    These are the variables of the outermost reducer, of reducers of the same kind directly inside it, of a reducer
    under scaling that commutes with it, and of sums that are both terms of an addition.
    """
    match expression:
        case Reduce(reducer, variables, _, body):
            inner = {name: own for name, own in combined(body).items() if own == reducer}
            return dict.fromkeys(variables, reducer) | inner
        case Call("negative", (only,)):
            return {name: own for name, own in combined(only).items() if own == "Sum"}
        case Call("multiply", (left, right)):
            return _scaled(left, right) | _scaled(right, left)
        case Call("divide", (left, right)):
            return _scaled(left, right)
        case Call("add" | "subtract", (left, right)):
            both = combined(left).items() & combined(right).items()
            return {name: own for name, own in combined(left).items() if (name, own) in both and own == "Sum"}
    return {}


def _scaled(expression: Expr, factor: Expr) -> dict[str, str]:
    positive = isinstance(factor, Constant) and factor.value > 0
    bound = {name for node in walk(factor) if isinstance(node, Reduce) for name in node.variables}
    return {
        name: own
        for name, own in combined(expression).items()
        if name not in bound and (own == "Sum" or (positive and own in ("Max", "Min")))
    }


def strategies(traced: Traced, reads: tuple[Access, ...]) -> tuple[dict[str, Strategy], dict[str, str]]:
    """Return each variable either as a strategy, or with the reason why it cannot be split."""
    reasons: dict[str, str] = {}
    good: dict[str, Strategy] = {}
    opaque = _opaque_coordinates(traced)
    reducers = [combined(placed.value) for placed in traced.outputs]
    for name in (*traced.output_variables, *traced.reduction_variables):
        if name in opaque:
            reasons[name] = f"it indexes the result of {opaque[name]}, which is computed whole"
        elif reason := _no_dimension(name, traced) or _no_reduction(name, traced, reducers):
            reasons[name] = reason
        else:
            reducer = reducers[0][name] if name in traced.reduction_variables else None
            good[name] = Strategy(name, reducer, tuple(_halos(name, reads)))
    return good, reasons


def _opaque_coordinates(traced: Traced) -> dict[str, str]:
    results = [node for node in traced.nodes if isinstance(node, OpaqueElement)]
    return {name: node.name for node in results for index in node.index for name in index.variables}


def _no_dimension(name: str, traced: Traced) -> str | None:
    """Return why an output variable cannot be split: an output lacks it, so all parts would compute it.

    None if it can.
    """
    if name in traced.reduction_variables:
        return None
    without = (number for number, placed in enumerate(traced.outputs) if name not in placed.variables)
    return next((f"output {number} has no dimension of it" for number in without), None)


def _no_reduction(name: str, traced: Traced, reducers: list[dict[str, str]]) -> str | None:
    """Return why partial results over a reduction variable cannot be combined, or None."""
    if name in traced.output_variables:
        return None
    for number, placed in enumerate(traced.outputs):
        if name not in reducers[number]:
            blocker = _blocker(name, placed.value)
            return blocker or f"output {number} does not reduce over it"
    kinds = list(dict.fromkeys(own[name] for own in reducers))
    return None if len(kinds) == 1 else f"outputs reduce over it differently: {', '.join(kinds)}"


def _blocker(name: str, expression: Expr) -> str | None:
    """Name the innermost operation above the reducer under which partial results cannot be combined."""
    for child in expression.children:
        if any(isinstance(node, Reduce) and name in node.variables for node in walk(child)):
            if name not in combined(child):
                return _blocker(name, child)
            return f"partial results of {combined(child)[name]} cannot be combined under {_operation(expression)}"
    return None


def _operation(expression: Expr) -> str:
    match expression:
        case Call(function):
            return function
        case Reduce(reducer):
            return reducer
        case OpaqueElement(opaque):
            return opaque
    raise TypeError(expression)


def _halos(name: str, reads: tuple[Access, ...]) -> Iterator[Halo]:
    for access in reads:
        for dimension, index in enumerate(access.index):
            if isinstance(index, Affine) and name in index.variables and not index.is_plain:
                yield _halo(name, index, access.operand, dimension)


def _halo(name: str, index: Affine, operand: int, dimension: int) -> Halo:
    """Return how far `factor * name + rest` reaches outside the share [factor * lo, factor * hi) of a part [lo, hi).

    If the factor is negative, the share is [factor * (hi - 1), factor * (lo - 1)).
    """
    low, high = Affine((), index.constant), Affine((), index.constant)
    own: Rational = dict(index.terms)[name]
    for variable, factor in index.terms:
        last = (Affine.variable(variable) + Affine((), -1)).scaled(factor)
        if variable != name and factor > 0:
            high = high + last
        elif variable != name:
            low = low + last
    return Halo(operand, dimension, low.scaled(-1), high + Affine((), 1 - max(own, -own)))


def is_elementwise(traced: Traced, reads: tuple[Access, ...]) -> bool:
    """Return True if there is no reducer, and each operand is read at the output's coordinates or is broadcast.

    At least one operand is read at the output's coordinates.
    """
    own = tuple(map(Affine.variable, traced.output_variables))
    if any(isinstance(node, Reduce | OpaqueElement) for node in traced.nodes):
        return False
    if any(placed.coordinates != own for placed in traced.outputs):
        return False
    broadcast = all(
        access.index == own or (len(access.index) < len(own) and all(i.is_plain for i in access.index))
        for access in reads
    )
    identical = {access.operand for access in reads if access.index == own}
    return broadcast and bool(identical) and sum(a.operand in identical for a in reads) == len(identical)


def moves_elements(traced: Traced) -> bool:
    """Return True if each result element is an operand's element selected by position alone, or zero in padding."""
    return all(_is_moved(placed.value) for placed in traced.outputs)


def _is_moved(expression: Expr) -> bool:
    match expression:
        case Element():
            return True
        case Call("where", (condition, first, second)):
            by_position = not any(isinstance(node, Element | OpaqueElement) for node in walk(condition))
            return by_position and _is_moved(first) and _is_moved(second)
    return False


def adds_operands(traced: Traced) -> bool:
    """Return True if the only result is the element-wise sum of all operands."""
    own = tuple(map(Affine.variable, traced.output_variables))
    (placed, *others) = traced.outputs
    nodes = list(walk(placed.value))
    terms = [node for node in nodes if isinstance(node, Element)]
    return (
        not others
        and placed.coordinates == own
        and all(isinstance(node, Element) or (isinstance(node, Call) and node.function == "add") for node in nodes)
        and all(term.index == own for term in terms)
        and len({term.operand for term in terms}) == len(terms)
    )


def contiguous(traced: Traced, reads: tuple[Access, ...]) -> frozenset[str]:
    """Return the variables that occur in a window (an affine index that is not plain) or as a value.

    A mixed-radix tuple does not need contiguous runs: a worker's part of it is itself mixed-radix, with local extents.
    If several indices read one dimension, a worker holds more of the dimension than each of them reaches, so the
    variables must have known positions.
    """
    used = [index for placed in traced.outputs for index in placed.coordinates]
    used += [index for access in reads for index in access.index]
    used += [index for node in traced.nodes if isinstance(node, OpaqueElement) for index in node.index]
    values = {name for node in traced.nodes if isinstance(node, Coordinate) for name in node.affine.variables}
    located: list[Index] = [index for index in used if isinstance(index, Affine) and not index.is_plain]
    read: dict[tuple[int, int], set[Index]] = {}
    for access in reads:
        for dimension, index in enumerate(access.index):
            read.setdefault((access.operand, dimension), set()).add(index)
    located += [index for several in read.values() if len(several) > 1 for index in several]
    return frozenset(values | {name for index in located for name in index.variables})


def is_linear(expression: Expr, operands: frozenset[int]) -> bool:  # noqa: PLR0911
    """Return True if the expression is linear in these operands taken together, with the others fixed."""
    match expression:
        case Element(operand):
            return operand in operands
        case Constant(value):
            return value == 0
        case Reduce(reducer, _, _, body):
            return reducer == "Sum" and is_linear(body, operands)
        case Call("negative", (only,)):
            return is_linear(only, operands)
        case Call("add" | "subtract", (left, right)):
            return is_linear(left, operands) and is_linear(right, operands)
        case Call("multiply", (left, right)):
            return any(is_linear(a, operands) and not _depends(b, operands) for a, b in ((left, right), (right, left)))
        case Call("divide", (left, right)):
            return is_linear(left, operands) and not _depends(right, operands)
        case Call("where", (condition, left, right)):
            return not _depends(condition, operands) and is_linear(left, operands) and is_linear(right, operands)
    return False


def _depends(expression: Expr, operands: frozenset[int]) -> bool:
    return any(isinstance(node, Element) and node.operand in operands for node in walk(expression))
