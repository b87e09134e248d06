"""Shortest routes between the devices of a machine.

Fewest links; of those the one with the widest narrowest link; of those the one whose links come first in the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topologies.machine import Link

Path = tuple[tuple[Link, bool], ...]  # links in order, and whether each is passed forwards


@dataclass(frozen=True, slots=True)
class _Best:
    narrowest: float
    order: tuple[int, ...]
    path: Path

    @property
    def key(self) -> tuple[float, tuple[int, ...]]:
        return (-self.narrowest, self.order)


def shortest_paths(source: str, links: Sequence[Link], forwarding: frozenset[str]) -> Mapping[str, Path]:
    """Paths from `source` to every node that it reaches; only nodes in `forwarding` pass traffic on."""
    neighbours: dict[str, list[tuple[str, int, bool]]] = {}
    for number, link in enumerate(links):
        neighbours.setdefault(link.ends[0], []).append((link.ends[1], number, True))
        neighbours.setdefault(link.ends[1], []).append((link.ends[0], number, False))
    found = {source: _Best(float("inf"), (), ())}
    frontier = dict(found)
    while frontier:
        reached: dict[str, _Best] = {}
        for node, best in frontier.items():
            if node != source and node not in forwarding:
                continue
            for neighbour, number, forwards in neighbours.get(node, ()):
                if neighbour in found:
                    continue
                link = links[number]
                longer = _Best(
                    min(best.narrowest, link.bandwidth_bytes_per_s),
                    (*best.order, number),
                    (*best.path, (link, forwards)),
                )
                if neighbour not in reached or longer.key < reached[neighbour].key:
                    reached[neighbour] = longer
        found.update(reached)
        frontier = reached
    return {node: best.path for node, best in found.items()}
