"""The training that a launch file describes, and access to the file's values by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.errors import InputError
from planner.parallel import Parallel

Value = object
"""A string, a number or a boolean."""

UNSAID = ("", "None", "none", "null", "auto")
"""Values that count as not set."""

SWITCHES = dict.fromkeys(("true", "1", "on", "yes", "y"), True) | dict.fromkeys(("false", "0", "off", "no", "n"), False)
STAGES = ("0", "1", "2", "3")
UNPRICED = re.compile(
    r"offload|recompute|fp8.(?!amax|margin|interval)|precision.aware|reduce.in|comm.(?:overlap|type|dtype)|async"
    r"|cuda.?graph|token.dispatcher|capacity|bucket.(?:cap|size)|quantiz|prefetch|all.gather|overlap.comm|low.latency"
)
"""Names of settings that change time or memory; a reader that does not ask for one does not price it."""

WITHOUT_EFFECT = {"moe": ("num-experts",), "cpu-offloading-": ("cpu-offloading",), "fp8-": ("fp8", "fp8-format"),
    "quantize": ("model.converters",)}  # fmt: skip
"""Settings, by the beginning of their names, that change nothing unless one of others is set."""

MOST = 10**9
"""Largest extent, batch or number of devices that a launch file may have."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The values of a launch file by name. Errors name the file and the field.

    Getters take alternative names and use the first that is set. They raise InputError for an invalid value. `assumed`
    lists the values that stand in for fields that are not set.
    """

    path: str
    values: Mapping[str, Value]
    read: set[str] = field(default_factory=set)
    assumed: list[str] = field(default_factory=list)

    def launch(self, **values: Any) -> LaunchFile:
        """Return the training that the fields describe, with what is assumed and what is not priced."""
        return LaunchFile(path=self.path, assumed=tuple(self.assumed), not_priced=self._not_priced(), **values)

    def _not_priced(self) -> tuple[str, ...]:
        """Return the fields that are set and change time or memory, but were not asked for until now."""
        unread = (name for name in self.values if UNPRICED.search(name) and name not in self.read)
        return tuple(name for name in unread if self._is_on(name) and not self._is_without_effect(name))

    def _is_on(self, name: str) -> bool:
        return str(self.values.get(name)).lower() not in {*UNSAID, "none", "false", "0"}

    def _is_without_effect(self, name: str) -> bool:
        others = next((of for start, of in WITHOUT_EFFECT.items() if name.startswith(start)), None)
        is_priced = (name, str(self.values[name]).lower()) == ("moe-token-dispatcher-type", "alltoall")
        return is_priced or (others is not None and not any(map(self._is_on, others)))

    def text(self, *names: str) -> str | None:
        """Return the value as text; None if it is not set."""
        return self._said(names)[1]

    def _said(self, names: Iterable[str]) -> tuple[str, str | None]:
        """Return the first name that is set, with its value as text; an empty name and None if none is."""
        self.read.update(names)
        said = ((name, str(self.values.get(name))) for name in names)
        return next((pair for pair in said if pair[1] not in UNSAID), ("", None))

    def whole(self, *names: str, most: int = MOST) -> int | None:
        """Return a positive integer; None if it is not set."""
        name, text = self._said(names)
        if text is None:
            return None
        if not text.isdecimal() or len(text) > len(str(MOST)) or not 1 <= int(text) <= most:
            raise InputError(f"{self.path}: {name}: expected a whole number from 1 to {most}, found {text!r}")
        return int(text)

    def required(self, *names: str, most: int = MOST) -> int:
        """Return a positive integer. Raises InputError if it is not set."""
        value = self.whole(*names, most=most)
        if value is None:
            raise InputError(f"{self.path}: expected a value of {names[0]}, found none")
        return value

    def share(self, name: str, otherwise: float) -> float:
        """Return a number from 0 to 1; `otherwise` if it is not set."""
        text = self.text(name)
        try:
            value = otherwise if text is None else float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1:
            raise InputError(f"{self.path}: {name}: expected a number from 0 to 1, found {text!r}")
        return value

    def switch(self, *names: str) -> bool:
        """Return a boolean; False if it is not set. What follows a switch in a script may be an unknown variable."""
        name, text = self._said(names)
        if text is None:
            return False
        if (is_on := SWITCHES.get(re.sub(r"\$\{?\w+\}?", "true", text).lower())) is None:
            raise InputError(f"{self.path}: {name}: expected true or false, found {text!r}")
        return is_on

    def stage(self, name: str) -> int:
        """Return a ZeRO stage; 0 if it is not set."""
        text = self.text(name) or "0"
        if text not in STAGES:
            raise InputError(f"{self.path}: {name}: expected a stage of ZeRO from 0 to 3, found {text!r}")
        return int(text)


def section(path: str, said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a file; an empty one if it is not set or "auto". Raises InputError if it is not a mapping."""
    value = said.get(name)
    if value is None or (isinstance(value, str) and value in {"auto", ""}):
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{path}: {name}: expected fields of its own, found {str(value)[:40]!r}")
    return value


def with_effect(words: Mapping[str, Any]) -> Parallel:
    """Return the parallelism with these words, without settings that have no effect. Raises PlanError if invalid."""
    unused = {"sp": words["tp"] == 1, "zero": words["dp"] * words["cp"] == 1, "schedule": words["pp"] == 1}
    return Parallel(**{name: value for name, value in words.items() if not unused.get(name)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """What a launch file trains and how: a model with its options, and parallelism without the data parallel degree.

    `degrees` has words of `Parallel`. `batch` is the samples per step; if None, they follow from the micro-batch and
    `accumulation`, the number of micro-batches. `devices` is None if the file does not say how many there are.
    `assumed` lists the values that stand in for what the file omits, `not_priced` its settings that predictions leave
    out. `names` are the file's own names for the words of `Parallel` that can be changed in it. `spelled` has its own
    spelling of all values that a word can have; words that it lacks are spelled as `Parallel` spells them.
    """

    path: str
    engine: str
    stack: str
    model: str
    options: Mapping[str, object]
    degrees: Mapping[str, Any]
    batch: int | None = None
    accumulation: int = 1
    devices: int | None = None
    assumed: tuple[str, ...] = ()
    not_priced: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    spelled: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def parallel(self, devices: int) -> Parallel:
        """Return the parallelism over `devices`. Raises InputError if the degrees do not divide them."""
        said = {"pp": 1, "tp": 1, "cp": 1} | {name: value for name, value in self.degrees.items() if value}
        replica = said["pp"] * said["tp"] * said["cp"]
        if devices % replica:
            raise InputError(f"{self.path}: expected devices in multiples of {replica}, found {devices}")
        return with_effect({**said, "dp": devices // replica})

    def samples(self, devices: int) -> int:
        """Return the samples per step over `devices`."""
        if self.batch is not None:
            return self.batch
        parallel = self.parallel(devices)
        return (parallel.micro_batch or 1) * self.accumulation * parallel.dp
