"""Who has what, once every link has a stage: the groups that compute each node, and where each tensor is stored.

Backward nodes are where their forward nodes are, weights where they are used: one that all stages use is everywhere,
one that some use is at the first of these. A result is stored where that makes it cross least.

Of several micro-batches one stage works on one while another does on the next. So what is made for each of them goes to
later stages alone on the forward pass, and to earlier ones on the backward pass. A weight that several stages use is
everywhere then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from planner.graph.chain import of_samples, run_behind
from planner.graph.ir import Graph, Node
from planner.graph.micro_batches import BACKWARD, EVERY, FORWARD, phases_of_nodes
from planner.layout import EVERYWHERE, REPLICATE, At, Placement

Groups = frozenset[int]


class Placing:
    """The choices at a step of stages, given the run of links of the nodes that have one: forward and backward.

    Stages have the runs in turn.
    """

    def __init__(self, graph: Graph, stages: int, run_of: Mapping[str, int]) -> None:
        self._graph, self._run_of = graph, dict(run_of)
        self._phases = phases_of_nodes(graph)
        self._all = frozenset(range(stages))
        self._readers = _readers(graph)
        self._makers = {name: node for node in graph.nodes for name in node.outputs}
        self._replaced = {new: old for old, new in graph.updates.items()}
        self._groups = {name: frozenset({run % stages}) for name, run in run_of.items()}
        self._held: dict[str, Groups] = {}
        self._place_what_leads_to_stages()
        self._hold_what_is_read()
        for node in graph.nodes:
            if weights := self._weights_replaced(node):
                self._groups[node.name] = _union(self._held.get(weight, self._all) for weight in weights)
        self._hold_what_is_read()  # states, by updates
        for node in graph.nodes:
            self._groups.setdefault(node.name, self._groups_of_other(node))
            self._run_of.setdefault(node.name, self._run_of_other(node))
        self._hold_what_is_read()

    def choices(self) -> dict[str, str]:
        """Return every node's choice at the step."""
        return {name: self._choice(groups) for name, groups in self._groups.items()}

    def placements(self) -> dict[str, Placement]:
        """Return every tensor's placement at the step; what replaces a tensor lies as that."""
        given = (name for name, tensor in self._graph.tensors.items() if tensor.init is not None)
        placements = {name: self._placement(self._held.get(name, self._all)) for name in given}
        placements |= {name: self._stored(node, name) for name, node in self._makers.items()}
        return placements | {new: placements[old] for old, new in self._graph.updates.items()}

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
        """Return all groups, or the first of them: alone where there is one micro-batch, else if it is the only one."""
        if len(groups) > 1 and self._graph.micro_batches > 1:
            return self._all
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

    def _run_of_other(self, node: Node) -> int:
        makers = (self._makers[name].name for name in node.inputs if name in self._makers)
        runs = [self._run_of[name] for name in makers if self._phases[name] == BACKWARD]
        return run_behind(runs, min(self._groups[node.name]), len(self._all))

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
        producers, reading = self._groups[node.name], self._readers.get(name, ())
        readers = [(group, _fetching(reader)) for reader in reading for group in self._groups[reader.name]]
        if len(producers) > 1:
            return self._placement(frozenset(group for group, _ in readers) or producers)
        possible = (*producers, *sorted({group for group, _ in readers}))
        costs = {g: self._crossing(g, producers, readers) for g in possible if self._is_possible(node, name, g)}
        best = min(costs, key=costs.__getitem__, default=-1)
        everywhere = not costs or (costs[best] >= len(self._all) and self._may_be_everywhere(node))
        return REPLICATE if everywhere else At(best)

    def _crossing(self, group: int, producers: Groups, readers: Iterable[tuple[int, str]]) -> int:
        """Return how often a result crosses from one stage to another where a group stores it."""
        return (group not in producers) + len({reading for reading in readers if reading[0] != group})

    def _is_possible(self, maker: Node, name: str, group: int) -> bool:
        """Whether a result that is made for every micro-batch goes one way in its pass if a group stores it.

        What is made once is stored where every micro-batch reads it.
        """
        if self._graph.micro_batches == 1:
            return True
        phase, (producer,) = self._phases[maker.name], self._groups[maker.name]
        readers = [(self._phases[node.name], *self._place(node)) for node in self._readers.get(name, ())]
        if phase not in EVERY or name in self._graph.accumulated:
            return all(there == group for read, _, there in readers if read in EVERY)
        run, same = self._place(maker)[0], [(run, there) for read, run, there in readers if read == phase]
        if group != producer:
            here = [reader_run for reader_run, there in same if there == group]
            arrives = (min if phase == FORWARD else max)(here, default=run)
            if not _goes_on(phase, run, arrives):
                return False
            run = arrives
        return all(there == group or _goes_on(phase, run, reader_run) for reader_run, there in same)

    def _may_be_everywhere(self, maker: Node) -> bool:
        """Whether a result may be stored everywhere, though no earlier stage may have it of a later one."""
        if self._graph.micro_batches == 1 or self._phases[maker.name] not in EVERY:
            return True
        run = self._place(maker)[0]
        return all(run == other or _goes_on(self._phases[maker.name], run, other) for other in self._all)

    def _place(self, node: Node) -> tuple[int, int]:
        """Return a node's run of links, and its group."""
        return self._run_of[node.name], min(self._groups[node.name])


def _goes_on(phase: str, sender: int, receiver: int) -> bool:
    """Whether one run of links may send to another in a phase."""
    return sender < receiver if phase == FORWARD else sender > receiver


def _fetching(node: Node) -> str:
    """Return what nodes have in common that share what they fetch."""
    return f"backward {node.forward}" if node.forward is not None else node.name


def _readers(graph: Graph) -> Mapping[str, Sequence[Node]]:
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            readers.setdefault(name, []).append(node)
    return readers


def _union(groups: Iterable[Groups]) -> Groups:
    return frozenset[int]().union(*groups)
