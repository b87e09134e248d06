"""The cost of exchanges on a cluster whose workers all do the same: collectives, and messages between stages.

Ranks are placed in the order of Megatron-LM: the workers of a replica (tensor parallel, then context parallel, then
expert parallel) are neighbours, then come replicas; stages are outermost. All groups of a kind run their collective at
the same time, so a link carries the traffic of all of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from simulator.projection.replica import PAIRS, Transfer
from topologies import Machine, TopologyError, load_topology
from topologies.load import is_described
from topologies.machine import node_of
from topologies.schema import Operation
from topologies.traffic import Choice, Timing, choices, message_delay_s, parent_place

# Machines of any size, represented by a few of their nodes.
#
# In a family with a number in its name (`hgx-h100-nodes-2048`), all nodes are equal and do the same in a step. Only
# a few are built; costs that depend on the number of participants are computed from that number.


NODES_BUILT = 16
_FAMILY = re.compile(r"(.+-)([1-9]\d*)()")
_LINE = re.compile(r"()([1-9]\d*)( ?x ?\d+ ?x ?.+)")
"""A machine described in one line, with several nodes (topologies/load.py)."""


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """A machine of `devices`, `per_node` in each node. `built` has the first of them."""

    name: str
    built: Machine
    devices: int
    per_node: int

    def place(self, device: int) -> int:
        """Return the built device that is equivalent to `device`.

        Devices of the first node and of others are distinguished.
        """
        if device < len(self.built.devices):
            return device
        node, place = divmod(device, self.per_node)
        nodes = len(self.built.devices) // self.per_node
        return (node % (nodes - 1) + 1) * self.per_node + place


@lru_cache(64)
def cluster(machine: str | Path | Machine) -> Cluster:
    """Return a machine by name or file, built only as far as needed. Raises TopologyError as `load_topology`."""
    if isinstance(machine, Machine):
        return cluster_of(machine)
    name = str(machine)
    match = _LINE.fullmatch(name) if is_described(name) else _FAMILY.fullmatch(name)
    if match is None or (nodes := int(match[2])) <= NODES_BUILT or Path(name).is_file():
        return replace(cluster_of(load_topology(machine)), name=name)
    built = load_topology(f"{match[1]}{NODES_BUILT}{match[3]}")
    if not node_of(built.devices[0].name):
        return replace(cluster_of(load_topology(machine)), name=name)
    per_node = len(built.devices) // NODES_BUILT
    return Cluster(name, built, nodes * per_node, per_node)


def cluster_of(machine: Machine) -> Cluster:
    """Return a machine that is fully built."""
    sizes = {len(devices) for devices in machine.nodes_of(range(len(machine.devices))).values()}
    return Cluster(machine.name, machine, len(machine.devices), sizes.pop() if len(sizes) == 1 else 1)


def require_devices(machine: Cluster, workers: int) -> None:
    """Raise a TopologyError if there are more workers than devices."""
    if workers > machine.devices:
        raise TopologyError(f"{machine.name}: expected at least {workers} devices, found {machine.devices}")


# The cost of exchanges on a cluster whose workers all do the same.


MESSAGE_SHARE = 0.69
"""Share of the link bandwidth that a message between two ranks attains.

