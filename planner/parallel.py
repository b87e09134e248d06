"""Named parallelism: `tp=8,pp=4,dp=16,zero=1,sp,schedule=interleaved:2,recompute=full`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from planner.errors import PlanError
from planner.layout.ways import AXES, Ways
from planner.plans.records import DEFAULT, read_schedule
from tensor_partitioner.display import nearest

STATES, GRADIENTS, WEIGHTS = 1, 2, 3
"""The ZeRO stages from which the optimizer's state, the gradients and the weights are sharded."""

RECOMPUTE = {"none": "none", "selective": "selective", "full": "segments"}
"""Which activations the backward pass recomputes (none, those within attention, all), with the names of `Recipe`."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """Degrees of pipeline (`pp`), data (`dp`), context (`cp`) and tensor parallelism (`tp`), and their options.

    Ranks are ordered as in Megatron-LM: tensor parallel workers are adjacent, pipeline stages are outermost. `axes` and
    `ways` describe one stage. Groups of `ep` adjacent data parallel workers share a layer's experts; each worker has
    its own tokens.

    `sp`: split along the sequence what all tensor parallel workers would compute. `zero`: shard the optimizer's state
    (1), also gradients (2), also weights (3) over the data (and context) parallel workers. `micro_batch`: the number of
    samples per micro-batch of a data parallel worker, for a graph cut into micro-batches. `schedule`: the order in
    which a stage runs its micro-batches; `interleaved:V` gives each worker V virtual stages. `recompute`: the
    activations that are recomputed.

    >>> Parallel.read("tp=4,dp=2,zero=1").ways
    Ways(factors=(2, 4), shares=(), axes=('dp', 'tp'))
    """

    pp: int = 1
    dp: int = 1
    ep: int = 1
    cp: int = 1
    tp: int = 1
    sp: bool = False
    zero: int = 0
    micro_batch: int | None = None
    schedule: str = DEFAULT
    recompute: str = "none"

    def __post_init__(self) -> None:
        """Raise PlanError for degrees below 1, and for unknown ZeRO stages, schedules and recomputations."""
        for axis in ("pp", *AXES):
            if type(degree := getattr(self, axis)) is not int or degree < 1:
                raise PlanError(f"parallel: expected {axis} of at least 1, found {degree!r}")
        if self.dp % self.ep:
            raise PlanError(f"parallel: ep must divide dp, found ep={self.ep}, dp={self.dp}")
        if self.zero not in range(WEIGHTS + 1):
            raise PlanError(f"parallel: expected zero from 0 to {WEIGHTS}, found {self.zero!r}")
        if self.zero and self.dp == self.cp == 1:
            raise PlanError("parallel: zero needs dp or cp of at least 2, found 1 for both")
        if self.sp and self.tp == 1:
            raise PlanError("parallel: sp needs tp of at least 2, found 1")
        if self.micro_batch is not None and (type(self.micro_batch) is not int or self.micro_batch < 1):
            raise PlanError(f"parallel: expected micro-batch of at least 1, found {self.micro_batch!r}")
        try:
            read_schedule(self.schedule)
        except PlanError as error:
            raise PlanError(f"parallel: {error}") from error
        if self.pp == 1 and self.schedule != DEFAULT:
            raise PlanError(f"parallel: schedule={self.schedule} needs pp of at least 2, found {self.pp}")
        if self.recompute not in RECOMPUTE:
            raise PlanError(f"parallel: expected recompute {', '.join(RECOMPUTE)}, found {self.recompute!r}")

    @classmethod
    def read(cls, text: Any) -> Parallel | None:
        """Parse `tp=4,dp=2,sp`. Return None and a Parallel unchanged. Raises PlanError for invalid text."""
        if text is None or isinstance(text, cls):
            return text
        known = {field.name.replace("_", "-"): field for field in fields(cls)}
        values: dict[str, Any] = {}
        for part in str(text).split(","):
            name, _, value = part.strip().partition("=")
            if name not in known:
                raise PlanError(f"parallel: expected one of {', '.join(known)}, found {name!r}{nearest(name, known)}")
            if name in values:
                raise PlanError(f"parallel: {name} is given twice")
            field = known[name]
            values[name] = (
                value if isinstance(field.default, str) else _value(name, value, is_switch=field.default is False)
            )
        return cls(**{known[name].name: value for name, value in values.items()})

    def micro_batches(self, samples: int) -> int:
        """Return the number of micro-batches of an iteration. Raises PlanError if the samples do not divide evenly."""
        at_once = self.dp * (samples // self.dp if self.micro_batch is None else self.micro_batch)
        if not at_once or samples % at_once:
            raise PlanError(f"parallel {self}: a batch of {samples} samples does not divide into micro-batches")
        return samples // at_once

    def in_micro_batches(self, samples: int, count: int) -> Parallel:
        """Return a copy with the `micro_batch` that gives `count` micro-batches. Raises PlanError if none does."""
        each, rest = divmod(samples, self.dp * count)
        if rest or self.micro_batch not in {None, each}:
            raise PlanError(f"parallel {self}: {samples} samples do not divide into {count} micro-batches")
        return replace(self, micro_batch=each)

    @property
    def chunks(self) -> int:
        """The number of virtual stages per worker: 1 unless the schedule is interleaved."""
        return read_schedule(self.schedule)[1]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axis of each step: those with more than one worker, outermost first."""
        return self.ways.axes

    @property
    def ways(self) -> Ways:
        """One step per axis with more than one worker. With experts, `dp` and `ep` are separate steps."""
        degrees = {axis: getattr(self, axis) for axis in AXES} | {"dp": self.dp // self.ep}
        axes = tuple(axis for axis, degree in degrees.items() if degree > 1)
        return Ways(tuple(map(degrees.__getitem__, axes)), axes=axes)

    @property
    def workers(self) -> int:
        """The number of workers over all stages."""
        return self.pp * self.dp * self.cp * self.tp

    def __str__(self) -> str:
        """Return the options that differ from the defaults, in the syntax of `read`."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        said = (field.name for field in fields(self) if given[field.name] != field.default)
        return ",".join(name.replace("_", "-") + ("" if given[name] is True else f"={given[name]}") for name in said)


def _value(name: str, text: str, *, is_switch: bool) -> int | bool:
    if is_switch and not text:
        return True
    if is_switch or not text.isdecimal():
        raise PlanError(f"parallel: expected {name if is_switch else f'{name}=NUMBER'}, found {name}={text}")
    return int(text)
