"""A machine as tables, and as trees of switches and devices with a step's load on every link."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from types import MappingProxyType

import msgspec
from msgspec.structs import replace
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from tensor_partitioner import display
from tensor_partitioner.display import facts, printable, quantity, seconds, table
from topologies.machine import Device, Link, Machine, Route, node_of

FULL = 16
"""Most devices of a machine drawn in full; in a larger one, identical parts are drawn once."""


class TreeNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A switch or device, the link to its parent, and the number of identical subtrees it stands for.

    `load` is the share of a step in which the link is busy, in its busier direction; `nbytes` is what crosses it in a
    step, in both directions.
    """

    name: str
    kind: str
    link: str = ""
    bandwidth: float | None = None
    nbytes: int | None = None
    load: float | None = None
    alike: int = 1
    children: tuple[TreeNode, ...] = ()


Uses = Mapping[str, tuple[int, float]]
"""By the name of a link's direction: bytes that cross it in a step, and the share of the step in which it is busy."""


def machine_tree(machine: Machine, uses: Uses = MappingProxyType({})) -> tuple[TreeNode, ...]:
    """Return the roots of a machine's trees, in which every link occurs once.

    A device with links to several switches occurs under each. The links from a node to a switch outside are merged.
    """
    return tuple(_Trees(machine, uses).roots())


def drawn(machine: Machine) -> Tree:
    """Return a machine's trees as one tree for `rich` to print."""
    tree = Tree(Text(printable(machine.name)))
    _add(tree, machine_tree(machine))
    return tree


def _add(above: Tree, nodes: Sequence[TreeNode]) -> None:
    for node in nodes:
        kind = "" if node.kind in ("switch", "node") else f" ({node.kind})"
        alike = f"{node.alike} alike: " if node.alike > 1 else ""
        link = f": {node.link}" if node.link else ""
        _add(above.add(Text(printable(f"{alike}{node.name}{kind}{link}"))), node.children)


