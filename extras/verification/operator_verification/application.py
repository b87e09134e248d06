"""One case of an operator: what its description computes, calls of its kernel, and checks of the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import permutations
from types import ModuleType
from typing import Any

import numpy as np

import tdl
from executor.backend import asnumpy
from executor.cases import Array, Case, Draw
from executor.kernels import Kernel, KernelCall, run
from executor.kernels.call import OutputError
from planner.errors import GraphError
from planner.graph.infer import infer
from planner.graph.ir import Value
from planner.graph.rules import Rule
from tdl import Description, Operator

Ranges = Mapping[str, tuple[int, int]]
Origins = Sequence[tuple[int, ...]]

NOWHERE = 1_000_000
"""A start index beyond any tensor."""


class PartError(ValueError):
    """The parts do not make up the whole: an element is computed by no part, or by several without a reducer."""


@dataclass(frozen=True)
class Application:
    """One case of an operator, its kernel, and the gradient rules."""

    operator: Operator
    kernel: Kernel
    case: Case
    rules: Mapping[str, Rule] = field(default_factory=dict)
    xp: ModuleType = np

    @cached_property
    def description(self) -> Description:
        """The description at the operands' ranks."""
        return self.operator.describe(tuple(operand.ndim for operand in self.case.operands), self.case.attributes)

    @cached_property
    def extents(self) -> Mapping[str, int]:
        """The extent of every index variable."""
        return self.description.extents(tuple(operand.shape for operand in self.case.operands), self.case.attributes)

    @cached_property
    def expected(self) -> tuple[Array, ...]:
        """The outputs according to the description."""
        return self.description.evaluate(self.case.operands, self.case.attributes, self.extents)

    @cached_property
    def output_dtypes(self) -> list[np.dtype[Any]]:
        """The dtype of each output according to the description."""
        operands = [str(operand.dtype) for operand in self.case.operands]
        return [np.dtype(dtype) for dtype in self.description.output_dtypes(operands)]

    @property
    def whole(self) -> Ranges:
        """The full range of every index variable."""
        return {variable: (0, extent) for variable, extent in self.extents.items()}

    @property
    def origins(self) -> Origins:
        """Origins of whole operands: all zero."""
        return tuple((0,) * operand.ndim for operand in self.case.operands)

    def call(self, inputs: Sequence[Any], outputs: Sequence[Any], ranges: Ranges, origins: Origins) -> None:
        """Run the kernel. For a part of a variable that may not be contiguous, it only gets the length."""
        told = {
            name: (start, stop)
            if name in self.description.contiguous or ranges == self.whole
            else (NOWHERE, NOWHERE + stop - start)
            for name, (start, stop) in ranges.items()
        }
        attributes: dict[str, Value] = {**self.case.attributes, "extents": self.extents}
        run(self.kernel, KernelCall(self.xp, tuple(inputs), tuple(outputs), attributes, told, tuple(origins)))


def run_whole(application: Application) -> tuple[Array, ...]:
    """Run the kernel once on everything. Raises if it changes an operand or does not write an output."""
    operands = application.case.operands
    inputs = [application.xp.asarray(operand.copy()) for operand in operands]
    shapes = application.description.output_shapes(application.extents)
    outputs = [blank(application.xp, *kind) for kind in zip(shapes, application.output_dtypes, strict=True)]
    application.call(inputs, outputs, application.whole, application.origins)
    for number, (array, operand) in enumerate(zip(inputs, operands, strict=True)):
        if not np.array_equal(asnumpy(array), operand, equal_nan=True):
            raise ValueError(f"the kernel changed operand {number}")
    written = tuple(map(asnumpy, outputs))
    for number, output in enumerate(written):
        _require_written(number, output)
    return written


UNWRITTEN = {
    **{"f2": 0x7E5A, "V2": 0x7FDA, "f4": 0x7FC0_5A5A, "f8": 0x7FF8_0000_5A5A_5A5A},
    **{"i4": 0xA5A5_A5A5, "b1": 0xA5},
}
"""Bits of unwritten elements, by dtype (V2: bfloat16): a NaN that nothing computes, or an integer that is no index."""


