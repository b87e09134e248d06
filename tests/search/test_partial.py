"""Partial sums in the search: tables = exchanges, what goes together = what a plan may hold, the best = brute force."""

import random

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from msgspec.structs import replace

from planner.errors import PlanError
from planner.graph import GraphBuilder, Init
from planner.graph.optimizers import Optimizer
from planner.graph.training import training_graph
from planner.layout import (
    EVERYWHERE,
    PARTIAL,
    REPLICATE,
    TERMS,
    Exchange,
    Shard,
    Ways,
    eligible,
    fetch,
    needed,
    production,
    signatures,
    store,
)
from planner.models import build
from planner.plans.check import check_plan, check_search
from planner.plans.plan import Plan
from planner.search import SEARCHERS, Limits, SearchOptions, Ties, search, space_of
from planner.search.coarse import TensorVariable
from planner.search.costs.cost import FetchCost, StoreCost
from planner.search.costs.domains import (
    choice_carrying_operands,
    choices_at_step,
    layouts_domain,
    operands_carried_by_choice,
    strategies_domain,
)
from planner.search.costs.volumes import operand_need
from planner.search.partial_sums import INFEASIBLE, PartialSums, linear_sets, penalty_above_cost
from tests.cross.loopback import trains_as_one_worker
from tests.layout.closed_forms import by_level
from tests.search.brute import least_bytes
from tests.search.samples import (
    TOO_MANY_PLANS,
    WAYS,
    loose_ends,
    readers_of_one_tensor,
    signature,
    squares,
    training_graphs,
)

UNTIED = Ties(elementwise=False, updates=False)


def strategies_with_terms(draw, node, ways):
    """A few strategies of a node, among them some that carry terms, as the search names them."""
    sets = [choice_carrying_operands(chosen) for chosen in linear_sets(node.description)]

    def strategy():
        return tuple(
            draw(st.sampled_from([*choices_at_step(node, ways, step, replicate=True), *sets]))
            for step in range(len(ways))
        )

    return strategies_domain(node, ways, tuple(dict.fromkeys(strategy() for _ in range(3))))


def layouts_with_terms(draw, shape, ways):
    def layout():
        fits = ([Shard(d) for d, n in enumerate(shape) if eligible(n, ways, step)] for step in range(len(ways)))
        return tuple(draw(st.sampled_from([*options, REPLICATE, PARTIAL, PARTIAL])) for options in fits)

    return layouts_domain(shape, ways, tuple(dict.fromkeys(layout() for _ in range(3))))


def plain(strategy):
    """The strategy as plans write it."""
    return tuple(TERMS if choice.startswith(TERMS) else choice for choice in strategy)


def terms_of(strategy):
    return frozenset(step for step, choice in enumerate(strategy) if choice.startswith(TERMS))


def carries_well(strategy, operands, layout):
    """Whether a tensor is partial exactly where, of the steps that carry terms, the strategy carries its."""
    return all(
        operands_carried_by_choice(choice).issuperset(operands)
        if placement == PARTIAL
        else operands_carried_by_choice(choice).isdisjoint(operands)
        for choice, placement in zip(strategy, layout, strict=True)
        if choice.startswith(TERMS)
    )