class _Trees:
    def __init__(self, machine: Machine, uses: Uses) -> None:
        self._machine, self._uses = machine, uses
        self._types = {device.name: device.spec.name for device in machine.devices}
        self._links: defaultdict[str, list[Link]] = defaultdict(list)
        self._outward: defaultdict[str, defaultdict[str, list[Link]]] = defaultdict(lambda: defaultdict(list))
        for link in machine.links:
            node, other = map(node_of, link.ends)
            if node == other:
                for end in link.ends:
                    self._links[end].append(link)
            else:
                inner, outer = (node, link.ends[1]) if node else (other, link.ends[0])
                self._outward[outer][inner].append(link)
        self._drawn: set[str] = set()

    def roots(self) -> Iterator[TreeNode]:
        """Yield the trees of everything outside nodes, then of nodes that no outer switch reaches."""
        reached = {node for nodes in self._outward.values() for node in nodes}
        yield from self._collapsed([*self._trees("")])
        alone = dict.fromkeys(node_of(name) for name in self._types)
        yield from self._collapsed([self._whole(node, []) for node in alone if node and node not in reached])

    def _trees(self, node: str) -> Iterator[TreeNode]:
        """Yield a node's trees: from the switches with the most links, then from devices linked to devices."""
        switches = [name for name in self._machine.switches if node_of(name) == node]
        for name in sorted(switches, key=lambda name: -len(self._links[name])):
            if name not in self._drawn:
                yield self._tree(name)
        for name in (name for name in self._types if node_of(name) == node):
            beside = [link for link in self._links[name] if link.name not in self._drawn]
            if beside or not self._links[name]:
                self._drawn |= {link.name for link in beside}
                yield self._node(name, [], [self._node(_other(link, name), [link]) for link in beside])

    def _tree(self, root: str) -> TreeNode:
        """Return the tree below a switch: its links breadth first, each once."""
        below: defaultdict[str, list[tuple[str, Link]]] = defaultdict(list)
        frontier = [root]
        self._drawn.add(root)
        for name in frontier:  # `frontier` grows during the loop
            for link in self._links[name]:
                other = _other(link, name)
                if link.name in self._drawn:
                    continue
                self._drawn.add(link.name)
                below[name].append((other, link))
                if other not in self._types and other not in self._drawn:
                    self._drawn.add(other)
                    frontier.append(other)
        return self._grown(root, None, below)

    def _grown(self, name: str, link: Link | None, below: Mapping[str, list[tuple[str, Link]]]) -> TreeNode:
        children = [self._grown(other, to, {**below, name: []}) for other, to in below.get(name, ())]
        children += [self._whole(node, links) for node, links in self._outward.pop(name, {}).items()]
        return self._node(name, [] if link is None else [link], children)

    def _whole(self, node: str, links: Sequence[Link]) -> TreeNode:
        """Return a node with its links to an outer switch merged; its trees follow at its first occurrence only."""
        inner = [] if node in self._drawn else [*self._trees(node)]
        self._drawn.add(node)
        return self._node(node, links, inner)

    def _node(self, name: str, links: Sequence[Link], children: Sequence[TreeNode] = ()) -> TreeNode:
        ways = {self._machine.resources[way].name for link in links for way in (link.forward, link.backward)}
        uses = [self._uses[way] for way in sorted(ways) if way in self._uses]
        return TreeNode(
            name=name,
            kind=self._types.get(name) or ("switch" if name in self._machine.switches else "node"),
            link=_figures(links),
            bandwidth=sum(link.bandwidth_bytes_per_s for link in links) or None,
            nbytes=sum(nbytes for nbytes, _ in uses) if uses else None,
            load=max(load for _, load in uses) if uses else None,
            children=tuple(self._collapsed(children)),
        )

    def _collapsed(self, nodes: Sequence[TreeNode]) -> Iterator[TreeNode]:
        """Yield nodes; in a large machine, merge identical neighbours into one with the highest load."""
        if len(self._machine.devices) <= FULL:
            yield from nodes
            return
        for _, group in groupby(nodes, key=_looks):
            alike = list(group)
            yield _merged(alike) if len(alike) > 1 else alike[0]


def _merged(nodes: Sequence[TreeNode]) -> TreeNode:
    """Return one node for identical nodes, with the highest load of any."""
    first = nodes[0]
    loads = [node.load for node in nodes if node.load is not None]
    moved = [node.nbytes for node in nodes if node.nbytes is not None]
    below = zip(*(node.children for node in nodes), strict=True)
    return replace(
        first,
        name=f"{first.name} … {nodes[-1].name}",
        nbytes=max(moved, default=None),
        load=max(loads, default=None),
        alike=len(nodes),
        children=tuple(max(group, key=lambda node: node.load or 0.0) for group in below),
    )


def _looks(node: TreeNode) -> object:
    """Return a subtree's description without its names and loads."""
    return node.kind, node.link, node.alike, tuple(map(_looks, node.children))


def _other(link: Link, end: str) -> str:
    return link.ends[1] if link.ends[0] == end else link.ends[0]


def _figures(links: Sequence[Link]) -> str:
    """Return the text of identical links, or "" if there are none."""
    if not links:
        return ""
    first = links[0]
    count = first.count * len(links)
    kind = f"{count} x {first.type}, " if count > 1 else f"{first.type}, " if first.type else ""
    total = sum(link.bandwidth_bytes_per_s for link in links)
    return f"{kind}{quantity(total, 'B/s')}, {seconds(first.latency_s)}"


LISTED = 40  # most devices or links in a table
SQUARE = 16  # most devices in a matrix


@display.tables.register
def tables(machine: Machine) -> tuple[Table, ...]:
    """Return tables of a machine: its facts, its devices and its links, at most `LISTED` of each."""
    links = [[link.name, " - ".join(link.ends), *_link(link)] for link in machine.links[:LISTED]]
    return (
        facts(f"machine {machine.name}", _facts(machine)),
        table(
            _title("devices", len(machine.devices)),
            ["device", "type", "memory", "size", "peak"],
            [_device(machine, device) for device in machine.devices[:LISTED]],
        ),
        table(_title("links", len(machine.links)), ["link", "between", "type", "bandwidth", "latency"], links),
    )


