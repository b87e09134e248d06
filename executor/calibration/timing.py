"""Time every task of a plan on each rank, in the order of the plan, over its arena, with all ranks at work.

Ranks meet before a transfer starts, before it ends and after it, so that waiting for others is not timed. A rank with
one thread is timed by its thread's CPU time, which excludes other ranks on the core; a rank on a device by events.

Only kernels are timed for ranks of different pipeline stages, which do not have the same tasks and cannot meet, and for
devices, whose transfers follow from their memory and links.
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
"""Relative spread of the measurements at which they count as stable."""

FEWEST_ROUNDS, MOST_ROUNDS = 3, 100
HALF = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a compute task: its category, the dtype it computes in, flop, and bytes touched."""

    category: str
    dtype: str
    operations: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of tasks by spelling, the amounts of transfers, the work of kernels, and the spread of rounds."""

    seconds: Mapping[str, float]
    moved: Mapping[str, tuple[str, TransferAmounts]]
    work: Mapping[str, Work]
    rounds: int
    spread: float


def timed(part: RankPrograms, bench: Bench, limit_s: float) -> Timed:
    """Time a rank's tasks until the median of their sum is stable or `limit_s` is over (collective)."""
    cluster = bench.ranks
    trainer = Trainer(part, cluster, bench.xp, bench.transport)
    trainer.load(DATA_SETS["random"](part.plan.graph, part.plan.seed), 0)
    program = part.training.worker
    together = len(set(cluster.all_gather(tuple(type(task).__name__ for task in program.tasks)))) == 1
    names, moved = _named(program, transfers=together and not bench.is_device)
    rounds: list[list[float]] = []
    started = time.perf_counter()
    _round(trainer, bench, together=together)  # warm-up: first touch of memory and caches
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
    """Return the relative uncertainty of the median: half the interquartile range over the root of their number."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    middle = statistics.median(values)
    return HALF * (high - low) / middle / (len(values) - 1) ** HALF if middle else 0.0


def _goes_on(cluster: Cluster, totals: list[float], elapsed_s: float, limit_s: float) -> bool:
    """Decide, equally on all ranks, whether another round is worth its time."""
    enough = len(totals) >= FEWEST_ROUNDS and spread_of(totals) <= STABLE
    late = bool(totals) and elapsed_s * (1 + 1 / (1 + len(totals))) > limit_s
    wants = cluster.all_gather((enough or len(totals) >= MOST_ROUNDS, late))
    return not (all(stable for stable, _ in wants) or any(late for _, late in wants))


def _named(program: WorkerProgram, *, transfers: bool) -> tuple[list[str], dict[str, tuple[str, TransferAmounts]]]:
    """Return the spelling of every timed task, "" for others, and the amounts of transfers if they are timed."""
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
    """Run one step and return the seconds of every task. Ranks that have the same tasks meet."""
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
        begins = isinstance(task, Send | Wait)  # a receive starts right after the send
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
