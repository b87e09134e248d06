"""Reports and simulations as parts of a page: where seconds go, memory over time, and who does what when."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from planner.report.schema import Report, Spending, TaskSeconds
from simulator.history import Span, spans
from simulator.simulation import Simulation
from tensor_partitioner.page.records import Lanes, Occupied

MOST_LANES = 16
"""Workers that a timeline shows."""

MOST_MEMORIES = 8
"""Workers whose memory is shown over time."""

RESOLUTION = 700
"""Parts of a timeline: what is shorter is drawn together with what is next to it."""

MOMENTS = 300
"""Of memory over time; between two of them the most is kept."""

SHOWN = ("source", "machine", "hardware", "seconds_per_step", "devices", "arena_bytes")
"""Fields of a report that a page has as they are."""

SPENT = {"compute": "compute_s", "post": "launches_s", "wait": "wire_s", "wait for": "wire_s"}
SPENT |= dict.fromkeys(("pack", "unpack", "combine"), "copies_s")
"""The field of `Spending` that the seconds of a kind of task, or of a simulated span, belong to."""


def run_part(report: Report) -> Mapping[str, Any]:
    """Return what a page shows of a report, by its fields."""
    return {name: getattr(report, name) for name in SHOWN} | {"spending": tuple(_spending(report))}


def _spending(report: Report) -> Iterator[Spending]:
    """Yield what every worker spends a step on where it is known, else its tasks, or computing and the rest."""
    yield from report.spending
    if report.spending:
        return
    if report.tasks:
        for worker, tasks in _by_worker(report.tasks).items():
            spent: defaultdict[str, float] = defaultdict(float)
            for task in tasks:
                spent[SPENT[task.kind]] += task.seconds
            yield Spending(worker=worker, **spent)
    elif report.seconds_per_step is not None:
        for worker, busy_s in enumerate(report.compute_seconds):
            yield Spending(worker=worker, compute_s=busy_s, wire_s=max(0.0, report.seconds_per_step - busy_s))


def _by_worker(tasks: Iterable[TaskSeconds]) -> Mapping[int, list[TaskSeconds]]:
    by_worker: defaultdict[int, list[TaskSeconds]] = defaultdict(list)
    for task in tasks:
        by_worker[task.worker].append(task)
    return dict(sorted(by_worker.items()))


def simulated_lanes(simulation: Simulation, workers: int) -> Lanes:
    """Return what the first workers of a simulation do."""
    of_worker = ((worker, spans(simulation, worker)) for worker in range(min(workers, MOST_LANES)))
    return Lanes(
        title="Simulated step",
        seconds=simulation.seconds,
        lanes={f"worker {worker}": tuple(_drawn(of, simulation.seconds)) for worker, of in of_worker},
        note=_left_out(workers),
    )


def task_lanes(report: Report) -> Lanes | None:
    """Return a report's tasks, each worker's one after the other; None where it has none."""
    if not report.tasks:
        return None
    by_worker = _by_worker(report.tasks)
    longest = max(sum(task.seconds for task in tasks) for tasks in by_worker.values())
    said = "Tasks of the last step, each worker's laid end to end: what lies between them is left out."
    return Lanes(
        title="Step as it ran" if report.source == "executor" else "Simulated step",
        seconds=longest,
        lanes={
            f"worker {worker}": tuple(_drawn(_laid_out(tasks), longest))
            for worker, tasks in list(by_worker.items())[:MOST_LANES]
        },
        note=f"{said} {_left_out(len(by_worker))}".strip(),
    )


def _laid_out(tasks: Sequence[TaskSeconds]) -> Iterator[Span]:
    now = 0.0
    for task in tasks:
        yield Span(task.kind, task.what, now, now + task.seconds)
        now += task.seconds


def _left_out(workers: int) -> str:
    return f"The first {MOST_LANES} of {workers} workers." if workers > MOST_LANES else ""


def _drawn(done: Iterable[Span], seconds: float) -> Iterator[Span]:
    """Yield spans that can be seen; shorter ones in a row as one of what they mostly are."""
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
    lasting = Counter[str]()
    for span in short:
        lasting[span.kind] += span.stop_s - span.start_s  # type: ignore[assignment]
    longest = max(short, key=lambda span: span.stop_s - span.start_s).what
    what = longest if len(short) == 1 else f"{len(short)} tasks, the longest {longest}"
    begin_s, end_s = (float(f"{at_s:.7g}") for at_s in (short[0].start_s, short[-1].stop_s))
    return Span(max(lasting, key=lasting.__getitem__), what[:80], begin_s, end_s)


def occupied(simulation: Simulation, workers: int) -> Iterator[Occupied]:
    """Yield the memory of the first workers over a simulated step."""
    for worker in range(min(workers, MOST_MEMORIES)):
        alive = simulation.usage(worker)
        moments = list(alive.moments())
        kept = list(_fullest(moments, simulation.seconds / MOMENTS))
        device = simulation.machine.devices[worker]
        yield Occupied(
            worker=worker,
            kinds=alive.kinds,
            at_s=tuple(float(f"{at_s:.7g}") for at_s, _ in kept),
            nbytes=tuple(tuple(by_kind.values()) for _, by_kind in kept),
            capacity=simulation.machine.memories[device.memory].nbytes,
        )


def _fullest(
    moments: Sequence[tuple[float, Mapping[str, int]]], width: float
) -> Iterator[tuple[float, Mapping[str, int]]]:
    """Yield of the moments within each width the one when most lives."""
    best: tuple[float, Mapping[str, int]] | None = None
    begin = 0.0
    for moment in moments:
        if best is not None and moment[0] - begin >= width:
            yield best
            best, begin = None, moment[0]
        if best is None or sum(moment[1].values()) > sum(best[1].values()):
            best = moment
    if best is not None:
        yield best
