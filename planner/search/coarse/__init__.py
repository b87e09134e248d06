"""Coarsening: the graph as variables and factors (Tofu Sec 5.1).

A variable is a set of tensors that share a layout, or of nodes that share a strategy. The result need not be a chain.
Every rule is a tie between names and can be switched off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

import tdl
from planner.graph.disjoint_sets import DisjointSets
from planner.graph.facts import is_recomputed, nodes_of_replicas
from planner.graph.ir import ITEM_BYTES, Graph, Node
from planner.graph.micro_batches import operands_as_terms
from planner.graph.repeats import FewSegments, repeats_of
from planner.grouping import grouped
from planner.layout import Signature, signatures
from planner.layout.region import REMEMBERED
from planner.search.coarse.unrolled import cells_of_nodes, repeated_parts
from planner.search.costs.cost import Cost, CostTerm, cost_terms
from tensor_partitioner.display import Shown


@dataclass(frozen=True, slots=True)
class Ties(Shown):
    """Coarsening rules that apply; a weight is always tied to its updated value.

    - `elementwise`: ties an element-wise operator's outputs and the operands that it reads at its own coordinates, if
      all of them are gradients or none is.
    - `gradients`: drops that condition, so that gradients are tied to the forward tensors read with them.
    - `updates`: the same for operators that update weights and optimizer state, or copy weights. It excludes plans with
      a replicated weight and sharded state.
    - `unrolled`: ties the timesteps of one cell.
    - `repeats`: merges identical layers that depend on the same shared tensors. It is the only rule that loses no plan.

    Terms that one node adds up are always tied to each other, and never to other tensors.
    """

    elementwise: bool = True
    gradients: bool = True
    updates: bool = True
    unrolled: bool = True
    repeats: bool = True

    @classmethod
    def only(cls, rules: Collection[str]) -> Ties:
        """Return a Ties with these rules only."""
        return cls(**{field.name: field.name in rules for field in fields(cls)})

    @property
    def applied(self) -> tuple[str, ...]:
        """Names of the rules that apply."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name))

    def are_among(self, other: Ties) -> bool:
        """Return True if `other` applies all of these rules: a plan that satisfies `other` also satisfies these."""
        return set(self.applied) <= set(other.applied)


class TensorVariable(Struct, frozen=True):
    """Tensors of one shape that share one layout."""

    members: tuple[str, ...]
    shape: tuple[int, ...]


class NodeVariable(Struct, frozen=True):
    """Equivalent nodes that share one strategy.

    `is_of_replicas`: all replicas run these nodes identically, so every worker may run them.
    """

    members: tuple[str, ...]
    signature: Signature
    is_of_replicas: bool


Variable = TensorVariable | NodeVariable


class Factor(Struct, frozen=True):
    """A cost that depends on nodes' strategies and one tensor's layout.

    `scope` holds the numbers of the variables, the tensor's last. `count` is how often the cost occurs, `weight` the
    element sizes in bytes summed over these occurrences.
    """

    scope: tuple[int, ...]
    cost: Cost
    weight: int
    count: int


class CoarseGraph(Struct, frozen=True, eq=False):
    """The graph that the search works on.

    `variable_of` maps ("tensor" | "node", name) to the number of its variable. `as_terms` gives, per node, the operands
    through which it may read terms under any placements. `times` counts the nodes that a node stands for, if not 1.
    """

    graph: Graph
    signatures: Mapping[str, Signature]
    as_terms: Mapping[str, frozenset[int]]
    variables: tuple[Variable, ...]
    factors: tuple[Factor, ...]
    variable_of: Mapping[Name, int]
    times: Mapping[str, int] = {}


Name = tuple[str, str]


_Key = tuple[Ties, bool, frozenset[str]]
Marks = frozenset[tuple[Name, Hashable]]
"""Distinguish names that would otherwise be equivalent."""