def blank(xp: ModuleType, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """Return a non-contiguous array filled with the marker of unwritten elements."""
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


EXACT = 1e-9
"""Greatest difference in double precision, relative to the tensor's largest value or 1."""

ROUGH = 2e-4
"""The same in single precision."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `run` returns how it fails, or None. Exceptions also count as failures."""

    name: str
    run: Callable[[], str | None]


def compared(
    name: str, compute: Callable[[], Sequence[Array]], expected: Sequence[Array], tolerance: float = EXACT
) -> Check:
    """Return the check that computed outputs equal the expected ones."""
    return Check(name, lambda: difference(compute(), expected, tolerance))


def difference(outputs: Sequence[Array], expected: Sequence[Array], tolerance: float) -> str | None:
    """Return how outputs differ from the expected ones, or None."""
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs, expected {len(expected)}"
    for number, (array, wanted) in enumerate(zip(outputs, expected, strict=True)):
        if array.shape != np.shape(wanted):
            return f"output {number} has shape {array.shape}, expected {np.shape(wanted)}"
        for where in _worst(array.astype(np.float64), np.asarray(wanted, np.float64), tolerance):
            return f"output {number} is {array[where]!s} at {list(where)}, expected {np.asarray(wanted)[where]!s}"
    return None


def _worst(actual: Array, wanted: Array, tolerance: float) -> list[tuple[int, ...]]:
    """Return the coordinates of the greatest difference, if it exceeds the tolerance.

    Expected infinities and NaN must match exactly. NaN elsewhere, such as in an unwritten element, is a difference.
    """
    finite = np.isfinite(wanted)
    scale = max(1.0, float(np.max(np.abs(wanted), initial=0, where=finite)))
    with np.errstate(invalid="ignore"):
        distance = np.where(finite, np.nan_to_num(np.abs(actual - wanted), nan=np.inf), np.inf)
    distance[~finite & ((actual == wanted) | (np.isnan(actual) & np.isnan(wanted)))] = 0
    if not distance.size or np.max(distance) <= tolerance * scale:
        return []
    return [tuple(int(place) for place in np.unravel_index(int(np.argmax(distance)), distance.shape))]


ALIASINGS = 24
"""Number of in-place variants that are tried per case."""


def shape_checks(application: Application, _draw: Draw) -> Iterator[Check]:
    """Yield the checks of shapes and extents that the case states, and of what a graph infers for the outputs."""
    case = application.case
    extents = {name: application.extents.get(name) for name in case.extents}
    if extents:
        wrong = f"index variables have extents {extents}, expected {dict(case.extents)}"
        yield Check("extents", lambda: None if extents == case.extents else wrong)
    shapes = tuple(array.shape for array in application.expected)
    if case.shapes is not None:
        message = f"outputs have shapes {shapes}, expected {case.shapes}"
        yield Check("shapes", lambda: None if shapes == case.shapes else message)
    if _is_of_catalog(application):
        yield Check("shapes in a graph", partial(_inferred, application))


def _is_of_catalog(application: Application) -> bool:
    """Return whether graphs use this very operator."""
    return tdl.catalog.get(application.operator.name) is application.operator


def _inferred(application: Application) -> str | None:
    """Return how the outputs that a graph infers differ from the actual ones."""
    try:
        inferred = infer(application.operator.name, _kinds(application.case.operands), application.case.attributes)
    except GraphError as error:
        return f"a graph refuses it: {error}"
    computed = tuple(_kinds(application.expected))
    return None if inferred == computed else f"a graph expects outputs {inferred}, the description computes {computed}"


def _kinds(arrays: tuple[Array, ...]) -> list[tuple[tuple[int, ...], str]]:
    return [(array.shape, str(array.dtype)) for array in arrays]


def kernel_checks(application: Application, _draw: Draw) -> Iterator[Check]:
    """Yield the checks that a kernel on whole operands computes what the description says."""
    expected = application.expected
    yield compared("kernel", partial(run_whole, application), expected)
    single = replace(application, case=_single(application.case))
    yield compared("kernel in single precision", partial(run_whole, single), expected, ROUGH)
    if application.description.is_elementwise:
        for way in _aliasings(application):
            name = f"in place of operands {','.join(map(str, way))}"
            yield compared(name, partial(_run_in_place, application, way), expected)


NUMBERS = ("value", "factor", "min", "max")
"""Attributes with values of the same kind as operand elements."""


def whole_number_checks(application: Application, _draw: Draw) -> Iterator[Check]:
    """Yield the checks of a kernel on integers and booleans, if a graph accepts them."""
    if not _is_of_catalog(application):
        return
    for dtype in ("int32", "bool"):
        converted = replace(application, case=_converted(application.case, dtype))
        kinds = _kinds(converted.case.operands)
        try:
            infer(application.operator.name, kinds, converted.case.attributes)
        except GraphError:
            continue
        if kinds != _kinds(application.case.operands):
            yield compared(f"kernel of {dtype}", partial(run_whole, converted), converted.expected)


def _converted(case: Case, dtype: str) -> Case:
    """Return the case with floating-point operands, and their attributes, converted to another dtype."""

    def converted(operand: Array) -> Array:
        if operand.dtype.kind != "f":
            return operand
        whole = np.rint(np.nan_to_num(8 * operand, posinf=9, neginf=-9)).astype(np.int32)
        return operand > 0 if dtype == "bool" else whole

    attributes = {name: _whole(value) if name in NUMBERS else value for name, value in case.attributes.items()}
    return replace(case, operands=tuple(map(converted, case.operands)), attributes=attributes)


def _whole(value: Value) -> Value:
    return int(4 * value) if isinstance(value, float) and math.isfinite(value) else value


def _aliasings(application: Application) -> list[tuple[int, ...]]:
    """Return assignments of outputs to operands of the same shape and dtype, whose memory they may use."""
    wanted, kinds = _kinds(application.expected), _kinds(application.case.operands)
    ways = permutations(range(len(kinds)), len(wanted))
    return [way for way in ways if [kinds[number] for number in way] == wanted][:ALIASINGS]


def _run_in_place(application: Application, way: tuple[int, ...]) -> tuple[Array, ...]:
    """Run the whole operator with output number j in the memory of operand way[j]."""
    inputs = [application.xp.asarray(operand.copy()) for operand in application.case.operands]
    outputs = [inputs[number] for number in way]
    application.call(inputs, outputs, application.whole, application.origins)
    return tuple(map(asnumpy, outputs))


def _single(case: Case) -> Case:
    """Convert floating-point operands to single precision, which is exact for the values that cases draw."""
    return replace(case, operands=tuple(a.astype(np.float32) if a.dtype.kind == "f" else a for a in case.operands))
