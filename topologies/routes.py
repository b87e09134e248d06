"""Shortest routes between the devices of a machine, computed on first use.

A route has the fewest links; among those, its narrowest link is the widest. Devices take turns among the remaining
ones, in the order of the file: two devices with two adapters side by side use one each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from topologies.machine import Device, Link, Memory, Route
from topologies.schema import TopologyError

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
