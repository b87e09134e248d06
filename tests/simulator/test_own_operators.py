"""A user's own operators are priced by what they compute, whatever they are called and however they are written."""

from dataclasses import replace

import pytest

import planner
import tdl
from planner.export.transformers import transformer_of
from planner.models import zoo
from simulator.projection.network import cluster
from simulator.projection.stack import STACKS
from tdl.traits import traits_of
from tensor_partitioner.projection import project_source
from tensor_partitioner.replicas import GraphModel
from tests.tables import kept_tables

SMALL = {"heads": 4, "sequence": 16, "vocabulary": 64, "batch": 16}
MODELS = {
    "transformer-4-32": {**SMALL, "dtype": "mixed", "recompute": "selective"},
    "llama-3-32": {**SMALL, "experts": 4},
    "wresnet-14-0.25": {"image": 32, "classes": 16, "batch": 16},
    "mlp-3-64": {"batch": 16, "optimizer": "momentum"},
}
WAYS = ("dp=4,tp=2,micro-batch=2,recompute=selective", "pp=2,dp=4")


@pytest.fixture(autouse=True)
def registered():
    with kept_tables():
        yield


def called_otherwise(graph):
    """The graph with operators of other names that do the same."""
    for name in {node.op for node in graph.nodes}:
        tdl.register(replace(tdl.catalog[name], name=f"my_{name[::-1]}", descriptions={}))
    return replace(graph, nodes=tuple(replace(node, op=f"my_{node.op[::-1]}") for node in graph.nodes))


def priced(model, way, stack):
    try:
        step = project_source(model, 16, planner.parallel.Parallel.read(way), cluster("hgx-h100"), stack)
    except planner.PlanError as error:
        return str(error)
    return step.seconds, dict(step.shares), step.memory, step.stages


@pytest.mark.parametrize("name", MODELS)
def test_every_stack_prices_operators_of_other_names_alike(name):
    graph = zoo.build(name, **MODELS[name])
    other = called_otherwise(graph)
    models = GraphModel(graph), GraphModel(other)
    questions = [(WAYS[number % 2], stack) for number, stack in enumerate(STACKS)]
    expected, prices = ([priced(model, *question) for question in questions] for model in models)
    assert prices == expected
    assert not all(isinstance(price, str) for price in prices)


@pytest.mark.parametrize("name", MODELS)
def test_plans_are_those_of_operators_of_other_names(name):
    graph = zoo.build(name, **MODELS[name], micro_batches=2)
    graphs = graph, called_otherwise(graph)
    for parallel in ("pp=2,dp=2,schedule=zero-bubble", "dp=2,tp=2"):
        plan, other = (planner.plan(each, parallel=parallel) for each in graphs)
        assert other.bytes.tolist() == plan.bytes.tolist()
        phases, others = (
            [(group.names, group.phase) for group in planner.summary(each).operators] for each in (plan, other)
        )
        assert others == phases


@pytest.mark.parametrize("name", ["gpt2", "llama-3.1-8b", "mixtral-8x7b", "bloom-176b"])
def test_sizes_are_read_of_operators_of_other_names(name):
    graph = zoo.build(name, batch=2, layers=2, dtype="mixed")
    assert transformer_of(called_otherwise(graph)) == transformer_of(graph)


def own_softmax(scores, largest):
    """Exponentials are summed in the operator itself."""
    return lambda n, c: tdl.exp(scores[n, c] - largest[n]) / tdl.Sum(lambda d: tdl.exp(scores[n, d] - largest[n]))


def own_norm(weight, x):
    """Multiplies by the inverse of a root, of squares that are summed in the operator itself."""
    return lambda n, c: weight[c] * (x[n, c] * (1 / tdl.sqrt(tdl.Sum(lambda d: x[n, d] * x[n, d]) / 64 + 1e-6)))


def own_centered_norm(x, mean, square):
    return lambda n, c: (x[n, c] - mean[n]) * tdl.rsqrt(square[n] - mean[n] * mean[n] + 1e-6)


