"""The searches that Tofu and SoyBean compare theirs with: what each may choose, enumeration within the restriction."""

import pytest

from planner.graph import GraphBuilder
from planner.graph.micro_batches import tensors_read_as_terms
from planner.layout import PARTIAL, REPLICATE, TERMS, Shard, eligible, signatures
from planner.models import build
from planner.plans.check import check_plan
from planner.search import Limits, SearchOptions, search, space_of
from planner.search.coarse.coarsen import TensorVariable
from planner.search.space import Space
from results.searchers import ALL, ONE_WEIRD_TRICK, TOFUS
from tests.search.brute import least_bytes
from tests.search.graphs import random_graph
from tests.search.test_alternatives import (
    MODELS,
    WAYS,
    graph_of_extents_of_one,
    model,
    normalized,
    reshaped,
    tensor_steps,
)


@pytest.mark.parametrize("name", TOFUS)
def test_they_keep_to_the_placements_asked_for(name):
    assert search(random_graph(0), SearchOptions((2,), name, "S")).search.placements == "S"


@pytest.mark.parametrize("name", [*TOFUS, ONE_WEIRD_TRICK])
@pytest.mark.parametrize("make", [reshaped, normalized])
def test_an_extent_of_one_has_no_digits(make, name):
    check_plan(search(graph_of_extents_of_one(make), SearchOptions((2, 2), name, "S,R")))


@pytest.mark.parametrize("name", [*TOFUS, ONE_WEIRD_TRICK])
@pytest.mark.parametrize("seed", range(6))
def test_none_is_below_joint(name, seed):
    space = space_of(random_graph(seed), SearchOptions((2, 2), placements="S,R"))
    outcome = ALL[name].search(space, Limits())
    assert space.cost(outcome.choice) == outcome.cost >= ALL["joint"].search(space, Limits()).lower_bound


def test_equalchop_uses_one_dimension_and_one_variable():
    graph = build("mlp-2-16", batch=8)
    plan = search(graph, SearchOptions((2, 2, 2), "equalchop"))
    assert all(len(set(layout)) == 1 for layout in plan.layouts.values())
    assert all(len(set(strategy)) == 1 for strategy in plan.strategies.values())


def test_equalchop_finds_what_the_authors_prototype_finds():
    options = {"batch": 512, "optimizer": "none", "first_input_gradient": True}
    plan = search(build("mlp-4-8192", **options), SearchOptions((2, 2, 2), "equalchop", "S"))
    loss = 4 * 512 * 8
    assert 4 * 234_881_024 <= plan.total_bytes <= 4 * 234_881_024 + 2 * loss


def test_spartan_moves_less_than_the_authors_prototype_of_it():
    options = {"batch": 512, "optimizer": "none", "first_input_gradient": True}
    graph = build("mlp-4-8192", **options)
    spartan, joint = (search(graph, SearchOptions((2, 2, 2), name, "S")).total_bytes for name in ("spartan", "joint"))
    assert joint < spartan < 4 * 286_261_248


def test_spartan_splits_the_largest_tensor_as_its_reader_would_have_it():
    b = GraphBuilder()
    b.apply("mm", b.input("x", (64, 8)), b.input("w", (8, 4)), name="y")
    plan = search(b.finish({}, {}), SearchOptions((2,), "spartan", "S"))
    assert plan.layouts["x"] == plan.layouts["y"] == (Shard(0),)
    assert plan.total_bytes == 8 * 4 * 4


def test_spartan_never_revises_a_decision():
    graph = model("rnn-2-6")
    spartan, joint = (search(graph, SearchOptions((2, 2), name, "S,R")).total_bytes for name in ("spartan", "joint"))
    assert joint < spartan


@pytest.mark.parametrize("placements", ["S", "S,R"])
@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_allrow_splits_the_first_dimension_that_can_be_split(name, ways, placements):
    plan = search(model(name), SearchOptions(ways, "allrow", placements))
    terms = tensors_read_as_terms(plan.graph)
    for tensor, _, placement, splits in tensor_steps(plan):
        if tensor.name in terms and placement == PARTIAL:
            continue
        first = splits.index(True) if True in splits else None
        assert placement == (REPLICATE if first is None else Shard(first)), tensor.name


