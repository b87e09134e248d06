"""Traffic on a machine: routes between devices, and how collectives load links and how long they take.

Routes are the shortest, computed on first use. A route has the fewest links; among those, its narrowest link is the
widest. Devices take turns among the remaining ones, in the order of the file: two devices with two adapters side by
side use one each.

The algorithms of collectives are flows between devices. The payload of an operation is everything that is gathered,
scattered, reduced or broadcast; for an all-to-all, it is the data of one device. A machine's `collectives` may list the
algorithms and what they attain. An operation that they do not list attains the links' own figures
(docs/explanation/collectives.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

from topologies.machine import Device, Link, Machine, Memory, Route
from topologies.schema import Algorithm, CollectiveEntry, Operation, TopologyError

Path = tuple[tuple[int, bool], ...]  # link numbers in order, and whether each is passed forwards
Step = tuple[str, int, bool]  # a neighbour, the number of the link to it, and its direction

SIDE_BY_SIDE = 8
"""Most paths among which devices take turns."""


class Routes(Mapping[tuple[int, int], Route]):
    """Routes between any two devices, by index; raise `TopologyError` on construction if one is missing."""

    def __init__(
        self,
        devices: Sequence[Device],
        memories: Sequence[Memory],
        links: Sequence[Link],
        forwarding: frozenset[str],
        staging: Mapping[str, int],
    ) -> None:
        self._devices, self._memories, self._links, self._staging = devices, memories, links, staging
        self._forwarding = forwarding
        self._neighbours: dict[str, list[Step]] = {device.name: [] for device in devices}
        for number, link in enumerate(links):
            a, b = link.ends
            self._neighbours.setdefault(a, []).append((b, number, True))
            self._neighbours.setdefault(b, []).append((a, number, False))
        self._routes: dict[tuple[int, int], Route] = {}
        self._check_connected()

    def __getitem__(self, pair: tuple[int, int]) -> Route:
        if pair not in self._routes:
            source, target = pair
            if source == target:
                raise KeyError(pair)
            ends = (self._devices[source], self._devices[target])
            paths = self._best_paths(ends[0].name, ends[1].name)
            self._routes[pair] = self._route(ends, paths[source % len(paths)])
        return self._routes[pair]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        count = range(len(self._devices))
        return ((source, target) for source in count for target in count if source != target)

    def __len__(self) -> int:
        return len(self._devices) * (len(self._devices) - 1)

    def _check_connected(self) -> None:
        """Check that every two devices share a network of switches or have a direct link."""
        networks = self._networks()
        near = {name: {other for other, _, _ in self._neighbours[name]} for name in (d.name for d in self._devices)}
        touched = {
            name: {networks[node] for node in {name, *others} if node in networks} for name, others in near.items()
        }
        if set.intersection(*touched.values()):
            return
        for source, reached in touched.items():
            for target, other in touched.items():
                if source != target and not reached & other and target not in near[source]:
                    raise TopologyError(f"$.links: expected a path from {source} to {target}, found none")

    def _networks(self) -> Mapping[str, int]:
        """Return for each forwarding node the number of its connected component."""
        numbers: dict[str, int] = {}
        for number, start in enumerate(sorted(self._forwarding)):
            waiting = [] if start in numbers else [start]
            while waiting:
                node = waiting.pop()
                numbers[node] = number
                steps = self._neighbours.get(node, ())
                waiting += [other for other, _, _ in steps if other in self._forwarding and other not in numbers]
        return numbers

    def _best_paths(self, source: str, target: str) -> tuple[Path, ...]:
        """Return up to `SIDE_BY_SIDE` of the shortest paths with the widest narrowest link."""
        widest: dict[str, tuple[float, tuple[Path, ...]]] = {source: (-math.inf, ((),))}  # minus its bandwidth
        for level in self._levels(source, target):
            for node in level:
                narrowest, paths = widest[node]
                for neighbour, number, forwards in level[node]:
                    width = max(narrowest, -self._links[number].bandwidth_bytes_per_s)
                    longer = tuple((*path, (number, forwards)) for path in paths)
                    best, others = widest.get(neighbour, (math.inf, ()))
                    if width < best:
                        widest[neighbour] = width, longer
                    elif width == best:
                        widest[neighbour] = width, tuple(sorted((*others, *longer)))[:SIDE_BY_SIDE]
        return widest[target][1]

    def _levels(self, source: str, target: str) -> list[dict[str, list[Step]]]:
        """Return the steps of all shortest paths by node, level by level from the source.

        The search runs from both ends, so it skips nodes that are near neither.
        """
        sides: tuple[list[dict[str, None]], ...] = ([{source: None}], [{target: None}])
        seen = {source}, {target}
        while not (meeting := sides[0][-1].keys() & sides[1][-1].keys()):
            side = 0 if len(sides[0][-1]) <= len(sides[1][-1]) else 1
            near = (step[0] for node in sides[side][-1] for step in self._neighbours[node])
            passing = (node for node in near if node in self._forwarding or node in (source, target))
            sides[side].append({node: None for node in passing if node not in seen[side]})
            seen[side].update(sides[side][-1])
        behind, steps = set(meeting), list[dict[str, list[Step]]]()
        for level in reversed(sides[0][:-1]):
            steps.insert(0, self._steps(level, behind))
            behind = set(steps[0])
        ahead: Iterable[str] = [node for node in sides[0][-1] if node in meeting]
        for level in reversed(sides[1][:-1]):
            steps.append(self._steps(ahead, set(level)))
            ahead = dict.fromkeys(step[0] for reached in steps[-1].values() for step in reached)
        return steps

    def _steps(self, nodes: Iterable[str], behind: Collection[str]) -> dict[str, list[Step]]:
        """Return the steps from these nodes to those behind them, for the nodes that have any."""
        steps = {node: [step for step in self._neighbours[node] if step[0] in behind] for node in nodes}
        return {node: forward for node, forward in steps.items() if forward}

    def _route(self, ends: tuple[Device, Device], path: Path) -> Route:
        links = [self._links[number] for number, _ in path]
        uses: dict[int, float] = {}

        def use(resource: int, amount: float) -> None:
            uses[resource] = uses.get(resource, 0.0) + amount

        nodes = [ends[0].name]
        for link, (_, forwards) in zip(links, path, strict=True):
            use(link.forward if forwards else link.backward, 1.0)
            nodes.append(link.ends[1] if forwards else link.ends[0])
        for node in nodes[1:-1]:
            if node in self._staging:
                use(self._staging[node], 2.0)
        for device in ends:
            use(self._memories[device.memory].resource, 1.0)
            if device.processor is not None and device.spec.message_core_s_per_byte:
                use(device.processor, device.spec.message_core_s_per_byte)
        narrowest = min(link.bandwidth_bytes_per_s for link in links)
        if ends[0].copy_engines is not None:  # a message alone, at full speed, occupies one engine
            use(ends[0].copy_engines, 1.0 / narrowest)
        return Route(
            uses=tuple(sorted(uses.items())),
            latency_s=sum(link.latency_s for link in links),
            nodes=tuple(nodes),
            half_bandwidth_bytes=narrowest
            * max(link.half_bandwidth_bytes / link.bandwidth_bytes_per_s for link in links),
        )


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
            yield "tree", _sum([(0.5, _tree(devices)), (0.5, _tree(devices[::-1]))])  # each with half, up and down
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
