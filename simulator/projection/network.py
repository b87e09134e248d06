"""What exchanges take on a cluster whose workers all do the same: collectives among ranks, messages between stages.

Ranks are placed as Megatron-LM orders them: those of a replica's inner workers (tensor parallel, then context parallel
ones) are neighbours, replicas follow, stages are outermost. While a group has its collective, every other group of its
kind has one, too: a link carries what all of them put on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from simulator.projection.cluster import Cluster
from simulator.projection.replica import PAIRS, Transfer
from topologies.collectives import Choice, choices
from topologies.schema import Operation

Group = tuple[int, ...]
MOST = 1 << 12


@dataclass(frozen=True, slots=True)
class Grid:
    """How many stages, data parallel replicas, and workers of a replica's stage there are."""

    stages: int
    replicas: int
    inner: int

    def rank(self, stage: int, replica: int, worker: int) -> int:
        """Return a worker's rank."""
        return (stage * self.replicas + replica) * self.inner + worker

    @property
    def workers(self) -> int:
        """All."""
        return self.stages * self.replicas * self.inner


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of an operation as a line over its payload."""

    delay_s: float
    s_per_byte: float

    def seconds(self, nbytes: float) -> float:
        """Seconds of an operation on a payload."""
        return self.delay_s + nbytes * self.s_per_byte


@dataclass(frozen=True, slots=True)
class Network:
    """Prices exchanges of a grid of workers on a cluster, seconds each."""

    cluster: Cluster
    grid: Grid

    def transfer_s(self, transfer: Transfer) -> float:
        """Seconds of an exchange among a replica's inner workers, as all replicas have it."""
        kind = "all-to-all" if transfer.kind == PAIRS else transfer.kind
        return transfer.part * self._operation_s(kind, transfer.workers, transfer.nbytes)

    def replicas_s(self, kind: Operation, nbytes: float) -> float:
        """Seconds of a collective among the replicas of each inner worker of each stage."""
        group = tuple(self.grid.rank(0, replica, 0) for replica in range(self.grid.replicas))
        return self._operation_s(kind, group, nbytes)

    def ends_s(self, kind: Operation, nbytes: float) -> float:
        """Seconds of a collective between the first and the last stage."""
        return self._operation_s(kind, (0, self.grid.rank(self.grid.stages - 1, 0, 0)), nbytes)

    def stages_s(self, nbytes: float) -> float:
        """Seconds of a message from every worker of a stage to the one in its place in the next."""
        return _message(self.cluster, self.grid).seconds(nbytes) if self.grid.stages > 1 and nbytes else 0.0

    def _operation_s(self, kind: Operation | str, group: Group, nbytes: float) -> float:
        if len(group) == 1 or not nbytes:
            return 0.0
        return min(line.seconds(nbytes) for line in _lines(self.cluster, self.grid.workers, kind, group))


@lru_cache(MOST)
def _message(cluster: Cluster, grid: Grid) -> Line:
    source, target = 0, cluster.place(grid.rank(1, 0, 0))
    machine, load = cluster.built, defaultdict[int, float](float)
    for moved in range(min(cluster.per_node, grid.replicas * grid.inner, len(machine.devices) - target)):
        for resource, units in machine.route(source + moved, target + moved).uses:
            load[resource] += units
    route = machine.route(source, target)
    s_per_byte = max(load[resource] / machine.resources[resource].capacity for resource, _ in route.uses)
    return Line(route.latency_s + route.half_bandwidth_bytes * s_per_byte, s_per_byte)


@lru_cache(MOST)
def _lines(cluster: Cluster, workers: int, kind: Operation, group: Group) -> tuple[Line, ...]:
    """Return what each algorithm takes a group of ranks, while all groups alike have the same operation."""
    inside = tuple(rank for rank in group if rank < len(cluster.built.devices))
    few = inside if len(inside) > 1 else tuple(dict.fromkeys(map(cluster.place, group)))
    beside = [choices(cluster.built, kind, other) for other in _alike(cluster, workers, few) if other != few]
    lines = []
    for number, choice in enumerate(choices(cluster.built, kind, few)):
        load = _load(cluster, (choice, *(others[number] for others in beside if len(others) > number)))
        used = {resource for pair in choice.pattern.flows for resource, _ in cluster.built.route(*pair).uses}
        s_per_byte = max(load[resource] / cluster.built.resources[resource].capacity for resource in used)
        line = Line(choice.delay_s, s_per_byte / choice.bandwidth_share)
        alone = few, choice.algorithm, line
        lines.append(line if len(few) == len(group) else _grown(cluster, kind, alone, len(group)))
    return tuple(lines)


def _alike(cluster: Cluster, workers: int, group: Group) -> Iterator[Group]:
    """Yield the groups that a group becomes by moving along the ranks of its first member's node; none shares ranks."""
    first = group[0] - group[0] % cluster.per_node
    taken: set[int] = set()
    for start in range(first, min(first + cluster.per_node, len(cluster.built.devices), workers)):
        moved = tuple(rank - group[0] + start for rank in group)
        if taken.isdisjoint(moved) and moved[-1] < len(cluster.built.devices):
            taken.update(moved)
            yield moved


def _load(cluster: Cluster, operations: Iterable[Choice]) -> Mapping[int, float]:
    """Return the shares of the payload that operations at the same time put on each resource."""
    load: defaultdict[int, float] = defaultdict(float)
    for operation in operations:
        for pair, share in operation.pattern.flows.items():
            for resource, units in cluster.built.route(*pair).uses:
                load[resource] += share * units
    return load


def _grown(cluster: Cluster, kind: Operation, built: tuple[Group, str, Line], members: int) -> Line:
    """Return what an algorithm takes so many members, from what it takes the few of them that are built.

    A ring's links carry (n - 1) / n of the payload, and its chain of messages grows by as much with every node.
    """
    few, algorithm, line = built
    per_node = sum(rank < few[0] - few[0] % cluster.per_node + cluster.per_node for rank in few)
    half = few[: max(per_node, len(few) // 2 // per_node * per_node)]
    if algorithm in ("tree", "in-switch") or len(half) == len(few):
        return line
    shorter = next((choice for choice in choices(cluster.built, kind, half) if choice.algorithm == algorithm), None)
    each_s = 0.0 if shorter is None else (line.delay_s - shorter.delay_s) / (len(few) - len(half))
    growth = 1.0 if algorithm == "hierarchical" else ((members - 1) / members) / ((len(few) - 1) / len(few))
    return Line(line.delay_s + each_s * (members - len(few)), line.s_per_byte * growth)