class Coarsenings:
    """The coarse graphs of one graph, built on demand; their common parts are computed once.

    If the graph has only a `few` of another's segments, all segments of a run are planned alike.
    """

    def __init__(self, graph: Graph, few: FewSegments | None = None) -> None:
        self.times = {} if few is None else few.times
        self._alike = [] if few is None or not few.layers else list(_corresponding_names(graph))
        self._graph, self._signatures, self._as_terms = graph, signatures(graph), operands_as_terms(graph)
        self._groups: dict[_Key, dict[Name, int]] = {}
        self._cost_terms: dict[bool, list[CostTerm]] = {}
        self._coarse: dict[_Key, CoarseGraph] = {}
        self._with_repeats: dict[_Key, CoarseGraph] = {}

    def of(
        self, ties: Ties, *, partial: bool = False, untied: frozenset[str] = frozenset(), marks: Marks = frozenset()
    ) -> CoarseGraph:
        """Return the coarse graph.

        `partial`: any tensor may be partial, so every read records the operands it goes through. Element-wise operators
        do not tie the tensors in `untied`. Layers with different `marks` are not identical.
        """
        key = ties, partial, untied
        if key not in self._coarse:
            self._coarse[key] = self._coarse_graph_of_ties(key)
        merges = ties.repeats and marks
        return _graph_without_repeats(self._with_repeats[key], marks) if merges else self._coarse[key]

    def variable_count(self, ties: Ties) -> int:
        """Return the number of variables before identical layers are merged."""
        return 1 + max(self._names_grouped_by_ties((ties, False, frozenset())).values(), default=-1)

    def _coarse_graph_of_ties(self, key: _Key) -> CoarseGraph:
        variable_of, (ties, partial, _) = self._names_grouped_by_ties(key), key
        variables = _variables_by_number(self._graph, self._signatures, variable_of)
        factors = _factors_of_cost_terms(self._graph, self._cost_terms_of_graph(partial=partial), variable_of)
        coarse = CoarseGraph(self._graph, self._signatures, self._as_terms, variables, factors, variable_of, self.times)
        self._with_repeats[key] = coarse
        return _graph_without_repeats(coarse) if ties.repeats else coarse

    def _names_grouped_by_ties(self, key: _Key) -> dict[Name, int]:
        if key not in self._groups:
            ties, _, untied = key
            graph, signature_of, terms = self._graph, self._signatures, self._terms
            sets = DisjointSets(
                [*(("tensor", name) for name in graph.tensors), *(("node", name) for name in signature_of)]
            )
            for tied in chain(
                _ties_within_timestep(graph, signature_of, ties, untied.union(*terms)),
                self._ties_of_timesteps if ties.unrolled else (),
                ([("tensor", name) for name in together] for together in terms),
                self._alike,
            ):
                sets.tie(tied)
            self._groups[key] = sets.set_numbers()
        return self._groups[key]

    @cached_property
    def _terms(self) -> list[list[str]]:
        """The terms of each node that reads terms."""
        nodes = (node for node in self._graph.nodes if node.name in self._as_terms)
        return [[node.inputs[operand] for operand in sorted(self._as_terms[node.name])] for node in nodes]

    @cached_property
    def _ties_of_timesteps(self) -> list[list[Name]]:
        terms = frozenset(chain.from_iterable(self._terms))
        return list(_ties_of_unrolled_cells(self._graph, self._signatures, terms))

    def _cost_terms_of_graph(self, *, partial: bool) -> list[CostTerm]:
        if partial not in self._cost_terms:
            terms = cost_terms(self._graph, self._signatures, self._as_terms, self.times, partial=partial)
            self._cost_terms[partial] = list(terms)
        return self._cost_terms[partial]


def _corresponding_names(graph: Graph) -> Iterable[list[Name]]:
    """Return the nodes and the tensors at the same place of each segment of a run."""
    repeats, names = repeats_of(graph), defaultdict[tuple[str, int], list[Name]](list)
    for kind, places in (("node", repeats.nodes), ("tensor", repeats.tensors)):
        for name, place in places.items():
            names[kind, place.position].append((kind, name))
    return names.values()


def _variables_by_number(
    graph: Graph, signature_of: Mapping[str, Signature], variable_of: Mapping[Name, int]
) -> tuple[Variable, ...]:
    members = grouped((v, name) for name, v in variable_of.items())
    replicated = nodes_of_replicas(graph)

    def variable_of_members(names: list[Name]) -> Variable:
        (kind, first), plain = names[0], tuple(name for _, name in names)
        if kind == "tensor":
            return TensorVariable(plain, graph.tensors[first].shape)
        return NodeVariable(plain, signature_of[first], replicated.issuperset(plain))

    return tuple(variable_of_members(members[v]) for v in range(len(members)))


def _graph_without_repeats(coarse: CoarseGraph, marks: Marks = frozenset()) -> CoarseGraph:
    """Return the graph with one variable for all variables at the same place of identical parts with equal marks."""
    marked: dict[int, set[Hashable]] = defaultdict(set)
    for name, mark in marks:
        marked[coarse.variable_of[name]].add(mark)
    kinds = [(kind, frozenset(marked[v])) for v, kind in enumerate(_kinds_of_variables_by_number(coarse))]
    numbers: dict[object, int] = {}
    terms = [
        (factor.scope, numbers.setdefault((factor.cost, factor.weight, factor.count), len(numbers)))
        for factor in coarse.factors
    ]
    merged = repeated_parts(kinds, terms)
    place = {v: i for i, v in enumerate(merged.variables_standing_for_themselves)}
    number = [place[v] for v in merged.stands_for]
    factors = tuple(
        Factor(tuple(number[v] for v in factor.scope), factor.cost, factor.weight * times, factor.count * times)
        for factor, times in zip(coarse.factors, merged.times, strict=True)
        if times
    )
    variable_of = {name: number[v] for name, v in coarse.variable_of.items()}
    variables = _variables_by_number(coarse.graph, coarse.signatures, variable_of)
    return replace(coarse, variables=variables, factors=factors, variable_of=variable_of)


