"""A machine as a tree of switches and devices, in text.

Links that the tree leaves out stand at their first end. In a large machine parts that look alike are drawn once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.text import Text
from rich.tree import Tree

from tensor_partitioner.display import printable, quantity, seconds
from topologies.machine import Link, Machine, node_of

FULL = 16  # devices of a machine that is drawn in full
FEW = 4


def draw(machine: Machine) -> Tree:
    """Return a tree for `rich` to print."""
    return _Drawing(machine).draw()


class _Drawing:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.links: dict[str, list[int]] = {}
        for number, link in enumerate(machine.links):
            if node_of(link.ends[0]) == node_of(link.ends[1]):
                for end in link.ends:
                    self.links.setdefault(end, []).append(number)
        self.switches = frozenset(machine.switches)
        self.children: dict[str, list[tuple[str, int | None]]] = {}
        self.beside: dict[str, list[int]] = {}
        self.types = {device.name: device.spec.name for device in machine.devices}
        self.drawn: set[str] = set()
        self.used: set[int] = set()

    def draw(self) -> Tree:
        result, roots = Tree(_text(self.machine.name)), list(self._roots())
        for root in roots:
            self._span(root)
        roots += [device.name for device in self.machine.devices if device.name not in self.drawn]
        beside = (number for number in range(len(self.machine.links)) if number not in self.used)
        for number in beside:
            link = self.machine.links[number]
            for end in link.ends:
                self.beside.setdefault(end, []).append(number)
        self._add(result, [(root, None) for root in roots])
        return result

    def _roots(self) -> Sequence[str]:
        """Return the middle of every network of switches, the largest first."""
        networks, seen = [], set()
        for switch in self.machine.switches:
            if switch not in seen:
                network = self._reached(switch)
                seen |= {node for node in network if node in self.switches}
                networks.append(network)
        networks.sort(key=len, reverse=True)
        return [self._middle([node for node in network if node in self.switches]) for network in networks]

    def _middle(self, switches: Sequence[str]) -> str:
        """Return the switch from which the furthest node is nearest; of a large network, one that has most links."""
        if len(switches) > 64:
            return max(switches, key=lambda name: len(self.links.get(name, ())))
        return min(switches, key=lambda name: max(self._reached(name).values()))

    def _reached(self, start: str) -> dict[str, int]:
        """Return nodes and their distances, by switches only."""
        distances, frontier = {start: 0}, [start]
        for node in frontier:  # goes on through those that come in
            for number in self.links.get(node, ()) if node in self.switches else ():
                other = _other(self.machine.links[number], node)
                if other not in distances:
                    distances[other] = distances[node] + 1
                    frontier.append(other)
        return distances

    def _span(self, root: str) -> None:
        """Choose the links of the tree, each node's the first that leads to it, devices only once."""
        frontier, self.drawn = [root], self.drawn | {root}
        for node in frontier:  # goes on through those that come in
            for number in self.links.get(node, ()) if node in self.switches else ():
                other = _other(self.machine.links[number], node)
                if other not in self.drawn:
                    self.drawn.add(other)
                    self.used.add(number)
                    self.children.setdefault(node, []).append((other, number))
                    frontier.append(other)

    def _add(self, above: Tree, nodes: Sequence[tuple[str, int | None]]) -> None:
        for _, group in groupby(nodes, key=self._looks if len(self.machine.devices) > FULL else None):
            alike = list(group)
            shown = alike if len(alike) <= FEW else alike[:1]
            for node, number in shown:
                branch = above.add(_text(self._label(node, number)))
                for text in self._others(node):
                    branch.add(_text(text))
                self._add(branch, self.children.get(node, ()))
            if len(shown) < len(alike):
                above.add(_text(f"... and {len(alike) - 1} alike, to {alike[-1][0]}"))

    def _looks(self, node: tuple[str, int | None]) -> tuple[Any, ...]:
        """Describe a subtree but for its names."""
        name, number = node
        link = "" if number is None else _figures(self.machine.links[number])
        beside = sorted(_figures(self.machine.links[other]) for other in self.beside.get(name, ()))
        return (link, self.types.get(name), tuple(beside), tuple(map(self._looks, self.children.get(name, ()))))

    def _label(self, node: str, number: int | None) -> str:
        kind = f" ({self.types[node]})" if node in self.types else ""
        return f"{node}{kind}" + ("" if number is None else f": {_figures(self.machine.links[number])}")

    def _others(self, node: str) -> Sequence[str]:
        """Links beside the tree that begin here, those alike on one line."""
        alike: dict[str, list[str]] = {}
        for number in self.beside.get(node, ()):
            if number not in self.used:
                self.used.add(number)
                link = self.machine.links[number]
                alike.setdefault(_figures(link), []).append(_other(link, node))
        return [f"also {_listed(ends)}: {figures}" for figures, ends in alike.items()]


def _listed(names: Sequence[str]) -> str:
    shown = names if len(names) <= FULL else names[:FEW]
    return ", ".join(shown) + (f" and {len(names) - FEW} more" if len(names) > FULL else "")


def _other(link: Link, end: str) -> str:
    return link.ends[1] if link.ends[0] == end else link.ends[0]


def _figures(link: Link) -> str:
    kind = f"{link.count} x {link.type}, " if link.count > 1 else f"{link.type}, " if link.type else ""
    return f"{kind}{quantity(link.bandwidth_bytes_per_s, 'B/s')}, {seconds(link.latency_s)}"


def _text(text: str) -> Text:
    return Text(printable(text))
