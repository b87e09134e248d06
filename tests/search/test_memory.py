"""Plans that must fit in memory: their arenas, enumeration, the bound, the errors."""

from dataclasses import replace
from itertools import pairwise, product
from math import prod

import pytest
from hypothesis import given, settings, strategies as st

from planner.errors import PlanError
from planner.graph import GraphBuilder, Init
from planner.models import build
from planner.plans.plan import Plan
from planner.program.lower import arena_sizes, lower
from planner.search import SearchOptions, best_plan, search, space_of
from planner.search.memory import DoesNotFitError, parse_memory
from planner.search.objectives import least_bytes_stored, resident_item_bytes_by_variable
from planner.search.partial_sums import INFEASIBLE
from tensor_partitioner.commands.plan import main
from tests.launcher import exit_status
from tests.search.graphs import random_graph
from tests.search.samples import training_graphs
from topologies import load_topology

MODELS = {
    "mlp-3-64": {"batch": 32},
    "cnn-5-8": {"batch": 8, "image": 8, "classes": 6},
    "rnn-1-16": {"batch": 8, "unroll": 3, "input_width": 5, "classes": 7},
    "transformer-1-64": {"batch": 2, "sequence": 8, "vocabulary": 32},
}


def graph_of(name):
    return build(name, **MODELS[name])


def plan_of(space, choice):
    return Plan(space.coarse.graph, 0, space.ways, space.layouts(choice), space.strategies(choice))


def stored_per_worker(space, choice):
    domains = {v: space.domain(v, (state,)) for v, state in enumerate(choice)}
    return least_bytes_stored(resident_item_bytes_by_variable(space.coarse), domains, space.tables) / prod(space.ways)


@pytest.mark.parametrize("name", MODELS)
def test_arenas_are_those_of_the_program(name):
    plan = search(graph_of(name), SearchOptions((2, 2), placements="S,R"))
    assert arena_sizes(plan) == tuple(worker.arena_bytes for worker in lower(plan).workers)


@given(training_graphs(), st.sampled_from([(2,), (2, 2), (3,)]), st.data())
@settings(max_examples=40, deadline=None)
def test_what_is_priced_is_in_every_arena(graph, ways, data):
    space = space_of(graph, SearchOptions(ways, placements="S,R"))
    choice = [data.draw(st.sampled_from(space.candidates(v))) for v in range(len(space.coarse.variables))]
    assert stored_per_worker(space, choice) <= max(arena_sizes(plan_of(space, choice)))


@given(st.sampled_from(sorted(MODELS)), st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_what_is_priced_is_in_every_arena_of_a_model(name, random):
    space = space_of(graph_of(name), SearchOptions((2, 2), placements="S,R"))
    choice = [random.choice(space.candidates(v)) for v in range(len(space.coarse.variables))]
    stored, arena = stored_per_worker(space, choice), max(arena_sizes(plan_of(space, choice)))
    assert 0.1 * arena < stored <= arena or name == "rnn-1-16"


@pytest.mark.parametrize(
    ("name", "searcher", "objective"),
    [
        ("mlp-3-64", "joint", "bytes"),
        ("cnn-5-8", "recursive", "bytes"),
        ("rnn-1-16", "recursive", "bytes"),
        ("mlp-3-64", "recursive", "time"),
    ],
)
def test_a_tighter_limit_costs_more_and_is_kept(name, searcher, objective):
    machine = load_topology("p2.8xlarge") if objective == "time" else None
    options = SearchOptions((2, 2), searcher, "S,R", objective=objective, machine=machine)
    graph = graph_of(name)
    free = search(graph, options)
    cost, size = free.search.cost, max(arena_sizes(free))
    for part in (1, 0.95, 0.9):
        limit = int(size * part)
        try:
            plan = search(graph, replace(options, memory_bytes=limit, arena_of=arena_sizes))
        except DoesNotFitError as error:
            assert error.least > limit  # noqa: PT017
            break
        memory = plan.search.memory
        assert max(arena_sizes(plan)) == memory.arena_bytes <= limit == memory.limit_bytes
        if searcher == "joint":
            assert max(cost, plan.search.lower_bound) <= plan.search.cost


def product_graph(extents):
    """A product, or a product of products, of an input and weights."""
    b = GraphBuilder()
    result = b.input("x", (extents[0], extents[1]))
    for number, (rows, columns) in enumerate(pairwise(extents[1:])):
        weight = b.weight(f"w{number}", (rows, columns), Init("uniform", 1.0))
        result = b.apply("mm", result, weight, name=f"y{number}")
    return b.finish({}, {})


def every_plan(graph, options):
    """Cost and largest arena of every plan there is."""
    space = space_of(graph, options)
    choices = product(*(space.candidates(v) for v in range(len(space.coarse.variables))))
    costs = [(space.cost(choice), choice) for choice in choices]
    return [(cost, max(arena_sizes(plan_of(space, choice)))) for cost, choice in costs if cost < INFEASIBLE]


def found_within(graph, options, limit, plans):
    """Search under a limit; what is said must be true of every plan. Returns whether it is the cheapest that fits."""
    fitting = [cost for cost, size in plans if size <= limit]
    try:
        report = search(graph, replace(options, memory_bytes=limit, arena_of=arena_sizes)).search
    except DoesNotFitError as error:
        failed = error
    else:
        return found_truly(report, fitting)
    more = failed.least - limit
    assert f"takes {failed.least}, {more} more; every plan takes at least {failed.floor}" in str(failed)
    assert failed.floor <= min(size for _, size in plans) <= failed.least
    assert failed.least > limit
    return not fitting


def found_truly(report, fitting):
    cost = report.cost
    assert cost in fitting
    assert report.lower_bound <= min(fitting) <= cost
    assert (report.gap == 0) == (cost == report.lower_bound)
    return cost == min(fitting)


def sizes_worth_a_limit(plans):
    """Sizes that no cheaper plan undercuts, and a little less than each."""
    sizes = {size for cost, size in plans if not any(other < size and less <= cost for less, other in plans)}
    return sorted({*sizes, *(size - 1 for size in sizes)})


@given(st.tuples(*[st.integers(2, 300)] * 3), st.sampled_from([("S,R", (2,)), ("S", (2, 2)), ("S,R", (3,))]))
@settings(max_examples=10, deadline=None)
def test_against_every_plan_of_a_product(extents, how):
    placements, ways = how
    graph, options = product_graph(extents), SearchOptions(ways, "joint", placements)
    plans = every_plan(graph, options)
    for limit in sizes_worth_a_limit(plans):
        found_within(graph, options, limit, plans)


@pytest.mark.parametrize(
    ("extents", "placements"), [((10, 4, 10, 29), "S,R"), ((99, 1, 27, 262), "S,R,P"), ((64, 32, 16, 8), "S,R,P")]
)
def test_against_every_plan_of_two_products(extents, placements):
    """Prices reach most of the cheapest plans that fit, not all."""
    graph, options = product_graph(extents), SearchOptions((2,), "joint", placements)
    plans = every_plan(graph, options)
    limits = sizes_worth_a_limit(plans)
    assert sum(found_within(graph, options, limit, plans) for limit in limits) >= len(limits) / 2


def test_factors_that_do_not_fit_are_passed_over():
    graph = graph_of("mlp-3-64")
    options = SearchOptions((), placements="S,R")
    sizes = [max(arena_sizes(search(graph, SearchOptions(ways, placements="S")))) for ways in ((2, 2), (4,))]
    plan = best_plan(graph, 4, SearchOptions((), placements="S,R", memory_bytes=max(sizes), arena_of=arena_sizes))
    assert max(arena_sizes(plan)) <= max(sizes)
    with pytest.raises(DoesNotFitError, match=r"fits in 1000 bytes .* takes \d+, \d+ more"):
        best_plan(graph, 4, replace(options, memory_bytes=1000, arena_of=arena_sizes))


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4096", 4096), ("11GiB", 11 * 2**30), ("1.5 MB", 1_500_000), ("2KiB", 2048), ("7B", 7), ("12GB", 12 * 10**9)],
)
def test_sizes_are_read(text, nbytes):
    assert parse_memory(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "11 gib", "1e9", "nan", "1TBs", "0.2"])
