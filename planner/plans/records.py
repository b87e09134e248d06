"""Records of a plan's file, including that of its search, and their JSON text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import msgspec

from planner.errors import PlanError
from planner.graph.chain import chain_of, run_behind
from planner.graph.ir import Graph
from planner.graph.micro_batches import BACKWARD, BEFORE, EVERY, FORWARD, PHASES, UPDATE, accumulates, phases_of_nodes
from planner.layout import Strategy, Ways, group_of
from planner.layout.ways import STAGES
from tensor_partitioner.display import Shown, nearest

# Phases of a plan's nodes: those of its graph, divided further if the schedule runs parts of them separately.
#
# An interleaved schedule has a forward and a backward phase for each chunk, numbered from the second chunk on. A
# zero-bubble schedule has an additional phase `weights` for the nodes that compute only weight gradients.


WEIGHTS = "weights"
"""The phase of weight gradients, if it is separate."""

ACCUMULATION, INTERLEAVED, ZERO_BUBBLE = "accumulation", "interleaved", "zero-bubble"
SCHEDULE_NAMES = (ACCUMULATION, "gpipe", "1f1b", INTERLEAVED, ZERO_BUBBLE)
"""Orders in which stages run their micro-batches (`planner/program/pipeline.py`)."""

DEFAULT = "1f1b"
"""The default schedule of plans with stages."""

CHUNKS = 2
"""Default number of chunks per stage of an interleaved schedule."""


def read_schedule(text: str) -> tuple[str, int]:
    """Return a schedule's name and the chunks per stage, as in `interleaved:4`; raise PlanError for anything else.

    >>> read_schedule("interleaved:4"), read_schedule("1f1b")
    (('interleaved', 4), ('1f1b', 1))
    """
    name, _, chunks = str(text).partition(":")
    if name not in SCHEDULE_NAMES or (chunks and not (name == INTERLEAVED and chunks.isdecimal() and int(chunks))):
        known = f"{', '.join(SCHEDULE_NAMES)}, or {INTERLEAVED}:CHUNKS"
        raise PlanError(f"expected schedule {known}, found {text!r}{nearest(name, SCHEDULE_NAMES)}")
    return name, int(chunks or CHUNKS) if name == INTERLEAVED else 1


def stages_of(ways: Ways) -> int:
    """Return the number of stages: the groups of the first step if it divides nodes, else 1."""
    return ways.factors[0] if ways.axes[:1] == (STAGES,) else 1


def of_chunk(phase: str, chunk: int) -> str:
    """Return the name of a chunk's phase."""
    return f"{phase} {chunk}" if chunk else phase


def chunk_of(phase: str) -> int:
    """Return the chunk that a phase belongs to."""
    return int(phase.partition(" ")[2] or 0)


def kind_of(phase: str) -> str:
    """Return the graph's phase, or `weights`, that a phase is a part of."""
    return phase.partition(" ")[0]


def is_repeated(phase: str) -> bool:
    """Return True if a phase runs for every micro-batch."""
    return kind_of(phase) in (*EVERY, WEIGHTS)


@dataclass(frozen=True, slots=True)
class Phases:
    """All phases in the order in which a micro-batch passes them, and the phase of every node."""

    order: tuple[str, ...]
    of_node: Mapping[str, str]


def phases_of_plan(graph: Graph, ways: Ways, strategies: Mapping[str, Strategy], schedule: str) -> Phases:
    """Return the phases of a graph's nodes under a plan's decisions."""
    (name, chunks), phase_of = read_schedule(schedule), phases_of_nodes(graph)
    if graph.micro_batches == 1 or (name != ZERO_BUBBLE and chunks == 1):
        return Phases(PHASES, phase_of)
    if name == ZERO_BUBBLE:
        late = dict.fromkeys((node for node in _weight_gradients(graph) if phase_of[node] == BACKWARD), WEIGHTS)
        return Phases((BEFORE, FORWARD, BACKWARD, WEIGHTS, UPDATE), {**phase_of, **late})
    chunk = _chunks_of_nodes(graph, stages_of(ways), strategies, phase_of)
    every = [*((FORWARD, number) for number in range(chunks)), *((BACKWARD, n) for n in reversed(range(chunks)))]
    of_node = {node: of_chunk(phase, chunk[node]) if phase in EVERY else phase for node, phase in phase_of.items()}
    return Phases((BEFORE, *(of_chunk(phase, number) for phase, number in every), UPDATE), of_node)


