"""Parts of a page from reports, simulations and schedules: time by cause, memory over time, timelines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from planner.explanations.explanation import Rejected, costliest, rejected
from planner.explanations.summary import summary
from planner.explanations.summary_record import Summary
from planner.explanations.words import Words
from planner.graph.micro_batches import FORWARD
from planner.grouping import grouped, summed
from planner.parallel import Parallel
from planner.plans.plan import Plan
from planner.plans.records import WEIGHTS, SearchRecord
from planner.program.pipeline import Schedule, Step, schedule_of
from planner.report.plan_facts import search_rows
from planner.report.schema import Report, Spending, TaskSeconds
from simulator.projection.result import StageLine
from simulator.projection.stages import dependencies
from simulator.report import Span, spans
from simulator.simulation import Simulation
from tensor_partitioner.decision.record import Decision, PublishedScore, RankedCandidate
from tensor_partitioner.display import quantity
from topologies import Machine
from topologies.tree import TreeNode

# Records that only a page has: its parts in order, and the data of its drawings.


class Lanes(msgspec.Struct, frozen=True, kw_only=True):
    """A timeline: the spans of workers or stages, by name. `note` says what is left out or assumed."""

    title: str
    seconds: float
    lanes: Mapping[str, Sequence[Span]]
    note: str = ""


class PlanPart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a page on a plan.

    `alternatives` are other strategies by node. `matrix` has the bytes from worker (row) to worker (column); it is
    empty if there are too many workers to draw.
    """

    summary: Summary
    sentences: tuple[str, ...]
    alternatives: Mapping[str, Sequence[Rejected]]
    matrix: Sequence[Sequence[int]]
    search: tuple[tuple[str, str], ...]
    costs: Mapping[str, float]
    unit: str