def test_other_sizes_are_not(text):
    with pytest.raises(PlanError, match="expected bytes as in 11GiB"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--memory", "little"], "error: Invalid value for '--memory': expected bytes as in 11GiB"),
        (["--memory", "10KiB"], "error: memory: no plan fits in 10240 bytes on every worker"),
        (["--objective", "time"], "error: --objective time: expected --topo MACHINE, found none"),
        (
            ["--topo", "p2.8xlarge"],
            "error: objective bytes takes no machine, found p2.8xlarge; to minimize time on it, use --obj",
        ),
        (["--objective", "time", "--topo", "p9"], "error: p9: expected a topology file, a name that"),
        (["--objective", "time", "--topo", "p2.8xlarge", "--workers", "16"], "at least 16 devices, one per worker"),
    ],
)
def test_errors_are_one_line(more, message, capsys):
    assert exit_status(main, ["mlp-2-64", "--workers", "4", *more]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_the_command_says_what_the_arena_takes(tmp_path, capsys):
    file, shown = tmp_path / "plan.json", []
    searched = [
        "mlp-2-64", "--ways", "2,2", "--memory", "1GiB", "--objective", "time", "--topo", "uniform-8", "-o", file,
    ]  # fmt: skip
    for arguments in (searched, [file]):
        assert exit_status(main, list(map(str, arguments))) == 0
        shown.append(capsys.readouterr().out)
    assert "of 1,073,741,824 bytes allowed" in shown[0]
    assert "time per iteration on uniform-8" in shown[0]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(("seed", "placements", "limit"), [(2017, "S,R,P", 1024), (2002, "S,R", 640)])
def test_joint_is_never_worse_than_the_recursion(seed, placements, limit):
    asked = SearchOptions((2, 2), placements=placements, memory_bytes=limit, arena_of=arena_sizes)
    joint, recursive = (search(random_graph(seed), replace(asked, searcher=name)) for name in ("joint", "recursive"))
    assert joint.total_bytes <= recursive.total_bytes
    assert joint.search.lower_bound <= joint.total_bytes


def test_the_least_is_that_of_all_factorisations():
    asked = SearchOptions((), memory_bytes=1, arena_of=arena_sizes)
    with pytest.raises(DoesNotFitError) as error:
        best_plan(random_graph(9001), 8, asked)
    for ways in ((2, 2, 2), (4, 2), (8,)):
        with pytest.raises(DoesNotFitError) as refused:
            search(random_graph(9001), replace(asked, ways=ways))
        assert error.value.floor <= refused.value.floor
        assert error.value.least <= refused.value.least


def test_a_limit_without_a_way_to_size_arenas():
    with pytest.raises(PlanError, match="memory_bytes: needs arena_of"):
        search(product_graph((4, 4, 4)), SearchOptions((2,), memory_bytes=1))
