"""A user's own mover, random operator and sum are planned, split and counted as the catalog's are."""

from dataclasses import replace
from math import ceil

import pytest

import planner
import tdl
from planner.extensions import gradient
from planner.graph import GraphBuilder, Init, Optimizer, Recipe, training_graph
from planner.graph.facts import nodes_of_replicas
from planner.graph.micro_batches import operands_as_terms
from planner.graph.training import inference_graph, iteration
from planner.layout import signatures
from planner.plans.plan import undivided
from planner.program.in_order import in_order
from planner.program.lower import lower
from tests.tables import kept_tables


@tdl.op(category="elementwise")
def own_sum(*terms):
    return lambda *i: sum((x[i] for x in terms[1:]), terms[0][i])


@tdl.op
def own_permute(x, *, dims):
    return lambda *i: x[tuple(i[dims.index(dim)] for dim in range(x.rank))]


@tdl.op(category="elementwise", random_keys=("seed", "row"), only_in_training=True)
def own_dropout(x, step, *, p, seed=0, row=0):
    least = ceil(p * (1 << 24))
    return lambda *i: tdl.where(
        tdl.random_bits(seed, step[()], *((i[0] + row, *i[1:]) if row else i)) >= least, x[i] * (1 / (1 - p)), 0
    )


TWINS = {"add_n": own_sum, "permute": own_permute, "dropout": own_dropout}


@pytest.fixture(autouse=True)
def registered():
    with kept_tables():
        for operator in TWINS.values():
            tdl.register(operator)
        gradient("own_dropout")(
            lambda b: (b.emit("own_dropout", (b.gradient, b.node.inputs[1]), 0, **b.node.attrs), None)
        )
        yield


def with_twins(graph):
    nodes = (replace(node, op=TWINS[node.op].name if node.op in TWINS else node.op) for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("rnn-1-16", {"batch": 8, "unroll": 3}),
        ("transformer-1-16", {"batch": 4, "sequence": 4, "heads": 2, "vocabulary": 8, "dropout": 0.5}),
        ("mlp-2-16", {"batch": 8, "micro_batches": 2}),
    ],
)
def test_plans_are_those_of_the_twins(model, options):
    graph = planner.model(model, **options)
    own = with_twins(graph)
    assert operands_as_terms(own) == operands_as_terms(graph)
    assert nodes_of_replicas(own) == nodes_of_replicas(graph)
    assert len(set(map(id, signatures(own).values()))) == len(set(map(id, signatures(graph).values())))
    expected, plan = (planner.plan(version, workers=4) for version in (graph, own))
    assert (plan.layouts, plan.strategies, plan.total_bytes) == (
        expected.layouts, expected.strategies, expected.total_bytes,
    )  # fmt: skip


def test_who_only_takes_inputs():
    b = GraphBuilder()
    x = b.input("x", (4, 4), Init("data"))
    b.apply("relu", b.apply("own_permute", x, name="turned", dims=(1, 0)), name="computed")
    b.apply("cast", x, name="cast", dtype="float16")
    assert nodes_of_replicas(b.finish({}, {})) == {"turned"}


def dropped(recipe):
    b = GraphBuilder()
    x = b.input("x", (8 // recipe.micro_batches, 4))
    hidden = b.apply("mm", x, b.weight("w", (4, 4), Init("uniform", 0.3)), name="fc")
    noisy = b.apply("own_dropout", hidden, iteration(b), name="noisy", p=0.5, seed=3)
    loss = b.apply("mean", noisy, name="loss", dims=(0, 1), count=b.shape(x)[0] * 4)
    return training_graph(b, {"loss": loss}, Optimizer("sgd", lr=0.1), recipe=recipe)


def test_micro_batches_draw_for_their_own_rows():
    worker = in_order(lower(undivided(dropped(Recipe(2)))).workers[0])
    kernels = [kernel for task in worker.tasks for kernel in getattr(task, "kernels", ()) if kernel.op == "own_dropout"]
    rows = [(kernel.node, kernel.attributes.get("row", 0)) for kernel in kernels]
    assert rows == [("noisy", 0), ("noisy.grad_x", 0), ("noisy", 4), ("noisy.grad_x", 4)]


def test_evaluation_leaves_out_what_works_in_training_only():
    assert "own_dropout" not in {node.op for node in inference_graph(dropped(Recipe())).nodes}


def test_random_keys_are_attributes():
    with pytest.raises(tdl.TDLError, match="noise: random_keys: expected attributes of the operator, found salt"):

        @tdl.op(random_keys=("salt",))
        def noise(step, *, seed=0):
            return lambda i: tdl.random_bits(seed, step[()], i)
