"""What every task of a plan takes a rank, measured in place: in the plan's order, over its arena, all ranks at work.

Ranks meet before a transfer starts, before it ends and after it, so that what is timed is not waiting for others. A
rank that has one thread is timed by the time that its core works, which other ranks on that core do not add to; one on
a device by events.

Only kernels are timed of ranks of stages, which do not come to the same tasks and meet nowhere, and of devices, whose
transfers take what their memory and links do.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from executor.calibration.bench import Bench
from executor.cluster import Cluster
from executor.data import DATA_SETS
from executor.exchange import Action
from executor.training import RankPrograms, Trainer
from planner.program.task_keys import computed_dtype, posted, received, sent, spelled_compute
from planner.program.tasks import Compute, Receive, Send, Wait, WorkerProgram
from topologies import TransferAmounts

STABLE = 0.03
"""Repeated measurements as close as this, of their median, are enough."""

FEWEST_ROUNDS, MOST_ROUNDS = 3, 100
HALF = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """What a compute task does: its category, the dtype it computes in, floating-point operations and bytes touched."""

    category: str
    dtype: str
    operations: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds by the spelling of tasks, what parts of transfers move, kernels do, and how far apart rounds were."""

    seconds: Mapping[str, float]
    moved: Mapping[str, tuple[str, TransferAmounts]]
    work: Mapping[str, Work]
    rounds: int
    spread: float


def timed(part: RankPrograms, bench: Bench, limit_s: float) -> Timed:
    """Time a rank's tasks until the median of all together is stable or `limit_s` is over (collective)."""
    cluster = bench.ranks
    trainer = Trainer(part, cluster, bench.xp, bench.transport)
    trainer.load(DATA_SETS["random"](part.plan.graph, part.plan.seed), 0)
    program = part.training.worker
    together = len(set(cluster.all_gather(tuple(type(task).__name__ for task in program.tasks)))) == 1
    names, moved = _named(program, transfers=together and not bench.is_device)
    rounds: list[list[float]] = []
    started = time.perf_counter()
    _round(trainer, bench, together=together)  # memory and caches are first touched
    while _goes_on(cluster, [sum(durations) for durations in rounds], time.perf_counter() - started, limit_s):
        rounds.append(_round(trainer, bench, together=together))
    medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
    seconds = means((name, median) for name, median in zip(names, medians, strict=True) if name)
    return Timed(seconds, moved, _work(program, names), len(rounds), spread_of([sum(row) for row in rounds]))


def means(durations: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the mean duration by name."""
    by_name = defaultdict[str, list[float]](list)
    for name, seconds in durations:
        by_name[name].append(seconds)
    return {name: statistics.fmean(values) for name, values in by_name.items()}


def spread_of(values: list[float]) -> float:
    """Return how uncertain the median is: half the distance of the quartiles over the root of how many there are."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    middle = statistics.median(values)
    return HALF * (high - low) / middle / (len(values) - 1) ** HALF if middle else 0.0


def _goes_on(cluster: Cluster, totals: list[float], elapsed_s: float, limit_s: float) -> bool:
    """Decide on all ranks alike whether another round is worth its time."""
    enough = len(totals) >= FEWEST_ROUNDS and spread_of(totals) <= STABLE
    late = bool(totals) and elapsed_s * (1 + 1 / (1 + len(totals))) > limit_s
    wants = cluster.all_gather((enough or len(totals) >= MOST_ROUNDS, late))
    return not (all(stable for stable, _ in wants) or any(late for _, late in wants))


def _named(program: WorkerProgram, *, transfers: bool) -> tuple[list[str], dict[str, tuple[str, TransferAmounts]]]:
    """Spell every task that is timed; one that does nothing has no name, and parts of transfers if they are timed."""
    moved: dict[str, tuple[str, TransferAmounts]] = {}

    def transfer(kind: str, amounts: TransferAmounts) -> str:
        if not transfers or not (amounts.messages or amounts.pieces):
            return ""
        name = amounts.spelled(kind)
        moved[name] = kind, amounts
        return name

    def names() -> Iterator[str]:
        started: dict[int, Receive] = {}
        for task in program.tasks:
            match task:
                case Compute():
                    yield spelled_compute(program, task) if any(kernel.calls for kernel in task.kernels) else ""
                case Send():
                    yield transfer("send", sent(program, task))
                case Receive():
                    started[task.transfer] = task
                    yield transfer("post", posted(task))
                case Wait():
                    ended = started.pop(task.transfer)
                    kind = "reduce" if ended.reducer is not None else "fetch"
                    yield transfer(kind, received(program, ended))

    return list(names()), moved


def _work(program: WorkerProgram, names: list[str]) -> dict[str, Work]:
    return {
        name: Work(task.category, computed_dtype(program, task), task.operations, task.touched_bytes)
        for name, task in zip(names, program.tasks, strict=True)
        if isinstance(task, Compute) and name
    }


def _round(trainer: Trainer, bench: Bench, *, together: bool) -> list[float]:
    """Run one step, in which ranks meet if they come to the same tasks; return the seconds of every task."""
    moments: list[Any] = []
    waits: list[int] = []

    def note() -> None:
        moments.append(bench.clock.read())

    def meet() -> None:
        note()
        if bench.is_device:
            bench.xp.cuda.Device().synchronize()
        bench.ranks.meet()

    looks: list[tuple[int, Action]] = []
    tasks = trainer.worker.program.tasks
    for position, task in enumerate(tasks):
        begins = isinstance(task, Send | Wait)  # receiving starts right behind sending
        follows = isinstance(task, Compute) and position > 0 and not isinstance(tasks[position - 1], Compute)
        if bench.ranks.size > 1 and together and (begins or follows):
            waits.append(len(looks))
            looks.append((position, meet))
        looks.append((position, note))
    looks.append((len(tasks), note))
    bench.ranks.barrier()
    trainer.worker.run(looks=looks)
    met = set(waits)
    seconds = bench.clock.seconds(moments)
    durations = [stop - start for number, (start, stop) in enumerate(pairwise(seconds)) if number not in met]
    ends = list(accumulate(durations, initial=0.0))
    trainer.worker.divide(ends)
    return [stop - start for start, stop in pairwise(ends)]
