"""What every kind of check shares: what is checked, on which case, and how a difference is put into words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import tdl
from executor.cases import Array
from executor.verification.parts import Subject
from planner.graph.rules import Rule

EXACT = 1e-9
"""Greatest difference in double precision, relative to the largest value of the tensor or 1."""

ROUGH = 2e-4
"""The same in single precision."""


@dataclass(frozen=True, slots=True)
class Application:
    """One case of an operator with what its description makes of it, and the gradient rules there are.

    `pairs` says how many pairs of strategies to try together.
    """

    operator: tdl.Operator
    subject: Subject
    expected: tuple[Array, ...]
    rules: Mapping[str, Rule]
    pairs: int


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold; `run` says how it does not, or returns None. Whatever it raises is a finding too."""

    name: str
    run: Callable[[], str | None]


def compared(
    name: str, compute: Callable[[], Sequence[Array]], expected: Sequence[Array], tolerance: float = EXACT
) -> Check:
    """Check that computed outputs are those expected."""
    return Check(name, lambda: difference(compute(), expected, tolerance))


def difference(outputs: Sequence[Array], expected: Sequence[Array], tolerance: float) -> str | None:
    """Say how outputs differ from what is expected, or None."""
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs, expected {len(expected)}"
    for number, (array, wanted) in enumerate(zip(outputs, expected, strict=True)):
        if array.shape != np.shape(wanted):
            return f"output {number} has shape {array.shape}, expected {np.shape(wanted)}"
        for where in _worst(array.astype(np.float64), np.asarray(wanted, np.float64), tolerance):
            return f"output {number} is {array[where]!s} at {list(where)}, expected {np.asarray(wanted)[where]!s}"
    return None


def _worst(actual: Array, wanted: Array, tolerance: float) -> list[tuple[int, ...]]:
    """Return the coordinates of the greatest difference, if that is beyond the tolerance.

    What is expected to be infinite, or not a number, must be exactly that; NaN elsewhere, as in an element that was
    never written, is a difference.
    """
    finite = np.isfinite(wanted)
    scale = max(1.0, float(np.max(np.abs(wanted), initial=0, where=finite)))
    with np.errstate(invalid="ignore"):
        distance = np.where(finite, np.nan_to_num(np.abs(actual - wanted), nan=np.inf), np.inf)
    distance[~finite & ((actual == wanted) | (np.isnan(actual) & np.isnan(wanted)))] = 0
    if not distance.size or np.max(distance) <= tolerance * scale:
        return []
    return [tuple(int(place) for place in np.unravel_index(int(np.argmax(distance)), distance.shape))]
