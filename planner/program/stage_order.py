"""The order in which the workers of each stage run the phases of their program.

Between stages, a step waits for those that send to it. If every stage runs its steps as soon as possible, and all steps
of one kind take equally long, the start times define one order of all steps. Before a step starts, its inputs are
received; then the stage waits for the end of its earlier sends whose receivers' steps start no later than that step.
Therefore no stage waits for anything later in the order, however long the steps take.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from planner.errors import PlanError
from planner.graph.micro_batches import BACKWARD, BEFORE, FORWARD, UPDATE
from planner.plans.phases import WEIGHTS, of_chunk
from planner.program.pipeline import Schedule, Step, Steps
from planner.program.schedule import arriving, is_waiting
from planner.program.tasks import Phase

Done = tuple[str, int]
"""A phase, and the micro-batch for which it runs."""

Order = tuple[Done, ...]

Spans = tuple[tuple[int, int], ...]
"""For each micro-batch, the first and last place in a stage's order at which something is used."""


class KeptSlots(NamedTuple):
    """Number of slots, the positions between which they are kept beyond their use, and the spans by micro-batch."""

    slots: int
    beyond: tuple[int, int] | None = None
    spans: Spans = ()


SECONDS = {FORWARD: 1, BACKWARD: 2, WEIGHTS: 1}
"""Relative duration of a step on any stage; with separate weight gradients, input gradients take as long as these."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A transfer from a stage's phase to another's; `part` is where the sender waits for its end."""

    sender: int
    sending: str
    receiver: int
    receiving: str
    part: str
    tensor: str


def orders(schedule: Schedule, crossings: Iterable[Crossing]) -> tuple[Order, ...]:
    """Return every stage's phases in order, including those in which it waits for its sends.

    Raises PlanError if stages would wait for each other forever.
    """
    crossings = list(crossings)
    starts = _starts(schedule, crossings)
    return tuple(_order(stage, steps, starts, crossings) for stage, steps in enumerate(schedule))


def _starts(schedule: Schedule, crossings: Sequence[Crossing]) -> list[dict[Done, int]]:
    """Return the start time of each step, per stage, in order."""
    seconds = SECONDS | ({BACKWARD: 1} if any(step.phase == WEIGHTS for steps in schedule for step in steps) else {})
    needs: dict[tuple[int, str], set[tuple[int, str]]] = {}
    for crossing in crossings:
        needs.setdefault((crossing.receiver, crossing.receiving), set()).add((crossing.sender, crossing.sending))
    ends, starts = dict[tuple[int, str, int], int](), [dict[Done, int]() for _ in schedule]
    free_s, left = [0] * len(schedule), [list(reversed(steps)) for steps in schedule]
    moved = True
    while moved:
        moved = False
        for stage, steps in enumerate(left):
            while steps:
                phase, number = of_chunk(steps[-1].phase, steps[-1].chunk), steps[-1].micro_batch
                sources = [(*source, number) for source in needs.get((stage, phase), ())]
                if not all(source in ends for source in sources):
                    break
                start = max([free_s[stage], *(ends[source] for source in sources)])
                starts[stage][phase, number] = start
                free_s[stage] = ends[stage, phase, number] = start + seconds[steps.pop().phase]
                moved = True
    if any(left):
        raise PlanError(_stuck(left, crossings))
    return starts


def _stuck(left: Sequence[Sequence[Step]], crossings: Sequence[Crossing]) -> str:
    """Return a message that names tensors sent to a stage that is not after the sender's."""
    waiting = {stage for stage, steps in enumerate(left) if steps}
    against = [c for c in crossings if {c.sender, c.receiver} <= waiting]
    where = "; ".join(f"{c.tensor} from {c.sender} to {c.receiver} ({c.sending})" for c in against[:4])
    return f"$.schedule: stages wait for each other in both directions: {where}"


def _order(stage: int, steps: Steps, starts: Sequence[Mapping[Done, int]], crossings: Sequence[Crossing]) -> Order:
    mine = list(starts[stage])
    times = list(starts[stage].values())
    waits: list[list[Done]] = [[] for _ in range(len(mine) + 1)]
    for part, receiver, receiving in {(c.part, c.receiver, c.receiving) for c in crossings if c.sender == stage}:
        for (phase, number), start in starts[receiver].items():
            if phase == receiving:
                waits[bisect_left(times, start)].append((part, number))
    receiving_in = {c.receiving for c in crossings if c.receiver == stage}
    order: list[Done] = [(BEFORE, 0)]
    for step, due in zip([*mine, None], waits, strict=True):
        order += [(arriving(step[0]), step[1])] if step is not None and step[0] in receiving_in else []
        order += sorted(due, key=lambda done: (done[1], done[0]))
        order += [step] if step is not None else []
    return (*order, (UPDATE, max(step.micro_batch for step in steps)))


@dataclass(frozen=True, eq=False, slots=True)
class Keeping:
    """The slots in which a stage keeps the data of micro-batches, and for how long; `phases` are in common positions.

    `repeated` is the first and last position of the tasks that run for every micro-batch.
    """

    phases: tuple[Phase, ...]
    order: Order
    repeated: tuple[int, int]
    _known: dict[frozenset[int], KeptSlots] = field(default_factory=dict)

    @property
    def _starts(self) -> list[int]:
        return [phase.start for phase in self.phases]

    def kept(self, uses: Iterable[int]) -> KeptSlots:
        """Return the slots of something used at these positions, and how long they are kept.

        They are kept throughout if the stage does anything else in between.
        """
        phases = frozenset(bisect_right(self._starts, position) - 1 for position in uses)
        if phases not in self._known:
            self._known[phases] = KeptSlots(1) if len(phases) == 1 else self._between(phases)
        return self._known[phases]

    def _between(self, phases: frozenset[int]) -> KeptSlots:
        names = [phase.name for phase in self.phases]
        used = {names[number] for number in phases}
        places = defaultdict[int, list[int]](list)
        for place, (name, number) in enumerate(self.order):
            if name in used:
                places[number].append(place)
        spans = [(min(positions), max(positions)) for _, positions in sorted(places.items())]
        begins, ends = zip(*spans, strict=True)
        slots = next(n for n in range(1, len(spans) + 1) if all(map(int.__lt__, ends, begins[n:])))
        within = frozenset(names[min(phases) : max(phases) + 1])
        interrupted = any(
            (number != mine or name not in within) and not is_waiting(name)
            for mine, (begin, end) in enumerate(spans)
            for name, number in self.order[begin + 1 : end]
        )
        return KeptSlots(slots, self.repeated if interrupted else None, tuple(spans))