@pytest.mark.parametrize("placements", ["S", "S,R"])
@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_icml18_reduces_only_where_nothing_else_can_be_split(name, ways, placements):
    plan = search(model(name), SearchOptions(ways, "icml18", placements))
    signature_of = signatures(plan.graph)
    for node, strategy in plan.strategies.items():
        description, extents = signature_of[node].description, signature_of[node].extents
        for step, choice in enumerate(strategy):
            if choice in description.reduction_variables:
                outputs = set(description.output_variables) & set(description.strategies)
                assert not any(eligible(extents[variable], ways, step) for variable in outputs)
                assert not description.is_elementwise


@pytest.mark.parametrize("ways", WAYS)
def test_the_one_weird_trick_changes_over_at_the_first_fully_connected_layer(ways):
    plan = search(model("wresnet-14-0.0625"), SearchOptions(ways, "one-weird-trick"))
    fc = {node.inputs[1] for node in plan.graph.nodes if node.op == "mm" and node.forward is None}
    assert len(fc) == 1
    for tensor, _, placement, splits in tensor_steps(plan):
        if tensor.role == "weight" and len(tensor.shape) == 4:
            assert placement == REPLICATE
        elif tensor.name in fc and any(splits):
            assert isinstance(placement, Shard)
    convolutions = [node.name for node in plan.graph.nodes if node.op == "convolution"]
    batch = model("wresnet-14-0.0625").tensors["images"].shape[0]
    for step in range(len(ways)):
        if eligible(batch, ways, step):
            assert {plan.strategies[node][step] for node in convolutions} == {"n"}


def test_without_convolutions_the_one_weird_trick_is_model_parallelism():
    space = space_of(model("rnn-2-6"), SearchOptions((2, 2), placements="S,R"))
    trick, whole = (ALL[name].search(space, Limits()) for name in ("one-weird-trick", "model-parallel"))
    assert trick.cost == whole.cost


class Restricted(Space, frozen=True, eq=False):
    """A space in which every state satisfies `allowed(variable, state, states)`, where any does."""

    allowed: object = None

    def candidates(self, v):
        states = Space.candidates(self, v)
        variable = self.coarse.variables[v]
        return tuple(state for state in states if self.allowed(variable, state, states)) or states


def of_terms(option):
    """Whether an option is of terms that are added up before they move, which no rule forbids."""
    return option == PARTIAL or str(option).startswith(TERMS)


def constant(_, state, __):
    return len({option for option in state if not of_terms(option)}) <= 1


def without_reduction(variable, state, states):
    if isinstance(variable, TensorVariable):
        return True
    reducing = variable.signature.description.reduction_variables
    avoidable = [any(other[step] not in reducing for other in states) for step in range(len(state))]
    return not any(choice in reducing and other for choice, other in zip(state, avoidable, strict=True))


def first_dimension(variable, state, states):
    keeps = (option == first or of_terms(option) for option, first in zip(state, states[0], strict=True))
    return not isinstance(variable, TensorVariable) or all(keeps)


RULES = {"equalchop": constant, "icml18": without_reduction, "allrow": first_dimension}


@pytest.mark.parametrize("name", RULES)
def test_within_its_restriction_each_is_exact(name):
    compared = 0
    for seed in range(48):
        ways = ((2,), (3,), (2, 2))[seed // 8 % 3]
        space = space_of(random_graph(seed), SearchOptions(ways, placements="S,R"))
        if name == "equalchop" and not all(
            map(has_constant, map(space.candidates, range(len(space.coarse.variables))))
        ):
            continue
        restricted = Restricted(
            space.coarse, space.ways, space.replicate, partial_sums=space.partial_sums, allowed=RULES[name]
        )
        least = least_bytes(restricted, 40_000)
        if least is not None:
            assert ALL[name].search(space, Limits()).cost == least, seed
            compared += 1
    assert compared >= 5


def has_constant(states):
    return any(len(set(state)) <= 1 for state in states)
