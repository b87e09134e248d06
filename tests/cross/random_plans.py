"""Plans searched by nobody."""

from planner.graph.chain import chain_of
from planner.layout import EVERYWHERE, PARTIAL, REPLICATE, TERMS, At, Shard, Ways, can_split, eligible, signatures
from planner.plans.check import check_plan
from planner.plans.plan import Plan
from planner.plans.records import read_schedule
from planner.search.stages import staged


def random_plan(g, ways, rng, stages=()):
    """Any layout and strategy that the rules allow, partial sums among them, searched by nobody.

    At the steps `stages` tensors and nodes may be of one group of workers, and mostly are.
    """
    ways = ways if isinstance(ways, Ways) else Ways(ways)
    by_node = signatures(g)
    shown = {*g.updates, *g.updates.values(), *g.metrics.values()}
    layouts, strategies = {}, {}

    def layout(name, partial=()):
        shape = g.tensors[name].shape
        steps = []
        for step in range(len(ways)):
            fits = [Shard(d) for d, n in enumerate(shape) if eligible(n, ways, step)]
            groups = [At(group) for group in range(ways[step])] * (3 * (step in stages))
            steps.append(rng.choice([*fits, REPLICATE, *[PARTIAL] * (2 * (step in partial)), *groups]))
        return tuple(steps)

    def choice(node, step):
        signature = by_node[node.name]
        description = signature.description
        fits = [v for v in description.strategies if can_split(signature, v, ways, step)]
        options = [*fits, EVERYWHERE] if description.is_elementwise or description.is_opaque or not fits else fits
        terms = frozenset(n for n, name in enumerate(node.inputs) if layouts[name][step] == PARTIAL)
        groups = [f"@{group}" for group in range(ways[step])] * (3 * (step in stages))
        return rng.choice([*options, *groups, *[TERMS] * (3 * bool(terms and description.linear(terms)))])

    for tensor in g.tensors.values():
        if tensor.init is not None:
            layouts[tensor.name] = layout(tensor.name)
    for node in g.nodes:
        strategies[node.name] = tuple(choice(node, step) for step in range(len(ways)))
        rules = by_node[node.name].description.strategies
        partial = [
            step
            for step, chosen in enumerate(strategies[node.name])
            if chosen == TERMS or (chosen in rules and rules[chosen].reducer == "Sum")
        ]
        for name in node.outputs:
            layouts[name] = layout(name, () if name in shown else partial)
    for old, new in g.updates.items():
        layouts[new] = layouts[old]
    plan = Plan(g, 0, ways, layouts, strategies)
    check_plan(plan)
    return plan


def random_pipeline(g, stages, ways, schedule, rng):
    """A random plan within stages of random runs of links; so many ways within a stage."""
    chain = chain_of(g)
    runs = stages * read_schedule(schedule)[1]
    cut = (0, *sorted(rng.sample(range(1, chain.links), runs - 1)), chain.links)
    plan = staged(random_plan(g, ways, rng), chain, cut, schedule)
    check_plan(plan)
    return plan
