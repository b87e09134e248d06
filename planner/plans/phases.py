"""Phases of a plan's nodes: those of its graph, divided further if the schedule runs parts of them separately.

An interleaved schedule has a forward and a backward phase for each chunk, numbered from the second chunk on. A
zero-bubble schedule has an additional phase `weights` for the nodes that compute only weight gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from planner.errors import PlanError
from planner.graph.accumulation import accumulates
from planner.graph.chain import chain_of, run_behind
from planner.graph.ir import Graph
from planner.graph.micro_batches import BACKWARD, BEFORE, EVERY, FORWARD, PHASES, UPDATE, phases_of_nodes
from planner.layout import Strategy, Ways, group_of
from planner.layout.ways import STAGES
from tensor_partitioner.display import nearest

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
