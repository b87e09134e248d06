"""Plans searched by nobody."""

from planner.graph.accumulation import accumulation_groups
from planner.layout import EVERYWHERE, PARTIAL, REPLICATE, TERMS, Shard, Ways, can_split, eligible, signatures
from planner.plans.check import check_plan
from planner.plans.plan import Plan


def random_plan(g, ways, rng):
    """Any layout and strategy that the rules allow, partial sums among them, searched by nobody."""
    ways = ways if isinstance(ways, Ways) else Ways(ways)
    found = signatures(g)
    sums = accumulation_groups(g)
    shown = {*g.updates, *g.updates.values(), *g.metrics.values()}
    layouts, strategies = {}, {}

    def layout(name, partial=()):
        shape = g.tensors[name].shape
        steps = []
        for step in range(len(ways)):
            fits = [Shard(d) for d, n in enumerate(shape) if eligible(n, ways, step)]
            steps.append(rng.choice([*fits, REPLICATE, *[PARTIAL] * (2 * (step in partial))]))
        return tuple(steps)

    def choice(node, step):
        signature = found[node.name]
        description = signature.description
        fits = [v for v in description.strategies if can_split(signature, v, ways, step)]
        options = [*fits, EVERYWHERE] if description.is_elementwise or description.is_opaque or not fits else fits
        terms = frozenset(n for n, name in enumerate(node.inputs) if layouts[name][step] == PARTIAL)
        return rng.choice([*options, *[TERMS] * (3 * bool(terms and description.linear(terms)))])

    for tensor in g.tensors.values():
        if tensor.init is not None:
            layouts[tensor.name] = layout(tensor.name)
    for node in g.nodes:
        strategies[node.name] = tuple(choice(node, step) for step in range(len(ways)))
        summands = sums.get(node.name, ())
        maker = summands[0] if summands and len({strategies[name] for name in summands}) == 1 else node.name
        rules = found[maker].description.strategies
        partial = [
            step
            for step, chosen in enumerate(strategies[maker])
            if chosen == TERMS or (chosen in rules and rules[chosen].reducer == "Sum")
        ]
        for name in node.outputs:
            layouts[name] = layout(name, () if name in shown else partial)
    for old, new in g.updates.items():
        layouts[new] = layouts[old]
    plan = Plan(g, 0, ways, layouts, strategies)
    check_plan(plan)
    return plan
