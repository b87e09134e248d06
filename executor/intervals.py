"""How often something is done: every so many steps, or once an epoch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.errors import InputError


@dataclass(frozen=True, slots=True)
class Interval:
    """Every `steps` steps, or after every epoch where that is None."""

    steps: int | None

    def __str__(self) -> str:
        return "epoch" if self.steps is None else str(self.steps)

    def is_due(self, done: int, steps_per_epoch: int) -> bool:
        """True if it is time after so many steps."""
        return done % (self.steps or steps_per_epoch) == 0


def read_interval(text: str) -> Interval:
    """Read a number of steps, or the word `step` or `epoch`; raises InputError for anything else."""
    if text in ("step", "epoch"):
        return Interval(1 if text == "step" else None)
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise InputError(f"expected a number of steps from 1, step or epoch, found {text!r}")
    return Interval(int(text))
