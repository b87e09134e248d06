"""Traits: what a description computes, independent of the names of its operator and operands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Literal

from tdl.expr import Call, Constant, Coordinate, Element, Expr, Reduce, walk
from tdl.index import Affine, Digits
from tdl.operator import Description
from tdl.trace import ORDERS, factors, indices

Function = Literal["softmax", "cross entropy", "norm", "root mean square norm", "rotation"]
"""The functions that libraries have kernels for.

A softmax divides exponentials by a value per row. A cross entropy sums functions of logarithms that labels select. A
norm divides by the root of a value per row; a root-mean-square norm does not subtract a mean first. A rotation adds
multiples of several elements of one operand.
"""

MOST = 1 << 14


@dataclass(frozen=True, slots=True)
class Attended:
    """Attention that does not store its score matrix: the number of products of all scores by a head's width.

    The description contains `described` such products, and kernels compute `computed` of them: kernels that compute
    both gradients at once compute scores and probabilities together with the gradient of the keys. The head's width is
    `dimension` of the operand `queries`.
    """

    described: int
    computed: int
    queries: int
    dimension: int


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of a description.

    A view has all elements of its operand, in the same or another order and possibly repeated (`repeats`), or has one
    element everywhere; a part has some of them. A conversion changes only the dtype; a contraction sums products of
    elements of several operands. Of the operand `table` only the rows that another operand names are read. An operator
    `dispatches` if it places rows at slots of several dimensions, which another operand numbers. It `is_causal` if it
    compares two positions. A contraction whose rows another operand assigns to groups is `grouped`: the variables of
    the rows and of the groups.
    """

    function: Function | None
    attended: Attended | None
    table: int | None
    is_view: bool
    is_part: bool
    repeats: bool
    converts: bool
    contracts: bool
    dispatches: bool
    is_causal: bool
    grouped: tuple[frozenset[str], str] | None


@lru_cache(MOST)
def traits_of(description: Description) -> Traits:
    """Return the traits of a description.

    >>> from tdl.catalog import catalog
    >>> traits_of(catalog["permute"].describe((2,), {"dims": (1, 0)})).is_view
    True
    >>> traits_of(catalog["embedding"].describe((2, 1))).table
    0
    """
    moved = [placed.value for placed in description.outputs] if _is_moved_whole(description) else []
    elements = [value for value in moved if isinstance(value, Element)]
    is_view = len(elements) == 1 and all(map(_is_digits, elements[0].index)) and not description.is_elementwise
    is_view = (is_view and _are_distinct(elements[0])) or _is_alike(description)
    read = {name for element in elements for index in element.index for name in index.variables}
    return Traits(
        function=_function(description),
        attended=_attended(description),
        table=_table(description),
        is_view=is_view,
        is_part=bool(elements) and not is_view and not description.is_elementwise,
        repeats=is_view and not read.issuperset(description.output_variables),
        converts=description.dtype is not None and description.is_elementwise and _is_converted(description),
        contracts=len(description.outputs) == 1 and _is_contraction(description.outputs[0].value),
        dispatches=len(description.outputs) == 1 and _dispatches(description.outputs[0].value),
        grouped=_grouped(description.outputs[0].value) if len(description.outputs) == 1 else None,
        is_causal=any(_is_order(node) for placed in description.outputs for node in walk(placed.value)),
    )


# --- movement


def _is_moved_whole(description: Description) -> bool:
    """Return True if all results are elements of the only operand, read at forward steps and never outside of it."""
    values = [placed.value for placed in description.outputs]
    return (
        description.moves_elements
        and len(description.operands) == 1
        and all(isinstance(value, Element) and all(map(_is_within, value.index)) for value in values)
    )


