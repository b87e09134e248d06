"""The searches that Tofu (Wang, Huang, Li: EuroSys 2019, Sec 7.3) and SoyBean (Sec 2.2) compare theirs with.

Importing this registers them. Where a restriction cannot be kept at a step, every candidate of that step is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from planner.layout import EVERYWHERE, PlacementSet, Shard
from planner.search import SEARCHERS, Limits, Outcome, Searcher, Space, register
from planner.search.alternatives.labels import Labelling
from planner.search.alternatives.parallelism import Patterns, best_plan_keeping_to_patterns, styles_of_graph
from planner.search.coarse import CoarseGraph, Name, TensorVariable
from planner.search.costs.tables import Term
from planner.search.joint import best_plan_among_candidates
from planner.search.solver.elimination import eliminate_variables, greedy_order
from planner.search.solver.problem import Problem, terms_by_variable

WITHOUT_PARTIAL = (PlacementSet.SPLIT, PlacementSet.REPLICATED)


def allrow(space: Space, limits: Limits) -> Outcome:
    """Split every tensor along its first dimension that can be split; operators as is cheapest (AllRow-Greedy)."""

    def patterns_of_variable(v: int) -> Patterns:
        steps = space.options_at_every_step(v)
        if isinstance(space.coarse.variables[v], TensorVariable):
            return [[_first_dimension_options(options) for options in steps]]
        return [steps]

    return best_plan_keeping_to_patterns(space, patterns_of_variable, limits)


def _first_dimension_options(options: Sequence[object]) -> Sequence[object]:
    shards = [option for option in options if isinstance(option, Shard)]
    return [min(shards, key=lambda shard: shard.dim)] if shards else options


def equalchop(space: Space, limits: Limits) -> Outcome:
    """Split every tensor along one dimension and every operator along one variable, the same at all steps (EqualChop).

    That is Tofu's dynamic programming with one k-way step in place of the recursion.
    """

    def patterns_of_variable(v: int) -> Patterns:
        steps = space.options_at_every_step(v)
        return [[[option]] * len(steps) for option in dict.fromkeys(option for step in steps for option in step)]

    return best_plan_keeping_to_patterns(space, patterns_of_variable, limits)


def icml18(space: Space, limits: Limits) -> Outcome:
    """Split no operator along a reduction variable: no partial results, so nothing to reduce (ICML18).

    Jia, Lin, Qi and Aiken (ICML 2018) partition the outputs of layers only. Tofu compares itself with their dynamic
    programming on its own coarsened graph, where this is what sets them apart. Their further demand that forward and
    backward operators be partitioned alike is not made here. An operator with nothing but reduction variables, such
    as a sum over everything, is still split along one.
    """

    def patterns_of_variable(v: int) -> Patterns:
        variable, steps = space.coarse.variables[v], space.options_at_every_step(v)
        if isinstance(variable, TensorVariable):
            return [steps]
        return [[{*variable.signature.description.output_variables, EVERYWHERE}] * len(steps)]

    return best_plan_keeping_to_patterns(space, patterns_of_variable, limits)


def spartan(space: Space, limits: Limits) -> Outcome:
    """Decide tensors one after the other, the largest first; then every operator does what is cheapest.

    The greedy search of Spartan (Huang and others, USENIX ATC 2015), with which Tofu compares itself (Figure 10). A
    tensor gets the layout, over all steps, at which the operators that read or write it cost least; of their other
    tensors, those decided before count as they lie, and those still undecided as they would suit best. Decisions are
    never revised. Operators are exact once all tensors are decided.
    """
    variables = space.coarse.variables
    candidates = [space.candidates(v) for v in range(len(variables))]
    problem = space.problem(candidates)
    tensors = space.coarse.graph.tensors
    sizes = {
        v: max(tensors[name].nbytes for name in of.members)
        for v, of in enumerate(variables)
        if isinstance(of, TensorVariable)
    }
    around = terms_by_variable(problem.terms, len(variables))
    decided: dict[int, int] = {}
    for v in sorted(sizes, key=sizes.__getitem__, reverse=True):
        operators = {u for position in around[v] for u in problem.terms[position][0]} - sizes.keys()
        positions = {position for u in (v, *operators) for position in around[u]}
        terms = [problem.terms[position] for position in sorted(positions)]
        decided[v] = _cheapest_state_of_tensor(problem, [v, *sorted(operators)], terms, decided)
    for v, state in decided.items():
        candidates[v] = (space.domain(v, candidates[v]).states[state],)
    outcome = best_plan_among_candidates(space, candidates, limits)
    return Outcome(outcome.choice, outcome.cost, None, outcome.details)


def _cheapest_state_of_tensor(problem: Problem, free: list[int], terms: list[Term], decided: Mapping[int, int]) -> int:
    """Return the state of the first free variable at which the terms cost least, the other free ones at their best.

    Terms are taken at the states of decided variables, and at their lowest over all others.
    """
    place = {v: number for number, v in enumerate(free)}
    tables, local = problem.tables, []
    for scope, number in terms:
        fixed = tables.restricted_to_states(number, tuple((decided[v],) if v in decided else None for v in scope))
        axes = tuple(axis for axis, v in enumerate(scope) if v in place)
        placed = tuple(place[scope[axis]] for axis in axes)
        local.append(
            (tuple(sorted(placed)), tables.with_axes_arranged(tables.minimum_over_other_axes(fixed, axes, 1), placed))
        )
    sizes = tuple(problem.sizes[v] for v in free)
    order = greedy_order(sizes, [scope for scope, _ in local]).variables
    left = eliminate_variables(Problem(tables, sizes, tuple(local)), [v for v in order if v != 0]).remaining
    total = np.zeros(sizes[0], dtype=np.int64)
    for scope, number in left.terms:
        total += tables[number] if scope else 0
    return int(total.argmin())


def one_weird_trick(space: Space, limits: Limits) -> Outcome:
    """Be data parallel in convolutions and model parallel in fully connected layers.

    Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014). The first operator that
    contracts a weight without being a convolution begins the model parallel part; what follows it belongs to it, and a
    backward operator belongs where its forward operator does. Tensors at the border may be stored either way. A
    network without convolutions is model parallel.
    """
    parts_of, styles, patterns = _parallelism_of_nodes_and_tensors(space.coarse), styles_of_graph(space.coarse), []
    for v, variable in enumerate(space.coarse.variables):
        kind = "tensor" if isinstance(variable, TensorVariable) else "node"
        parts = {part for name in variable.members for part in parts_of.get((kind, name), ())}
        options = styles.data_parallel_options[v] if parts != {"model"} else []
        options = options + (styles.model_parallel_options[v] if "model" in parts else [])
        patterns.append([[wanted] * len(space.ways) for wanted in options])
    return best_plan_keeping_to_patterns(space, patterns.__getitem__, limits)


def _parallelism_of_nodes_and_tensors(coarse: CoarseGraph) -> dict[Name, set[str]]:
    """Return which parts every node, and every tensor that they read or write, belongs to: "data", "model" or both."""
    graph, labelling = coarse.graph, Labelling(coarse)
    parts: dict[Name, set[str]] = {}
    made_in: dict[str, str] = {}
    of: dict[str | None, str] = {}
    for node in graph.nodes:
        category = coarse.signatures[node.name].category
        if node.forward in of:
            part = of[node.forward]
        elif labelling.contracted_weights(node) and category != "convolution":
            part = "model"
        else:
            part = "model" if any(made_in.get(name) == "model" for name in node.inputs) else "data"
        of[node.name], parts["node", node.name] = part, {part}
        made_in |= dict.fromkeys(node.outputs, part)
        for name in (*node.inputs, *node.outputs):
            parts.setdefault(("tensor", name), set()).add(part)
    return parts


TOFUS = tuple(
    register(searcher).name
    for searcher in (
        Searcher("allrow", allrow, "tensors split along their first dimension", WITHOUT_PARTIAL),
        Searcher("spartan", spartan, "tensor by tensor, the largest first", WITHOUT_PARTIAL),
        Searcher("equalchop", equalchop, "the same at every step", WITHOUT_PARTIAL),
        Searcher("icml18", icml18, "no operator split along a reduction", WITHOUT_PARTIAL),
    )
)
"""What Tofu's search is compared with."""

ONE_WEIRD_TRICK = register(
    Searcher("one-weird-trick", one_weird_trick, "model parallel where fully connected", (PlacementSet.REPLICATED,))
).name
"""What SoyBean's is compared with besides data and model parallelism."""

ALL: Mapping[str, Searcher] = {
    name: SEARCHERS[name]
    for name in ("recursive", "joint", *TOFUS, "data-parallel", "model-parallel", "hybrid", ONE_WEIRD_TRICK)
}
"""By name, in the order in which tables show them."""
