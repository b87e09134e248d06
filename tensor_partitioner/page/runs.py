"""Reports and simulations as parts of a page: where seconds go, memory over time, and who does what when."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from planner.report.schema import Report, TaskSeconds
from simulator.history import Span as SimulatedSpan
from simulator.history import spans
from simulator.simulation import Simulation
from tensor_partitioner.page.records import Lane, Memory, Occupied, RunPart, Span, Spent, Timeline

MOST_LANES = 16
"""Workers that a timeline shows."""

MOST_MEMORIES = 8
"""Workers whose memory is shown over time."""

RESOLUTION = 700
"""Parts of a timeline: what is shorter is drawn together with what is next to it."""

MOMENTS = 300
"""Of memory over time; between two of them the most is kept."""

SPENT = {
    "compute_s": "computing",
    "copies_s": "packing and unpacking",
    "launches_s": "launching",
    "wire_s": "waiting for bytes",
    "latency_s": "waiting for latency",
    "waiting_s": "waiting for others",
}
TASKS = {
    "compute": "computing",
    "pack": "packing and unpacking",
    "unpack": "packing and unpacking",
    "post": "launching",
    "wait": "waiting for bytes",
}
KINDS = {"compute": "computing", "pack": "packing and unpacking", "unpack": "packing and unpacking"}
KINDS |= {"combine": "packing and unpacking", "wait for": "waiting for bytes"}


def run_part(report: Report) -> RunPart:
    """Return a report's figures."""
    return RunPart(
        source="simulated" if report.source == "simulator" else "executed",
        machine=report.machine,
        hardware=report.hardware,
        seconds=report.seconds_per_step,
        samples_per_s=report.samples_per_s,
        total_bytes=report.total_bytes,
        spent=tuple(_spent(report)),
        memory=tuple(_memories(report)),
        facts=tuple((name, str(value)) for name, value in report.settings.items()),
    )


def _memories(report: Report) -> Iterator[Memory]:
    """Yield what fills every device, or, where a report does not know, every worker's arena."""
    for device in report.devices:
        yield Memory(
            device=device.device,
            peak=device.peak_bytes,
            capacity=device.capacity_bytes,
            verdict=device.verdict,
            by_kind=device.by_kind or {"allocated": device.peak_bytes},
        )
    if not report.devices:
        for worker, nbytes in enumerate(report.arena_bytes):
            yield Memory(
                device=f"worker {worker}", peak=nbytes, capacity=None, verdict="its arena", by_kind={"arena": nbytes}
            )


def _spent(report: Report) -> Iterator[Spent]:
    """Yield every worker's seconds: by cause where they are known, else computing and the rest of the step."""
    if report.spending:
        for of_worker in report.spending:
            causes = {what: getattr(of_worker, field) for field, what in SPENT.items()}
            yield Spent(worker=str(of_worker.worker), seconds=causes)
    elif report.tasks:
        for worker, tasks in _by_worker(report.tasks).items():
            seconds = Counter[str]()
            for task in tasks:
                seconds[TASKS[task.kind]] += task.seconds  # type: ignore[assignment]
            yield Spent(worker=str(worker), seconds=seconds)
    elif report.seconds_per_step is not None:
        for worker, busy_s in enumerate(report.compute_seconds):
            rest_s = max(0.0, report.seconds_per_step - busy_s)
            yield Spent(worker=str(worker), seconds={"computing": busy_s, "waiting for bytes": rest_s})


def _by_worker(tasks: Iterable[TaskSeconds]) -> Mapping[int, list[TaskSeconds]]:
    by_worker: defaultdict[int, list[TaskSeconds]] = defaultdict(list)
    for task in tasks:
        by_worker[task.worker].append(task)
    return dict(sorted(by_worker.items()))


def simulated_timeline(simulation: Simulation, workers: int) -> Timeline:
    """Return what the first workers of a simulation do."""
    shown = range(min(workers, MOST_LANES))
    return Timeline(
        title="Simulated step",
        seconds=simulation.seconds,
        lanes=tuple(
            Lane(name=f"worker {worker}", spans=tuple(_drawn(_told(spans(simulation, worker)), simulation.seconds)))
            for worker in shown
        ),
        note=_left_out(workers),
    )


def _told(done: Iterable[SimulatedSpan]) -> Iterator[Span]:
    for span in done:
        if span.stop_s > span.start_s:
            yield Span(KINDS[span.kind], span.start_s, span.stop_s, span.what)


def task_timeline(report: Report) -> Timeline | None:
    """Return a report's tasks, each worker's one after the other; None where it has none."""
    if not report.tasks:
        return None
    by_worker = _by_worker(report.tasks)
    lasting = {worker: sum(task.seconds for task in tasks) for worker, tasks in by_worker.items()}
    longest = max(lasting.values())
    lanes = [
        Lane(name=f"worker {worker}", spans=tuple(_drawn(_laid_out(tasks), longest)))
        for worker, tasks in list(by_worker.items())[:MOST_LANES]
    ]
    said = "Tasks of the last step, each worker's laid end to end: what lies between them is left out."
    return Timeline(
        title="Step as it ran" if report.source == "executor" else "Simulated step",
        seconds=longest,
        lanes=tuple(lanes),
        note=f"{said} {_left_out(len(by_worker))}".strip(),
    )


def _laid_out(tasks: Sequence[TaskSeconds]) -> Iterator[Span]:
    now = 0.0
    for task in tasks:
        if task.seconds > 0:
            yield Span(TASKS[task.kind], now, now + task.seconds, task.what)
            now += task.seconds


def _left_out(workers: int) -> str:
    return f"The first {MOST_LANES} of {workers} workers." if workers > MOST_LANES else ""


def _drawn(done: Iterable[Span], seconds: float) -> Iterator[Span]:
    """Yield spans that can be seen; shorter ones in a row as one of what they mostly are."""
    least = seconds / RESOLUTION
    short: list[Span] = []
    for span in done:
        if short and (span.end_s - span.begin_s >= least or span.end_s - short[0].begin_s > least):
            yield _together(short)
            short = []
        if span.end_s - span.begin_s >= least:
            yield _rounded(span)
        else:
            short.append(span)
    if short:
        yield _together(short)


def _together(short: Sequence[Span]) -> Span:
    lasting: defaultdict[str, float] = defaultdict(float)
    for span in short:
        lasting[span.kind] += span.end_s - span.begin_s
    kind = max(lasting, key=lasting.__getitem__)
    longest = max(short, key=lambda span: span.end_s - span.begin_s).what
    what = longest if len(short) == 1 else f"{len(short)} tasks, the longest {longest}"
    return _rounded(Span(kind, short[0].begin_s, short[-1].end_s, what))


def _rounded(span: Span) -> Span:
    return Span(span.kind, float(f"{span.begin_s:.7g}"), float(f"{span.end_s:.7g}"), span.what[:80])


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