def route_tables(machine: Machine, source: int, target: int) -> tuple[Table, ...]:
    """Return tables of the route between two devices: each link, and their total."""
    route = machine.route(source, target)
    hops = [[f"{start} - {end}", *_link(link)] for start, end, link in _passed(machine, route)]
    together = [
        ("bandwidth of one message alone", quantity(machine.bandwidth_bytes_per_s(source, target), "B/s")),
        ("latency", seconds(route.latency_s)),
        ("half of the bandwidth at", quantity(route.half_bandwidth_bytes, "B")),
    ]
    title = f"{route.nodes[0]} to {route.nodes[-1]}"
    return table(title, ["link", "type", "bandwidth", "latency"], hops), facts("together", together)


def _passed(machine: Machine, route: Route) -> Iterator[tuple[str, str, Link]]:
    """Yield the links of a route in order; of parallel links, the one it uses."""
    used = {resource for resource, _ in route.uses}
    for start, end in pairwise(route.nodes):
        for link in machine.links:
            if {link.forward, link.backward} & used and set(link.ends) == {start, end}:
                yield start, end, link
                break


def matrices(machine: Machine) -> tuple[Table, ...]:
    """Return bandwidth and latency between any two devices; for a large machine, from the first device to each."""
    if len(machine.devices) > SQUARE:
        return (_kinds_of_routes(machine),)
    names = [device.name for device in machine.devices]

    def matrix(title: str, figure: Callable[[int, int], str]) -> Table:
        rows = [[name, *("-" if u == w else figure(u, w) for w in range(len(names)))] for u, name in enumerate(names)]
        return table(f"{title}, from row to column", ["", *names], rows)

    return (
        matrix("bandwidth of one message alone", lambda u, w: quantity(machine.bandwidth_bytes_per_s(u, w), "B/s")),
        matrix("latency", lambda u, w: seconds(machine.route(u, w).latency_s)),
    )


def _kinds_of_routes(machine: Machine) -> Table:
    kinds: dict[tuple[float, float], list[int]] = {}
    for target in range(1, len(machine.devices)):
        rates = (machine.bandwidth_bytes_per_s(0, target), machine.route(0, target).latency_s)
        kinds.setdefault(rates, []).append(target)
    rows = [
        [
            machine.devices[targets[0]].name,
            str(len(targets)),
            *_rates(*rates),
            " - ".join(machine.route(0, targets[0]).nodes),
        ]
        for rates, targets in kinds.items()
    ]
    first = machine.devices[0].name
    return table(f"from {first}, one message alone", ["to", "alike", "bandwidth", "latency", "route"], rows)


def _rates(bandwidth_bytes_per_s: float, latency_s: float) -> tuple[str, str]:
    return quantity(bandwidth_bytes_per_s, "B/s"), seconds(latency_s)


def _link(link: Link) -> tuple[str, ...]:
    """Return the type, the bandwidth and the latency of a link."""
    kind = f"{link.count} x {link.type}" if link.count > 1 else link.type
    return kind, *_rates(link.bandwidth_bytes_per_s, link.latency_s)


def _title(what: str, count: int) -> str:
    return what if count <= LISTED else f"{what}, the first {LISTED} of {count}"


def _device(machine: Machine, device: Device) -> list[str]:
    memory = machine.memories[device.memory]
    peak = quantity(max(device.spec.peak_flop_per_s.by_dtype().values()), "flop/s")
    return [device.name, device.spec.name, memory.name, quantity(memory.nbytes, "B"), peak]


def _facts(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "what it is", machine.description
    yield "devices", str(len(machine.devices))
    yield "memories", str(len(machine.memories))
    yield "links", str(len(machine.links))