def _is_alike(description: Description) -> bool:
    """Return True if all elements of the result are equal: made of the only element of the only operand."""
    values = [placed.value for placed in description.outputs]
    nodes = [node for node in chain.from_iterable(map(walk, values)) if isinstance(node, Element | Coordinate)]
    elements = [node for node in nodes if isinstance(node, Element) and not node.index]
    return bool(description.output_variables) and len(description.operands) == 1 == len(nodes) == len(elements)


def _is_within(index: object) -> bool:
    if isinstance(index, Affine):
        in_steps = len(index.terms) <= 1 and all(factor > 0 for _, factor in index.terms)
        return in_steps and index.denominator == 1 and max(index.pad) <= 0
    return isinstance(index, Digits)


def _is_digits(index: object) -> bool:
    return isinstance(index, Digits) or (isinstance(index, Affine) and index.is_plain)


def _are_distinct(element: Element) -> bool:
    names = [name for index in element.index for name in index.variables]
    return len(set(names)) == len(names)


def _is_converted(description: Description) -> bool:
    match description.outputs[0].value:
        case Element() | Call("trunc", (Element(),)) | Call("not_equal", (Element(), Constant(0))):
            return len(description.operands) == 1
    return False


def _table(description: Description) -> int | None:
    """Return the operand of which one row is read per number in another operand, or None."""
    if len(description.outputs) != 1:
        return None
    match description.outputs[0].value:
        case Reduce("Sum", (row,), _, Call("where", (Call("equal", sides), Element(operand, _, index), Constant(0)))):
            asked = [side for side in sides if isinstance(side, Element) and row not in _variables(side)]
            chosen = [side for side in sides if isinstance(side, Coordinate) and side.affine == Affine.variable(row)]
            if asked and chosen and Affine.variable(row) in index:
                return operand
    return None


def _dispatches(expression: Expr) -> bool:
    match expression:
        case Reduce("Sum", rows, _, Call("where", (Call("equal", sides), Element() as row, Constant(0)))):
            numbered = (_variables(side) for side in sides if isinstance(side, Element))
            by_row = any(_variables(row) > number and number.issuperset(rows) for number in numbered)
            return by_row and any(isinstance(side, Coordinate) and len(side.affine.terms) > 1 for side in sides)
    return False


# --- products


def _factors(expression: Expr) -> list[Expr]:
    """Return the factors of a product, without the conditions under which they count."""
    return [_chosen(factor) for factor in factors(expression)]


def _chosen(expression: Expr) -> Expr:
    match expression:
        case Call("where", (Call("equal"), body, Constant(0))):
            return body
    return expression


def _is_contraction(expression: Expr) -> bool:
    """Return True if an expression sums products of plainly indexed elements of at least two operands."""
    match expression:
        case Reduce("Sum", _, _, body):
            every = _factors(body)
            elements = [factor for factor in every if isinstance(factor, Element)]
            plain = all(_is_digits(index) for element in elements for index in element.index)
            return plain and len(elements) == len(every) and len({element.operand for element in elements}) > 1
    return False


def _grouped(expression: Expr) -> tuple[frozenset[str], str] | None:
    """Return the variable of rows that a contraction's other operand assigns to groups, and that of the groups."""
    for factor in factors(expression.body) if isinstance(expression, Reduce) and _is_contraction(expression) else ():
        match factor:
            case Call("where", (Call("equal", (Element() as number, Coordinate(group))), _, _)):
                return frozenset(_variables(number)), group.variables[0]
    return None


def _multiplied(reduction: Reduce) -> list[Expr]:
    """Return the factors of a summed product, or an empty list if the reduction is not a sum of products.

    There must be at least two non-constant factors, one of them an element that is summed over.
    """
    match reduction.body:
        case Call("where", (_, body, Constant(0))):
            pass
        case body:
            pass
    every = [factor for factor in _factors(body) if not isinstance(factor, Constant)]
    summed = set(reduction.variables)
    elements = [factor for factor in every if isinstance(factor, Element) and summed & _variables(factor)]
    return every if len(every) > 1 and elements else []


