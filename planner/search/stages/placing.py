"""Place nodes and tensors on stages: which groups compute each node, and where each tensor is stored.

A backward node is on the stage of its forward node, a weight where it is used: on all stages if all use it, otherwise
on the first stage that does. A result is stored where the fewest bytes cross.

With several micro-batches, one stage works on one while another works on the next. Results computed for each
micro-batch therefore go only to later stages in the forward pass, and only to earlier stages in the backward pass. A
weight that several stages use is then on all stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.graph.chain import of_samples, run_behind
from planner.graph.ir import Graph, Node
from planner.graph.micro_batches import BACKWARD, EVERY, FORWARD, phases_of_nodes
from planner.grouping import grouped
from planner.layout import EVERYWHERE, REPLICATE, At, Placement

Groups = frozenset[int]


class Placing:
    """The choices at the step of stages, given the runs of links of the nodes that have one.

    `run_of` covers forward and backward nodes; stages take the runs in turn.
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
        self._hold_what_is_read()  # optimizer states, placed by their updates
        for node in graph.nodes:
            self._groups.setdefault(node.name, self._groups_of_other(node))
            self._run_of.setdefault(node.name, self._run_of_other(node))
        self._hold_what_is_read()

    def choices(self) -> dict[str, str]:
        """Return every node's choice at the step."""
        return {name: self._choice(groups) for name, groups in self._groups.items()}

    def placements(self) -> dict[str, Placement]:
        """Return every tensor's placement at the step; an updated tensor has the placement of the one it replaces."""
        given = (name for name, tensor in self._graph.tensors.items() if tensor.init is not None)
        placements = {name: self._placement(self._held.get(name, self._all)) for name in given}
        placements |= {name: self._stored(node, name) for name, node in self._makers.items()}
        return placements | {new: placements[old] for old, new in self._graph.updates.items()}

    def _choice(self, groups: Groups) -> str:
        return EVERYWHERE if len(groups) > 1 else f"@{min(groups)}"

    def _placement(self, groups: Groups) -> Placement:
        return REPLICATE if len(groups) > 1 else At(min(groups))

    def _place_what_leads_to_stages(self) -> None:
        """Place nodes that do not depend on samples, such as casts of weights, where their results are read."""
        samples = of_samples(self._graph)
        for node in reversed(self._graph.nodes):
            if node.name not in self._groups and samples.isdisjoint(node.outputs):
                readers = (reader.name for name in node.outputs for reader in self._readers.get(name, ()))
                if groups := _union(self._groups[name] for name in readers if name in self._groups):
                    self._groups[node.name] = self._fewest(groups)

    def _fewest(self, groups: Groups) -> Groups:
        """Return all groups or the first one.

        With one micro-batch that is the first group, unless all groups are given. With several it is all groups, if
        more than one is given.
        """
        if len(groups) > 1 and self._graph.micro_batches > 1:
            return self._all
        return groups if groups == self._all else frozenset({min(groups)})

    def _hold_what_is_read(self) -> None:
        """Set the holders of tensors that exist before the iteration and are read by placed nodes."""
        for name, tensor in self._graph.tensors.items():
            if tensor.init is not None and name not in self._held:
                readers = (node.name for node in self._readers.get(name, ()))
                groups = _union(self._groups[reader] for reader in readers if reader in self._groups)
                if groups:
                    everywhere = len(groups) > 1 and self._is_free(name)
                    self._held[name] = self._all if everywhere else self._fewest(groups)

    def _weights_replaced(self, node: Node) -> list[str]:
        """Return the weights whose next values a node computes."""
        replaced = (self._replaced[name] for name in node.outputs if name in self._replaced)
        return [name for name in replaced if self._graph.tensors[name].role == "weight"]

    def _is_free(self, name: str) -> bool:
        """Return True if a tensor never changes, or changes by what every group can compute."""
        new = self._graph.updates.get(name)
        return new is None or all(self._graph.tensors[read].init is not None for read in self._makers[new].inputs)

    def _groups_of_other(self, node: Node) -> Groups:
        """Return the groups that compute a node such as a sum of gradients.

        It is the only group that has the operands, or the only one that needs the result. If several need it and
        several have operands, it is the first that has any: sending the reduced sum on moves as much as one all-reduce.
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
        """Return the groups that read a node's results or hold what they replace."""
        readers = [reader for name in node.outputs for reader in self._readers.get(name, ())]
        read = (self._groups.get(reader.name) or self._wanted(reader) for reader in readers)
        held = (self._held.get(self._replaced[name], self._all) for name in node.outputs if name in self._replaced)
        return _union((*read, *held))

    def _stored(self, node: Node, name: str) -> Placement:
        """Return the placement with the fewest crossings of stages: where a result is computed or read, or on all."""
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
        """Return how often a result crosses from one stage to another if `group` stores it."""
        return (group not in producers) + len({reading for reading in readers if reading[0] != group})

    def _is_possible(self, maker: Node, name: str, group: int) -> bool:
        """Return True if a per-micro-batch result moves only in the direction of its pass when `group` stores it.

        A result computed once is stored where every micro-batch reads it.
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
        """Return True if a result may be stored everywhere: no earlier stage may need it from a later one."""
        if self._graph.micro_batches == 1 or self._phases[maker.name] not in EVERY:
            return True
        run = self._place(maker)[0]
        return all(run == other or _goes_on(self._phases[maker.name], run, other) for other in self._all)

    def _place(self, node: Node) -> tuple[int, int]:
        """Return a node's run of links and its group."""
        return self._run_of[node.name], min(self._groups[node.name])


