"""How collectives load a machine's links and how long they take: algorithms as flows between devices.

The payload of an operation is everything that is gathered, scattered, reduced or broadcast; for an all-to-all, it is
the data of one device. A machine's `collectives` may list the algorithms and what they attain. An operation that they
do not list attains the links' own figures (docs/explanation/collectives.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

from topologies.machine import Machine
from topologies.schema import Algorithm, CollectiveEntry, Operation

Pair = tuple[int, int]
Devices = tuple[int, ...]

ROUNDS: Mapping[Operation, int] = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}
"""How many times each share of the payload goes around a ring."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The messages of an algorithm: `flows` are the shares of the payload that go from one device to another.

    `chain` counts, by the same pairs, the messages of the longest dependency chain: each waits for the one before.
    """

    flows: Mapping[Pair, float]
    chain: Mapping[Pair, float]

    def times(self, factor: float) -> Pattern:
        """Return the pattern with all amounts multiplied by `factor`."""
        return _sum([(factor, self)])


@dataclass(frozen=True, slots=True)
class Timing:
    """Duration of an operation: after `delay_s`, its payload moves at `s_per_byte`, for at least `chain_s`.

    The messages of a chain wait for each other, but a library splits a large payload into parts that overlap.
    """

    delay_s: float
    s_per_byte: float
    chain_s: float = 0.0

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of an operation on a payload of `nbytes`."""
        return self.delay_s + max(self.chain_s, nbytes * self.s_per_byte)

    def idle_s(self, nbytes: float) -> float:
        """Return the part of those seconds in which the operation uses no link."""
        return self.delay_s + max(0.0, self.chain_s - nbytes * self.s_per_byte)


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm as a library runs it: its time alone on the machine, at a share of the links' bandwidth."""

    algorithm: Algorithm
    pattern: Pattern
    alone: Timing
    bandwidth_share: float


def choices(machine: Machine, operation: Operation, devices: Devices) -> tuple[Choice, ...]:
    """Return the algorithms that a library can use for an operation among some devices; it runs the `fastest`.

    >>> from topologies import load_topology
    >>> nodes = load_topology("uniform-8")
    >>> [choice.algorithm for choice in choices(nodes, "all-reduce", tuple(range(8)))]
    ['ring', 'tree']
    """
    nodes = tuple(machine.nodes_of(devices).values())
    patterns = dict(_patterns(machine, operation, devices, nodes))
    scope = "one" if len(nodes) == 1 else "several"
    stated = [
        entry
        for entry in machine.collectives
        if operation in entry.operations and entry.nodes == scope and entry.algorithm in patterns
    ]
    plain = [CollectiveEntry(algorithm=name, operations=(operation,)) for name in patterns if name != "in-switch"]
    return tuple(_choice(machine, patterns[entry.algorithm], entry) for entry in stated or plain)


def fastest(among: Sequence[Choice], nbytes: float) -> Choice:
    """Return the algorithm that takes the least time for a payload."""
    return min(among, key=lambda choice: choice.alone.seconds(nbytes))


def _choice(machine: Machine, pattern: Pattern, entry: CollectiveEntry) -> Choice:
    load: defaultdict[int, float] = defaultdict(float)
    for pair, share in pattern.flows.items():
        for resource, units in machine.route(*pair).uses:
            load[resource] += share * units
    s_per_byte = max(units / machine.resources[resource].capacity for resource, units in load.items())
    delay_s, chain_s, share = entry.latency_s, 0.0, entry.bandwidth_share
    if entry.hop_s is None:
        delay_s += sum(count * message_delay_s(machine, pair) for pair, count in pattern.chain.items())
    else:
        chain_s = entry.hop_s * sum(pattern.chain.values())
    return Choice(entry.algorithm, pattern, Timing(delay_s, s_per_byte / share, chain_s), share)


def message_delay_s(machine: Machine, pair: Pair) -> float:
    """Return the fixed cost of a message in seconds: its time minus that of its bytes."""
    route = machine.route(*pair)
    return route.latency_s + route.half_bandwidth_bytes / machine.bandwidth_bytes_per_s(*pair)