def _attended(description: Description) -> Attended | None:
    """Return the products of attention: exponentials of a product of two operands, multiplied by a third operand."""
    values = [placed.value for placed in description.outputs]
    nodes = {id(node): node for value in values for node in walk(value)}.values()
    products = {id(node): node for node in nodes if isinstance(node, Reduce) and _multiplied(node)}
    results = [products[id(total)] for value in values if id(total := _last_sum(value)) in products]
    weighted = next((call.arguments[0] for call in nodes if isinstance(call, Call) and call.function == "exp"), None)
    scores = next((node for node in walk(weighted) if _is_contraction(node)), None) if weighted is not None else None
    if not results or not isinstance(scores, Reduce) or any(result is scores for result in results):
        return None
    over, distinct = {name for result in results for name in result.variables}, len({*map(str, products.values())})
    match weighted:
        case Call("subtract", (_, Element() as saved)):
            rows = _variables(saved)
            computed = distinct if over & rows else len(results)
        case _:
            rows, computed = _variables(scores) - over, distinct
    width = set(scores.variables)
    for factor in _factors(scores.body):
        if isinstance(factor, Element) and _variables(factor) - width <= rows:
            dimension = next(at for at, index in enumerate(factor.index) if width & set(index.variables))
            return Attended(len(products), computed, factor.operand, dimension)
    return None


def _last_sum(expression: Expr) -> Expr | None:
    """Return the sum that a result consists of, ignoring a divisor, a factor or a selection."""
    match expression:
        case Reduce("Sum"):
            return expression
        case Call("divide" | "multiply", (first, _)) | Call("where", (_, first, _)):
            return _last_sum(first)
    return None


def _is_order(expression: Expr) -> bool:
    match expression:
        case Call(function, (Coordinate(), Coordinate())):
            return function in ORDERS
    return False


# --- functions


def _function(description: Description) -> Function | None:
    if any(_rotates(description, operand) for operand in range(len(description.operands))):
        return "rotation"
    if len(description.outputs) != 1:
        return None
    value, own = description.outputs[0].value, set(description.output_variables)
    match value:
        case Call("divide", (Call("exp"), total)) if _variables(total) < own:
            return "softmax"
    nodes = list(walk(value))
    if any(map(_picks_logarithms, nodes)):
        return "cross entropy"
    calls = [node for node in nodes if isinstance(node, Call)]
    roots = [call for call in calls if call.function in ("sqrt", "rsqrt") and _variables(call) < own]
    is_own = any(isinstance(node, Element) and _variables(node) == own for node in nodes)
    if roots and is_own and not isinstance(value, Reduce):
        return "norm" if any(call.function == "subtract" for call in calls) else "root mean square norm"
    return None


def _picks_logarithms(expression: Expr) -> bool:
    match expression:
        case Reduce("Sum", _, _, Call("where", (Call("equal", sides), chosen, Constant(0)))):
            labels = [side for side in sides if isinstance(side, Element)]
            functions = (node.function for node in walk(chosen) if isinstance(node, Call))
            return len(labels) == 1 and "log" in functions
    return False


def _rotates(description: Description, operand: int) -> bool:
    reads = [access for access in description.accesses if access.operand == operand]
    products = (
        {factor.operand for factor in _factors(node) if isinstance(factor, Element)}
        for placed in description.outputs
        for node in walk(placed.value)
        if isinstance(node, Call) and node.function == "multiply"
    )
    multiplied = sum(operand in factors and len(factors) > 1 for factors in products)
    return len(reads) > 1 and multiplied > 1 and description.linear(frozenset((operand,)))


def _variables(expression: Expr) -> set[str]:
    """Return the index variables that an expression depends on."""
    names = {name for index in indices(expression) for name in index.variables}
    names = names.union(*map(_variables, expression.children))
    return names.difference(expression.variables) if isinstance(expression, Reduce) else names
