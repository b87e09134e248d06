"""Data, model and hybrid parallelism as defined by SoyBean.

SoyBean: Wang, Huang, Li, "Unifying Data, Model and Hybrid Parallelism in Deep Learning via Tensor Tiling", Sec 2.2, 3
and 4.1. All three replicate some tensors, so their placements are S,R. A rule is a set of patterns per variable; hybrid
parallelism composes two rules step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain, product
from math import prod

import numpy as np
from msgspec.structs import replace

from planner.graph.facts import batch_size
from planner.layout import EVERYWHERE, PARTIAL, REPLICATE, Shard, Ways
from planner.search.alternatives.labels import Labelling, is_weight_or_state
from planner.search.coarse import CoarseGraph, TensorVariable, Variable
from planner.search.costs.domains import operands_carried_by_choice
from planner.search.costs.tables import Table
from planner.search.joint import best_plan_among_candidates
from planner.search.pins import NO_RESTRICTIONS
from planner.search.solver import minimise
from planner.search.solver.model import Model
from planner.search.solver.problem import Limits
from planner.search.space import Outcome, Space, State

# Restrict what variables may choose at each step.


Wanted = Collection[object]
"""Placements of a tensor, or choices of an operator, allowed at one step."""

Patterns = Sequence[Sequence[Wanted]]
"""Alternative patterns of a variable; a pattern gives the allowed choices at every step."""

Rule = Callable[[int], Patterns]
"""Maps a variable's number to its patterns."""

DIRECT_ENTRIES = 1 << 12
"""If no table has more entries, build all tables at once: bounding and pruning first would cost more than it saves."""


def best_plan_keeping_to_patterns(space: Space, rule: Rule, limits: Limits) -> Outcome:
    """Return the best plan in which every variable keeps to one of its patterns."""
    candidates = [_states_keeping_to_patterns(space, v, rule(v)) for v in range(len(space.coarse.variables))]
    scopes = (set(factor.scope) for factor in space.coarse.factors)
    if max((prod(len(candidates[v]) for v in scope) for scope in scopes), default=0) > DIRECT_ENTRIES:
        return best_plan_among_candidates(space, candidates, limits)
    domains = [space.domain(v, states) for v, states in enumerate(candidates)]
    return Outcome.of_solution(domains, minimise(Model(space.problem_of_domains(domains)), limits))


def _states_keeping_to_patterns(space: Space, v: int, patterns: Patterns) -> list[State]:
    """Return the states that satisfy one of the patterns.

    Only patterns satisfiable at the most steps are considered.
    """
    steps: list[Sequence[object]] = [*space.options_at_every_step(v)]
    possible: list[list[Sequence[object]]] = [
        [[option for option in options if option in at] for options, at in zip(steps, wanted, strict=True)]
        for wanted in patterns
    ]
    most = max((sum(map(bool, kept)) for kept in possible), default=0)
    best = [kept for kept in possible if sum(map(bool, kept)) == most] or [steps]
    choices = ([[*(at or options), *_terms(options)] for at, options in zip(kept, steps, strict=True)] for kept in best)
    return list(dict.fromkeys(state for kept in choices for state in product(*kept)))


def _terms(options: Sequence[object]) -> list[object]:
    """Return the options that add up terms before they move; no rule forbids these."""
    return [option for option in options if option == PARTIAL or operands_carried_by_choice(str(option))]


# Data, model and hybrid parallelism as defined by SoyBean.


def data_parallel(space: Space, limits: Limits) -> Outcome:
    """Split the batch, dimension 0 of the inputs, wherever it goes; replicate weights and everything without a batch.

    Weight gradients are reduced and every worker updates its own copy. Operators without a batch that cannot run on
    every worker take their cheapest choice.
    """
    return _best_plan_of_options(space, styles_of_graph(space.coarse).data_parallel_options, limits)


def model_parallel(space: Space, limits: Limits) -> Outcome:
    """Split every weight, with its optimizer state, along one dimension; never split the batch.

    Activations and their gradients are whole, or split along a dimension that they share with a weight, such as output
    channels. Operators are split along variables that index weights or such dimensions; element-wise operators may run
    on every worker. The solver chooses among these.
    """
    return _best_plan_of_options(space, styles_of_graph(space.coarse).model_parallel_options, limits)


def hybrid(space: Space, limits: Limits) -> Outcome:
    """Use data parallelism across groups of workers and model parallelism within a group.

    With ways (a, b) there are a groups of b workers. With more steps, every division into leading steps (across groups,
    each of which must get samples) and trailing steps (within a group) is tried and the cheapest is returned. A single
    step cannot be divided: the cheaper of data and model parallelism is returned.
    """
    styles, steps = styles_of_graph(space.coarse), len(space.ways)
    outcomes: dict[str, Outcome] = {}
    for across in _steps_across_groups(space) or (1,) if steps > 1 else range(steps + 1):
        outcomes[_group_sizes_text(space.ways.factors, across)] = best_plan_keeping_to_patterns(
            space, styles.data_then_model_parallel_rule(across, steps), limits
        )
    groups = min(outcomes, key=lambda name: outcomes[name].cost)
    bounds = [outcome.lower_bound for outcome in outcomes.values()]
    lower = None if None in bounds else min(bound for bound in bounds if bound is not None)
    return replace(outcomes[groups], lower_bound=lower, details={**outcomes[groups].details, "groups": groups})


