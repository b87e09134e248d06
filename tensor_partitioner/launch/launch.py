"""A training as a launch file says it, and its values by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from planner.errors import InputError
from planner.parallel import Parallel

Value = object
"""A text, a number, or a truth value."""

UNSAID = (None, "", "None", "none", "null", "auto")
"""Values that say nothing."""

SWITCHES = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


@dataclass(frozen=True, slots=True)
class Fields:
    """The values of a launch file by name; an InputError names the file and the field whose value is none."""

    path: str
    values: Mapping[str, Value]

    def text(self, *names: str) -> str | None:
        """Return the value of the first name that says something."""
        given = (self.values[name] for name in names if self.values.get(name) not in UNSAID)
        value = next(given, None)
        return None if value is None else str(value)

    def whole(self, *names: str) -> int | None:
        """Return a whole number above 0."""
        text = self.text(*names)
        if text is None:
            return None
        if not text.isdecimal() or int(text[:19]) < 1:
            name = next(name for name in names if self.values.get(name) not in UNSAID)
            raise InputError(f"{self.path}: {name}: expected a whole number above 0, found {text!r}")
        return int(text[:19])

    def required(self, *names: str) -> int:
        """Return a whole number that the file has to say."""
        value = self.whole(*names)
        if value is None:
            raise InputError(f"{self.path}: expected a value of {names[0]}, found none")
        return value

    def switch(self, *names: str) -> bool:
        """Return a truth value; False where nothing is said."""
        text = self.text(*names)
        return False if text is None else SWITCHES.get(text.lower(), True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """What a launch file trains and how: a model with its options, parallelism without its data parallel degree.

    `degrees` has words of `Parallel`. `batch` is of a step; None where micro-batches and their number,
    `accumulation`, say it. `devices` is None where the file does not say how many there are. `assumed` is what it
    leaves open, and what stands in for it. `names` are what the file calls words of `Parallel`.
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
