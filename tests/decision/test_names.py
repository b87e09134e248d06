"""Names are for people: no figure of a plan, a simulation, a projection or a decision depends on them."""

import random
from dataclasses import replace

import pytest

import planner
import simulator
from planner.errors import PlanError
from planner.graph.infer import check
from planner.graph.repeats import repeats_of
from planner.parallel import Parallel
from simulator.projection.network import cluster
from tensor_partitioner.decision import decide
from tensor_partitioner.projection import project_source
from tensor_partitioner.replicas import GraphModel
from topologies import load_topology

SMALL = {"heads": 4, "sequence": 16, "vocabulary": 64, "batch": 16}
ZOO = (
    ("transformer-4-32", {**SMALL, "dtype": "mixed", "optimizer": "adam"}),
    ("transformer-3-32", {**SMALL, "recompute": "segments"}),
    ("llama-4-32", {**SMALL, "experts": 4}),
    ("encoder-decoder-2-32", SMALL),
    ("mlp-4-64", {"batch": 16, "optimizer": "momentum"}),
    ("cnn-5-8", {"batch": 16}),
    ("rnn-2-16", {"batch": 16, "unroll": 4}),
)
PROJECTED = (
    ("dp=2,tp=4", "eager"),
    ("pp=2,dp=4,micro-batch=2,recompute=full", "compile"),
    ("dp=4,cp=2,zero=3", "fsdp2"),
    ("dp=4,tp=2,sp,zero=1,recompute=selective", "megatron"),
)


def figures(graph):
    """What a graph comes to, by what was asked; whatever has names is in the graph's order."""
    machine, model = load_topology("hgx-h100"), GraphModel(graph)
    result = {"runs": [len(run) for run in repeats_of(graph).runs]}
    for way, stack in PROJECTED:
        result[way] = of_plan(lambda way=way, stack=stack: projected(model, way, stack))
    for options in ({"workers": 4}, {"parallel": "pp=2,tp=2"}):
        result[str(options)] = of_plan(lambda options=options: planned(graph, machine, options))
    return result


def of_plan(figure):
    try:
        return figure()
    except PlanError as error:
        return str(error)


def projected(model, way, stack):
    batch = model.samples * model.graph.micro_batches
    step = project_source(model, batch, Parallel.read(way), cluster("hgx-h100"), stack)
    return step.seconds, dict(step.shares), step.memory, step.stages


def planned(graph, machine, options):
    plan = planner.plan(graph, **options)
    decisions = [plan.layouts[name] for name in graph.tensors], [plan.strategies[node.name] for node in graph.nodes]
    return plan.bytes.tolist(), decisions, simulator.simulate(plan, machine).seconds_per_step


def decided(graph, pins=()):
    candidates = decide(graph, "hgx-h100", budget_s=1e9, pins=pins).candidates
    return [(c.name, c.seconds_per_step, c.needed_bytes, c.shares, c.stages) for c in candidates]


def opaque(graph, seed):
    """Return a graph whose tensors and nodes have numbers for names, drawn at random."""
    numbers = random.Random(seed).sample(range(10**6), len(graph.tensors) + len(graph.nodes))
    tensors, nodes = dict(zip(graph.tensors, numbers, strict=False)), {}
    for number, node in zip(reversed(numbers), graph.nodes, strict=False):
        nodes[node.name] = f"n{number}"

    def tensor(name):
        return f"t{tensors[name]}"

    def renamed(node):
        unroll = node.unroll and (nodes.get(node.unroll[0], f"cell {node.unroll[0]}"), node.unroll[1])
        of = None if node.forward is None else nodes[node.forward]
        inputs, outputs = (tuple(map(tensor, names)) for names in (node.inputs, node.outputs))
        return replace(node, name=nodes[node.name], inputs=inputs, outputs=outputs, forward=of, unroll=unroll)

    return replace(
        graph,
        tensors={tensor(name): replace(value, name=tensor(name)) for name, value in graph.tensors.items()},
        nodes=tuple(map(renamed, graph.nodes)),
        updates={tensor(old): tensor(new) for old, new in graph.updates.items()},
        metrics={metric: tensor(name) for metric, name in graph.metrics.items()},
        given=tuple(map(tensor, graph.given)),
        accumulated=tuple(map(tensor, graph.accumulated)),
        entries={},
    )


@pytest.mark.parametrize(("name", "options"), ZOO)
def test_models_of_the_zoo_with_numbers_for_names(name, options):
    graph = planner.model(name, **options)
    unnamed = opaque(graph, seed=len(name))
    check(unnamed)
    assert figures(unnamed) == figures(graph)


@pytest.mark.parametrize(("name", "options"), [ZOO[0], ZOO[4]])
def test_decisions_of_the_zoo_with_numbers_for_names(name, options):
    graph = planner.model(name, **options)
    assert decided(opaque(graph, seed=1), pins=("cp=1",)) == decided(graph, pins=("cp=1",))


def imported(seed, spelling):
    """Return the graph of a module, and the lengths of its runs."""
    spellings = pytest.importorskip("tests.decision.spellings", exc_type=ImportError)
    *module, runs = spellings.module(seed, spelling)
    return pytest.importorskip("planner.pytorch").graph_of(lambda: tuple(module)), runs


@pytest.mark.parametrize("seed", range(24))
def test_modules_whose_blocks_have_other_names_or_are_held_otherwise(seed):
    """Layers are as many as there are blocks that are alike."""
    graph, runs = imported(seed, "layers")
    expected = figures(graph)
    assert expected["runs"] == [*runs]
    spelling = ("towers", "attributes", "list", "wrapped")[seed // 6]  # each with every kind of block
    assert figures(imported(seed, spelling)[0]) == expected


@pytest.mark.parametrize("seed", range(6))
def test_decisions_of_modules_with_other_names(seed):
    expected = decided(imported(seed, "layers")[0], pins=("cp=1", "tp=1"))
    assert decided(imported(seed, "attributes")[0], pins=("cp=1", "tp=1")) == expected
