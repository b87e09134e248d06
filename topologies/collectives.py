"""What a library's collectives put on a machine's links, and how long they take: algorithms as flows between devices.

The payload of an operation is the whole that is gathered, scattered, reduced or broadcast; of an all-to-all, what one
device has. Which algorithms there are and what they attain may stand in the machine's `collectives`; where that says
nothing of an operation, they attain what the links do (docs/explanation/collectives.md).
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
"""How often every share of the payload goes around a ring."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The messages of an algorithm: `flows` are shares of the payload that go from one device to another.

    `chain` counts, by the same pairs, the messages of the longest chain in which each waits for the one before.
    """

    flows: Mapping[Pair, float]
    chain: Mapping[Pair, float]

    def times(self, factor: float) -> Pattern:
        """So much of it."""
        return _sum([(factor, self)])


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of an operation: after `delay_s` a payload moves at `s_per_byte`, and takes at least `chain_s` to do so.

    The messages of a chain wait for each other, but a library sends much in parts, on which several work at a time.
    """

    delay_s: float
    s_per_byte: float
    chain_s: float = 0.0

    def seconds(self, nbytes: float) -> float:
        """Seconds of an operation on a payload."""
        return self.delay_s + max(self.chain_s, nbytes * self.s_per_byte)

    def idle_s(self, nbytes: float) -> float:
        """Seconds of it in which no links are used."""
        return self.delay_s + max(0.0, self.chain_s - nbytes * self.s_per_byte)


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm as a library runs it: its time alone on the machine, at a share of its links' bandwidth."""

    algorithm: Algorithm
    pattern: Pattern
    alone: Timing
    bandwidth_share: float


def choices(machine: Machine, operation: Operation, devices: Devices) -> tuple[Choice, ...]:
    """Return what a library chooses from for an operation among some devices, of which it takes the `fastest`.

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
    """Return the algorithm that takes least for a payload."""
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
    """Seconds of a message beside its bytes."""
    route = machine.route(*pair)
    return route.latency_s + route.half_bandwidth_bytes / machine.bandwidth_bytes_per_s(*pair)


def _patterns(
    machine: Machine, operation: Operation, devices: Devices, nodes: Sequence[Devices]
) -> Iterator[tuple[Algorithm, Pattern]]:
    """Yield the algorithms that there are for an operation."""
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
    """One ring; where every two devices have a link of their own, as many as there are that share no link."""
    ring = _ring(devices, rounds)
    return Pattern(_pairwise(devices).times(rounds).flows, ring.chain) if machine.is_mesh(devices) else ring


def _ring(devices: Devices, rounds: float) -> Pattern:
    """All but one of the shares pass every link of a ring, as many times as there are rounds."""
    part = rounds * (len(devices) - 1) / len(devices)
    edges = dict.fromkeys(_edges(devices), part)
    return Pattern(edges, edges)


def _edges(devices: Devices) -> Iterator[Pair]:
    return zip(devices, (*devices[1:], devices[0]), strict=True)


def _chain(devices: Devices) -> Pattern:
    """Everything from the first device on to the last, or back."""
    edges = dict.fromkeys(pairwise(devices), 1.0)
    return Pattern(edges, edges)


def _double_tree(devices: Devices) -> Pattern:
    """Up and down two binary trees, half of the payload each; who has others below it in one has none in the other."""
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
    """Return whom a member of a tree reports to, by their places in a group; that of the first is itself."""
    return max(0, (place - 1) // 2)


def _in_switch(devices: Devices) -> Pattern:
    """A switch reads every payload; then every device writes its share of the sums, through the switch, to all."""
    flows = dict.fromkeys(_edges(devices), 1 + 1 / len(devices))
    return Pattern(flows, {(devices[0], devices[1]): 2.0})


def _hierarchical(machine: Machine, nodes: Sequence[Devices], rounds: int) -> Pattern:
    """Rings in every node, at the same time, and between the nodes one for each place of the fullest, with its share.

    In a node with fewer devices each is part of several rings between the nodes.
    """
    inside = [_rings(machine, node, rounds) for node in nodes if len(node) > 1]
    rails = [_ring(tuple(node[place % len(node)] for node in nodes), rounds) for place in range(max(map(len, nodes)))]
    flows = _sum([*((1.0, ring) for ring in inside), *((1 / len(rails), ring) for ring in rails)]).flows
    longest = max(inside, key=lambda ring: sum(ring.chain.values()))
    return Pattern(flows, _sum([(1.0, longest), (1.0, rails[0])]).chain)


def _pairwise(devices: Devices) -> Pattern:
    """Each sends every other one's share, all at once."""
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