164 of 240e9 bytes/s within a node of A100s, 8.3 of 12.0e9 between nodes (github.com/PKU-DAIR/Hetu-Galvatron, cea12ff).
"""

Group = tuple[int, ...]
MOST = 1 << 12


@dataclass(frozen=True, slots=True)
class Grid:
    """Numbers of stages, of replicas, and of workers in one stage of a replica (`inner`).

    `context` of the inner workers are context parallel. The data parallel workers that shard `experts` are inner
    workers of one replica, each with a part of the experts.
    """

    stages: int
    replicas: int
    inner: int
    context: int = 1
    experts: int = 1

    def rank(self, stage: int, replica: int, worker: int) -> int:
        """Return the rank of a worker."""
        return (stage * self.replicas + replica) * self.inner + worker

    @property
    def tensor(self) -> int:
        """Number of tensor parallel workers."""
        return self.inner // (self.context * self.experts)

    @property
    def workers(self) -> int:
        """Number of all workers."""
        return self.stages * self.replicas * self.inner


@dataclass(frozen=True, slots=True)
class Network:
    """Prices the exchanges of a grid of workers on a cluster, in seconds, scaled by `times`."""

    cluster: Cluster
    grid: Grid
    times: float = 1.0

    def transfer_s(self, transfer: Transfer) -> float:
        """Seconds of an exchange among the workers of a replica, while all replicas do the same."""
        kind = "all-to-all" if transfer.kind == PAIRS else transfer.kind
        return self._operation_s(kind, transfer.workers, transfer.nbytes)

    def replicas_s(self, kind: Operation, nbytes: float, *, of_experts: bool = False) -> float:
        """Seconds of a collective among all workers with the same weights, over all replicas."""
        if not nbytes:
            return 0.0
        timings = _replicas(self.cluster, self.grid, kind, of_experts=of_experts)
        return self.times * min((timing.seconds(nbytes) for timing in timings), default=0.0)

    def ends_s(self, kind: Operation, nbytes: float) -> float:
        """Seconds of a collective between the first and the last stage."""
        last = self.grid.rank(self.grid.stages - 1, 0, 0)
        return self._operation_s(kind, (0, last), nbytes) if last else 0.0

    def stages_s(self, nbytes: float) -> float:
        """Seconds of messages from each worker of a stage to its counterpart in the next."""
        crosses = self.grid.stages > 1 and nbytes
        return self.times * _message(self.cluster, self.grid).seconds(nbytes) if crosses else 0.0

    def _operation_s(self, kind: Operation | str, group: Group, nbytes: float) -> float:
        if len(group) == 1 or not nbytes:
            return 0.0
        timings = _timings(self.cluster, self.grid.workers, kind, group)
        return self.times * min(timing.seconds(nbytes) for timing in timings)


@lru_cache(MOST)
def _message(cluster: Cluster, grid: Grid) -> Timing:
    source, target = 0, cluster.place(grid.rank(1, 0, 0))
    machine, load = cluster.built, defaultdict[int, float](float)
    for moved in range(min(cluster.per_node, grid.replicas * grid.inner, len(machine.devices) - target)):
        for resource, units in machine.route(source + moved, target + moved).uses:
            load[resource] += units
    route = machine.route(source, target)
    s_per_byte = max(load[resource] / machine.resources[resource].capacity for resource, _ in route.uses)
    s_per_byte /= MESSAGE_SHARE
    return Timing(route.latency_s + route.half_bandwidth_bytes * s_per_byte, s_per_byte)


@lru_cache(MOST)
def _replicas(cluster: Cluster, grid: Grid, kind: Operation, *, of_experts: bool) -> tuple[Timing, ...]:
    """Return the timing of each algorithm among all workers with the same weights; none if there is only one."""
    places = range(0, grid.inner // grid.experts if of_experts else grid.inner, grid.tensor)
    group = tuple(grid.rank(0, replica, place) for replica in range(grid.replicas) for place in places)
    return _timings(cluster, grid.workers, kind, group) if len(group) > 1 else ()


@lru_cache(MOST)
def _timings(cluster: Cluster, workers: int, kind: Operation, group: Group) -> tuple[Timing, ...]:
    """Return the timing of each algorithm in a group of ranks, while all equivalent groups run the same operation."""
    if group[-1] < len(cluster.built.devices):
        return tuple(run.timing for run in _runs(cluster, workers, kind, group))
    nodes = _by_node(cluster, group)
    built = len(cluster.built.devices) // cluster.per_node
    if len(nodes) <= built:
        return tuple(run.timing for run in _runs(cluster, workers, kind, _moved(cluster, nodes)))
    many, few = (_runs(cluster, workers, kind, _moved(cluster, nodes[:count])) for count in (built, built // 2))
    return tuple(_grown(cluster, pair, (built, built // 2, len(nodes)), group) for pair in zip(many, few, strict=True))


def _by_node(cluster: Cluster, group: Group) -> tuple[Group, ...]:
    """Return the places of a group's ranks in each of its nodes."""
    nodes: defaultdict[int, list[int]] = defaultdict(list)
    for rank in group:
        nodes[rank // cluster.per_node].append(rank % cluster.per_node)
    return tuple(map(tuple, nodes.values()))


def _moved(cluster: Cluster, nodes: Sequence[Group]) -> Group:
    """Return a group with the same places, moved to the first nodes. All nodes are equal."""
    return tuple(node * cluster.per_node + place for node, places in enumerate(nodes) for place in places)


@dataclass(frozen=True, slots=True)
class _Run:
    """An algorithm among built ranks: its timing alone, and its seconds per byte on each resource."""

    algorithm: str
    alone: Timing
    s_per_byte: Mapping[int, float]

    @property
    def timing(self) -> Timing:
        """The timing while all equivalent groups run it."""
        return replace(self.alone, s_per_byte=max(self.s_per_byte.values()))


def _runs(cluster: Cluster, workers: int, kind: Operation, group: Group) -> tuple[_Run, ...]:
    """Return each algorithm with the load that all equivalent groups put on the resources that this group uses."""
    machine = cluster.built
    beside = [choices(machine, kind, other) for other in _alike(cluster, workers, group) if other != group]
    runs = []
    for number, choice in enumerate(choices(machine, kind, group)):
        load = _load(cluster, (choice, *(others[number] for others in beside if len(others) > number)))
        used = {resource for pair in choice.pattern.flows for resource, _ in machine.route(*pair).uses}
        rates = {r: load[r] / machine.resources[r].capacity / choice.bandwidth_share for r in used}
        runs.append(_Run(choice.algorithm, choice.alone, rates))
    return tuple(runs)


def _alike(cluster: Cluster, workers: int, group: Group) -> Iterator[Group]:
    """Yield the translations of a group along the ranks of its first member's node. They are disjoint."""
    first = group[0] - group[0] % cluster.per_node
    taken: set[int] = set()
    for start in range(first, min(first + cluster.per_node, len(cluster.built.devices), workers)):
        moved = tuple(rank - group[0] + start for rank in group)
        if taken.isdisjoint(moved) and moved[-1] < len(cluster.built.devices):
            taken.update(moved)
            yield moved


def _load(cluster: Cluster, operations: Iterable[Choice]) -> Mapping[int, float]:
    """Return the load of concurrent operations on each resource, in shares of the payload."""
    load: defaultdict[int, float] = defaultdict(float)
    for operation in operations:
        for pair, share in operation.pattern.flows.items():
            for resource, units in cluster.built.route(*pair).uses:
                load[resource] += share * units
    return load


def _grown(cluster: Cluster, runs: tuple[_Run, _Run], nodes: tuple[int, int, int], group: Group) -> Timing:
    """Return the timing of an algorithm in a group of many nodes, extrapolated from two smaller numbers of nodes.

    The load of a resource is linear in 1/n for n nodes, as (n - 1)/n is. The length of the chain of messages is linear
    in n, or in a tree's depth.
    """
    (many, few), (larger, smaller, all_nodes) = runs, nodes
    share = (1 / larger - 1 / all_nodes) / (1 / smaller - 1 / larger)
    rates = [rate + (rate - few.s_per_byte[r]) * share for r, rate in many.s_per_byte.items() if r in few.s_per_byte]
    if many.algorithm == "tree":
        members = sum(rank < larger * cluster.per_node for rank in _moved(cluster, _by_node(cluster, group)))
        depths = [count.bit_length() - 1 for count in (members, len(group))]
        by_links = many.alone.delay_s != few.alone.delay_s
        more_s = _tree_delay_s(cluster, group) - _tree_delay_s(cluster, group[:members]) if by_links else 0.0
        chain_s = many.alone.chain_s * depths[1] / depths[0]
        return Timing(many.alone.delay_s + more_s, max(many.s_per_byte.values()), chain_s)
    more = (all_nodes - larger) / (larger - smaller)
    delay_s, chain_s = (
        many_s + (many_s - few_s) * more
        for many_s, few_s in ((many.alone.delay_s, few.alone.delay_s), (many.alone.chain_s, few.alone.chain_s))
    )
    return Timing(delay_s, max(rates), chain_s)


def _tree_delay_s(cluster: Cluster, group: Group) -> float:
    """Return the delay of the messages of a tree: from the last member up to the root, and back."""
    place, total = len(group) - 1, 0.0
    while place:
        ends = group[place], group[parent_place(place)]
        inside = [rank % cluster.per_node for rank in ends]
        if ends[0] // cluster.per_node != ends[1] // cluster.per_node:
            inside[0] += cluster.per_node
        total += message_delay_s(cluster.built, (inside[0], inside[1]))
        total += message_delay_s(cluster.built, (inside[1], inside[0]))
        place = parent_place(place)
    return total
