"""Who has what, once every link has a stage: the groups that compute each node, and where each tensor is stored.

Backward nodes are where their forward nodes are, weights where they are used: one that all stages use is everywhere,
one that some use is at the first of these. A result is stored where that makes it cross least.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from planner.graph.ir import Graph, Node
from planner.layout import EVERYWHERE, REPLICATE, At, Placement
from planner.search.stages.chain import of_samples

Groups = frozenset[int]


class Placing:
    """The choices at a step of stages, given the stage of the nodes that have one: forward and backward."""

    def __init__(self, graph: Graph, stages: int, stage_of: Mapping[str, int]) -> None:
        self._graph = graph
        self._all = frozenset(range(stages))
        self._readers = _readers(graph)
        self._makers = {name: node for node in graph.nodes for name in node.outputs}
        self._replaced = {new: old for old, new in graph.updates.items()}
        self._groups = {name: frozenset({stage}) for name, stage in stage_of.items()}
        self._held: dict[str, Groups] = {}
        self._place_what_leads_to_stages()
        self._hold_what_is_read()
        for node in graph.nodes:
            if weights := self._weights_replaced(node):
                self._groups[node.name] = _union(self._held.get(weight, self._all) for weight in weights)
        self._hold_what_is_read()  # states, by updates
        for node in graph.nodes:
            self._groups.setdefault(node.name, self._groups_of_other(node))
        self._hold_what_is_read()

    def choices(self) -> dict[str, str]:
        """Return every node's choice at the step."""
        return {name: self._choice(groups) for name, groups in self._groups.items()}

    def placements(self) -> dict[str, Placement]:
        """Return every tensor's placement at the step; what replaces a tensor lies as that."""
        given = (name for name, tensor in self._graph.tensors.items() if tensor.init is not None)
        found = {name: self._placement(self._held.get(name, self._all)) for name in given}
        found |= {name: self._stored(node, name) for name, node in self._makers.items()}
        return found | {new: found[old] for old, new in self._graph.updates.items()}

    def _choice(self, groups: Groups) -> str:
        return EVERYWHERE if len(groups) > 1 else f"@{min(groups)}"

    def _placement(self, groups: Groups) -> Placement:
        return REPLICATE if len(groups) > 1 else At(min(groups))

    def _place_what_leads_to_stages(self) -> None:
        """Place nodes that depend on no samples, such as casts of weights, where they are read."""
        samples = of_samples(self._graph)
        for node in reversed(self._graph.nodes):
            if node.name not in self._groups and samples.isdisjoint(node.outputs):
                readers = (reader.name for name in node.outputs for reader in self._readers.get(name, ()))
                if groups := _union(self._groups[name] for name in readers if name in self._groups):
                    self._groups[node.name] = self._fewest(groups)

    def _fewest(self, groups: Groups) -> Groups:
        """Return all groups, or the first of them."""
        return groups if groups == self._all else frozenset({min(groups)})

    def _hold_what_is_read(self) -> None:
        """Say who holds what is there before the iteration, of what is read by nodes that have their place."""
        for name, tensor in self._graph.tensors.items():
            if tensor.init is not None and name not in self._held:
                readers = (node.name for node in self._readers.get(name, ()))
                groups = _union(self._groups[reader] for reader in readers if reader in self._groups)
                if groups:
                    everywhere = len(groups) > 1 and self._is_free(name)
                    self._held[name] = self._all if everywhere else self._fewest(groups)

    def _weights_replaced(self, node: Node) -> list[str]:
        """Return the weights of which a node makes the next values."""
        replaced = (self._replaced[name] for name in node.outputs if name in self._replaced)
        return [name for name in replaced if self._graph.tensors[name].role == "weight"]

    def _is_free(self, name: str) -> bool:
        """Whether a tensor is never changed, or by what anybody can compute."""
        new = self._graph.updates.get(name)
        return new is None or all(self._graph.tensors[read].init is not None for read in self._makers[new].inputs)

    def _groups_of_other(self, node: Node) -> Groups:
        """Return who computes a sum of gradients or the like.

        It is the one group that has what is read, or the one that wants the result. A sum that several want of what
        several have is made by the first that has any: sent on once reduced, it moves what one all-reduce would.
        """
        read = {self._having(name) for name in node.inputs} - {self._all}
        if len(read) == 1:
            return next(iter(read))
        wanted = self._wanted(node)
        return wanted if len(wanted) == 1 else min(read, key=min, default=self._all)

    def _having(self, name: str) -> Groups:
        maker = self._makers.get(name)
        return self._groups[maker.name] if maker is not None else self._held.get(name, self._all)

    def _wanted(self, node: Node) -> Groups:
        """Return who reads what a node makes, and who holds what it replaces."""
        readers = [reader for name in node.outputs for reader in self._readers.get(name, ())]
        read = (self._groups.get(reader.name) or self._wanted(reader) for reader in readers)
        held = (self._held.get(self._replaced[name], self._all) for name in node.outputs if name in self._replaced)
        return _union((*read, *held))

    def _stored(self, node: Node, name: str) -> Placement:
        """Return where a result crosses least: where it is made, where it is read, or everywhere."""
        made, reading = self._groups[node.name], self._readers.get(name, ())
        readers = [(group, _fetching(reader)) for reader in reading for group in self._groups[reader.name]]
        if len(made) > 1:
            return self._placement(frozenset(group for group, _ in readers) or made)
        costs = {group: self._crossing(group, made, readers) for group in (*made, *sorted({g for g, _ in readers}))}
        best = min(costs, key=costs.__getitem__)
        return At(best) if costs[best] < len(self._all) else REPLICATE

    def _crossing(self, group: int, made: Groups, readers: Iterable[tuple[int, str]]) -> int:
        """Return how often a result crosses from one stage to another where a group stores it."""
        return (group not in made) + len({reading for reading in readers if reading[0] != group})


def _fetching(node: Node) -> str:
    """Return what nodes have in common that share what they fetch."""
    return f"backward {node.forward}" if node.forward is not None else node.name


def _readers(graph: Graph) -> Mapping[str, Sequence[Node]]:
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            found.setdefault(name, []).append(node)
    return found


def _union(groups: Iterable[Groups]) -> Groups:
    return frozenset[int]().union(*groups)
