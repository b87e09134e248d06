"""Unrolled cells found from structure, against the builder's hints."""

from dataclasses import replace

import pytest

from planner.graph import GraphBuilder, Init
from planner.graph.optimizers import Optimizer
from planner.graph.training import training_graph
from planner.layout import signatures
from planner.models import build
from planner.search import SearchOptions, Ties, search
from planner.search.coarse import Coarsenings
from planner.search.coarse.unrolled import cells_of_nodes

UNIFORM = Init("uniform", 1.0)
SMALL = {"batch": 4, "input_width": 6, "classes": 5}


def without_hints(graph, **also):
    return replace(graph, nodes=tuple(replace(node, unroll=None, **also) for node in graph.nodes))


def variables(graph, ties):
    return {variable.members for variable in Coarsenings(graph).of(ties).variables}


def node_families(graph):
    """The families of nodes that structure alone finds."""
    families = {}
    plain = without_hints(graph)
    for name, cell in cells_of_nodes(plain, signatures(plain)).items():
        families.setdefault(cell, set()).add(name)
    return sorted(map(sorted, families.values()))


def alike(prefix, count):
    return [f"{prefix}.{step}" for step in range(count)]


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize(("layers", "steps"), [(1, 2), (2, 3), (3, 5), (1, 9)])
def test_structure_gives_the_same_variables_as_hints(layers, steps, optimizer):
    graph = build(f"rnn-{layers}-8", unroll=steps, optimizer=optimizer, **SMALL)
    plain = without_hints(graph)
    for ties in (Ties(), Ties(updates=False), Ties(elementwise=False, repeats=False)):
        assert variables(plain, ties) == variables(graph, ties) != variables(graph, replace(ties, unrolled=False))


def test_structure_gives_the_same_plan_as_hints():
    graph = build("rnn-2-8", unroll=4, **SMALL)
    for placements in ("S", "S,R"):
        options = SearchOptions((2, 2), placements=placements)
        assert search(without_hints(graph), options).search.bytes == search(graph, options).search.bytes


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp-4-8", {}),
        ("wresnet-14-0.0625", {"image": 16}),
        ("transformer-3-8", {"sequence": 4, "vocabulary": 6, "heads": 2}),
        ("encoder-decoder-2-8", {"sequence": 4, "vocabulary": 6, "heads": 2}),
        ("rnn-2-8", {"unroll": 1}),
    ],
)
@pytest.mark.parametrize("backward", [True, False])
def test_nothing_is_found_where_nothing_is_unrolled(name, options, backward):
    graph = build(name, batch=8, optimizer="adam", **options)
    plain = without_hints(graph) if backward else without_hints(graph, forward=None)
    assert cells_of_nodes(plain, signatures(plain)) == {}


def test_layers_of_one_kind_with_other_weights_stay_apart():
    graph = build("rnn-3-8", unroll=4, **{**SMALL, "input_width": 8})
    hints = {node.name: node.unroll[0] for node in graph.nodes if node.unroll is not None}
    unknown = without_hints(graph, forward=None)
    families = {}
    for name, cell in cells_of_nodes(unknown, signatures(unknown)).items():
        families.setdefault(cell, set()).add(hints[name])
    assert all(len(of) == 1 for of in families.values())
    missed = hints.keys() - cells_of_nodes(unknown, signatures(unknown)).keys()
    assert missed == {f"lstm{layer}.kept.0.grad_a" for layer in (1, 2, 3)}


def test_two_towers_with_shared_weights_are_no_timesteps():
    b = GraphBuilder()
    w, v = b.weight("w", (4, 4), UNIFORM), b.weight("v", (4, 4), UNIFORM)
    sides = [
        b.apply(
            "mm",
            b.apply("relu", b.apply("mm", b.input(f"x{i}", (4, 4)), w, name=f"a{i}"), name=f"r{i}"),
            v,
            name=f"b{i}",
        )
        for i in range(2)
    ]
    loss = b.apply("sum", b.apply("mul", *sides, name="join"), name="loss", dims=(0, 1))
    assert node_families(training_graph(b, {"loss": loss}, Optimizer("sgd"))) == []


def test_the_state_need_not_pass_through_a_weight():
    b = GraphBuilder()
    w, s = b.weight("w", (4, 4), UNIFORM), b.input("s", (4, 4))
    for step in range(3):
        x = b.apply("relu", b.input(f"x{step}", (4, 4)), name=f"clean.{step}")
        new = b.apply("add", s, b.apply("mm", x, w, name=f"in.{step}"), name=f"add.{step}")
        s = b.apply("tanh", new, name=f"s.{step}")
    graph = b.finish({}, {})
    assert node_families(graph) == [alike(name, 3) for name in ("add", "clean", "in", "s")]


def test_a_weight_used_twice_in_a_timestep():
    b = GraphBuilder()
    w, h = b.weight("w", (4, 4), UNIFORM), b.input("h", (4, 4))
    for step in range(4):
        h = b.apply("tanh", b.apply("mm", h, w, name=f"in.{step}"), name=f"middle.{step}")
        h = b.apply("relu", b.apply("mm", h, w, name=f"out.{step}"), name=f"h.{step}")
    loss = b.apply("sum", h, name="loss", dims=(0, 1))
    graph = training_graph(b, {"loss": loss}, Optimizer("sgd"))
    forward = [[name for name in family if "grad" not in name] for family in node_families(graph)]
    assert sorted([*alike("in", 4), *alike("out", 4)]) in forward
    plan = search(graph, SearchOptions((2, 2)))
    assert plan.total_bytes == plan.search.bytes[plan.search.winner]


def test_an_encoders_last_state_starts_a_decoder():
    b = GraphBuilder()
    kept = h = b.input("h", (4, 4))
    for side in ("encoder", "decoder"):
        w = b.weight(f"{side}.w", (4, 4), UNIFORM)
        for step in range(3):
            gate = b.apply("sigmoid", b.apply("mm", h, w, name=f"{side}.mm.{step}"), name=f"{side}.gate.{step}")
            kept = b.apply("mul", gate, kept, name=f"{side}.kept.{step}")
            h = b.apply("tanh", kept, name=f"{side}.h.{step}")
    expected = [alike(f"{side}.{name}", 3) for side in ("encoder", "decoder") for name in ("mm", "gate", "kept", "h")]
    assert node_families(b.finish({}, {})) == sorted(expected)


def test_thousands_of_nodes_are_cells():
    graph = without_hints(build("rnn-10-8k", batch=64))
    assert len(cells_of_nodes(graph, signatures(graph))) > 6000
