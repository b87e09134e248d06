"""The vocabulary of descriptions: reducers, functions, opaque functions, `pad`, `at`, `tensor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from itertools import chain
from typing import Any, NoReturn

from msgspec import Struct

from tdl.expr import (
    FUNCTIONS,
    REDUCERS,
    Call,
    Constant,
    Coordinate,
    Element,
    Expr,
    OpaqueElement,
    Reduce,
    apply,
    lift,
    walk,
)
from tdl.index import Affine, Digits, Index, TDLError, Whole

"""The names that `tdl` exports from here."""

Body = Callable[..., Any]


class Operand(Struct, frozen=True):
    """An operand during the tracing of its operator. `operand[i, j]` is an element."""

    position: int
    name: str
    rank: int

    def __getitem__(self, items: object) -> Element:
        parts = items if isinstance(items, tuple) else (items,)
        if len(parts) != self.rank:
            shown = ", ".join(":" if isinstance(part, slice) else str(part) for part in parts)
            raise TDLError(
                f"'{self.name}' has {self.rank} dimensions but {len(parts)} indices: {self.name}[{shown}]"
                + ("; a mixed-radix index is a nested tuple: x[(i, j),]" if self.rank == 1 else "")
            )
        index = tuple(_index(part, f"'{self.name}' dimension {d}") for d, part in enumerate(parts))
        return Element(self.position, self.name, index)

    def __str__(self) -> str:
        return f"'{self.name}' without an index"

    def __iter__(self) -> NoReturn:
        raise TDLError(f"'{self.name}' is a tensor and cannot be iterated over; index it")


class Placed(Struct, frozen=True):
    """An output value with explicit coordinates, instead of the lambda's own."""

    coordinates: tuple[Index, ...]
    value: Expr

    @property
    def variables(self) -> tuple[str, ...]:
        """The index variables that the output has dimensions for."""
        return tuple(name for index in self.coordinates for name in index.variables)


class Lambda(Struct, frozen=True):
    """A lambda with the names and the declared extents of its index variables."""

    body: Body
    names: tuple[str, ...]
    extents: tuple[int | None, ...]
    keywords: int

    def __call__(self) -> Any:
        """Return the lambda's result for symbolic index variables."""
        coordinates = [Coordinate(Affine.variable(name)) for name in self.names]
        positional = len(coordinates) - self.keywords
        keyword = dict(zip(self.names[positional:], coordinates[positional:], strict=True))
        return self.body(*coordinates[:positional], **keyword)


def tensor(body: Body, *, rank: int | None = None, names: Sequence[str] | None = None) -> Lambda:
    """Return a lambda with named index variables. `lambda *i: ...` needs `rank` (names i0, i1, ...) or `names`.

    Raises TDLError if neither is given, if names occur twice, or if a default is not an extent.
    """
    given: list[str] = []
    last: list[str] = []
    extents: dict[str, int] = {}
    for parameter in signature(body).parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD:
            raise TDLError(f"index variables cannot be named by **{parameter.name}")
        if parameter.kind is Parameter.VAR_POSITIONAL:
            if names is None and rank is None:
                raise TDLError(f"lambda *{parameter.name} needs rank= or names=")
            given += names if names is not None else [f"{parameter.name}{d}" for d in range(rank or 0)]
            continue
        (last if parameter.kind is Parameter.KEYWORD_ONLY else given).append(parameter.name)
        if parameter.default is not Parameter.empty:
            extents[parameter.name] = _declared(parameter)
    every = (*given, *last)
    if len(set(every)) != len(every):
        raise TDLError(f"name clash: an index variable occurs twice in lambda {', '.join(every)}")
    return Lambda(body, every, tuple(extents.get(name) for name in every), len(last))


def _declared(parameter: Parameter) -> int:
    """Return the extent declared as the parameter's default. Raises TDLError if it is not a positive integer."""
    extent = parameter.default
    if type(extent) is not int or extent < 1:
        raise TDLError(f"the default of index variable '{parameter.name}' must be its extent, found {extent!r}")
    return extent