class Occupied(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a worker over time. `nbytes` is [moments, kinds]; `at_s` has the moments in seconds."""

    worker: int
    kinds: tuple[str, ...]
    at_s: tuple[float, ...]
    nbytes: tuple[tuple[int, ...], ...]
    capacity: float | None


class Figure(NamedTuple):
    """An input figure and its source."""

    about: str
    name: str
    value: str
    source: str


class Page(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All parts of a page. Only the heading is required.

    `parallel` is that of the decision's best candidate; `runs` have fields of reports.
    """

    title: str
    lead: str
    cards: tuple[tuple[str, str, str], ...]
    trust: tuple[str, ...]
    commands: tuple[str, ...]
    decision: Decision | None = None
    parallel: Parallel | None = None
    plan: PlanPart | None = None
    runs: tuple[Mapping[str, Any], ...] = ()
    timelines: tuple[Lanes, ...] = ()
    occupied: tuple[Occupied, ...] = ()
    machine: tuple[TreeNode, ...] = ()
    machine_note: str = ""
    inputs: tuple[Figure, ...] = ()
    published: tuple[PublishedScore, ...] = ()


# Parts of a page from reports, simulations and schedules.


MOST_LANES = 16
"""Workers shown in a timeline."""

MOST_MEMORIES = 8
"""Workers whose memory is shown over time."""

RESOLUTION = 700
"""Resolution of a timeline. Shorter spans are drawn together with their neighbours."""

MOMENTS = 300
"""Moments of memory over time. Each is the peak of its interval."""

SHOWN = ("source", "machine", "hardware", "seconds_per_step", "devices", "arena_bytes")
"""Fields of a report that a page shows unchanged."""

Moment = tuple[float, Mapping[str, int]]
"""Seconds, and bytes by kind."""

SPENT = {"compute": "compute_s", "post": "launches_s", "wait": "wire_s", "wait for": "wire_s"}
SPENT |= dict.fromkeys(("pack", "unpack", "combine"), "copies_s")
"""The field of `Spending` for each kind of task or simulated span."""


def run_part(report: Report) -> Mapping[str, Any]:
    """Return the fields of a report that a page shows."""
    return {name: getattr(report, name) for name in SHOWN} | {"spending": tuple(_spending(report))}


def _spending(report: Report) -> Iterator[Spending]:
    """Yield each worker's time by cause: from the report, else from its tasks, else compute time and the rest."""
    yield from report.spending
    if report.spending:
        return
    if report.tasks:
        for worker, tasks in _by_worker(report.tasks).items():
            yield Spending(worker=worker, **summed((SPENT[task.kind], task.seconds) for task in tasks))
    elif report.seconds_per_step is not None:
        for worker, busy_s in enumerate(report.compute_seconds):
            yield Spending(worker=worker, compute_s=busy_s, wire_s=max(0.0, report.seconds_per_step - busy_s))


def _by_worker(tasks: Iterable[TaskSeconds]) -> Mapping[int, list[TaskSeconds]]:
    return dict(sorted(grouped((task.worker, task) for task in tasks).items()))


def simulated_lanes(simulation: Simulation, workers: int) -> Lanes:
    """Return the timeline of the first workers of a simulation."""
    of_worker = ((worker, spans(simulation, worker)) for worker in range(min(workers, MOST_LANES)))
    return Lanes(
        title="Simulated step", seconds=simulation.seconds,
        lanes={f"worker {worker}": tuple(_drawn(of, simulation.seconds)) for worker, of in of_worker},
        note=_left_out(workers),
    )  # fmt: skip


def task_lanes(report: Report) -> Lanes | None:
    """Return the timeline of a report's tasks, each worker's end to end; None without tasks."""
    if not report.tasks:
        return None
    by_worker = _by_worker(report.tasks)
    longest = max(sum(task.seconds for task in tasks) for tasks in by_worker.values())
    said = "Tasks of the last step, each worker's end to end; gaps between them are left out."
    return Lanes(
        title="Step as it ran" if report.source == "executor" else "Simulated step", seconds=longest,
        lanes={
            f"worker {worker}": tuple(_drawn(_laid_out(tasks), longest))
            for worker, tasks in list(by_worker.items())[:MOST_LANES]
        },
        note=f"{said} {_left_out(len(by_worker))}".strip(),
    )  # fmt: skip


def _laid_out(tasks: Sequence[TaskSeconds]) -> Iterator[Span]:
    now = 0.0
    for task in tasks:
        yield Span(task.kind, task.what, now, now + task.seconds)
        now += task.seconds


def _left_out(workers: int) -> str:
    return f"The first {MOST_LANES} of {workers} workers." if workers > MOST_LANES else ""


def _drawn(done: Iterable[Span], seconds: float) -> Iterator[Span]:
    """Yield spans long enough to be drawn. Consecutive short ones are merged into one of their most frequent kind."""
    least = seconds / RESOLUTION
    short: list[Span] = []
    for span in (span._replace(kind=SPENT[span.kind]) for span in done if span.stop_s > span.start_s):
        if short and (span.stop_s - span.start_s >= least or span.stop_s - short[0].start_s > least):
            yield _together(short)
            short = []
        if span.stop_s - span.start_s >= least:
            yield _together([span])
        else:
            short.append(span)
    if short:
        yield _together(short)


def _together(short: Sequence[Span]) -> Span:
    lasting = summed((span.kind, span.stop_s - span.start_s) for span in short)
    longest = max(short, key=lambda span: span.stop_s - span.start_s).what
    what = longest if len(short) == 1 else f"{len(short)} tasks, the longest {longest}"
    begin_s, end_s = (float(f"{at_s:.7g}") for at_s in (short[0].start_s, short[-1].stop_s))
    return Span(max(lasting, key=lasting.__getitem__), what[:80], begin_s, end_s)


def occupied(simulation: Simulation, workers: int) -> Iterator[Occupied]:
    """Yield the memory of the first workers over a simulated step."""
    for worker in range(min(workers, MOST_MEMORIES)):
        alive = simulation.usage(worker)
        kept = _fullest(list(alive.moments()), simulation.seconds / MOMENTS)
        device = simulation.machine.devices[worker]
        yield Occupied(
            worker=worker, kinds=alive.kinds, at_s=tuple(float(f"{at_s:.7g}") for at_s, _ in kept),
            nbytes=tuple(tuple(by_kind.values()) for _, by_kind in kept),
            capacity=simulation.machine.memories[device.memory].nbytes,
        )  # fmt: skip


def _fullest(moments: Sequence[Moment], width: float) -> list[Moment]:
    """Return, for each interval of `width` seconds, the moment with the most bytes."""
    kept, begin = list(moments[:1]), 0.0
    for moment in moments[1:]:
        if moment[0] - begin >= width:
            begin = moment[0]
            kept.append(moment)
        elif sum(moment[1].values()) > sum(kept[-1][1].values()):
            kept[-1] = moment
    return kept


MOST_SPANS = 3000
"""Most spans of a drawn schedule. Of a longer one, only the first micro-batches are drawn."""


def schedule_lanes(candidate: RankedCandidate) -> Lanes:
    """Return the timeline of a candidate's pipeline schedule, from the times of its stages.

    Messages take no time in it.
    """
    parallel = Parallel.read(candidate.parallel) or Parallel()
    most = max(2, MOST_SPANS // (3 * parallel.pp * parallel.chunks * parallel.pp)) * parallel.pp
    count = min(candidate.micro_batches, most)  # all micro-batches, or a multiple of the stages
    name = parallel.schedule if parallel.pp > 1 else "accumulation"
    spans = _spans(schedule_of(name, parallel.pp, count), candidate.stages)
    lanes = grouped((f"stage {stage}" if parallel.pp > 1 else "every device", span) for stage, span in spans)
    last_s = max(lane[-1].stop_s for lane in lanes.values())
    return Lanes(title=f"Schedule of {candidate.name}", seconds=last_s, lanes=lanes, note=_note(candidate, count))


def _note(candidate: RankedCandidate, count: int) -> str:
    every = "Its one micro-batch" if count == 1 else f"All {count} micro-batches"
    drawn = (
        f"The first {count} of {candidate.micro_batches} micro-batches" if count < candidate.micro_batches else every
    )
    return (
        f"{drawn}. Messages between stages, the reduction of gradients after the last backward pass and the "
        "optimizer's update are not drawn; the bars above have their seconds."
    )


def _spans(schedule: Schedule, stages: Sequence[StageLine]) -> Iterator[tuple[int, Span]]:
    """Yield the spans of every stage. Each step starts as soon as its stage is free and its input is ready."""
    chunks = 1 + max(step.chunk for step in schedule[0])
    has_weights = any(step.phase == WEIGHTS for step in schedule[0])
    left = [iter(steps) for steps in schedule]
    free, done = [0.0] * len(schedule), [0.0]
    for stage, _, _, needed, _ in dependencies(schedule):
        step = next(left[stage])
        begin_s = max(free[stage], done[needed])
        free[stage] = begin_s + _seconds(step, stages[stage], chunks, has_weights=has_weights)
        done.append(free[stage])
        chunk = f", chunk {step.chunk}" if chunks > 1 else ""
        yield stage, Span(step.phase, f"micro-batch {step.micro_batch}{chunk}", begin_s, free[stage])


def _seconds(step: Step, stage: StageLine, chunks: int, *, has_weights: bool) -> float:
    """Return the seconds of a step. If weight gradients are separate steps, they are half of the backward pass."""
    if step.phase == FORWARD:
        return stage.forward_s / chunks
    return stage.backward_s / chunks / (2 if has_weights else 1)


COSTLIEST = 10
"""Number of operators whose alternatives are shown: those that move the most bytes."""

HEAVIEST = 4
"""Number of groups of weights, and of kinds of products, that are described in sentences."""

ALTERNATIVES_SHOWN = 6
"""Alternatives shown per operator, cheapest first."""

MOST_NODES = 4000
"""Largest graph whose alternatives are computed."""

MOST_WORKERS = 64
"""Largest number of workers for which the bytes are drawn pair by pair."""


def plan_part(plan: Plan, machine: Machine | None = None, *, is_named: bool = False) -> PlanPart:
    """Return the part of a page on a plan. With a machine it has the seconds of operators.

    If parallelism is named (`is_named`), there was no search to report.
    """
    whole = summary(plan, machine)
    return PlanPart(
        summary=whole, sentences=tuple(_sentences(whole)),
        alternatives=_alternatives(plan) if len(plan.graph.nodes) <= MOST_NODES else {},
        matrix=plan.bytes.tolist() if plan.workers <= MOST_WORKERS else (),
        search=() if is_named else tuple(search_rows(plan.search, plan.ways.factors)),
        costs={} if is_named else _costs(plan.search), unit="bytes" if plan.search.predicted is None else "seconds",
    )  # fmt: skip


def _sentences(whole: Summary) -> Iterator[str]:
    """Yield sentences on how most weights are split, and how products are computed."""
    for group in sorted(whole.parameters, key=lambda group: -group.nbytes)[:HEAVIEST]:
        many = f" ({len(group.names)} of them)" if len(group.names) > 1 else ""
        yield f"{group.pattern}{many}, {quantity(group.nbytes, 'B')}: {group.split}."
    products = (unit for unit in whole.operators if unit.is_contraction and unit.phase == "forward")
    splits = summed((unit.split, len(unit.names)) for unit in products)
    for split, count in splits.most_common(HEAVIEST):
        noun = "product" if count == 1 else "products"
        yield f"{count} {noun} of the forward pass: {split}."


def _alternatives(plan: Plan) -> dict[str, Sequence[Rejected]]:
    """Return other strategies of the operators that move the most bytes, by node."""
    words = Words(plan.graph, plan.traffic().signatures)
    return {unit.node.name: rejected(plan, unit, words)[:ALTERNATIVES_SHOWN] for unit in costliest(plan, COSTLIEST)}


def _costs(search: SearchRecord) -> Mapping[str, float]:
    """Return the costs of other plans that were found, and the lower bound."""
    costs: dict[str, float] = dict(search.bytes) if search.predicted is None else dict(search.predicted.candidates_s)
    if search.predicted is None and search.data_parallel_bytes is not None:
        costs["data parallelism"] = search.data_parallel_bytes
    if costs and search.lower_bound is not None:
        costs["lower bound"] = search.lower_bound
    return costs