def _weight_gradients(graph: Graph) -> Iterator[str]:
    """Yield the nodes whose results accumulate over micro-batches, or are only terms of such sums."""
    sums, readers = set(graph.accumulated), Counter(name for node in graph.nodes for name in node.inputs)
    for node in reversed(graph.nodes):
        if sums.issuperset(node.outputs):
            yield node.name
            if accumulates(node, graph.tensors):
                sums.update(name for name in node.inputs if readers[name] == 1)


def _chunks_of_nodes(
    graph: Graph, stages: int, strategies: Mapping[str, Strategy], phases: Mapping[str, str]
) -> Mapping[str, int]:
    """Return every node's chunk: the number of runs of links that its group has before the node's run.

    A node without a link is in the earliest possible chunk after those of its operands.
    """
    chain, group_of_link = chain_of(graph), dict[int, int]()
    for name in chain.forward:
        group_of_link[chain.of_node[name]] = group_of(strategies[name][0]) or 0
    run_of_link, run = {0: 0}, 0
    for link, following in pairwise(range(chain.links)):
        run += group_of_link[link] != group_of_link[following]
        run_of_link[following] = run
    chunks, run_of_tensor = dict[str, int](), dict[str, int]()
    for node in graph.nodes:
        kin = node.name if node.name in chain.forward else node.forward
        if kin in chain.forward:
            run = run_of_link[chain.of_node[node.name]]
        else:
            read = [run_of_tensor[name] for name in node.inputs if name in run_of_tensor]
            run = run_behind(read, group_of(strategies[node.name][0]) or 0, stages)
        if phases[node.name] == BACKWARD:
            run_of_tensor |= dict.fromkeys(node.outputs, run)
        chunks[node.name] = run // stages
    return chunks


# Records of a plan's file, including that of its search, and their JSON text.


