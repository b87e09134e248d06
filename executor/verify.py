"""Verification of operators: every kernel equals its description, and every strategy gives the unsplit result.

For each random case of an operator, its kernel is compared to the description's reference evaluation (in double and
in single precision, and in place where the operator is element-wise), then run in parts along every strategy that
was derived from the description, and along pairs of them, with uneven and with scattered parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, permutations
from types import ModuleType
from typing import Any

import numpy as np

import tdl
from executor.backend import asnumpy
from executor.kernels import KERNELS, Kernel, KernelCall
from executor.verify_cases import CASES, Array, Case, Draw, Generate
from executor.verify_parts import Subject, call_kernel, deal, output_dtypes, run_in_parts

TOLERANCE = {"float64": 1e-9, "float32": 2e-4}
"""Greatest difference allowed, relative to the largest value of the tensor or 1."""

ALIASINGS = 24
"""How many ways of computing in place are tried per case."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One check that did not hold: which operator, which check, on what case, and what was found."""

    operator: str
    check: str
    case: str
    found: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.check}: {self.found} ({self.case})"


@dataclass(frozen=True, slots=True)
class Verification:
    """What was checked of one operator, and what failed."""

    operator: str
    checks: int
    strategies: tuple[str, ...]
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """How much to check, with what: `cases` random cases, `pairs` pairs of split variables per case."""

    cases: int = 6
    seed: int = 0
    pairs: int = 4
    xp: ModuleType = np
    catalog: Mapping[str, tdl.Operator] = field(default_factory=lambda: tdl.catalog)
    kernels: Mapping[str, Kernel] = field(default_factory=lambda: KERNELS)
    generators: Mapping[str, Generate] = field(default_factory=lambda: CASES)


Check = tuple[str, Callable[[], tuple[Array, ...]], float]
"""What is checked, how to compute the outputs, and the tolerance."""


def check_operator(name: str, options: Options | None = None) -> Verification:
    """Verify one operator of the catalog; what fails is in the result, nothing is raised for it.

    Raises KeyError if the catalog has no such operator.
    """
    options = options or Options()
    operator = options.catalog[name]
    missing = [
        what
        for what, table in (("kernel", options.kernels), ("generator of cases", options.generators))
        if name not in table
    ]
    if missing:
        return Verification(name, 0, (), tuple(Failure(name, what, "any", f"no {what}") for what in missing))
    draw = Draw(np.random.default_rng([options.seed, *name.encode()]))
    checks, strategies, failures = 0, dict[str, None](), []
    for _ in range(options.cases):
        case = options.generators[name](draw)
        for check, failure in _check_case(operator, case, draw, options):
            checks += 1
            strategies |= dict.fromkeys(check[len("split ") :].split(",") if check.startswith("split ") else ())
            if failure is not None:
                failures.append(failure)
    return Verification(name, checks, tuple(strategies), tuple(failures))


def _check_case(
    operator: tdl.Operator, case: Case, draw: Draw, options: Options
) -> Iterator[tuple[str, Failure | None]]:
    """Yield the name of every check of one case, with its failure or None."""
    shown = _describe(case)
    try:
        description = operator.describe(tuple(operand.ndim for operand in case.operands), case.attributes)
        extents = description.extents(tuple(operand.shape for operand in case.operands), case.attributes)
        expected = description.evaluate(case.operands, case.attributes, extents)
    except tdl.TDLError as error:
        yield "description", Failure(operator.name, "description", shown, str(error))
        return
    subject = Subject(options.kernels[operator.name], description, case, extents, options.xp)
    for check, compute, tolerance in _checks(subject, draw, options.pairs):
        try:
            found = difference(compute(), expected, tolerance)
        except Exception as error:  # whatever a kernel raises is a finding about that operator
            found = f"{type(error).__name__}: {error}"
        yield check, None if found is None else Failure(operator.name, check, shown, found)


