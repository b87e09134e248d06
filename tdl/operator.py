"""Operators, and their descriptions for operands of given ranks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, signature
from math import prod
from typing import Any, TypeVar, overload

import ml_dtypes  # noqa: F401 (makes bfloat16 a dtype of NumPy)
import numpy as np

from tdl import analysis
from tdl.analysis import Access, Output, Strategy
from tdl.evaluate import Array, Evaluator
from tdl.expr import FUNCTIONS, Call, Constant, Coordinate, Element, Expr, OpaqueElement, Reduce
from tdl.extents import ExtentRules, Shapes, extent_rules, given_extents
from tdl.index import Bounds, TDLError
from tdl.language import Operand
from tdl.trace import Traced, Work, trace, work

# Whether a value is a boolean, an integer or a floating-point number.


ORDER = ("bool", "int", "float")

SELECTING = ("where", "maximum", "minimum")
"""Functions whose result is one of their arguments, so that booleans give a boolean."""


def dtype_kind(dtype: str) -> str:
    """Return the kind of a dtype's elements: "bool", "int" or "float"."""
    return "bool" if dtype == "bool" else "float" if "float" in dtype else "int"


def element_kind(expression: Expr, operands: Sequence[str]) -> str:
    """Return the kind of an expression, given those of the operands: "bool", "int" or "float".

    A sum of booleans is "int".
    """
    kind = "float"
    match expression:
        case Constant(value):
            kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
        case Coordinate(affine):
            kind = "int" if affine.denominator == 1 else "float"
        case Element(operand):
            kind = operands[operand]
        case Reduce(_, _, _, body):
            kind = _counted(element_kind(body, operands))
        case OpaqueElement(kind=fixed, operands=parts):
            kind = _widest(parts, operands) if fixed == "same" else fixed
        case Call():
            kind = _kind_of_call(expression, operands)
    return kind


def _kind_of_call(call: Call, operands: Sequence[str]) -> str:
    fixed = FUNCTIONS[call.function].result
    if fixed != "same":
        return fixed
    kind = _widest(call.arguments[1:] if call.function == "where" else call.arguments, operands)
    return kind if call.function in SELECTING else _counted(kind)


def _widest(expressions: Sequence[Expr], operands: Sequence[str]) -> str:
    return max((element_kind(expression, operands) for expression in expressions), key=ORDER.index)


def _counted(kind: str) -> str:
    return "int" if kind == "bool" else kind


