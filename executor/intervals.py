"""How often something is done: every so many steps, or once an epoch."""

from __future__ import annotations

import re
from dataclasses import dataclass

import click


@dataclass(frozen=True, slots=True)
class Interval:
    """Every `steps` steps, or after every epoch where that is None."""

    steps: int | None

    def __str__(self) -> str:
        return "epoch" if self.steps is None else str(self.steps)

    def is_due(self, done: int, steps_per_epoch: int) -> bool:
        """Whether it is time after so many steps."""
        return done % (self.steps or steps_per_epoch) == 0


def read_interval(_context: click.Context, _option: click.Parameter, text: str | None) -> Interval | None:
    """Read the number of steps between, or the word `step` or `epoch`; None where none is given."""
    if text is None:
        return None
    if text in ("step", "epoch"):
        return Interval(1 if text == "step" else None)
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise click.BadParameter(f"expected a number of steps from 1, step or epoch, found {text!r}")
    return Interval(int(text))
