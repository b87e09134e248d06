"""Verification of operators: kernel, strategies, gradient rule and inferred shapes, each against the description.

Every random case of an operator goes through the checks in `KINDS`. Only the description and its reference evaluation
are trusted: a kernel must equal it on the whole, and on the parts that the planner cuts along every derived strategy; a
gradient rule must equal finite differences.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np

import tdl
from executor.cases import Case, Draw, Generate, draw_case, generators
from executor.kernels import KERNELS, Kernel
from executor.kernels.call import OutputError
from operator_verification.application import (
    Application,
    Check,
    PartError,
    kernel_checks,
    run_whole,
    shape_checks,
    whole_number_checks,
)
from operator_verification.gradients import gradient_checks
from operator_verification.splits import split_checks, strategy_checks
from planner.errors import GraphError
from planner.graph.rules import RULES, Rule

__all__ = ["KINDS", "CheckOptions", "Failure", "Verification", "check_operator", "run_whole"]

KINDS: Mapping[str, Callable[[Application, Draw], Iterator[Check]]] = {
    "shapes": shape_checks,
    "kernel": kernel_checks,
    "whole numbers": whole_number_checks,
    "strategies": strategy_checks,
    "split": split_checks,
    "gradient": gradient_checks,
}
"""The checks of one case, by kind: inferred shapes and dtypes; the kernel on the whole; the same on integers; the
description in parts; the kernel in the parts of random plans; the gradient rule."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed check: operator, kind, check, case, and the message."""

    operator: str
    kind: str
    check: str
    case: str
    message: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.check}: {self.message} ({self.case})"


Done = tuple[str, str, Failure | None]
"""A check that was run: its kind, its name, and its failure or None."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The checks of one operator: their number in total and by kind, the strategies run, and the failures."""

    operator: str
    checks: int
    kinds: Mapping[str, int]
    strategies: tuple[str, ...]
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Options of a verification: `cases` random cases of each of `kinds`; `brief` stops at the first failure."""

    cases: int = 6
    seed: int = 0
    kinds: tuple[str, ...] = tuple(KINDS)
    brief: bool = False
    xp: ModuleType = np
    catalog: Mapping[str, tdl.Operator] = field(default_factory=lambda: tdl.catalog)
    kernels: Mapping[str, Kernel] = field(default_factory=lambda: KERNELS)
    rules: Mapping[str, Rule] = field(default_factory=lambda: RULES)
    generators: Mapping[str, Generate] = field(default_factory=generators)


def check_operator(name: str, options: CheckOptions | None = None) -> Verification:
    """Verify one operator of the catalog. Failures are in the result and do not raise.

    Raises KeyError if the catalog does not have the operator.
    """
    options = options or CheckOptions()
    done: list[Done] = []
    for entry in _checked(options.catalog[name], options):
        done.append(entry)
        if options.brief and entry[2] is not None:
            break
    kinds = Counter(kind for kind, _, _ in done)
    strategies = dict.fromkeys(
        check.removeprefix("meaning of ") for _, check, _ in done if check.startswith("meaning of ")
    )
    failures = tuple(failure for *_, failure in done if failure is not None)
    return Verification(name, len(done), dict(kinds), tuple(strategies), failures)


def _checked(operator: tdl.Operator, options: CheckOptions) -> Iterator[Done]:
    """Yield every check of every case. If there can be none, yield that as a failure."""
    name = operator.name
    tables = {"kernel": options.kernels, "cases": options.generators}
    missing = [what for what, table in tables.items() if name not in table]
    for what in missing:
        yield _failed(name, "kernel", what, f"none registered; use executor.extensions.{what}")
    if missing:
        return
    draw = Draw(np.random.default_rng([options.seed, *name.encode()]))
    for _ in range(options.cases):
        try:
            case = draw_case(options.generators[name], draw)
        except Exception as error:  # users' generators may raise anything
            yield _failed(name, "kernel", "cases", _told(error))
            return
        yield from check_case(operator, case, draw, options)


def _failed(operator: str, kind: str, check: str, reason: str, case: str = "any case") -> Done:
    return kind, check, Failure(operator, kind, check, case, reason)


def check_case(operator: tdl.Operator, case: Case, draw: Draw, options: CheckOptions) -> Iterator[Done]:
    """Yield every check of one case."""
    shown = _describe(case)
    application = Application(operator, options.kernels[operator.name], case, options.rules, options.xp)
    try:
        application.expected  # noqa: B018  # computes and caches it
    except tdl.TDLError as error:
        yield _failed(operator.name, "shapes", "description", str(error), shown)
        return
    for kind in options.kinds:
        for check in _guarded(KINDS[kind](application, draw)):
            reason = _finding(check)
            yield (
                (kind, check.name, None) if reason is None else _failed(operator.name, kind, check.name, reason, shown)
            )


def _guarded(checks: Iterator[Check]) -> Iterator[Check]:
    """Yield checks. If the next cannot be created, yield one that fails with the reason."""
    try:
        yield from checks
    except Exception as error:  # rules and wrong descriptions may raise anything
        reason = _told(error)
        yield Check("set up", lambda: reason)


def _finding(check: Check) -> str | None:
    try:
        return check.run()
    except Exception as error:  # any exception is a failure of the operator
        return _told(error)


def _told(error: Exception) -> str:
    """Return the message of an error. For errors that are not the project's own, add type and location."""
    if isinstance(error, tdl.TDLError | GraphError | PartError | OutputError):
        return str(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _describe(case: Case) -> str:
    """Return the shapes and attributes of a case, in one line."""
    shapes = " ".join("x".join(map(str, operand.shape)) or "scalar" for operand in case.operands)
    return f"operands {shapes}" + "".join(f", {name}={value}" for name, value in case.attributes.items())