def crossed(cost, strategies, layouts):
    traffic = cost.level_traffic(strategies, layouts)
    return traffic.table_over_strategies(traffic.table_by_level())


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_fetch_of_a_partial_tensor(data):
    node, ways = data.draw(st.one_of(signature(), squares())), data.draw(WAYS)
    operand = data.draw(st.integers(0, len(node.shapes) - 1))
    shape = node.shapes[operand]
    strategies = strategies_with_terms(data.draw, node, ways)
    layouts = layouts_with_terms(data.draw, shape, ways)
    read = FetchCost(shape, ((operand_need(node, operand),),), ((operand,),))
    table, across = read.table([strategies], layouts), crossed(read, [strategies], layouts)
    flags = read.infeasibility_flags([strategies], layouts)
    for s, strategy in enumerate(strategies.states):
        need = needed(node, operand, plain(strategy), ways)
        for at, layout in enumerate(layouts.states):
            feasible = carries_well(strategy, {operand}, layout)
            assert feasible == (flags is None or not flags[s, at])
            if feasible:
                moved = fetch(shape, layout, need, ways, terms_of(strategy)).moved()
                assert table[s, at] == moved.sum()
                assert across[:, s, at].tolist() == by_level(moved, ways)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_readers_share_what_they_fetch_alike(data):
    """Readers of a backward group that carry the same terms share one fetch; others fetch on their own."""
    ways, nodes = data.draw(WAYS), data.draw(readers_of_one_tensor())
    shape, numbers = nodes[0].shapes[0], range(len(nodes))
    strategies = [strategies_with_terms(data.draw, node, ways) for node in nodes]
    layouts = layouts_with_terms(data.draw, shape, ways)
    groups = [tuple(n for n in numbers if bits >> n & 1) for bits in range(1, 1 << len(nodes))]
    reads = [
        (group, FetchCost(shape, tuple((operand_need(nodes[n], 0),) for n in group), tuple((0,) for _ in group)))
        for group in groups
    ]
    tables = [(group, read.table([strategies[n] for n in group], layouts)) for group, read in reads]
    across = [(group, crossed(read, [strategies[n] for n in group], layouts)) for group, read in reads]
    for states in np.ndindex(*(len(domain.states) for domain in strategies)):
        chosen = [domain.states[s] for domain, s in zip(strategies, states, strict=True)]
        for at, layout in enumerate(layouts.states):
            if not all(carries_well(strategy, {0}, layout) for strategy in chosen):
                continue
            earlier, moved = {}, []
            for node, strategy in zip(nodes, chosen, strict=True):
                need = needed(node, 0, plain(strategy), ways)
                exchange = fetch(shape, layout, need, ways, terms_of(strategy))
                had = earlier.setdefault(exchange.fixed, [])
                moved.append(
                    Exchange(ways, exchange.sources, need, exchange.fixed, exchange.reducer, tuple(had)).moved()
                )
                had.append(need)
            total = sum(table[(*(states[n] for n in group), at)] for group, table in tables)
            assert total == sum(matrix.sum() for matrix in moved)
            levels = sum(table[(slice(None), *(states[n] for n in group), at)] for group, table in across)
            assert levels.tolist() == by_level(sum(moved), ways)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_store_as_a_partial_tensor(data):
    node, ways = data.draw(signature()), data.draw(WAYS)
    strategies = strategies_with_terms(data.draw, node, ways)
    layouts = layouts_with_terms(data.draw, node.outputs[0], ways)
    check_stores(node, ways, strategies, layouts)


def test_shares_that_differ_are_fetched_from_all_who_have_part_of_them():
    """What was reduced to shares is cut by each worker's own shares where the work was the same, `*`."""
    b, ways = GraphBuilder(), Ways((2, 2, 2), (2, 2, 2, 2, 2, 2, 1, 1))
    b.apply("mul", b.input("a", (1, 5)), b.input("b", (5,)), name="node", dims=(1,))
    node = signatures(b.finish({}, {}))["node"]
    strategies = strategies_domain(node, ways, (("i1", "*", "+{0}"),))
    layouts = layouts_domain((1, 5), ways, ((REPLICATE, Shard(1), REPLICATE),))
    check_stores(node, ways, strategies, layouts)
    assert StoreCost(node, 0).table([strategies], layouts) == 20


def check_stores(node, ways, strategies, layouts):
    """Expect tables to say of every pair what the exchanges move, and whether it goes together."""
    write = StoreCost(node, 0)
    table, across = write.table([strategies], layouts), crossed(write, [strategies], layouts)
    flags = write.infeasibility_flags([strategies], layouts)
    for s, strategy in enumerate(strategies.states):
        written = production(node, 0, plain(strategy), ways)
        for at, layout in enumerate(layouts.states):
            rules = node.description.strategies
            sums = [c.startswith(TERMS) or (c != EVERYWHERE and rules[c].reducer == "Sum") for c in strategy]
            feasible = all(sum_ for sum_, placement in zip(sums, layout, strict=True) if placement == PARTIAL)
            assert feasible == (flags is None or not flags[s, at])
            if feasible:
                moved = [hop.moved() for hop in store(written, layout, ways)]
                assert table[s, at] == sum(matrix.sum() for matrix in moved)
                assert across[:, s, at].tolist() == by_level(sum(moved), ways)


