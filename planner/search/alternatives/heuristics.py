"""The simpler searches that Tofu compares itself with (Wang, Huang, Li: EuroSys 2019, Sec 7.3 and Figure 10)."""

from __future__ import annotations

from collections.abc import Sequence

from planner.layout import EVERYWHERE, Shard
from planner.search.alternatives.restriction import Patterns, best_plan_keeping_to_patterns
from planner.search.coarse.coarsen import TensorVariable
from planner.search.solver.limits import Limits
from planner.search.space import Outcome, Space


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
