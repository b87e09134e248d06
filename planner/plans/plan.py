"""A plan as data: every tensor's layout and every node's strategy, and the bytes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.files import write_file
from planner.graph.facts import batch_size, precision, recomputed
from planner.graph.graph_json import to_data
from planner.graph.ir import Graph
from planner.layout import Ways
from planner.plans.records import (
    ACCUMULATION,
    DECISIVE,
    FORMAT,
    BytesRecord,
    PlanRecord,
    ReportedRecord,
    SearchRecord,
    StepRecord,
    TrainingRecord,
    text_of,
)
from planner.plans.traffic import Decisions, Traffic
from tensor_partitioner.display import Shown, grid

NOT_SEARCHED = SearchRecord()


@dataclass(frozen=True, slots=True, eq=False)
class Plan(Decisions, Shown):
    """How a training graph is split over `workers` workers in len(ways) steps.

    `layouts` gives, per tensor, one placement per step. `strategies` gives, per node, one choice per step: an index
    variable of its operator, `*`, `+` or `1`. `ways` includes the workers' shares if they differ. `search` records how
    the plan was found, for reports only; nothing depends on it.
    """

    search: SearchRecord = NOT_SEARCHED

    def __post_init__(self) -> None:
        """Convert plain factors to Ways of workers with equal shares."""
        if isinstance(self.ways, tuple):
            object.__setattr__(self, "ways", Ways(self.ways))

    @property
    def bytes(self) -> NDArray[np.int64]:
        """Matrix of bytes sent from worker (row) to worker (column) in one iteration: [worker, worker]."""
        return _bytes(self)

    @property
    def total_bytes(self) -> int:
        """Bytes moved in one iteration, summed over workers."""
        return int(self.bytes.sum())

    def prefix(self, steps: int) -> Plan:
        """Return the plan of the first steps alone, for correspondingly fewer workers, without a search record."""
        return replace(
            self,
            search=NOT_SEARCHED,
            schedule=self.schedule if steps else ACCUMULATION,
            ways=self.ways.prefix(steps),
            layouts={name: layout[:steps] for name, layout in self.layouts.items()},
            strategies={name: strategy[:steps] for name, strategy in self.strategies.items()},
        )

    def step_bytes(self) -> tuple[int, ...]:
        """Return each step's conditional cost in bytes: cost(steps 1..i) - cost(steps 1..i-1)."""
        return _step_bytes(self)

    def traffic(self) -> Traffic:
        """Return what every node reads and writes in one iteration."""
        return _traffic(self)

    def bytes_record(self) -> BytesRecord:
        """Return the counted bytes as plan.json reports them."""
        return BytesRecord(self.total_bytes, list(self.step_bytes()), self.bytes.tolist())

    def training_record(self) -> TrainingRecord:
        """Return the training facts of the graph as plan.json reports them."""
        graph = self.graph
        return TrainingRecord(batch_size(graph), graph.micro_batches, recomputed(graph), precision(graph))

    def to_json(self) -> str:
        """Return the plan as JSON text, with one tensor, node or step entry per line."""
        steps = [
            StepRecord(
                way,
                {name: str(layout[i]) for name, layout in self.layouts.items()},
                {name: strategy[i] for name, strategy in self.strategies.items()},
            )
            for i, way in enumerate(self.ways)
        ]
        search = msgspec.to_builtins(self.search)
        decisive = {key: search.pop(key) for key in DECISIVE if key in search}
        record = PlanRecord(
            format=FORMAT,
            graph=to_data(self.graph),
            seed=self.seed,
            ways=list(self.ways),
            shares=list(self.ways.shares),
            axes=list(self.ways.axes),
            schedule=self.schedule,
            search=decisive,
            steps=steps,
            reported=ReportedRecord(self.bytes_record(), search, self.training_record()),
        )
        return text_of(record)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file that `planner.load` reads; raise PlanError if `path` is not a path."""
        if not isinstance(path, str | Path):
            raise PlanError(f"expected the path of a file to write, found {path!r}")
        write_file(path, self.to_json())

    def __repr__(self) -> str:
        return f"<plan of {len(self.graph.nodes)} nodes for {grid(self.ways.factors)} workers, seed {self.seed}>"


@lru_cache(maxsize=2)
def _traffic(plan: Plan) -> Traffic:
    return Traffic(plan)


@lru_cache(maxsize=8)
def _bytes(plan: Plan) -> NDArray[np.int64]:
    total = _traffic(plan).bytes()
    total.flags.writeable = False
    return total


@lru_cache(maxsize=8)
def _step_bytes(plan: Plan) -> tuple[int, ...]:
    whole = _traffic(plan)
    prefixes = (Traffic(plan.prefix(steps), like=whole) for steps in range(1, len(plan.ways)))
    totals = [int(traffic.bytes(whole.alike_nodes).sum()) for traffic in prefixes]
    costs = np.diff([0, *totals, plan.total_bytes])
    return tuple(int(cost) for cost in costs) if plan.ways else ()


def undivided(graph: Graph) -> Plan:
    """Return the plan of a graph for one worker, with seed 0."""
    return Plan(graph, 0, Ways(), dict.fromkeys(graph.tensors, ()), {node.name: () for node in graph.nodes})


def single_worker(plan: Plan) -> Plan:
    """Return the plan of the same graph and seed for one worker."""
    return plan.prefix(0)
