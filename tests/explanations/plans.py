"""Hypothesis strategy: any plan of a small training graph, good or bad."""

from hypothesis import strategies as st

from planner.layout import Ways, signatures
from planner.plans.check import check_plan
from planner.plans.plan import Plan
from planner.search.costs.domains import choices_at_step, placements_at_step
from tests.search.samples import training_graphs

GRAPHS = training_graphs()
WAYS = st.sampled_from([(), (2,), (3,), (2, 2), (4, 2), (2, 2, 2)]).map(Ways)


@st.composite
def any_plan(draw, graphs=GRAPHS, ways=WAYS):
    """Placements and choices drawn one by one; an updated tensor lies as what it replaces."""
    graph, ways = draw(graphs), draw(ways)
    chance = draw(st.randoms(use_true_random=False))
    steps = range(len(ways))
    layouts = {
        name: tuple(chance.choice(placements_at_step(tensor.shape, ways, step, replicate=True)) for step in steps)
        for name, tensor in graph.tensors.items()
    }
    layouts |= {new: layouts[old] for old, new in graph.updates.items()}
    strategies = {
        name: tuple(chance.choice(choices_at_step(signature, ways, step, replicate=True)) for step in steps)
        for name, signature in signatures(graph).items()
    }
    plan = Plan(graph, 0, ways, layouts, strategies)
    check_plan(plan)
    return plan
