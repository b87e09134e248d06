"""Learning-rate schedules: the factor by which each update's learning rate is multiplied, step by step.

A schedule depends only on the number of the step, so a resumed training continues unchanged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from executor.values import Array, ArrayModule
from planner.errors import InputError
from planner.graph.ir import Value
from planner.program.tasks import Kernel

LEARNING_RATE = "lr"
"""The attribute of every optimizer's operator that a schedule multiplies."""

FORM = "[warmup=STEPS,](constant | cosine=STEPS[:LEAST] | step=STEPS:FACTOR)"


class ScheduleError(InputError):
    """A schedule is misspelled."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A linear warm-up of `warmup` steps, then a schedule of some `kind` with parameters `steps` and `factor`.

    `text` is the user's spelling.
    """

    text: str = "constant"
    warmup: int = 0
    kind: str = "constant"
    steps: int = 1
    factor: float = 1.0

    def at(self, step: int) -> float:
        """Return the factor at a step counted from 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        return KINDS[self.kind](step - self.warmup, self.steps, self.factor)


def _cosine(step: int, steps: int, least: float) -> float:
    """Decay from 1 to `least` along half a cosine, and stay there."""
    return least + (1 - least) * (1 + math.cos(math.pi * min(step, steps) / steps)) / 2


KINDS: Mapping[str, Callable[[int, int, float], float]] = {
    "constant": lambda _step, _steps, _factor: 1.0,
    "cosine": _cosine,
    "step": lambda step, steps, factor: factor ** (step // steps),
}
"""The factor after the warm-up, by kind."""

_SPELLED = re.compile(
    r"(?:warmup=(\d{1,9})(?:,(?!$)|$))?(?:(constant|cosine|step)(?:=(\d{1,9}))?(?::(\d*\.?\d+))?)?", re.ASCII
)


def read_schedule(text: str) -> Schedule:
    """Read a schedule of the form FORM. Raises ScheduleError."""
    warmup, kind, steps, factor = match.groups() if (match := _SPELLED.fullmatch(text)) else (None, "", None, None)
    kind = "constant" if kind is None and text else kind
    if not kind or not _is_complete(kind, steps, factor) or (warmup and not int(warmup)):
        raise ScheduleError(f"expected {FORM}, with steps above 0 and factors up to 1, found {text!r}")
    return Schedule(text, int(warmup or 0), kind, int(steps or 1), float(factor or 0.0))


def _is_complete(kind: str, steps: str | None, factor: str | None) -> bool:
    """Return whether a kind has exactly the numbers that it needs."""
    if kind == "constant":
        return steps is factor is None
    return int(steps or 0) > 0 and float(factor or 0.0) <= 1 and (kind == "cosine" or factor is not None)


CONSTANT = Schedule()


class Rate:
    """The attributes of update kernels, such as learning rates, which may change between steps."""

    def __init__(self) -> None:
        self._updates: list[tuple[Kernel, dict[str, Any]]] = []
        self._elements: dict[float, Array] = {}
        self._factor = 1.0

    def applied(self, kernel: Kernel) -> Mapping[str, Value]:
        """Return a kernel's attributes. If they have a learning rate, later changes apply to them."""
        if LEARNING_RATE not in kernel.attributes:
            return kernel.attributes
        self._updates.append((kernel, dict(kernel.attributes)))
        return self._updates[-1][1]

    def multiply(self, factor: float) -> None:
        """Multiply every planned learning rate for the next step."""
        self._factor = factor
        for planned, element in self._elements.items():
            element.fill(planned * factor)
        for kernel, attributes in self._updates:
            rate = kernel.attributes[LEARNING_RATE]
            assert isinstance(rate, int | float), kernel.node
            attributes[LEARNING_RATE] = self._elements.get(rate, rate * factor)

    def move(self, xp: ArrayModule) -> None:
        """Keep learning rates in float32 arrays of rank 0 from now on, where a captured step reads them."""
        rates = (kernel.attributes[LEARNING_RATE] for kernel, _ in self._updates)
        self._elements = {rate: xp.empty((), "float32") for rate in rates if isinstance(rate, int | float)}
        self.multiply(self._factor)

    def change(self, attributes_of: Mapping[str, Mapping[str, Value]]) -> None:
        """Set attributes of the kernels of nodes for the next steps."""
        for kernel, attributes in self._updates:
            attributes.update(attributes_of.get(kernel.node, {}))
