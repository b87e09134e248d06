"""Timesteps of unrolled cells (Tofu Sec 5.1): from the builder's hints or, without hints, from structure alone.

Timesteps repeat operators with the same weights. A family is a set of corresponding nodes, one per timestep. The first
families are nodes of one signature that read the same weights. Further families are equivalent readers of a family's
results at the same place. Families belong to an unrolled cell if a member feeds, directly or through other nodes, a
later member of the same family. Therefore two towers that share weights are not an unrolled cell, nor is an embedding
that also serves as the weight of the output layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush

from msgspec import Struct

from planner.graph.disjoint_sets import DisjointSets
from planner.graph.ir import Graph, Node
from planner.grouping import grouped
from planner.layout import Signature
from planner.search.costs.tables import Term

# Timesteps of unrolled cells (Tofu Sec 5.1).


Cell = Hashable
SHARED = ("weight", "state")


def cells_of_nodes(graph: Graph, signatures: Mapping[str, Signature]) -> dict[str, Cell]:
    """Return the cell of every node that belongs to one, by name; a backward node has its forward node's cell.

    Nodes of one cell and one signature correspond to each other in all timesteps.
    """
    if any(node.unroll is not None for node in graph.nodes):
        return {node.name: node.unroll[0] for node in graph.nodes if node.unroll is not None}
    cells = _Families([node for node in graph.nodes if node.forward is None], graph, signatures).cells_by_node()
    for node in graph.nodes:
        if node.forward in cells:
            cells[node.name] = cells[node.forward]
    return cells


class _Families:
    """Families of corresponding nodes, one per timestep, and the family of each node."""

    def __init__(self, nodes: Sequence[Node], graph: Graph, signatures: Mapping[str, Signature]) -> None:
        self._nodes = nodes
        shared = {name for name, tensor in graph.tensors.items() if tensor.init is not None and tensor.role in SHARED}
        self._likeness = [
            (id(signatures[node.name]), tuple(name if name in shared else None for name in node.inputs))
            for node in nodes
        ]
        self._readers: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._producer: dict[str, tuple[int, int]] = {}
        self._members: list[dict[int, int]] = []
        self._family: dict[int, int] = {}
        self._waiting: list[tuple[int, int, list[tuple[int, int]]]] = []

    def cells_by_node(self) -> dict[str, Cell]:
        """Return the family of every node of an unrolled cell."""
        first = self._families_reading_weights()
        if not first:
            return {}
        for number, node in enumerate(self._nodes):
            self._producer |= {name: (number, output) for output, name in enumerate(node.outputs)}
            for operand, name in enumerate(node.inputs):
                self._readers[name].append((number, operand))
        for nodes in first:
            self._add_family_of_nodes(dict(enumerate(nodes)))
        self._add_families_of_readers()
        recurrent = self._recurrent_families()
        for family in recurrent:
            for members in list(self._families_read_by(family)):
                recurrent.append(len(self._members))
                self._add_family_of_nodes(members)
                before = len(self._members)
                self._add_families_of_readers()
                recurrent.extend(range(before, len(self._members)))
        return {self._nodes[n].name: family for family in recurrent for n in self._members[family].values()}

    def _families_reading_weights(self) -> list[list[int]]:
        """Return the families of nodes that read the same weights."""
        groups = grouped((likeness, number) for number, likeness in enumerate(self._likeness) if any(likeness[1]))
        return [nodes for nodes in groups.values() if len(nodes) > 1]

    def _add_family_of_nodes(self, members: Mapping[int, int]) -> None:
        """Add a family and queue the readers of its results."""
        family = len(self._members)
        self._members.append(dict(members))
        self._family |= dict.fromkeys(members.values(), family)
        candidates: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        for step, number in members.items():
            for way, readers in self._readers_of_results(number).items():
                for rank, reader in enumerate(readers):
                    candidates[way, len(readers), rank].append((step, reader))
        for alike in candidates.values():
            if len(alike) > 1:
                heappush(self._waiting, (min(reader for _, reader in alike), -len(alike), alike))

    def _readers_of_results(self, number: int) -> dict[Hashable, list[int]]:
        """Return the readers of a node's results, grouped by result, operand and likeness."""
        readers: dict[Hashable, list[int]] = defaultdict(list)
        for output, name in enumerate(self._nodes[number].outputs):
            for reader, operand in self._readers[name]:
                readers[output, operand, self._likeness[reader]].append(reader)
        return readers

    def _add_families_of_readers(self) -> None:
        """Add families of readers until none is left.

        The earliest in graph order are added first, the largest among these. So a reader in the same timestep is found
        before a reader in the next one: the reader of a cell's state, which one timestep lacks or has elsewhere.
        """
        while self._waiting:
            members = dict(heappop(self._waiting)[2])
            new = not any(number in self._family for number in members.values())
            if new and len(members) == len(set(members.values())):
                self._add_family_of_nodes(members)

    def _recurrent_families(self) -> list[int]:
        """Return the families of the connected parts in which a family feeds itself."""
        feeds: dict[int, set[int]] = defaultdict(set)
        for family, members in enumerate(self._members):
            for number in members.values():
                for name in self._nodes[number].outputs:
                    feeds[family].update(self._family[n] for n, _ in self._readers[name] if n in self._family)
        parts = _connected_parts(len(self._members), feeds)
        return sorted(family for part in parts if _has_cycle(part, feeds) for family in part)

    def _families_read_by(self, family: int) -> Iterator[dict[int, int]]:
        """Yield the families whose results a family reads, if none of their nodes belongs to a family yet."""
        members = self._members[family]
        for operand in range(max(len(self._nodes[number].inputs) for number in members.values())):
            producers = {
                step: self._producer[name]
                for step, number in members.items()
                if (name := self._nodes[number].inputs[operand]) in self._producer
            }
            nodes = {step: number for step, (number, _) in producers.items()}
            alike = {(self._likeness[number], output) for number, output in producers.values()}
            new = not any(number in self._family for number in nodes.values())
            if new and len(alike) == 1 and len(set(nodes.values())) == len(nodes) > 1:
                yield nodes