# Operators, and their descriptions for operands of given ranks.


Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Description:
    """All properties of an operator for operands of given ranks and given attributes, for any shapes.

    `strategies` maps a variable to how the operator is split along it; `refusals` maps each other variable to the
    reason why it cannot be split. `contiguous` are the variables along which a kernel runs once per contiguous run of
    iterations. `dtype` is the attribute of that name, which sets the dtype of all outputs. If `moves_elements`, the
    operator computes nothing; if `adds_operands`, it is the element-wise sum of its operands.
    """

    operator: str
    operands: tuple[str, ...]
    output_variables: tuple[str, ...]
    reduction_variables: tuple[str, ...]
    outputs: tuple[Output, ...]
    accesses: tuple[Access, ...]
    strategies: Mapping[str, Strategy]
    refusals: Mapping[str, str]
    is_elementwise: bool
    contiguous: frozenset[str]
    extent_rules: ExtentRules = field(repr=False)
    work: Work = field(repr=False)
    dtype: str | None = None
    moves_elements: bool = False
    adds_operands: bool = False

    def __str__(self) -> str:
        values = [str(output.value) for output in self.outputs]
        body = values[0] if len(values) == 1 else f"({', '.join(values)})"
        return f"{self.operator}({', '.join(self.operands)}): lambda {', '.join(self.output_variables)}: {body}"

    @property
    def is_opaque(self) -> bool:
        """True if only shapes are known of the operator, as for `tdl.opaque`."""
        return False

    @property
    def variables(self) -> tuple[str, ...]:
        """The output variables, then the reduction variables."""
        return self.output_variables + self.reduction_variables

    def extents(self, shapes: Shapes, attributes: Attributes | None = None) -> dict[str, int]:
        """Return the extent of each variable, from the operands' shapes and the attribute `extents`.

        Raises TDLError if they contradict each other or leave an extent unknown.
        """
        try:
            return self.extent_rules.solve(shapes, given_extents(attributes or {}))
        except TDLError as error:
            raise TDLError(f"{self.operator}: {error}") from None

    def output_shapes(self, extents: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
        """Return the shape of each output."""
        return tuple(
            tuple(prod([extents[name] for name in index.variables]) for index in output.index)
            for output in self.outputs
        )

    def output_dtypes(self, dtypes: Sequence[str]) -> tuple[str, ...]:
        """Return the dtype of each output: `dtype` if set.

        Else bool, int32, or the first floating dtype of the operands.
        """
        floating = next((dtype for dtype in dtypes if "float" in dtype), "float64")
        named = {"bool": "bool", "int": "int32", "float": floating}
        return tuple(self.dtype or named[kind] for kind in self.output_kinds(dtypes))

    def output_kinds(self, dtypes: Sequence[str]) -> tuple[str, ...]:
        """Return the kind of each output: boolean ("bool"), integer ("int") or floating-point ("float")."""
        kinds = [dtype_kind(dtype) for dtype in dtypes]
        return tuple(element_kind(output.value, kinds) for output in self.outputs)

    def operations(self, extents: Mapping[str, int]) -> float:
        """Return the number of floating-point operations for these extents."""
        return self.work.operations(extents)

    def linear(self, operands: frozenset[int]) -> bool:
        """Return True if each output is linear in these operands (positions) taken together."""
        return all(analysis.is_linear(output.value, operands) for output in self.outputs)

    def evaluate(
        self,
        arrays: Sequence[Array],
        attributes: Attributes | None = None,
        extents: Mapping[str, int] | None = None,
        bounds: Bounds | None = None,
    ) -> tuple[Array, ...]:
        """Compute the outputs from the description itself. This is slow, and independent of all kernels.

        `bounds` restricts variables to half-open ranges: the outputs then cover only those iterations.
        """
        if extents is None:
            extents = self.extents([array.shape for array in arrays], attributes)
        ranges = {name: (0, extents[name]) for name in self.variables} | dict(bounds or {})
        wide = [a.astype(np.float64) if np.issubdtype(a.dtype, np.floating) else a.astype(np.int64) for a in arrays]
        dtypes = self.output_dtypes([str(array.dtype) for array in arrays])
        evaluator = Evaluator(wide, extents, ranges)
        try:
            with np.errstate(all="ignore"):
                results = [evaluator.output(output, self.output_variables) for output in self.outputs]
        except TDLError as error:
            raise TDLError(f"{self.operator}: {error}") from None
        return tuple(result.astype(dtype) for result, dtype in zip(results, dtypes, strict=True))


def describe_traced(
    operator: str, operands: Sequence[Operand], traced: Traced, dtype: str | None = None
) -> Description:
    """Return the description derived from a traced one."""
    accesses = analysis.accesses(traced)
    strategies, refusals = analysis.strategies(traced, accesses)
    return Description(
        operator,
        tuple(operand.name for operand in operands),
        traced.output_variables,
        traced.reduction_variables,
        analysis.outputs(traced),
        accesses,
        strategies,
        refusals,
        analysis.is_elementwise(traced, accesses),
        analysis.contiguous(traced, accesses),
        extent_rules(traced, tuple((operand.name, operand.rank) for operand in operands)),
        work(traced),
        dtype,
        dtype is None and analysis.moves_elements(traced),
        analysis.adds_operands(traced),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """A described operator.

    `operands` are the names of its tensors (a single name if `variadic`). `attributes` maps its keyword-only parameters
    to their defaults (`REQUIRED` if there is none); the attribute `extents` is always allowed. `random_keys`,
    `only_in_training` and `parts` are those of `op`.
    """

    name: str
    category: str
    function: Callable[..., Any] = field(repr=False)
    operands: tuple[str, ...]
    variadic: bool
    attributes: Mapping[str, Any]
    random_keys: tuple[str, ...] = ()
    only_in_training: bool = False
    parts: tuple[str, ...] = ()
    descriptions: dict[Hashable, Description] = field(default_factory=dict, repr=False)

    @property
    def required(self) -> tuple[str, ...]:
        """The attributes without a default."""
        return tuple(name for name, default in self.attributes.items() if default is REQUIRED)

    def describe(self, ranks: Sequence[int], attributes: Attributes | None = None) -> Description:
        """Return the description for operands of these ranks.

        It is cached, and does not depend on the attribute `extents`.

        Raises TDLError if the operands or attributes do not fit, or if the description is invalid.
        """
        given = {name: value for name, value in (attributes or {}).items() if name != "extents"}
        key = (tuple(ranks), freeze(given))
        try:
            hash(key)
        except TypeError as error:
            wanted = "numbers, strings, and tuples or mappings of these"
            raise TDLError(f"{self.name}: attributes must be {wanted}, found {given}") from error
        if key not in self.descriptions:
            try:
                self.descriptions[key] = self._describe(key[0], given)
            except TDLError as error:
                raise TDLError(f"{self.name}: {error}") from error.__cause__
        return self.descriptions[key]

    def _describe(self, ranks: tuple[int, ...], attributes: Attributes) -> Description:
        self._check(ranks, attributes)
        operands = self.placeholders(ranks)
        return describe_traced(self.name, operands, self._trace(operands, attributes), attributes.get("dtype"))

    def placeholders(self, ranks: Sequence[int]) -> tuple[Operand, ...]:
        """Return symbolic operands of these ranks, for tracing the description."""
        names = [f"{self.operands[0]}{at}" for at in range(len(ranks))] if self.variadic else self.operands
        return tuple(Operand(at, name, rank) for at, (name, rank) in enumerate(zip(names, ranks, strict=True)))

    def _trace(self, operands: Sequence[Operand], attributes: Attributes) -> Traced:
        try:
            return trace(self.function, operands, attributes)
        except TDLError:
            raise
        except Exception as error:
            # A description is ordinary Python, so an unsuitable attribute can raise any exception where it is first
            # used.
            ranks = tuple(operand.rank for operand in operands)
            reason = f"{type(error).__name__}: {error}"
            raise TDLError(f"cannot describe ranks {ranks}, attributes {dict(attributes)}: {reason}") from error

    def _check(self, ranks: tuple[int, ...], attributes: Attributes) -> None:
        if self.variadic and not ranks:
            raise TDLError("expected at least 1 operand, found none")
        if not self.variadic and len(ranks) != len(self.operands):
            raise TDLError(f"expected {len(self.operands)} operands ({', '.join(self.operands)}), found {len(ranks)}")
        for name in attributes:
            if name not in self.attributes:
                known = ", ".join(self.attributes) or "none"
                raise TDLError(f"unknown attribute '{name}'; expected: {known}")
        for name in self.required:
            if name not in attributes:
                raise TDLError(f"missing attribute '{name}'")


REQUIRED = Parameter.empty
CATEGORIES = ("matmul", "convolution", "reduction", "elementwise", "other")


@overload
def op(function: Callable[..., Any]) -> Operator: ...
@overload
def op(
    *,
    category: str = ...,
    random_keys: tuple[str, ...] = ...,
    only_in_training: bool = ...,
    parts: tuple[str, ...] = ...,
) -> Callable[[Callable[..., Any]], Operator]: ...
def op(
    function: Callable[..., Any] | None = None,
    *,
    category: str = "other",
    random_keys: tuple[str, ...] = (),
    only_in_training: bool = False,
    parts: tuple[str, ...] = (),
) -> Operator | Callable[[Callable[..., Any]], Operator]:
    """Make an operator from a description: positional parameters are tensors, keyword-only ones are attributes.

    A trailing underscore of the function's name is dropped. `category`, one of CATEGORIES, is the class for which
    machines state an efficiency. `random_keys` are the attributes that affect only which random numbers are drawn; one
    of them called `row` is set to the position, in the whole batch, of the first row that a node computes. An operator
    that is `only_in_training` returns its first operand in evaluation. `parts` are operands that a library computes in
    the operator's own kernel, such as the mean of a norm.

    >>> from tdl import language
    >>> @op(category="elementwise", random_keys=("seed",))
    ... def noise(x, step, *, seed=0):
    ...     return lambda i, j: x[i, j] + language.random_bits(seed, step[()], i, j)
    >>> print(noise.describe((2, 0), {"seed": 1}))
    noise(x, step): lambda i, j: x[i, j] + random_bits(1, step[], i, j)
    """
    if function is None:
        return lambda description: _operator(description, category, random_keys, only_in_training, parts)
    return _operator(function, category, random_keys, only_in_training, parts)


def _operator(
    function: Callable[..., Any],
    category: str,
    random_keys: tuple[str, ...],
    only_in_training: bool,
    parts: tuple[str, ...],
) -> Operator:
    parameters = signature(function).parameters.values()
    tensors = [p for p in parameters if p.kind is not Parameter.KEYWORD_ONLY]
    variadic = any(p.kind is Parameter.VAR_POSITIONAL for p in tensors)
    name = function.__name__.rstrip("_")
    if any(p.kind is Parameter.VAR_KEYWORD for p in tensors) or (variadic and len(tensors) > 1):
        raise TDLError(f"{name}: a description takes named tensors or *tensors, then keyword-only attributes")
    if category not in CATEGORIES:
        raise TDLError(f"{name}: category must be one of {', '.join(CATEGORIES)}, found {category!r}")
    attributes = {p.name: p.default for p in parameters if p.kind is Parameter.KEYWORD_ONLY}
    if "extents" in attributes:
        raise TDLError(f"{name}: attribute 'extents' is reserved; choose another name")
    if unknown := set(random_keys) - attributes.keys():
        raise TDLError(f"{name}: random_keys: expected attributes of the operator, found {', '.join(sorted(unknown))}")
    operands = tuple(p.name for p in tensors)
    if unknown := set(parts).difference(operands):
        raise TDLError(f"{name}: parts: expected operands, found {', '.join(sorted(unknown))}")
    return Operator(name, category, function, operands, variadic, attributes, random_keys, only_in_training, parts)


def freeze(value: Any) -> Hashable:
    """Return a hashable stand-in for an attribute. 1, 1.0 and True give different ones."""
    if isinstance(value, Mapping):
        return tuple(sorted((name, freeze(inner)) for name, inner in value.items()))
    if isinstance(value, tuple | list):
        return tuple(map(freeze, value))
    return type(value).__name__, value


Function = TypeVar("Function", bound=Callable[..., Any])


def named(*functions: Function) -> dict[str, Function]:
    """Return functions by their names, which are those of their operators, but for a leading underscore."""
    return {function.__name__.removeprefix("_"): function for function in functions}