def two_products(batch=2, width=8, depth=32):
    """Two wide layers side by side, whose products with weights are added: sums over the wide dimension."""
    b = GraphBuilder("float64")
    x, products = b.input("x", (batch, width)), []
    for name in ("first", "second"):
        wide = b.apply("mm", x, b.weight(f"{name}.up", (width, depth), Init("uniform", 1.0)), name=f"{name}.wide")
        wide = b.apply("relu", wide, name=f"{name}.act")
        down = b.weight(f"{name}.down", (depth, width), Init("uniform", 1.0))
        products.append(b.apply("mm", wide, down, name=name))
    total = b.apply("relu", b.apply("add", *products, name="total"), name="act")
    loss = b.apply("sum", total, name="loss", dims=(0, 1))
    return training_graph(b, {"loss": loss}, Optimizer("sgd"))


@pytest.mark.parametrize("searcher", ["recursive", "joint"])
@pytest.mark.parametrize("ways", [(2,), (2, 2), (3,)])
def test_two_partial_sums_are_added_and_reduced_once(ways, searcher):
    graph = two_products()
    anything = search(graph, SearchOptions(ways, searcher, "S,R,P"))
    plan = search(graph, SearchOptions(ways, searcher, "S,R"))
    check_plan(plan)
    check_search(plan)
    assert plan.total_bytes == plan.search.bytes[searcher] == anything.total_bytes
    assert PARTIAL in plan.layouts["first"]
    assert TERMS in plan.strategies["total"]
    trains_as_one_worker(plan)


@given(training_graphs(most_layers=2), st.sampled_from([(2,), (2, 2), (3,)]), st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=TOO_MANY_PLANS)
def test_joint_is_the_best_of_all(graph, ways, tied):
    options = SearchOptions(ways, "joint", "S,R,P", None if tied else UNTIED)
    space = space_of(graph, options)
    least = least_bytes(space)
    assume(least is not None)
    outcome = SEARCHERS["joint"].search(space, options.limits)
    assert outcome.cost == outcome.lower_bound == least == space.cost(outcome.choice)
    recursive = SEARCHERS["recursive"].search(space, options.limits)
    without = SEARCHERS["recursive"].search(space.without_optional_partial_sums(), options.limits)
    assert least <= recursive.cost <= without.cost


def anything_partial(space):
    """The space in which every result that nothing but nodes looks at may be partial, and all terms be carried."""
    coarse, nodes, tensors = space.coarse, {}, set()
    shown = {*coarse.graph.updates, *coarse.graph.updates.values(), *coarse.graph.metrics.values()}
    for node in coarse.graph.nodes:
        nodes[coarse.variable_of["node", node.name]] = linear_sets(coarse.signatures[node.name].description)
        tensors.update(coarse.variable_of["tensor", name] for name in node.outputs if name not in shown)
    steps = len(space.ways)
    return replace(space, partial_sums=PartialSums((frozenset(tensors),) * steps, (nodes,) * steps))


@given(loose_ends(), st.sampled_from([(2,), (3,), (2, 2)]))
@settings(max_examples=60, deadline=None, suppress_health_check=TOO_MANY_PLANS)
def test_no_plan_is_below_what_joint_proves(graph, ways):
    """Results without a reader among them: kept partial, they cost nothing."""
    space = space_of(graph, SearchOptions(ways, "joint", "S,R,P", UNTIED))
    least = least_bytes(anything_partial(space))
    assume(least is not None)
    outcome = SEARCHERS["joint"].search(space, Limits())
    assert outcome.cost == outcome.lower_bound == least


def test_what_nobody_reads_stays_partial():
    b = GraphBuilder()
    b.apply("sum", b.input("x", (8,)), name="unread", dims=(0,))
    plan = search(b.finish({}, {}), SearchOptions((2, 4), "joint", "S,R,P"))
    check_plan(plan)
    assert plan.total_bytes == plan.search.lower_bound == 0
    assert PARTIAL in plan.layouts["unread"]


TINY = {
    "mlp-2-12": {"batch": 6},
    "rnn-2-6": {"batch": 4, "unroll": 3, "input_width": 5, "classes": 7},
    "wresnet-14-0.0625": {"batch": 4, "image": 16, "classes": 6},
}