def _connected_parts(count: int, feeds: Mapping[int, set[int]]) -> list[list[int]]:
    """Return the connected parts of a graph, ignoring edge directions."""
    connected = DisjointSets(range(count))
    for v, fed in feeds.items():
        connected.tie((v, *fed))
    return connected.sets()


def _has_cycle(part: Sequence[int], feeds: Mapping[int, set[int]]) -> bool:
    try:
        TopologicalSorter({v: feeds.get(v, ()) for v in part}).prepare()
    except CycleError:
        return True
    return False


# Identical parts, detected by structure: repeated layers that depend on the same few shared variables.
#
# Hubs are variables with many neighbours, such as the layout of a residual stream. Without the hubs, the
# minimization problem splits into components. Components with equal terms on the same hubs have equal best states,
# so one of them represents all and its terms count once per component. Nothing is lost.


HUB_NEIGHBOURS = 24


class Repeats(Struct, frozen=True):
    """The representative of each variable, and how often each term counts (0 if another term represents it)."""

    stands_for: tuple[int, ...]
    times: tuple[int, ...]

    @property
    def variables_standing_for_themselves(self) -> tuple[int, ...]:
        """Variables that represent themselves, ascending."""
        return tuple(v for v, u in enumerate(self.stands_for) if u == v)


def repeated_parts(kinds: Sequence[Hashable], terms: Sequence[Term]) -> Repeats:
    """Return the repeated parts among variables of the given kinds and terms of the given scopes and numbers.

    Variables can represent each other only if their kinds are equal, terms only if their numbers are equal.
    """
    hubs = _hub_variables(len(kinds), terms)
    owner = _component_by_variable(len(kinds), terms, hubs)
    mine: dict[int, list[int]] = defaultdict(list)
    members = grouped((component, v) for v, component in enumerate(owner) if v not in hubs)
    times = [1] * len(terms)
    for position, (scope, _) in enumerate(terms):
        inside = next((v for v in scope if v not in hubs), None)
        if inside is not None:
            mine[owner[inside]].append(position)
    stands_for = list(range(len(kinds)))
    for first, *others in _groups_of_alike_components(kinds, terms, members, mine):
        for position in mine[first]:
            times[position] += len(others)
        for other in others:
            for v, u in zip(members[other], members[first], strict=True):
                stands_for[v] = u
            for position in mine[other]:
                times[position] = 0
    return Repeats(tuple(stands_for), tuple(times))


def _hub_variables(count: int, terms: Sequence[Term]) -> set[int]:
    neighbours: list[set[int]] = [set() for _ in range(count)]
    for scope, _ in terms:
        for v in scope:
            neighbours[v].update(scope)
    return {v for v, around in enumerate(neighbours) if len(around) > HUB_NEIGHBOURS}


def _component_by_variable(count: int, terms: Sequence[Term], hubs: set[int]) -> list[int]:
    """Return the component of every variable: [variable]."""
    components = DisjointSets(range(count))
    for scope, _ in terms:
        components.tie(v for v in scope if v not in hubs)
    return [components.find(v) for v in range(count)]


def _groups_of_alike_components(
    kinds: Sequence[Hashable], terms: Sequence[Term], members: Mapping[int, list[int]], mine: Mapping[int, list[int]]
) -> Iterator[list[int]]:
    """Yield groups of components with equal kinds and, by position, equal terms; a hub equals only itself."""
    groups: dict[object, list[int]] = defaultdict(list)
    for component, variables in members.items():
        place = {v: position for position, v in enumerate(variables)}
        shape = sorted(
            (terms[position][1], tuple(place[v] if v in place else -1 - v for v in terms[position][0]))
            for position in mine.get(component, ())
        )
        groups[tuple(kinds[v] for v in variables), tuple(shape)].append(component)
    yield from groups.values()