class Reducer(Struct, frozen=True):
    """Combines the values of a lambda's body over all values of the lambda's variables.

    >>> import tdl
    >>> @tdl.op
    ... def product(a, b):
    ...     return lambda i, j: Sum(lambda k: a[i, k] * b[k, j])
    >>> {name: strategy.reducer for name, strategy in product.describe((2, 2)).strategies.items()}
    {'i': None, 'j': None, 'k': 'Sum'}
    """

    name: str

    def __call__(self, body: Body, *, rank: int | None = None, names: Sequence[str] | None = None) -> Expr:
        """Return the reduction of a lambda's body. `lambda *r: ...` needs `rank` or `names`."""
        if not callable(body):
            raise TDLError(f"{self.name} takes a lambda of the index variables it reduces over, found {body}")
        lambda_ = tensor(body, rank=rank, names=names)
        if not lambda_.names:
            shown = f"{self.name}(lambda: {lambda_()})"
            raise TDLError(f"{self.name} needs at least one index variable, found none in {shown}")
        return Reduce(self.name, lambda_.names, lambda_.extents, lift(lambda_()))


Sum, Max, Min, Prod = map(Reducer, REDUCERS)


class OpaqueFunction(Struct, frozen=True):
    """A function the analysis does not look into. It is computed whole for each value of its operands' variables.

    `function` is its NumPy meaning, for reference evaluation. The result has the shape of operand number `like` (None:
    its extents come from the attribute `extents`). Its elements have the `kind` "float", "int", or "same" as the
    operands.
    """

    function: Callable[..., Any] | None = None
    like: int | None = 0
    name: str = "opaque"
    kind: str = "float"

    def __call__(self, *operands: Expr) -> OpaqueResult:
        """Apply the function to slices of tensors (`x[b, :, :]`) or to elements."""
        return OpaqueResult(self, tuple(lift(operand) for operand in operands))


class OpaqueResult(Struct, frozen=True):
    """The entire result of an opaque function. Index it to get an element."""

    opaque: OpaqueFunction
    operands: tuple[Expr, ...]

    def __getitem__(self, items: object) -> OpaqueElement:
        parts = items if isinstance(items, tuple) else (items,)
        index = [_index(part, f"{self.opaque.name} result dimension {d}") for d, part in enumerate(parts)]
        affine = tuple(part for part in index if isinstance(part, Affine))
        if len(affine) != len(index):
            raise TDLError(f"the result of {self.opaque.name} can be indexed only by affine expressions")
        opaque = self.opaque
        return OpaqueElement(opaque.name, opaque.function, opaque.like, self.operands, affine, opaque.kind)

    def __iter__(self) -> NoReturn:
        raise TDLError(f"the result of {self.opaque.name} cannot be iterated over; index it")


def pad(index: Expr | int, low: int, high: int) -> Expr:
    """Return the index, allowed to reach `low` below its dimension and `high` above.

    Such reads are skipped or return zero.
    """
    affine = _index(index, "pad")
    if not isinstance(affine, Affine):
        raise TDLError(f"pad expects an affine index, found {affine}")
    return Coordinate(affine.padded(low, high))


def at(coordinates: object, value: Expr) -> Placed:
    """Place the value at output coordinates: index variables, or mixed-radix tuples of them (a merged dimension).

    If there are several outputs, one may have dimensions for some of the variables only; the other variables are then
    not split.
    """
    parts = coordinates if isinstance(coordinates, tuple) else (coordinates,)
    return Placed(tuple(_index(part, f"output dimension {d}") for d, part in enumerate(parts)), lift(value))


def _unary(function: str) -> Callable[[object], Expr]:
    def call(x: object) -> Expr:
        return apply(function, x)

    call.__name__ = function
    call.__doc__ = f"Elementwise {function}."
    return call


def _binary(function: str) -> Callable[[object, object], Expr]:
    def call(a: object, b: object) -> Expr:
        return apply(function, a, b)

    call.__name__ = function
    call.__doc__ = f"Elementwise {function}."
    return call


