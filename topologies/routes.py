"""Shortest routes between the devices of a machine, worked out when they are asked for.

Fewest links; of those the ones with the widest narrowest link; of those, in the order of the file, devices take turns:
two that have two adapters side by side use one each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from topologies.errors import TopologyError
from topologies.machine import Device, Link, Memory, Route

Path = tuple[tuple[int, bool], ...]  # numbers of links in order, and whether each is passed forwards
Step = tuple[str, int, bool]  # a neighbour, the number of the link to it, and whether that is passed forwards

SIDE_BY_SIDE = 8
"""Devices take turns with no more paths than so many."""


class Routes(Mapping[tuple[int, int], Route]):
    """The route between any two devices, by index; raises `TopologyError` at once where there is none."""

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
        self._paths: dict[int, Mapping[str, tuple[Path, ...]]] = {}
        self._found: dict[tuple[int, int], Route] = {}
        self._check_connected()

    def __getitem__(self, pair: tuple[int, int]) -> Route:
        if pair not in self._found:
            source, target = pair
            if source == target:
                raise KeyError(pair)
            if source not in self._paths:
                self._paths[source] = self._shortest_paths(self._devices[source].name)
            ends = (self._devices[source], self._devices[target])
            paths = self._paths[source][ends[1].name]
            self._found[pair] = self._route(ends, paths[source % len(paths)])
        return self._found[pair]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        count = range(len(self._devices))
        return ((source, target) for source in count for target in count if source != target)

    def __len__(self) -> int:
        return len(self._devices) * (len(self._devices) - 1)

    def _check_connected(self) -> None:
        """Two devices reach each other over one network of switches, or over a link of their own."""
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
        """Return a number for each connected part of what forwards traffic, by node."""
        numbers: dict[str, int] = {}
        for number, start in enumerate(sorted(self._forwarding)):
            waiting = [] if start in numbers else [start]
            while waiting:
                node = waiting.pop()
                numbers[node] = number
                steps = self._neighbours.get(node, ())
                waiting += [other for other, _, _ in steps if other in self._forwarding and other not in numbers]
        return numbers

    def _shortest_paths(self, source: str) -> Mapping[str, tuple[Path, ...]]:
        """A few of the best paths from `source` to every node that it reaches; only some nodes pass traffic on."""
        found: dict[str, tuple[float, tuple[Path, ...]]] = {source: (-math.inf, ((),))}  # less the narrowest link
        frontier = dict(found)
        while frontier:
            reached: dict[str, tuple[float, tuple[Path, ...]]] = {}
            for node, (narrowest, paths) in frontier.items():
                for neighbour, number, forwards in (
                    self._neighbours[node] if node == source or node in self._forwarding else ()
                ):
                    if neighbour in found:
                        continue
                    width = max(narrowest, -self._links[number].bandwidth_bytes_per_s)
                    longer = tuple((*path, (number, forwards)) for path in paths)
                    best, others = reached.get(neighbour, (math.inf, ()))
                    if width < best:
                        reached[neighbour] = width, longer
                    elif width == best:
                        reached[neighbour] = width, tuple(sorted((*others, *longer)))[:SIDE_BY_SIDE]
            found.update(reached)
            frontier = reached
        return {node: paths for node, (_, paths) in found.items()}

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
        if ends[0].copy_engines is not None:  # one message alone, at its full speed, occupies one
            use(ends[0].copy_engines, 1.0 / narrowest)
        return Route(
            uses=tuple(sorted(uses.items())),
            latency_s=sum(link.latency_s for link in links),
            nodes=tuple(nodes),
            half_bandwidth_bytes=narrowest
            * max(link.half_bandwidth_bytes / link.bandwidth_bytes_per_s for link in links),
        )
