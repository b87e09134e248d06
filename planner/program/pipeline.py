"""Schedules: the order in which a stage runs its phases for the micro-batches of an iteration.

A schedule is a function of the numbers of stages, micro-batches and chunks. Every stage has as many chunks, which lie
apart in the network: the first chunks of all stages come before the second ones. A schedule contains no times: a stage
runs its steps one after the other, each as soon as its inputs are available.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from planner.errors import PlanError
from planner.graph.micro_batches import BACKWARD, BEFORE, FORWARD, UPDATE
from planner.grouping import grouped
from planner.plans.records import WEIGHTS, of_chunk, read_schedule
from planner.program.schedule import arriving, is_waiting
from planner.program.tasks import Phase


class Step(NamedTuple):
    """A phase of a stage's chunk for one micro-batch.

    With a phase `weights`, `backward` computes only input gradients.
    """

    phase: str
    micro_batch: int
    chunk: int = 0


Steps = tuple[Step, ...]
"""The steps of one stage, in order."""

Schedule = tuple[Steps, ...]
"""The steps of every stage."""


def accumulation(stages: int, micro_batches: int) -> Schedule:
    """Run each micro-batch forward and then backward."""
    order = [Step(phase, number) for number in range(micro_batches) for phase in (FORWARD, BACKWARD)]
    return (tuple(order),) * stages


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """Run all micro-batches forward, then all backward (Huang and others, NeurIPS 2019)."""
    order = [Step(phase, number) for phase in (FORWARD, BACKWARD) for number in range(micro_batches)]
    return (tuple(order),) * stages


def one_forward_one_backward(stages: int, micro_batches: int) -> Schedule:
    """Alternate one forward and one backward once the later stages are busy (Narayanan and others, ICML 2021)."""
    forward = [Step(FORWARD, number) for number in range(micro_batches)]
    backward = [Step(BACKWARD, number) for number in range(micro_batches)]
    return tuple(_in_turn(forward, backward, stages - stage - 1) for stage in range(stages))


def interleaved(stages: int, micro_batches: int, chunks: int) -> Schedule:
    """Alternate the passes of several chunks per stage, which divides the bubble by their number.

    Narayanan and others, SC 2021. Raises PlanError unless the stages divide the micro-batches.
    """
    if micro_batches % stages:
        raise PlanError(f"an interleaved schedule needs a multiple of {stages} micro-batches, found {micro_batches}")
    forward = [
        Step(FORWARD, first + number, chunk)
        for first in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for number in range(stages)
    ]
    backward = [Step(BACKWARD, step.micro_batch, chunks - 1 - step.chunk) for step in forward]
    ahead = [2 * (stages - stage - 1) + (chunks - 1) * stages for stage in range(stages)]
    return tuple(_in_turn(forward, backward, first) for first in ahead)


def zero_bubble(stages: int, micro_batches: int) -> Schedule:
    """Like `1f1b`, but compute weight gradients later than input gradients, for which the stage before waits (ZB-H1).

    Qi and others, ICLR 2024. No stage has more micro-batches in flight than the first stage of `1f1b`.
    """
    return tuple(
        _with_weights(steps, stage) for stage, steps in enumerate(one_forward_one_backward(stages, micro_batches))
    )


def _in_turn(forward: Sequence[Step], backward: Sequence[Step], ahead: int) -> Steps:
    """Return `ahead` forward steps, then forward and backward steps in turn, then the remaining backward steps."""
    first = min(ahead, len(forward))
    turns = [step for pair in zip(forward[first:], backward, strict=False) for step in pair]
    return (*forward[:first], *turns, *backward[len(forward) - first :])


def _with_weights(steps: Steps, behind: int) -> Steps:
    """Return the steps with weight gradients `behind` micro-batches after the input gradients."""
    order: list[Step] = []
    last = steps[-1].micro_batch
    for step in steps:
        order.append(step)
        if step.phase == BACKWARD and step.micro_batch >= behind:
            order.append(Step(WEIGHTS, step.micro_batch - behind))
    return (*order, *(Step(WEIGHTS, number) for number in range(max(0, last + 1 - behind), last + 1)))


SCHEDULES: Mapping[str, Callable[[int, int, int], Schedule]] = {
    "accumulation": lambda stages, micro_batches, _chunks: accumulation(stages, micro_batches),
    "gpipe": lambda stages, micro_batches, _chunks: gpipe(stages, micro_batches),
    "1f1b": lambda stages, micro_batches, _chunks: one_forward_one_backward(stages, micro_batches),
    "interleaved": interleaved,
    "zero-bubble": lambda stages, micro_batches, _chunks: zero_bubble(stages, micro_batches),
}
"""Schedules by name, as functions of stages, micro-batches and chunks; only `interleaved` uses chunks."""


def schedule_of(text: str, stages: int, micro_batches: int) -> Schedule:
    """Return the named schedule, with chunks if it has any, for these stages and micro-batches."""
    name, chunks = read_schedule(text)
    return SCHEDULES[name](stages, micro_batches, chunks)


# The order in which the workers of each stage run the phases of their program.
#
# Between stages, a step waits for those that send to it. If every stage runs its steps as soon as possible, and all
# steps of one kind take equally long, the start times define one order of all steps. Before a step starts, its
# inputs are received; then the stage waits for the end of its earlier sends whose receivers' steps start no later
# than that step. Therefore no stage waits for anything later in the order, however long the steps take.


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
        places = grouped((number, place) for place, (name, number) in enumerate(self.order) if name in used)
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
