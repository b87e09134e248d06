"""A training as a launch file says it, and its values by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.errors import InputError
from planner.parallel import Parallel

Value = object
"""A text, a number, or a truth value."""

UNSAID = ("", "None", "none", "null", "auto")
"""Values that say nothing."""

SWITCHES = dict.fromkeys(("true", "1", "on", "yes", "y"), True) | dict.fromkeys(("false", "0", "off", "no", "n"), False)
STAGES = ("0", "1", "2", "3")
MOST = 10**9
"""No extent, batch or number of devices of a launch file is larger."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The values of a launch file by name; an InputError names the file and the field whose value is none."""

    path: str
    values: Mapping[str, Value]

    def text(self, *names: str) -> str | None:
        """Return the value of the first name that says something."""
        name = self._said(names)
        return None if name is None else str(self.values[name])

    def _said(self, names: Iterable[str]) -> str | None:
        return next((name for name in names if str(self.values.get(name)) not in UNSAID), None)

    def whole(self, *names: str, most: int = MOST) -> int | None:
        """Return a whole number above 0."""
        name = self._said(names)
        if name is None:
            return None
        text = str(self.values[name])
        if not text.isdecimal() or len(text) > len(str(MOST)) or not 1 <= int(text) <= most:
            raise InputError(f"{self.path}: {name}: expected a whole number from 1 to {most}, found {text!r}")
        return int(text)

    def required(self, *names: str, most: int = MOST) -> int:
        """Return a whole number that the file has to say."""
        value = self.whole(*names, most=most)
        if value is None:
            raise InputError(f"{self.path}: expected a value of {names[0]}, found none")
        return value

    def share(self, name: str, otherwise: float) -> float:
        """Return a number from 0 to 1."""
        text = self.text(name)
        try:
            value = otherwise if text is None else float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1:
            raise InputError(f"{self.path}: {name}: expected a number from 0 to 1, found {text!r}")
        return value

    def switch(self, *names: str) -> bool:
        """Return a truth value; False where nothing is said."""
        name = self._said(names)
        if name is None:
            return False
        text = str(self.values[name])
        if text.lower() not in SWITCHES:
            raise InputError(f"{self.path}: {name}: expected true or false, found {text!r}")
        return SWITCHES[text.lower()]

    def stage(self, name: str) -> int:
        """Return a stage of ZeRO; 0 where nothing is said."""
        text = self.text(name) or "0"
        if text not in STAGES:
            raise InputError(f"{self.path}: {name}: expected a stage of ZeRO from 0 to 3, found {text!r}")
        return int(text)


def section(path: str, said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of a file with fields of its own; without any where it is not said, or "auto"."""
    value = said.get(name)
    if value is None or (isinstance(value, str) and value in {"auto", ""}):
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{path}: {name}: expected fields of its own, found {str(value)[:40]!r}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """What a launch file trains and how: a model with its options, parallelism without its data parallel degree.

    `degrees` has words of `Parallel`. `batch` is of a step; None where micro-batches and their number,
    `accumulation`, say it. `devices` is None where the file does not say how many there are. `assumed` is what it
    leaves open, and what stands in for it. `names` are what the file calls the words of `Parallel` that can be
    changed in it, `spelled` how it writes their values.
    """

    path: str
    engine: str
    stack: str
    model: str
    options: Mapping[str, object]
    degrees: Mapping[str, object]
    batch: int | None = None
    accumulation: int = 1
    devices: int | None = None
    assumed: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    spelled: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def selects(self) -> bool:
        """True if its engine has selective recomputation."""
        return self.engine not in {"Axolotl", "Accelerate", "DeepSpeed"}

    def priced_by(self, stack: str | None) -> LaunchFile:
        """Return it as another software stack runs it; None: its own."""
        return self if stack is None else replace(self, stack=stack)

    def parallel(self, devices: int) -> Parallel:
        """Return the parallelism over so many devices; an InputError where they cannot be divided so."""
        said = {name: value for name, value in self.degrees.items() if value}
        pp, tp, cp = (int(str(said.get(axis, 1))) for axis in ("pp", "tp", "cp"))
        if devices % (pp * tp * cp):
            raise InputError(f"{self.path}: expected devices in multiples of {pp * tp * cp}, found {devices}")
        dp = devices // (pp * tp * cp)
        unused = {"sp": tp == 1, "zero": dp * cp == 1, "schedule": pp == 1}
        kept = {name: value for name, value in said.items() if not unused.get(name)}
        return Parallel(**{**kept, "dp": dp})  # type: ignore[arg-type]

    def samples(self, devices: int) -> int:
        """Return the samples of a step over so many devices."""
        if self.batch is not None:
            return self.batch
        parallel = self.parallel(devices)
        return (parallel.micro_batch or 1) * self.accumulation * parallel.dp


def first_said(*values: int | None) -> int | None:
    """Return the first value that is said."""
    return next((value for value in values if value is not None), None)


def product(values: Iterable[int | None]) -> int | None:
    """Return the product of values; None where one is not said."""
    result = 1
    for value in values:
        if value is None:
            return None
        result *= value
    return result