def hybrid_may_cost_less(space: Space, limits: Limits, cost: int) -> bool:
    """Return True if hybrid parallelism may move less than `cost` bytes, judged by its single steps.

    Hybrid parallelism moves at least as much as data parallelism at its first step alone, and as model parallelism at
    its last step alone, with or without pins. Return False if the groups would get no samples.
    """
    if len(space.ways) > 1 and not _steps_across_groups(space):
        return False
    if space.ways.shares:
        return True
    free = replace(space, restrictions=NO_RESTRICTIONS)
    single_steps = ((data_parallel, space.ways[0]), (model_parallel, space.ways[-1]))

    def costs_of_single_steps() -> Iterator[Table]:
        for search, way in single_steps:
            yield np.array(search(replace(free, ways=Ways((way,))), limits).cost)

    key = "hybrid's single steps", space.ways, space.replicate
    return all(int(space.tables[n]) < cost for n in space.tables.remembered_tables(key, costs_of_single_steps))


def _steps_across_groups(space: Space) -> list[int]:
    """Return the numbers of leading steps across groups for which each group has samples; never all steps."""
    factors, graph = space.ways.factors, space.coarse.graph
    samples = (batch_size(graph) or 1) // graph.micro_batches
    return [steps for steps in range(1, len(factors)) if prod(factors[:steps]) <= samples]


def _best_plan_of_options(space: Space, options: Sequence[Sequence[Wanted]], limits: Limits) -> Outcome:
    """Return the best plan in which every variable keeps to one of its options at all steps."""
    return best_plan_keeping_to_patterns(space, lambda v: [[wanted] * len(space.ways) for wanted in options[v]], limits)


def _group_sizes_text(ways: Sequence[int], across: int) -> str:
    """Return "groups x workers per group"."""
    sizes = [1, 1]
    for step, way in enumerate(ways):
        sizes[step >= across] *= way
    return f"{sizes[0]} x {sizes[1]}"


class Styles:
    """Options of each variable under data and under model parallelism; a variable keeps one option at all steps."""

    def __init__(self, coarse: CoarseGraph) -> None:
        self._coarse, self._labelling = coarse, Labelling(coarse)

    @cached_property
    def data_parallel_options(self) -> list[list[Wanted]]:
        """Options of every variable that split the batch."""
        return list(map(self._options_splitting_batch, self._coarse.variables))

    @cached_property
    def model_parallel_options(self) -> list[list[Wanted]]:
        """Options of every variable that split weights and what shares a dimension with them."""
        return list(map(self._options_splitting_model, self._coarse.variables))

    def _options_splitting_batch(self, variable: Variable) -> list[Wanted]:
        batch = self._labelling.batch
        if isinstance(variable, TensorVariable):
            dims = [batch.tensors.get(name, frozenset()) for name in variable.members]
            return [{Shard(dim) for some in dims for dim in some} | {REPLICATE for some in dims if not some}]
        return [set(chain.from_iterable(batch.nodes[name] or (EVERYWHERE,) for name in variable.members))]

    def _options_splitting_model(self, variable: Variable) -> list[Wanted]:
        if not isinstance(variable, TensorVariable):
            return [{EVERYWHERE, *chain.from_iterable(map(self._variables_splitting_model, variable.members))}]
        if any(is_weight_or_state(self._coarse.graph, name) for name in variable.members) and variable.shape:
            return [{Shard(dim)} for dim in range(len(variable.shape))]
        dims = (self._labelling.model.tensors.get(name, frozenset()) for name in variable.members)
        return [{REPLICATE, *(Shard(dim) for some in dims for dim in some)}]

    def _variables_splitting_model(self, name: str) -> frozenset[str]:
        """Return the variables of a node that split the model: labelled or indexing weights, without the batch."""
        variables = self._labelling.model.nodes[name].union(self._labelling.variables_indexing_weights(name))
        return variables - self._labelling.batch.nodes[name]

    def data_then_model_parallel_rule(self, across: int, steps: int) -> Rule:
        """Return the rule with data parallelism at the first `across` steps and model parallelism at the others."""

        def patterns_of_variable(v: int) -> Patterns:
            return [
                [outer] * across + [inner] * (steps - across)
                for outer in self.data_parallel_options[v]
                for inner in self.model_parallel_options[v]
            ]

        return patterns_of_variable


styles_of_graph = lru_cache(maxsize=1)(Styles)
"""The styles of a coarse graph. Cached, because several searches ask for them in turn."""