@pytest.mark.parametrize("ways", [(2,), (3, 2)])
@pytest.mark.parametrize("name", TINY)
def test_reported_bytes_are_the_plans_and_never_more_than_without(name, ways):
    graph = build(name, **TINY[name])
    for ties in (None, UNTIED)[: 1 if name.startswith("wresnet") else 2]:
        plan, without = (search(graph, SearchOptions(ways, "recursive", p, ties)) for p in ("S,R,P", "S,R"))
        check_plan(plan)
        assert plan.total_bytes == plan.search.bytes[plan.search.winner] <= without.total_bytes
        assert plan.search.placements == "S,R,P"


def drawn(space, draw):
    """A choice that often goes together: terms where they can be carried, results partial where they are summed."""
    coarse = space.coarse
    choice = [draw.choice(space.candidates(v)) for v in range(len(coarse.variables))]
    for v, variable in enumerate(coarse.variables):
        if not isinstance(variable, TensorVariable) and draw.random() < 0.9:
            members = [node for node in coarse.graph.nodes if node.name in variable.members]
            choice[v] = tuple(
                draw.choice([
                    option
                    for option in space.options(v, step)
                    if not (some := operands_carried_by_choice(option)) or fits(coarse, choice, members, some, step)
                ])
                for step in range(len(space.ways))
            )  # fmt: skip
    return choice


def fits(coarse, choice, members, chosen, step):
    """Whether just these operands are partial."""
    of = coarse.variable_of
    return all(
        (choice[of["tensor", name]][step] == PARTIAL) == (operand in chosen)
        for node in members
        for operand, name in enumerate(node.inputs)
    )


@pytest.mark.parametrize("placements", ["S", "S,R", "S,R,P"])
@pytest.mark.parametrize(("model", "ties"), [("rnn-1-4", Ties(updates=False)), ("two products", UNTIED)])
def test_what_costs_a_plan_is_a_plan(model, ties, placements):
    """Whether a choice is feasible is what the check of plans says; then it costs what the plan moves."""
    small = {"batch": 4, "unroll": 2, "input_width": 4, "classes": 4}
    graph = two_products(4, 4, 4) if model == "two products" else build(model, **small)
    space = space_of(graph, SearchOptions((2, 2), placements=placements, ties=ties))
    feasible = infeasible = 0
    for seed in range(60):
        choice = drawn(space, random.Random(seed))
        plan = Plan(graph, 0, space.ways, space.layouts(choice), space.strategies(choice))
        cost = space.cost(choice)
        try:
            check_plan(plan)
        except PlanError:
            infeasible += 1
            assert cost >= INFEASIBLE
        else:
            feasible += 1
            assert cost == plan.total_bytes
    assert feasible > 3
    assert infeasible > 3


def test_what_is_looked_at_is_never_partial():
    graph = build("wresnet-14-0.0625", **TINY["wresnet-14-0.0625"])
    space = space_of(graph, SearchOptions((2,), placements="S,R,P"))
    names = {name for v in space.partial_sums.partial[0] for name in space.coarse.variables[v].members}
    assert "stage4.unit1.conv1.grad_input" in names
    assert not names & {*graph.updates, *graph.updates.values(), *graph.metrics.values()}
    assert not names & {name for name, tensor in graph.tensors.items() if tensor.init is not None}


def test_plans_too_costly_for_penalties_are_refused():
    space = space_of(two_products(), SearchOptions((2,), placements="S,R,P"))
    assert penalty_above_cost(space.coarse, 10**9) == 10**9 + 1
    with pytest.raises(
        PlanError, match=r"partial sums can be searched only .*, found 1000000000000000000: search with"
    ):
        penalty_above_cost(space.coarse, 10**18)


@pytest.mark.parametrize(("memory_bytes", "is_bounded"), [(1 << 20, True), (0, False)])
def test_a_bounded_search_finds_a_plan_too(memory_bytes, is_bounded):
    limits = Limits(memory_bytes=memory_bytes, operations=0, seconds=0.5)
    graph = two_products()
    space = space_of(graph, SearchOptions((2, 2), placements="S,R,P"))
    outcome = SEARCHERS["joint"].search(space, limits)
    plan = Plan(graph, 0, space.ways, space.layouts(outcome.choice), space.strategies(outcome.choice))
    check_plan(plan)
    assert (outcome.lower_bound is not None) is is_bounded
    assert plan.total_bytes == outcome.cost >= (outcome.lower_bound or 0)