Bytes = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A frozen record that rejects unknown keys."""


class Tried(_Record, frozen=True, kw_only=True):
    """A factorization of the workers that was tried; its cost is in bytes or seconds."""

    ways: tuple[int, ...]
    cost: Bytes | Seconds
    seconds: Seconds


class Allowed(_Record, frozen=True, kw_only=True):
    """The memory limit of every arena, and the largest arena of this plan and of the cheapest plan without a limit."""

    limit_bytes: Bytes
    arena_bytes: Bytes
    unlimited_arena_bytes: Bytes
    searches: Bytes


class Predicted(_Record, frozen=True, kw_only=True):
    """Where the predicted seconds of an iteration go; bytes and seconds by level, `candidates_s` by searcher."""

    tick_s: Seconds
    candidates_s: dict[str, Seconds]
    level_bytes: tuple[Bytes, ...] = ()
    level_s: tuple[Seconds, ...] = ()
    latency_s: Seconds = 0.0
    compute_s: Seconds = 0.0


class SearchRecord(Shown, _Record, frozen=True, kw_only=True):
    """How a plan was found: the request, the winning candidate, and its distance from the optimum.

    - `pins` are the requirements, as given, or `not` them.
    - `bytes` are those of the candidates by name, including the winner.
    - `lower_bound` is in the objective's unit, bytes or seconds: no plan of the same ways, placements and ties that the
      searcher `bound_by` may choose costs less.
    - `data_parallel_bytes` is what plain data parallelism over as many workers would move in one step; None if it is
      not possible.
    - `seconds` is the duration of the search, `factorisations` are those tried.
    - `stack` is the software stack that its step was priced for.

    A plan written by hand has an empty record.
    """

    model: str = ""
    searcher: str = msgspec.field(default="", name="name")
    placements: str = ""
    objective: str = "bytes"
    machine: str = ""
    winner: str = ""
    ties: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    bytes: dict[str, Bytes] = {}
    data_parallel_bytes: Bytes | None = None
    predicted: Predicted | None = None
    lower_bound: Bytes | Seconds | None = None
    bound_by: str = ""
    memory: Allowed | None = None
    seconds: Seconds | None = None
    factorisations: tuple[Tried, ...] = ()
    stack: str = ""
    details: dict[str, int | float | str] = {}

    @property
    def cost(self) -> int | float:
        """Cost that the search predicted for its plan: bytes, or seconds under the objective time."""
        costs = self.bytes if self.predicted is None else self.predicted.candidates_s
        return costs[self.winner]

    @property
    def is_exact(self) -> bool:
        """True if no plan of the space that the lower bound covers costs less."""
        return self.lower_bound is not None and self.lower_bound >= self.cost

    @property
    def gap(self) -> float | None:
        """Fraction of the lower bound by which the cost exceeds it, to six digits; 0 if the plan is optimal."""
        if (bound := self.lower_bound) is None:
            return None
        return round(max(0.0, (self.cost - bound) / (bound or 1)), 6)


FORMAT = "plan/2"
READ = ("plan/1", FORMAT)
"""Formats that can be read: the first has no training facts and is otherwise equal."""

DECISIVE = ("model", "name", "placements", "objective", "machine")
"""Fields of the search stored beside the decisions; the others are reported."""


class StepRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One step's decisions: placements by tensor, choices by node."""

    ways: int
    tensors: dict[str, str]
    nodes: dict[str, str]


class BytesRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Bytes per iteration: in all, each step's conditional part, and from worker (row) to worker (column)."""

    total: int
    steps: list[int]
    matrix: list[list[int]]


class TrainingRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Training facts of the graph: samples and micro-batches per iteration, recomputed nodes, dtypes."""

    batch: int | None
    micro_batches: int
    recomputed_nodes: int
    precision: str


class ReportedRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Figures derived from the decisions; a reader recounts them."""

    bytes: BytesRecord
    search: dict[str, Any] = {}
    training: TrainingRecord | None = None


class PlanRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """The whole file.

    `shares` are those of all workers if they differ, `axes` those of all steps if named, and `schedule` is that of
    micro-batches. `keep_fetches` is read but never written.
    """

    format: str
    graph: dict[str, Any]
    seed: Annotated[int, msgspec.Meta(ge=0)]
    ways: list[int]
    shares: list[int] = []
    axes: list[str] = []
    schedule: str = ACCUMULATION
    search: dict[str, Any]
    keep_fetches: bool = False
    steps: list[StepRecord]
    reported: ReportedRecord | None = None


def text_of(record: PlanRecord) -> str:
    """Return a plan as JSON text, with one tensor, node or step entry per line."""
    return _lines(msgspec.to_builtins(record)) + "\n"


def _lines(data: object, depth: int = 0) -> str:
    """Return nested mappings with one entry per line; values without mappings stay on one line."""
    pad = " " * (depth + 1)
    if isinstance(data, Mapping) and data and depth < 3:
        rows = (f"{pad}{json.dumps(key)}: {_lines(value, depth + 1)}" for key, value in data.items())
        return "{\n" + ",\n".join(rows) + "\n" + pad[:-1] + "}"
    if isinstance(data, list | tuple) and data and isinstance(data[0], Mapping):
        return "[\n" + ",\n".join(pad + _lines(value, depth + 1) for value in data) + "\n" + pad[:-1] + "]"
    return json.dumps(data)
