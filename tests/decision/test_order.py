"""Names, wrappers and the order of independent operators are no part of a model: no figure depends on them."""

import random
from dataclasses import replace

import pytest

import planner
import simulator
from planner.graph.infer import check
from planner.graph.order import in_structural_order
from tensor_partitioner.replicas import GraphModel
from tests.decision.test_names import PROJECTED, SMALL, ZOO, decided, imported, of_plan, opaque, projected
from topologies import load_topology

OTHERS = (
    ("wresnet-14-0.25", {"image": 32, "classes": 16, "batch": 16}),
    ("transformer-3-32", {**SMALL, "recompute": "selective", "micro_batches": 2, "dropout": 0.1}),
    ("mlp-4-64", {"batch": 16, "micro_batches": 2, "optimizer": "adamw", "dtype": "mixed"}),
    ("bloom-176b", {"layers": 2, "batch": 2, "sequence": 32}),
)
PLANS = ({"workers": 4}, {"parallel": "pp=2,tp=2"})
MODULES, FEW = range(60), (2, 10)
PINS = ("cp=1", "tp=1")


def reordered(graph, seed):
    """The graph with its nodes in another order in which they can run, and its tensors in any."""
    draw = random.Random(seed)
    makers = {name: node.name for node in graph.nodes for name in node.outputs}
    missing = {node.name: {makers[name] for name in node.inputs if name in makers} for node in graph.nodes}
    waiting, nodes = {node.name: node for node in graph.nodes}, []
    while waiting:
        name = draw.choice([name for name in waiting if missing[name].isdisjoint(waiting)])
        nodes.append(waiting.pop(name))
    tensors, updates, accumulated = [*graph.tensors.items()], [*graph.updates.items()], [*graph.accumulated]
    for pairs in (tensors, updates, accumulated):
        draw.shuffle(pairs)
    return replace(
        graph,
        nodes=tuple(nodes),
        tensors=dict(tensors),
        updates=dict(updates),
        accumulated=tuple(accumulated),
    )


def figures(graph, plans=PLANS[:1], ways=PROJECTED[1::2]):
    """Seconds and memory by ways and stacks, bytes and seconds of plans."""
    machine, model = load_topology("hgx-h100"), GraphModel(graph)
    result = [of_plan(lambda way=way, stack=stack: projected(model, way, stack)) for way, stack in ways]
    for options in plans if graph.micro_batches == 1 else ():
        plan = planner.plan(graph, **options)
        result.append((plan.bytes.tolist(), simulator.simulate(plan, machine).seconds_per_step))
    return result


@pytest.mark.parametrize(("name", "options"), [*ZOO, *OTHERS])
def test_every_order_is_put_in_one(name, options):
    graph = planner.model(name, **options)
    expected = in_structural_order(graph)
    check(expected)
    for seed in range(4):
        other = reordered(graph, seed)
        check(other)
        ordered = in_structural_order(other)
        assert ordered.nodes == expected.nodes
        assert [*ordered.tensors.items()] == [*expected.tensors.items()]
        assert [*ordered.updates.items()] == [*expected.updates.items()]
        assert ordered.accumulated == expected.accumulated


@pytest.mark.parametrize(("name", "options"), [ZOO[2], OTHERS[1]])
def test_models_of_the_zoo_in_another_order(name, options):
    graph = planner.model(name, **options)
    assert figures(reordered(opaque(graph, seed=1), seed=2)) == figures(graph)


@pytest.mark.parametrize("seed", FEW)
def test_modules_in_another_order(seed):
    graph, _ = imported(seed, "layers")
    assert figures(reordered(opaque(imported(seed, "wrapped")[0], seed), seed)) == figures(graph)


@pytest.mark.parametrize("seed", [3])
def test_modules_that_compute_values_before_queries(seed, monkeypatch):
    spellings = pytest.importorskip("tests.decision.spellings", exc_type=ImportError)
    expected = figures(imported(seed, "layers")[0])

    def attend(self, x):
        v, k, q = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.v, self.k, self.q))
        attended = spellings.functional.scaled_dot_product_attention(q, k, v)
        return self.out(attended.transpose(1, 2).flatten(2))

    monkeypatch.setattr(spellings.Attention, "attend", attend)
    assert figures(imported(seed, "layers")[0]) == expected


@pytest.mark.parametrize(("name", "options"), [ZOO[4]])
def test_decisions_in_another_order(name, options):
    graph = planner.model(name, **options)
    assert decided(reordered(opaque(graph, seed=1), seed=2), PINS) == decided(graph, PINS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", MODULES)
def test_a_population_of_modules(seed):
    """Each is renamed, wrapped and reordered."""
    graph, other = imported(seed, "layers")[0], reordered(opaque(imported(seed, "wrapped")[0], seed), seed)
    assert figures(other, PLANS, PROJECTED) == figures(graph, PLANS, PROJECTED)
    assert decided(other, PINS) == decided(graph, PINS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [*ZOO, *OTHERS])
def test_all_models_of_the_zoo(name, options):
    graph = planner.model(name, **options)
    other = reordered(opaque(graph, seed=3), seed=4)
    assert figures(other, PLANS, PROJECTED) == figures(graph, PLANS, PROJECTED)
    assert decided(other, PINS) == decided(graph, PINS)
