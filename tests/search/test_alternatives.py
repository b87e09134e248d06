"""The alternatives: what each may choose, worked examples, published figures, enumeration within the restriction."""

import pytest
from msgspec.structs import replace

from planner.graph import GraphBuilder, Init
from planner.graph.optimizers import Optimizer
from planner.graph.training import training_graph
from planner.layout import EVERYWHERE, REPLICATE, Shard, Ways, eligible
from planner.models import build
from planner.plans.check import check_plan
from planner.search import SEARCHERS, Limits, SearchOptions, search, space_of
from tests.search.test_search import chain
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


def graph_of_extents_of_one(make):
    b = GraphBuilder()
    x = make(b)
    loss = b.apply("sum", x, name="loss", dims=tuple(range(len(b.shape(x)))))
    return training_graph(b, {"loss": loss}, Optimizer("sgd"))


@pytest.mark.parametrize("name", SEARCHERS)
@pytest.mark.parametrize("make", [reshaped, normalized])
def test_an_extent_of_one_has_no_digits(make, name):
    check_plan(search(graph_of_extents_of_one(make), SearchOptions((2, 2), name, "S,R")))


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


@pytest.mark.parametrize(("samples", "groups"), [(1, set()), (2, {"2 x 4"}), (4, {"2 x 4", "4 x 2"})])
def test_hybrid_gives_every_group_samples(samples, groups):
    space = space_of(chain(samples, [8] * 4), SearchOptions((2, 2, 2), placements="S,R"))
    assert SEARCHERS["hybrid"].may_cost_less(space, Limits(), 1 << 40) == bool(groups)
    assert not groups or SEARCHERS["hybrid"].search(space, Limits()).details["groups"] in groups


@pytest.mark.parametrize("graph", [chain(16, [8] * 4), chain(64, [4, 32, 4]), build("cnn-5-4", batch=8, image=8)])
def test_hybrid_moves_no_less_than_its_first_or_last_step_alone(graph):
    space = space_of(graph, SearchOptions((2, 2, 2), placements="S,R"))
    cost = SEARCHERS["hybrid"].search(space, Limits()).cost
    for name, ways in (("data-parallel", space.ways.prefix(1)), ("model-parallel", Ways(space.ways.factors[-1:]))):
        assert 0 < SEARCHERS[name].search(replace(space, ways=ways), Limits()).cost <= cost


def test_a_batch_of_one_cannot_be_split_and_the_cheapest_remains():
    graph = chain(1, [6, 6, 6])
    for name in SEARCHERS:
        plan = search(graph, SearchOptions((2,), name, "S,R"))
        assert all(layout[0] != Shard(0) or graph.tensors[of].shape[0] > 1 for of, layout in plan.layouts.items())


def test_everywhere_is_for_what_has_no_batch():
    plan = search(model("mlp-2-12"), SearchOptions((2, 2), "data-parallel"))
    updates = [node.name for node in plan.graph.nodes if node.name.endswith(".update")]
    assert updates
    assert all(set(plan.strategies[name]) == {EVERYWHERE} for name in updates)
