"""Parallelism by name, as people write it: `tp=8,pp=4,dp=16,zero=1,sp,schedule=interleaved:2,recompute=full`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from planner.errors import PlanError
from planner.layout.ways import AXES, Ways
from planner.plans.phases import DEFAULT, read_schedule
from tensor_partitioner.display import nearest

STATES, GRADIENTS, WEIGHTS = 1, 2, 3
"""From which of ZeRO's stages on the optimizer's state, gradients, and weights are shared out."""

RECOMPUTE = {"none": "none", "selective": "selective", "full": "segments"}
"""Activations that the backward pass computes again, with what `Recipe` calls it: none, those within attention, all."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """Degrees of pipeline (`pp`), data (`dp`), context (`cp`) and tensor parallelism (`tp`), and what goes with them.

    Ranks are as Megatron-LM orders them: tensor parallel ones are neighbours, stages outermost. `axes` and `ways` are
    those within a stage. Of data parallel workers groups of `ep` neighbours share out a layer's experts, each with
    tokens of its own.

    `sp`: what tensor parallel workers would all compute is split along the sequence. `zero`: data (and context)
    parallel workers share out the optimizer's state (1), gradients (2), weights (3). `micro_batch`: the samples that a
    data parallel worker takes at once, of a graph that is cut so. `schedule`: the order in which a stage runs its
    micro-batches, and with a colon the chunks that a stage of an interleaved one has. `recompute`: activations that
    are computed again.

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
        """Refuse degrees below 1, stages that ZeRO has not, and schedules and recomputations that there are not."""
        for axis in ("pp", *AXES):
            if type(degree := getattr(self, axis)) is not int or degree < 1:
                raise PlanError(f"parallel: expected {axis} from 1, found {degree!r}")
        if self.dp % self.ep:
            raise PlanError(f"parallel: expected ep that divides dp, {self.dp}, found {self.ep}")
        if self.zero not in range(WEIGHTS + 1):
            raise PlanError(f"parallel: expected zero from 0 to {WEIGHTS}, found {self.zero!r}")
        if self.zero and self.dp == self.cp == 1:
            raise PlanError("parallel: expected dp or cp from 2 with zero, found 1 of each")
        if self.sp and self.tp == 1:
            raise PlanError("parallel: expected tp from 2 with sp, found 1")
        if self.micro_batch is not None and (type(self.micro_batch) is not int or self.micro_batch < 1):
            raise PlanError(f"parallel: expected micro-batch from 1, found {self.micro_batch!r}")
        try:
            read_schedule(self.schedule)
        except PlanError as error:
            raise PlanError(f"parallel: {error}") from error
        if self.pp == 1 and self.schedule != DEFAULT:
            raise PlanError(f"parallel: expected pp from 2 with schedule={self.schedule}, found {self.pp}")
        if self.recompute not in RECOMPUTE:
            raise PlanError(f"parallel: expected recompute {', '.join(RECOMPUTE)}, found {self.recompute!r}")

    @classmethod
    def read(cls, text: Any) -> Parallel | None:
        """Read `tp=4,dp=2,sp`; a PlanError for what it does not say. None and a Parallel stay."""
        if text is None or isinstance(text, cls):
            return text
        known = {field.name.replace("_", "-"): field for field in fields(cls)}
        values: dict[str, Any] = {}
        for part in str(text).split(","):
            name, _, value = part.strip().partition("=")
            if name not in known:
                raise PlanError(f"parallel: expected {', '.join(known)}, found {name!r}{nearest(name, known)}")
            if name in values:
                raise PlanError(f"parallel: expected {name} once, found it again")
            field = known[name]
            values[name] = (
                value if isinstance(field.default, str) else _value(name, value, is_switch=field.default is False)
            )
        return cls(**{known[name].name: value for name, value in values.items()})

    def micro_batches(self, samples: int) -> int:
        """Return into how many an iteration's samples are cut; a PlanError where they cannot be."""
        at_once = self.dp * (samples // self.dp if self.micro_batch is None else self.micro_batch)
        if not at_once or samples % at_once:
            raise PlanError(f"parallel {self}: expected a batch of whole micro-batches, found {samples} samples")
        return samples // at_once

    def in_micro_batches(self, samples: int, count: int) -> Parallel:
        """Return it with micro-batches of which an iteration's samples make `count`; a PlanError where they cannot."""
        each, rest = divmod(samples, self.dp * count)
        if rest or self.micro_batch not in {None, each}:
            raise PlanError(
                f"parallel {self}: expected a batch of {count} whole micro-batches, found {samples} samples"
            )
        return replace(self, micro_batch=each)

    @property
    def chunks(self) -> int:
        """Chunks of layers that a stage has, which lie apart in the network; 1 but where they are interleaved."""
        return read_schedule(self.schedule)[1]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axis of every step: those of more than one worker, outermost first."""
        return self.ways.axes

    @property
    def ways(self) -> Ways:
        """A step for each axis; data parallel workers who share out experts have one of their own."""
        degrees = {axis: getattr(self, axis) for axis in AXES} | {"dp": self.dp // self.ep}
        axes = tuple(axis for axis, degree in degrees.items() if degree > 1)
        return Ways(tuple(map(degrees.__getitem__, axes)), axes=axes)

    @property
    def workers(self) -> int:
        """The number of workers."""
        return self.pp * math.prod(self.ways)

    def __str__(self) -> str:
        """Spell what is not the default, as `read` reads it."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        said = (field.name for field in fields(self) if given[field.name] != field.default)
        return ",".join(name.replace("_", "-") + ("" if given[name] is True else f"={given[name]}") for name in said)


def _value(name: str, text: str, *, is_switch: bool) -> int | bool:
    if is_switch and not text:
        return True
    if is_switch or not text.isdecimal():
        raise PlanError(f"parallel: expected {name if is_switch else f'{name}=NUMBER'}, found {name}={text}")
    return int(text)
