"""Frontier of time, or bytes, against memory: plans that take less and less memory, beside well-known schemes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

import topologies
from planner.errors import PlanError
from planner.explanations.summary import predicted
from planner.graph.ir import Graph
from planner.graph.order import in_structural_order
from planner.parallel import Parallel
from planner.planning import Request, planned, request_of
from planner.plans.plan import Plan
from planner.search.coarse.coarsen import Coarsenings
from planner.search.memory import plans_by_price
from planner.search.run import search_result
from planner.search.space import Candidate
from tensor_partitioner import display
from tensor_partitioner.display import Shown, exact_bytes, grid, quantity, seconds, table
from tensor_partitioner.display.progress import tracked

LEAST = "plan of least"


@dataclass(frozen=True, slots=True)
class Point:
    """Memory and cost of a plan: bytes on the worker that needs most, and what a step moves or takes.

    `scheme` is the named parallelism, empty for a plan from a search. `dominated_by` names a point that takes no more
    memory and costs less, or the reverse; empty if there is none.
    """

    name: str
    scheme: str
    memory_bytes: int
    total_bytes: int
    seconds: float | None
    dominated_by: str = ""

    @property
    def cost(self) -> float:
        """Seconds if known, else bytes."""
        return self.total_bytes if self.seconds is None else self.seconds


@dataclass(frozen=True, slots=True, repr=False)
class Frontier(Shown):
    """Plans and named schemes, in order of decreasing memory; `refused` gives why a scheme is not possible."""

    workers: int
    machine: str
    points: tuple[Point, ...]
    refused: dict[str, str]


def schemes(workers: int) -> dict[str, Parallel]:
    """Return the schemes that plans are compared with, by name."""
    return {
        "data parallel (DDP)": Parallel(dp=workers),
        "ZeRO-1": Parallel(dp=workers, zero=1),
        "ZeRO-2": Parallel(dp=workers, zero=2),
        "ZeRO-3 (FSDP)": Parallel(dp=workers, zero=3),
        "tensor parallel": Parallel(tp=workers),
        "tensor parallel, sequence too": Parallel(tp=workers, sp=True),
    }


def frontier(
    graph: Graph, workers: int | None = None, *, machine: str | topologies.Machine | None = None, **options: Any
) -> Frontier:
    """Return plans that take less and less memory, with named schemes: by bytes, or by seconds under objective time.

    Options are those of `planner.plan`, except memory and stages. Memory is the size of the arenas; on a machine, plus
    what else the device needs. Raises what `planner.plan` raises.

    >>> import planner
    >>> front = planner.frontier(planner.model("mlp-2-64", batch=32), workers=4)
    >>> [point.name for point in front.points if not point.dominated_by]
    ['plan of least bytes', 'plan in 45.2 kB', 'plan in 43.1 kB']
    """
    machine = topologies.load_topology(machine) if isinstance(machine, str) else machine
    request, graph = request_of(graph, workers, machine=machine, **options), in_structural_order(graph)
    coarsenings = Coarsenings(graph)
    if request.stages > 1 or request.limit_bytes is not None or request.search.parallel is not None:
        raise PlanError("frontier: cannot be combined with memory, stages or parallel")
    arena_of, timed = request.search.arena_of, machine if request.search.objective == "time" else None
    if arena_of is None or request.workers == 1:
        raise PlanError("frontier: expected at least 2 workers, found 1")
    points = [*_searched(graph, request, coarsenings, arena_of, timed)]
    refused = {}
    for name, parallel in tracked("schemes", [*schemes(request.workers).items()]):
        try:
            plan = planned(graph, request_of(graph, parallel=parallel), coarsenings)
        except PlanError as error:
            refused[name] = str(error)
            continue
        points.append(_point(name, str(parallel), plan, arena_of, timed))
    ordered = sorted(points, key=lambda point: (-point.memory_bytes, point.cost))
    return Frontier(request.workers, "" if machine is None else machine.name, tuple(_compared(ordered)), refused)


def _searched(
    graph: Graph,
    request: Request,
    coarsenings: Coarsenings,
    arena_of: Callable[[Plan], Sequence[int]],
    machine: topologies.Machine | None,
) -> Iterator[Point]:
    """Yield the plans found by the search that no other of them dominates."""
    best, seed = planned(graph, request, coarsenings), request.search.seed
    options = replace(request.search, ways=best.ways)
    free = search_result(graph, options, coarsenings, rivals=False).candidate

    def largest_arena_bytes(candidate: Candidate) -> int:
        return max(arena_of(candidate.plan(seed)))

    priced = list(tracked("prices of memory", [*plans_by_price(free, largest_arena_bytes)]))
    points = [_point(f"{LEAST} {'bytes' if machine is None else 'time'}", "", best, arena_of, machine)]
    points += [_point("", "", candidate.plan(seed), arena_of, machine) for candidate, _ in priced]
    for point in _compared(points):
        if not point.dominated_by and point not in points[: points.index(point)]:
            yield point if point.name else replace(point, name=f"plan in {quantity(point.memory_bytes, 'B')}")


def _point(
    name: str,
    scheme: str,
    plan: Plan,
    arena_of: Callable[[Plan], Sequence[int]],
    machine: topologies.Machine | None,
) -> Point:
    prediction = None if machine is None else predicted(plan, machine)
    taken = None if prediction is None else prediction.seconds
    return Point(name, scheme, max(arena_of(plan)), plan.total_bytes, taken)


def _compared(points: Sequence[Point]) -> Iterator[Point]:
    """Yield the points, each with the cheapest point that dominates it; of equal points the first is kept."""
    for number, point in enumerate(points):
        better = [
            other
            for place, other in enumerate(points)
            if other.memory_bytes <= point.memory_bytes
            and other.cost <= point.cost
            and ((other.memory_bytes, other.cost) != (point.memory_bytes, point.cost) or place < number)
        ]
        best = min(better, key=lambda other: other.cost, default=None)
        yield point if best is None else replace(point, dominated_by=best.name or "another plan")


@display.tables.register
def tables(front: Frontier) -> tuple[Table, ...]:
    """Return the table of a frontier."""
    timed = any(point.seconds is not None for point in front.points)
    rows = [
        [
            point.name,
            quantity(point.memory_bytes, "B"),
            *([seconds(point.seconds)] if timed else []),
            exact_bytes(point.total_bytes),
            f"dominated by {point.dominated_by}" if point.dominated_by else "on the frontier",
        ]
        for point in front.points
    ]
    rows += [[name, "-", *(["-"] if timed else []), "-", f"not possible: {why}"] for name, why in front.refused.items()]
    columns = ["plan", "memory", *(["seconds"] if timed else []), "bytes", ""]
    where = f" on {front.machine}" if front.machine else ""
    title = f"{'time' if timed else 'bytes'} against memory, {grid((front.workers,))} workers{where}"
    return (table(title, columns, rows, text=("",)),)
