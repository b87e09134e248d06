"""Stages as they are chosen: cuts by all there are, what crosses by plans, and who has what."""

import itertools
import random

import numpy as np
import pytest

import planner
from planner.errors import PlanError
from planner.graph import GraphBuilder, Init, Optimizer
from planner.graph.chain import chain_of, crossing_bytes
from planner.graph.facts import is_recomputed
from planner.graph.training import Recipe, training_graph
from planner.layout import At
from planner.program.lower import arena_sizes
from planner.search.stages import node_costs, staged, with_stages
from planner.search.stages.placing import SLOWER, best_cut
from tests.cross.cells import MODELS
from topologies import load_topology


def every_cut(links, stages):
    return [(0, *inner, links) for inner in itertools.combinations(range(1, links), stages - 1)]


def worth(cut, costs, crossing):
    """What the slowest stage takes, and what crosses."""
    runs = list(itertools.pairwise(cut))
    return max(sum(costs[a:b]) for a, b in runs), sum(crossing[run] for run in runs)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_the_best_of_all_cuts(stages):
    """Of the cuts that fit least crosses, where the slowest stage is at most a tenth slower than it can be."""
    chance = random.Random(stages)
    for _ in range(30):
        links = chance.randint(stages, 7)
        costs = [chance.randint(0, 40) for _ in range(links)]
        crossing = np.array([[chance.randint(0, 9) for _ in range(links + 1)] for _ in range(links + 1)], dtype=float)
        fits = np.array([[chance.random() < 0.8 for _ in range(links + 1)] for _ in range(links + 1)])

        allowed = [cut for cut in every_cut(links, stages) if all(fits[run] for run in itertools.pairwise(cut))]
        if allowed:
            slowest = min(worth(cut, costs, crossing)[0] for cut in allowed)
            near = [worth(cut, costs, crossing) for cut in allowed]
            least = min(crosses for seconds, crosses in near if seconds <= slowest * 1.1)
            fastest = min(seconds for seconds, crosses in near if crosses == least and seconds <= slowest * 1.1)
            seconds, crosses = worth(best_cut(costs, stages, crossing, fits), costs, crossing)
            assert crosses == least
            assert seconds <= next(slowest * (1 + share) for share in SLOWER if fastest <= slowest * (1 + share))
        else:
            with pytest.raises(PlanError, match="fits in memory; use more workers"):
                best_cut(costs, stages, crossing, fits)


def test_more_stages_than_links():
    with pytest.raises(PlanError, match=r"stages: the graph can be cut into at most 2, found 3"):
        best_cut([1, 1], 3, np.zeros((3, 3)), np.ones((3, 3)))


@pytest.mark.parametrize("model", ["mlp", "cnn", "wresnet", "transformer"])
def test_what_crosses_is_what_plans_of_all_cuts_move(model):
    """One worker a stage: nothing else moves. The transformer's table of tokens is its output layer, too."""
    name, options = MODELS[model]
    plan = planner.plan(planner.model(name, **options), 1)
    chain = chain_of(plan.graph)
    crossing = crossing_bytes(plan.graph, chain)
    for cut in every_cut(chain.links, 2):
        assert staged(plan, chain, cut).total_bytes == sum(crossing[run] for run in itertools.pairwise(cut))


def test_the_fastest_of_all_cuts_on_a_machine():
    plan, machine = planner.plan(planner.model("mlp-4-16", batch=8), 2), load_topology("uniform-8")
    chain = chain_of(plan.graph)
    seconds = [round(link_s * 1e15) for link_s in chain.per_link(chain.of_node, node_costs(plan, machine))]
    crossing = crossing_bytes(plan.graph, chain)

    best = min(every_cut(chain.links, 2), key=lambda cut: worth(cut, seconds, crossing))
    fastest = with_stages(plan, 2, machine)
    assert (fastest.layouts, fastest.strategies) == (
        staged(plan, chain, best).layouts,
        staged(plan, chain, best).strategies,
    )


def groups(plan, names):
    return {str(plan.layouts[name][0]) for name in names}