def _kinds_of_variables_by_number(coarse: CoarseGraph) -> list[object]:
    """Return, per variable, what its states depend on besides its factors."""
    graph = coarse.graph
    shown = {*graph.updates, *graph.updates.values(), *graph.metrics.values()}

    def kind_of_variable(variable: Variable) -> object:
        if isinstance(variable, NodeVariable):
            return variable.signature, len(variable.members), variable.is_of_replicas
        roles = frozenset((graph.tensors[name].role, name in shown) for name in variable.members)
        return variable.shape, len(variable.members), roles

    return [kind_of_variable(variable) for variable in coarse.variables]


def _ties_within_timestep(
    graph: Graph, signature_of: Mapping[str, Signature], ties: Ties, untied: frozenset[str]
) -> Iterator[list[Name]]:
    """Yield the ties within a timestep: a weight with its updated value, and the tensors of element-wise operators."""
    for old, new in graph.updates.items():
        yield [("tensor", old), ("tensor", new)]
    updated = set(graph.updates.values())
    for node in graph.nodes:
        updates = any(name in updated or graph.tensors[name].role == "weight" for name in node.outputs)
        if (ties.updates if updates else ties.elementwise) and signature_of[node.name].description.is_elementwise:
            alike = [name for name in tensors_at_same_coordinates(node, signature_of[node.name]) if name not in untied]
            if not updates and not ties.gradients:
                gradients = [graph.tensors[name].role == "gradient" for name in alike]
                alike = [name for name, gradient in zip(alike, gradients, strict=True) if gradient == any(gradients)]
            if alike:
                yield [("tensor", name) for name in alike]


def tensors_at_same_coordinates(node: Node, signature: Signature) -> list[str]:
    """Return an element-wise node's outputs and the operands of equal shape that it reads at its own coordinates."""
    return [*node.outputs, *(node.inputs[operand] for operand in _operands_at_same_coordinates(signature))]


@lru_cache(maxsize=REMEMBERED)
def _operands_at_same_coordinates(signature: Signature) -> tuple[int, ...]:
    output = signature.description.outputs[0].index
    if not all(isinstance(index, tdl.Affine) and index.is_plain for index in output):
        return ()
    reads = grouped((access.operand, access.index) for access in signature.description.accesses)
    return tuple(
        operand
        for operand, indices in reads.items()
        if signature.shapes[operand] == signature.outputs[0] and all(index == output for index in indices)
    )


def _ties_of_unrolled_cells(
    graph: Graph, signature_of: Mapping[str, Signature], terms: frozenset[str]
) -> Iterator[list[Name]]:
    """Yield the ties between timesteps of one cell: equivalent nodes, and their corresponding tensors except terms."""
    cell_of = cells_of_nodes(graph, signature_of)
    forward = {node.name: node for node in graph.nodes if node.forward is None}
    alike: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if node.name in cell_of:
            read = None if is_recomputed(graph, node) else _forward_operands_read(node, forward)
            what = cell_of[node.name], id(signature_of[node.name]), read
            alike.setdefault(what, []).append(node)
    for nodes in alike.values():
        yield [("node", node.name) for node in nodes]
        tensors = [(*node.inputs, *node.outputs) for node in nodes]
        for names in zip(*tensors, strict=True):
            for kind in (terms.intersection(names), set(names) - terms):
                yield [("tensor", name) for name in names if name in kind]


def _forward_operands_read(node: Node, forward: Mapping[str, Node]) -> tuple[int | None, ...] | None:
    """Return, for each operand of a backward node, its position among the forward node's operands; None if forward.

    This distinguishes a product from the two products that differentiate it: all three have one signature.
    """
    if node.forward is None:
        return None
    operands = forward[node.forward].inputs
    return tuple(operands.index(name) if name in operands else None for name in node.inputs)


def _factors_of_cost_terms(
    graph: Graph, costs: Iterable[CostTerm], variable_of: Mapping[Name, int]
) -> tuple[Factor, ...]:
    totals: dict[tuple[tuple[int, ...], Cost], list[int]] = {}
    for nodes, tensor, cost, times in costs:
        scope = (*(variable_of["node", node] for node in nodes), variable_of["tensor", tensor])
        weight_and_count = totals.setdefault((scope, cost), [0, 0])
        weight_and_count[0] += times * ITEM_BYTES[graph.tensors[tensor].dtype]
        weight_and_count[1] += times
    return tuple(Factor(*key, weight, count) for key, (weight, count) in totals.items())