def _goes_on(phase: str, sender: int, receiver: int) -> bool:
    """Return True if one run of links may send to another in a phase."""
    return sender < receiver if phase == FORWARD else sender > receiver


def _fetching(node: Node) -> str:
    """Return a key that nodes sharing a fetch have in common."""
    return f"backward {node.forward}" if node.forward is not None else node.name


def _readers(graph: Graph) -> Mapping[str, Sequence[Node]]:
    return grouped((name, node) for node in graph.nodes for name in dict.fromkeys(node.inputs))


def _union(groups: Iterable[Groups]) -> Groups:
    return frozenset[int]().union(*groups)


# Cut a chain into stages: move as few bytes as possible, with the slowest stage about as fast as possible.
#
# One activation crosses between layers, several within a layer: a cut between layers is worth slightly less balance.


Runs = NDArray[np.float64]
"""Bytes that cross into the links a to b - 1 as one stage: [a, b]. Infinite where such a stage is impossible."""

Allowed = NDArray[np.bool_]
"""True where the links a to b - 1 may be one stage: [a, b]."""

SLOWER = (1e-9, 0.01, 0.02, 0.05, 0.1)
"""Fractions by which the slowest stage may exceed that of the most balanced cut to reduce the bytes that cross."""


def best_cut(
    costs: Sequence[float] | NDArray[np.float64], stages: int, crossing: Runs, fits: Allowed
) -> tuple[int, ...]:
    """Return the first link of each stage, and the end of the last, by dynamic programming over the links.

    Among the cuts whose slowest stage exceeds that of the most balanced cut by at most a fraction in `SLOWER`, the cut
    with the fewest bytes crossing is returned.

    `costs` are the costs of the links, `crossing` is what crosses into a run of links. Every stage has at least one
    link. Raises PlanError if there are too few links or no cut fits.

    >>> none = np.zeros((5, 5))
    >>> best_cut([3, 1, 1, 1], 2, none, none == 0)
    (0, 1, 4)
    """
    ends = np.concatenate(([0.0], np.cumsum(costs)))
    if len(ends) <= stages:
        raise PlanError(f"stages: the graph can be cut into at most {len(ends) - 1}, found {stages}")
    begin, end = np.indices((len(ends),) * 2)
    seconds = np.where((begin < end) & fits, ends[None, :] - ends[:, None], np.inf)
    slowest = _least(np.maximum, seconds, stages)[0]
    if slowest == np.inf:
        raise PlanError(f"stages: no cut into {stages} fits in memory; use more workers or stages")
    allowed = (np.where(seconds <= slowest * (1 + share), crossing, np.inf) for share in SLOWER)
    return min((_least(np.add, amounts, stages) for amounts in allowed), key=itemgetter(0))[1]


def _least(combine: np.ufunc, amounts: Runs, stages: int) -> tuple[float, tuple[int, ...]]:
    """Return the least combination of `stages` consecutive runs, and where they begin and end."""
    best, froms = amounts[0], []
    for _ in range(stages - 1):
        extended = combine(best[:, None], amounts)
        froms.append(extended.argmin(axis=0))
        best = extended.min(axis=0)
    cut = [len(amounts) - 1]
    for earlier in reversed(froms):
        cut.append(int(earlier[cut[-1]]))
    return float(best[-1]), (0, *reversed(cut))