def test_weights_gradients_and_states_are_where_they_are_used():
    plan = planner.plan(planner.model("mlp-4-16", batch=8, optimizer="adam"), 4, stages=2)
    assert plan.ways.factors == (2, 2)
    for old, new in plan.graph.updates.items():
        maker = next(node for node in plan.graph.nodes if new in node.outputs)
        if plan.graph.tensors[old].role == "weight":
            assert groups(plan, (*maker.inputs[:1], *maker.outputs)) == {plan.strategies[maker.name][0]}
    for node in plan.graph.nodes:
        if node.forward is not None:
            assert plan.strategies[node.name][0] == plan.strategies[node.forward][0]
    used = {plan.strategies[node.name][0] for node in plan.graph.nodes}
    assert used == {"@0", "@1", "*"}  # the count of steps is everywhere


def test_timesteps_are_in_one_stage():
    plan = planner.plan(planner.model("rnn-4-8", batch=4), 2, stages=2)
    stages = {}
    for node in plan.graph.nodes:
        if node.unroll is not None and node.forward is None:
            stages.setdefault(node.unroll[0], set()).add(plan.strategies[node.name][0])
    assert all(len(assigned) == 1 for assigned in stages.values())
    assert {At(0), At(1)} == {plan.layouts[name][0] for name in plan.graph.updates}


def test_a_weight_of_two_stages_is_in_both_or_in_the_first():
    graph = planner.model("transformer-2-16", batch=4, sequence=8, vocabulary=16, heads=4)
    shared = [
        name
        for name, layout in planner.plan(graph, 2, stages=2).layouts.items()
        if graph.tensors[name].role == "weight" and str(layout[0]) == "R"
    ]
    assert shared
    of_four = planner.plan(graph, 4, stages=4)
    assert groups(of_four, shared) == {"@0"}


def test_stages_that_fit():
    graph = planner.model("mlp-6-32", batch=32)
    free = planner.plan(graph, 2, stages=2)
    needed = arena_sizes(free)
    assert max(arena_sizes(planner.plan(graph, 2, stages=2, memory=max(needed)))) == max(needed)
    assert max(needed) < max(arena_sizes(planner.plan(graph, 1)))
    with pytest.raises(PlanError, match="no cut into 2 fits in memory"):
        planner.plan(graph, 2, stages=2, memory=1000)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"workers": 6, "stages": 4}, "stages: must divide 6 workers, found 4"),
        ({"workers": 4, "stages": 0}, "stages: expected a positive integer, found 0"),
        ({"ways": (2, 2), "workers": 4, "stages": 2}, "ways 2,2 in 2 stages makes 8 workers, not 4"),
        ({"shares": (1, 2), "stages": 2, "workers": 4}, "expected one for each of 2 workers|equal shares"),
    ],
)
def test_stages_that_make_no_sense(options, told):
    with pytest.raises(PlanError, match=told):
        planner.plan(planner.model("mlp-4-16", batch=8), **options)


def test_terms_of_a_weight_of_two_stages_add_up_where_they_are_made():
    """So the table's gradient of the output layer crosses once, however many micro-batches there are."""
    sizes = {"sequence": 8, "vocabulary": 64, "heads": 4}
    crossing = []
    for count in (2, 8):
        graph = planner.model("transformer-2-16", batch=16, micro_batches=count, **sizes)
        plan = planner.plan(graph, 2, stages=2)
        (term,) = (name for name in plan.graph.accumulated if name.startswith("logits"))
        moved = [times * exchange.moved().sum() for name, exchange, times in plan.traffic().exchanges() if name == term]
        crossing.append(sum(moved))
    assert crossing == [64 * 16] * 2


def test_a_sum_that_is_computed_again_is_in_the_link_of_its_segment():
    """Its operands may be of links long before: of a layer far below, whose result is added once more."""
    builder, below = GraphBuilder(), []
    x = builder.input("x", (8, 8))
    for layer in range(8):
        w = builder.weight(f"w{layer}", (8, 8), Init("uniform", 0.5))
        x = builder.apply("relu", builder.apply("mm", x, w, name=f"product{layer}"), name=f"h{layer}")
        below.append(x)
        if layer == 4:
            x = builder.apply("square", builder.apply("add_n", below[0], x, name="skip"), name="squared")
    loss = builder.apply("sum", builder.apply("square", x, name="y"), name="loss", dims=(0, 1))
    graph = training_graph(builder, {"loss": loss}, Optimizer("sgd"), recipe=Recipe(recompute="segments"))
    chain = chain_of(graph)
    again = [node for node in graph.nodes if is_recomputed(graph, node)]
    assert "skip" in {node.forward for node in again}
    assert all(chain.of_node[node.name] == chain.of_node[node.forward] for node in again)