def _patterns(
    machine: Machine, operation: Operation, devices: Devices, nodes: Sequence[Devices]
) -> Iterator[tuple[Algorithm, Pattern]]:
    """Yield the algorithms that exist for an operation."""
    if operation == "all-to-all":
        yield "pairwise", _pairwise(devices)
    elif operation not in ROUNDS:
        yield "ring", _chain(devices)
    else:
        rounds = ROUNDS[operation]
        yield "ring", _rings(machine, devices, rounds)
        if operation == "all-reduce":
            yield "tree", _double_tree(devices)
            if machine.has_reducing_switch(devices):
                yield "in-switch", _in_switch(devices)
        if len(nodes) > 1 and max(map(len, nodes)) > 1:
            yield "hierarchical", _hierarchical(machine, nodes, rounds)


def _rings(machine: Machine, devices: Devices, rounds: float) -> Pattern:
    """Return one ring; in a mesh, as many rings as can run without sharing a link."""
    ring = _ring(devices, rounds)
    return Pattern(_pairwise(devices).times(rounds).flows, ring.chain) if machine.is_mesh(devices) else ring


def _ring(devices: Devices, rounds: float) -> Pattern:
    """Return a ring: in each round, every link carries all shares but one."""
    part = rounds * (len(devices) - 1) / len(devices)
    edges = dict.fromkeys(_edges(devices), part)
    return Pattern(edges, edges)


def _edges(devices: Devices) -> Iterator[Pair]:
    return zip(devices, (*devices[1:], devices[0]), strict=True)


def _chain(devices: Devices) -> Pattern:
    """Return a chain that passes the payload from the first device to the last, or back."""
    edges = dict.fromkeys(pairwise(devices), 1.0)
    return Pattern(edges, edges)


def _double_tree(devices: Devices) -> Pattern:
    """Return two binary trees, each with half of the payload, up and down.

    An inner node of one tree is a leaf of the other.
    """
    return _sum([(0.5, _tree(devices)), (0.5, _tree(devices[::-1]))])


def _tree(devices: Devices) -> Pattern:
    ends = [(devices[place], devices[parent_place(place)]) for place in range(1, len(devices))]
    both_ways = [pair for end in ends for pair in (end, end[::-1])]
    path, place = [], len(devices) - 1
    while place:
        end = devices[place], devices[parent_place(place)]
        path += [end, end[::-1]]
        place = parent_place(place)
    return Pattern(dict.fromkeys(both_ways, 1.0), dict.fromkeys(path, 1.0))


def parent_place(place: int) -> int:
    """Return the place of a tree member's parent within the group; the root is its own parent."""
    return max(0, (place - 1) // 2)


def _in_switch(devices: Devices) -> Pattern:
    """Return a reduction in the switch.

    It reads every payload, then each device multicasts its share of the sums through it.
    """
    flows = dict.fromkeys(_edges(devices), 1 + 1 / len(devices))
    return Pattern(flows, {(devices[0], devices[1]): 2.0})


def _hierarchical(machine: Machine, nodes: Sequence[Devices], rounds: int) -> Pattern:
    """Return simultaneous rings within the nodes, plus one ring across nodes for each place of the largest node.

    In a node with fewer devices, each device takes part in several rings across nodes.
    """
    inside = [_rings(machine, node, rounds) for node in nodes if len(node) > 1]
    rails = [_ring(tuple(node[place % len(node)] for node in nodes), rounds) for place in range(max(map(len, nodes)))]
    flows = _sum([*((1.0, ring) for ring in inside), *((1 / len(rails), ring) for ring in rails)]).flows
    longest = max(inside, key=lambda ring: sum(ring.chain.values()))
    return Pattern(flows, _sum([(1.0, longest), (1.0, rails[0])]).chain)


def _pairwise(devices: Devices) -> Pattern:
    """Return an exchange in which every device sends each other device its share, all at once."""
    flows = dict.fromkeys(permutations(devices, 2), 1 / len(devices))
    return Pattern(flows, {(devices[0], devices[-1]): 1.0})


def _sum(parts: Sequence[tuple[float, Pattern]]) -> Pattern:
    flows: defaultdict[Pair, float] = defaultdict(float)
    chain: defaultdict[Pair, float] = defaultdict(float)
    for factor, pattern in parts:
        for pair, share in pattern.flows.items():
            flows[pair] += factor * share
        for pair, count in pattern.chain.items():
            chain[pair] += factor * count
    return Pattern(dict(flows), dict(chain))
