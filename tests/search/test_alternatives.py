"""The alternatives: what each may choose, worked examples, published figures, enumeration within the restriction."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from planner.graph import GraphBuilder, Init
from planner.graph.accumulation import tensors_read_as_terms
from planner.graph.optimizers import Optimizer
from planner.graph.training import training_graph
from planner.layout import EVERYWHERE, PARTIAL, REPLICATE, TERMS, Shard, Ways, eligible, signatures
from planner.models import build
from planner.plans.check import check_plan
from planner.search import SEARCHERS, Limits, SearchOptions, search, space_of
from planner.search.coarse.coarsen import TensorVariable
from planner.search.space import Space
from tests.search.brute import least_bytes
from tests.search.graphs import random_graph
from tests.tdl.reshaping import reshape_attributes

MODELS = {
    "mlp-2-12": {"batch": 8},
    "rnn-2-6": {"batch": 4, "unroll": 3, "input_width": 5, "classes": 7},
    "cnn-5-4": {"batch": 5, "image": 7, "classes": 3},
    "wresnet-14-0.0625": {"batch": 4, "image": 16, "classes": 6},
}
WAYS = (Ways((2,)), Ways((2, 2)), Ways((3, 2)))
LOSS = 4 * 2 * 15
"""A scalar loss, reduced by one worker and fetched by the 15 others."""


def chain(batch, widths):
    """Fully connected layers of these widths without anything between, and SGD."""
    b = GraphBuilder()
    x = b.input("x", (batch, widths[0]))
    for layer, shape in enumerate(pairwise(widths)):
        x = b.apply("mm", x, b.weight(f"w{layer}", shape, Init("uniform", 1.0)), name=f"fc{layer}")
    loss = b.apply("sum", x, name="loss", dims=(0, 1))
    return training_graph(b, {"loss": loss}, Optimizer("sgd"))


def model(name):
    return build(name, **MODELS[name])


def tensor_steps(plan):
    """Every tensor and step: (tensor, step, placement, can its dimensions be split there)."""
    for name, layout in plan.layouts.items():
        tensor = plan.graph.tensors[name]
        for step, placement in enumerate(layout):
            yield tensor, step, placement, [eligible(extent, plan.ways, step) for extent in tensor.shape]


REPLICATING = [name for name, searcher in SEARCHERS.items() if "S" not in searcher.placements]


@pytest.mark.parametrize("name", REPLICATING)
def test_parallelism_implies_replication_and_says_so(name):
    plan = search(model("mlp-2-12"), SearchOptions((2,), name, "S"))
    assert plan.search.placements == "S,R"
    assert plan.layouts == search(model("mlp-2-12"), SearchOptions((2,), name, "S,R")).layouts


@pytest.mark.parametrize("name", sorted(set(SEARCHERS) - set(REPLICATING)))
def test_the_others_keep_to_what_is_asked_for(name):
    assert search(random_graph(0), SearchOptions((2,), name, "S")).search.placements == "S"


def reshape(b, x, shape, name):
    return b.apply("reshape", x, name=name, **reshape_attributes(b.shape(x), shape))


def reshaped(b):
    """(4, 4) to (4, 1, 4): a dimension that no variable counts through."""
    return reshape(b, b.apply("relu", b.input("x", (4, 4)), name="act"), (4, 1, 4), "wide")


def normalized(b):
    """A group norm of one group."""
    x = b.apply("mm", b.input("x", (4, 6)), b.weight("w", (6, 6), Init("uniform", 1.0)), name="fc")
    x = reshape(b, reshape(b, x, (4, 6, 1), "image"), (4, 1, 6, 1), "groups")
    weights = [b.weight(name, (6,), Init("uniform", 1.0)) for name in ("scale", "shift")]
    weight, bias = (reshape(b, name, (1, 6), f"{name}.groups") for name in weights)
    mean = b.apply("mean", x, name="mean", dims=(2, 3), count=6)
    var = b.apply("var", x, mean, name="var", dims=(2, 3), count=6)
    x = b.apply("normalize", x, mean, var, weight, bias, name="y", statistics=(0, 1), weights=(1, 2), eps=1e-5)
    return reshape(b, x, (4, 6, 1), "back")


@pytest.mark.parametrize("name", SEARCHERS)
@pytest.mark.parametrize("make", [reshaped, normalized])
def test_an_extent_of_one_has_no_digits(make, name):
    b = GraphBuilder()
    x = make(b)
    loss = b.apply("sum", x, name="loss", dims=tuple(range(len(b.shape(x)))))
    graph = training_graph(b, {"loss": loss}, Optimizer("sgd"))
    check_plan(search(graph, SearchOptions((2, 2), name, "S,R")))


# SoyBean's example, Sec 2.2: five layers of 300 x 300, batch 400, 16 workers. The text multiplies by k where k - 1
# workers receive: 57.6 MB, 76.8 MB and, with four groups of four, 33.6 MB.


def test_data_parallelism_reduces_every_gradient_and_fetches_it():
    plan = search(chain(400, [300] * 6), SearchOptions((4, 4), "data-parallel"))
    assert plan.total_bytes == 2 * 15 * 5 * 300 * 300 * 4 + LOSS


def test_soybeans_five_layers():
    bytes_of = {
        name: search(chain(400, [300] * 6), SearchOptions((4, 4), name)).total_bytes
        for name in ("data-parallel", "model-parallel", "hybrid")
    }
    assert bytes_of["hybrid"] < bytes_of["model-parallel"] < bytes_of["data-parallel"] < 57.6e6
    assert bytes_of["model-parallel"] < 76.8e6
    assert bytes_of["hybrid"] < 33.6e6


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
@pytest.mark.parametrize("name", MODELS)
def test_data_parallelism_replicates_what_has_no_batch(name, ways):
    plan = search(model(name), SearchOptions(ways, "data-parallel"))
    for tensor, _, placement, splits in tensor_steps(plan):
        if tensor.role in {"weight", "state", "loss"}:
            assert placement == REPLICATE
        if tensor.role == "input":
            assert placement == Shard(0) or not splits[0]


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_model_parallelism_splits_weights_along_one_dimension_and_never_the_batch(name, ways):
    plan = search(model(name), SearchOptions(ways, "model-parallel"))
    for tensor, step, placement, splits in tensor_steps(plan):
        if tensor.role in {"weight", "state"} and any(splits):
            assert isinstance(placement, Shard)
            whole = [dim for dim, extent in enumerate(tensor.shape) if eligible(extent, ways, len(ways) - 1)]
            assert placement == plan.layouts[tensor.name][0] or not whole, (tensor.name, step)
        if tensor.role == "input":
            assert placement != Shard(0)


def test_hybrid_composes_the_two():
    plan = search(chain(16, [8] * 4), SearchOptions((2, 4), "hybrid"))
    assert plan.search.details["groups"] == "2 x 4"
    for tensor, step, placement, _ in tensor_steps(plan):
        if tensor.role == "weight":
            assert (placement == REPLICATE) == (step == 0), tensor.name
        if tensor.role == "input" or tensor.name.startswith("fc"):
            across = len(tensor.shape) == 2 and not tensor.name.endswith("_b")
            assert not across or (placement == Shard(0)) == (step == 0), tensor.name


def test_hybrid_tries_every_split_of_the_steps():
    graph = chain(16, [8] * 4)
    space = space_of(graph, SearchOptions((2, 2, 2), placements="S,R"))
    assert SEARCHERS["hybrid"].search(space, Limits()).details["groups"] in {"2 x 4", "4 x 2"}
    of_one_step = space_of(graph, SearchOptions((8,), placements="S,R"))
    costs = {
        name: SEARCHERS[name].search(of_one_step, Limits()).cost
        for name in ("data-parallel", "model-parallel", "hybrid")
    }
    assert costs["hybrid"] == min(costs["data-parallel"], costs["model-parallel"])


@pytest.mark.parametrize("graph", [chain(16, [8] * 4), chain(64, [4, 32, 4]), build("cnn-5-4", batch=8, image=8)])
def test_hybrid_moves_no_less_than_its_first_or_last_step_alone(graph):
    space = space_of(graph, SearchOptions((2, 2, 2), placements="S,R"))
    cost = SEARCHERS["hybrid"].search(space, Limits()).cost
    for name, ways in (("data-parallel", space.ways.prefix(1)), ("model-parallel", Ways(space.ways.factors[-1:]))):
        assert 0 < SEARCHERS[name].search(replace(space, ways=ways), Limits()).cost <= cost


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
    trick, whole = (SEARCHERS[name].search(space, Limits()) for name in ("one-weird-trick", "model-parallel"))
    assert trick.cost == whole.cost


def test_a_batch_of_one_cannot_be_split_and_the_cheapest_remains():
    graph = chain(1, [6, 6, 6])
    for name in SEARCHERS:
        plan = search(graph, SearchOptions((2,), name, "S,R"))
        assert all(layout[0] != Shard(0) or graph.tensors[of].shape[0] > 1 for of, layout in plan.layouts.items())


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
            assert SEARCHERS[name].search(space, Limits()).cost == least, seed
            compared += 1
    assert compared >= 5


def has_constant(states):
    return any(len(set(state)) <= 1 for state in states)


def test_everywhere_is_for_what_has_no_batch():
    plan = search(model("mlp-2-12"), SearchOptions((2, 2), "data-parallel"))
    updates = [node.name for node in plan.graph.nodes if node.name.endswith(".update")]
    assert updates
    assert all(set(plan.strategies[name]) == {EVERYWHERE} for name in updates)