def _checks(subject: Subject, draw: Draw, pairs: int) -> Iterator[Check]:
    """Yield every check of one case."""
    exact, rough = TOLERANCE["float64"], TOLERANCE["float32"]
    yield "kernel", partial(run_whole, subject), exact
    single = replace(subject, case=_single(subject.case))
    yield "kernel in single precision", partial(run_whole, single), rough
    if subject.description.is_elementwise:
        yield from _aliasings(subject)
    strategies = [name for name in subject.description.strategies if subject.extents[name] > 1]
    chosen = [(name,) for name in strategies]
    every_pair = list(combinations(strategies, 2))
    chosen_pairs = [every_pair[number] for number in draw.generator.permutation(len(every_pair))[:pairs]]
    for names in [*chosen, *chosen_pairs]:
        for scattered in (False, True):
            cuts = {name: deal(draw, subject.extents[name], draw.size(2, 3), scattered) for name in names}
            yield f"split {','.join(names)}", partial(run_in_parts, subject, cuts, draw), exact


def run_whole(subject: Subject) -> tuple[Array, ...]:
    """Run the kernel once, on everything; raises if it changes an operand."""
    inputs = tuple(subject.xp.asarray(operand.copy()) for operand in subject.case.operands)
    origins = tuple((0,) * operand.ndim for operand in subject.case.operands)
    outputs = call_kernel(subject, subject.whole(), inputs, origins)
    for number, (array, operand) in enumerate(zip(inputs, subject.case.operands, strict=True)):
        if not np.array_equal(asnumpy(array), operand):
            raise ValueError(f"the kernel changed operand {number}")
    return outputs


def _aliasings(subject: Subject) -> Iterator[Check]:
    """Yield checks in which outputs are the very memory of operands of their shape and dtype."""
    shapes = subject.description.output_shapes(subject.extents)
    wanted = list(zip(shapes, output_dtypes(subject), strict=True))
    operands = subject.case.operands
    ways = [
        way
        for way in permutations(range(len(operands)), len(wanted))
        if all(
            (operands[number].shape, operands[number].dtype) == kind for number, kind in zip(way, wanted, strict=True)
        )
    ]
    for way in ways[:ALIASINGS]:
        name = f"in place of operands {','.join(map(str, way))}"
        yield name, partial(_run_in_place, subject, way), TOLERANCE["float64"]


def _run_in_place(subject: Subject, way: tuple[int, ...]) -> tuple[Array, ...]:
    """Run the whole operator with output number j in the memory of operand way[j]."""
    inputs = tuple(subject.xp.asarray(operand.copy()) for operand in subject.case.operands)
    outputs = tuple(inputs[number] for number in way)
    ranges = {variable: (0, extent) for variable, extent in subject.extents.items()}
    origins = tuple((0,) * operand.ndim for operand in subject.case.operands)
    subject.kernel(KernelCall(subject.xp, inputs, outputs, subject.attributes(), ranges, origins))
    return tuple(asnumpy(output) for output in outputs)


def difference(found: tuple[Array, ...], expected: tuple[Array, ...], tolerance: float) -> str | None:
    """Say how outputs differ from what is expected, or None."""
    if len(found) != len(expected):
        return f"{len(found)} outputs, expected {len(expected)}"
    for number, (array, wanted) in enumerate(zip(found, expected, strict=True)):
        if array.shape != np.shape(wanted):
            return f"output {number} has shape {array.shape}, expected {np.shape(wanted)}"
        scale = max(1.0, float(np.max(np.abs(wanted), initial=0)))
        error = np.max(np.abs(array.astype(np.float64) - wanted), initial=0)
        # Written so that NaN, an element that was never written, counts as a difference.
        if not error <= tolerance * scale:
            where = _worst(array, np.asarray(wanted))
            return f"output {number} is {array[where]!s} at {list(where)}, expected {np.asarray(wanted)[where]!s}"
    return None


def _worst(array: Array, wanted: Array) -> tuple[int, ...]:
    """Return the coordinates of the greatest difference."""
    distance = np.nan_to_num(np.abs(array.astype(np.float64) - wanted), nan=np.inf)
    return tuple(int(place) for place in np.unravel_index(int(np.argmax(distance)), distance.shape))


def _single(case: Case) -> Case:
    """Convert floating-point operands to single precision (exact for the values that cases draw)."""
    return Case(tuple(_to_single(operand) for operand in case.operands), case.attributes)


def _to_single(operand: Array) -> Array:
    return operand.astype(np.float32) if operand.dtype.kind == "f" else operand


def _describe(case: Case) -> str:
    """Shapes and attributes of a case, in one line."""
    shapes = " ".join("x".join(map(str, operand.shape)) or "scalar" for operand in case.operands)
    attributes: dict[str, Any] = dict(case.attributes)
    return f"operands {shapes}" + "".join(f", {name}={value}" for name, value in attributes.items())