def own_attention(value, bias, key, query):
    """Values first; samples and heads are one dimension, and widths stand before the places."""

    def weight(n, q, k):
        return tdl.exp(tdl.Sum(lambda c: key[n, c, k] * query[n, c, q]) + bias[q, k])

    return lambda n, e, q: tdl.Sum(lambda k: value[n, e, k] * weight(n, q, k)) / tdl.Sum(lambda k: weight(n, q, k))


def own_embedding(words, table):
    return lambda n, h: tdl.Sum(lambda v: tdl.where(words[n] == v, table[v, h], 0))


def own_cross_entropy(labels, logits):
    def loss(n, c):
        return tdl.where(labels[n] == c, tdl.log(tdl.Sum(lambda d: tdl.exp(logits[n, d]))) - logits[n, c], 0)

    return lambda: tdl.Sum(loss) / 16


def own_rotation(cos, x, sin):
    """One half of each pair from the other, by two results."""
    return lambda n, j: (
        x[n, j] * cos[n, j] - x[n, tdl.pad(j + 4, 0, 4)] * sin[n, j],
        x[n, tdl.pad(j + 4, 0, 4)] * cos[n, j] + x[n, j] * sin[n, j],
    )


def own_turn(x):
    return lambda i, j, k: x[k, (j, i)]


def own_copies(x):
    return lambda i, j, k=3: x[j, i]


def own_row(x):
    return lambda i: x[3, i]


def own_mirror(x):
    return lambda i, j: x[i, 7 - j]


def own_product(a, b):
    return lambda i, j: tdl.Sum(lambda k: b[j, k] * a[k, i])


def traits(function, *ranks):
    return traits_of(tdl.op(function).describe(ranks))


@pytest.mark.parametrize(
    ("function", "ranks", "expected"),
    [
        (own_softmax, (2, 1), "softmax"),
        (own_norm, (1, 2), "root mean square norm"),
        (own_centered_norm, (2, 1, 1), "norm"),
        (own_cross_entropy, (1, 2), "cross entropy"),
        (own_rotation, (2, 2, 2), "rotation"),
        (own_product, (2, 2), None),
        (own_embedding, (1, 2), None),
    ],
)
def test_functions_are_known_however_they_are_written(function, ranks, expected):
    assert traits(function, *ranks).function == expected


def test_what_of_operands_is_read():
    assert traits(own_embedding, 1, 2).table == 1
    turned, copies, row, mirror = (traits(of, 2) for of in (own_turn, own_copies, own_row, own_mirror))
    assert [(of.is_view, of.is_part, of.repeats) for of in (turned, copies, row, mirror)] == [
        (True, False, False), (True, False, True), (False, True, False), (False, False, False),
    ]  # fmt: skip
    assert traits(own_product, 2, 2).contracts


def test_attention_however_it_is_written():
    attended = traits(own_attention, 3, 2, 3, 3).attended
    assert (attended.described, attended.computed, attended.queries, attended.dimension) == (
        3,
        2,
        3,
        1,
    )  # scores are written twice


def named(trait):
    """Operators of the catalog with a trait, for operands that are drawn."""
    cases = pytest.importorskip("operator_verification.cases").CASES
    draw, names = pytest.importorskip("executor.cases").Draw, set()
    for name, generate in cases.items():
        random = pytest.importorskip("numpy").random.default_rng(list(name.encode()))
        for _ in range(12):
            case = generate(draw(random))
            description = tdl.catalog[name].describe([array.ndim for array in case.operands], case.attributes)
            if trait(traits_of(description)):
                names.add(name)
    return names


def test_operators_of_the_catalog_with_each_trait():
    views = {"reshape", "permute", "expand", "stack", "einsum"}  # a stack of one tensor, an einsum that permutes
    assert named(lambda of: of.is_view) == views
    assert named(lambda of: of.is_part) == {"unbind", "select", "slice", "diagonal"}
    assert named(lambda of: of.table is not None) == {"embedding", "index_select", "gather"}
    assert named(lambda of: of.converts) == {"cast"}
    assert named(lambda of: of.dispatches) == {"dispatch"}
    assert named(lambda of: of.attended) == {
        *("attention", "attention_backward_query", "attention_backward_keys"),
        *("biased_attention", "biased_attention_backward_query", "biased_attention_backward_keys"),
    }