exp, log, sqrt, cbrt, rsqrt = (_unary(name) for name in ("exp", "log", "sqrt", "cbrt", "rsqrt"))
expm1, log1p, log2, log10 = (_unary(name) for name in ("expm1", "log1p", "log2", "log10"))
sin, cos, tan = (_unary(name) for name in ("sin", "cos", "tan"))
asin, acos, atan = (_unary(name) for name in ("asin", "acos", "atan"))
sinh, cosh, tanh = (_unary(name) for name in ("sinh", "cosh", "tanh"))
asinh, acosh, atanh = (_unary(name) for name in ("asinh", "acosh", "atanh"))
sigmoid, erf, lgamma = (_unary(name) for name in ("sigmoid", "erf", "lgamma"))
sign, absolute = (_unary(name) for name in ("sign", "absolute"))
floor, ceil, round_, trunc = (_unary(name) for name in ("floor", "ceil", "round", "trunc"))
isnan, isinf, bitwise_not = (_unary(name) for name in ("isnan", "isinf", "bitwise_not"))
maximum, minimum, power = (_binary(name) for name in ("maximum", "minimum", "power"))
fmod, atan2, hypot, logaddexp = (_binary(name) for name in ("fmod", "atan2", "hypot", "logaddexp"))
logical_xor = _binary("logical_xor")
bitwise_and, bitwise_or, bitwise_xor = (_binary(name) for name in ("bitwise_and", "bitwise_or", "bitwise_xor"))


def where(condition: object, a: object, b: object) -> Expr:
    """Select a if the condition holds, otherwise b. Both are read."""
    return apply("where", condition, a, b)


def random_bits(*counters: object) -> Expr:
    """Return 24 pseudo-random bits that depend only on these integers (a seed, a step, global indices)."""
    return apply("random_bits", *counters)


def _index(part: object, place: str) -> Index:
    """Convert what was written between brackets to an index. `place` names it in errors."""
    if isinstance(part, slice):
        ends = (part.start, part.stop, part.step)
        if any(end is not None for end in ends):
            shown = ":".join("" if end is None else str(end) for end in (ends if ends[2] is not None else ends[:2]))
            raise TDLError(f"{place}: the only slice allowed is ':', found {shown}; use an index variable")
        return Whole()
    if isinstance(part, tuple):
        return _digits(part, place)
    expression = lift(part)
    if isinstance(expression, Coordinate):
        return expression.affine
    if isinstance(expression, Constant) and type(expression.value) is int:
        return Affine((), expression.value)
    value = next((node for node in walk(expression) if isinstance(node, Element | OpaqueElement)), None)
    if value is None:
        reason, remedy = _why_not_affine(expression), "if the operator needs it, "
    else:
        reason = f"it depends on the tensor value {value}"
        remedy = f"select by value, Sum(lambda v: where({value} == v, ...v..., 0)), or "
    raise TDLError(
        f"{place}: index '{expression}' is not affine in index variables ({reason}); "
        f"{remedy}compute the result in an OpaqueFunction"
    )


def _digits(part: tuple[object, ...], place: str) -> Index:
    index = [_index(member, place) for member in part]
    plain = tuple(chain.from_iterable(i.variables for i in index if i.is_plain))
    if len(plain) != len(index) or len(set(plain)) != len(plain):
        shown = ", ".join(str(i) for i in index)
        raise TDLError(f"{place}: a mixed-radix index must be a tuple of distinct index variables, found ({shown})")
    return index[0] if len(index) == 1 else Digits(plain)


def _why_not_affine(expression: Expr) -> str:
    """Return the first reason why an expression is not an index."""
    for node in walk(expression):
        if isinstance(node, Constant) and not isinstance(node.value, int):
            return f"{node.value!r} is not an exact integer; write a/b with integers"
    calls = [node for node in walk(expression) if isinstance(node, Call)]
    if not calls:
        return "it is not an index"
    # Parents come first, so the last call is an innermost one, whose arguments are still affine.
    function = calls[-1].function
    comparison = FUNCTIONS[function].result == "bool"
    return _NOT_AFFINE.get(function, "comparison of indices" if comparison else f"{function} of an index")


_NOT_AFFINE = {
    "remainder": "modulo of an index",
    "floor_divide": "floor division of an index",
    "multiply": "product of two indices",
    "divide": "quotient of two indices",
}
