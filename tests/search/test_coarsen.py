"""Coarsening rules, and what other planners found."""

import json
import random
from dataclasses import fields, replace

import pytest

from planner.graph import GraphBuilder
from planner.graph.micro_batches import operands_as_terms
from planner.models import build
from planner.search import SearchOptions, Ties, search
from planner.search.coarse import Coarsenings, NodeVariable, TensorVariable
from planner.search.costs.cost import FetchCost
from planner.search.options import default_ties
from planner.search.solver.problem import Tuning
from tensor_partitioner.commands.plan import main
from tests.search.graphs import random_graph

NONE = Ties(elementwise=False, gradients=False, updates=False, unrolled=False, repeats=False)
BLOCKS = {"batch": 4, "sequence": 4, "vocabulary": 6, "heads": 2}


def tensors(coarse, *names):
    return {coarse.variable_of["tensor", name] for name in names}


def nodes(coarse, *names):
    return {coarse.variable_of["node", name] for name in names}


def test_a_weight_is_always_tied_to_its_updated_self():
    graph = build("mlp-2-8", batch=4)
    coarse = Coarsenings(graph).of(NONE)
    assert graph.updates
    for old, new in graph.updates.items():
        assert len(tensors(coarse, old, new)) == 1
    weight = next(name for name, tensor in graph.tensors.items() if tensor.role == "weight")
    assert len(tensors(coarse, weight, f"{weight}.grad")) == 2
    assert len(tensors(Coarsenings(graph).of(Ties()), weight, f"{weight}.grad")) == 1
    assert len(tensors(Coarsenings(graph).of(Ties(updates=False)), weight, f"{weight}.grad")) == 2


def test_broadcast_operands_are_not_tied():
    b = GraphBuilder()
    x, bias, turned = b.input("x", (4, 4)), b.input("bias", (4,)), b.input("turned", (4, 4))
    total = b.apply("add", x, bias, name="total", dims=(1,))
    b.apply("add", total, turned, name="out", dims=(1, 0))
    coarse = Coarsenings(b.finish({}, {})).of(Ties())
    assert len(tensors(coarse, "x", "total")) == 1
    assert len(tensors(coarse, "x", "turned", "bias")) == 3


def test_every_name_is_in_one_variable_of_one_shape():
    graph = build("wresnet-14-0.0625", batch=4, image=16, classes=5)
    coarse = Coarsenings(graph).of(Ties())
    named = [name for variable in coarse.variables for name in variable.members]
    assert sorted(named) == sorted([*graph.tensors, *(node.name for node in graph.nodes)])
    for variable in coarse.variables:
        if isinstance(variable, TensorVariable):
            assert {graph.tensors[name].shape for name in variable.members} == {variable.shape}
        else:
            assert {coarse.signatures[name] for name in variable.members} == {variable.signature}


def test_timesteps_of_a_cell_share_strategies_and_layouts():
    graph = build("rnn-1-8", batch=4, unroll=4, input_width=6, classes=5)
    tied, free = Coarsenings(graph).of(Ties()), Coarsenings(graph).of(NONE)
    gates = [node.name for node in graph.nodes if node.unroll is not None and node.unroll[0] == "lstm1.gates"]
    assert len(gates) == 4
    assert len(nodes(tied, *gates)) == 1
    assert len(nodes(free, *gates)) == 4
    assert len(tied.variables) < len(free.variables) / 3


@pytest.mark.parametrize("hints", [True, False])
def test_nodes_of_one_timestep_are_not_tied(hints):
    """A gate's product and the two that differentiate it have one signature."""
    graph = build("rnn-2-8", batch=4, unroll=4, input_width=6, classes=5)
    step_of = {node.name: node.unroll and node.unroll[1] for node in graph.nodes}
    if not hints:
        graph = replace(graph, nodes=tuple(replace(node, unroll=None) for node in graph.nodes))
    coarse = Coarsenings(graph).of(replace(NONE, unrolled=True))
    tied = [variable.members for variable in coarse.variables if isinstance(variable, NodeVariable)]
    assert max(map(len, tied)) == 4
    for members in tied:
        steps = [step_of[name] for name in members]
        assert len(set(steps)) == len(steps)


def test_identical_layers_stand_for_each_other():
    counts = {}
    for layers in (3, 6):
        graph = build(f"transformer-{layers}-8", **BLOCKS)
        merged, whole = Coarsenings(graph).of(Ties()), Coarsenings(graph).of(Ties(repeats=False))
        counts[layers] = len(merged.variables)
        assert Coarsenings(graph).variable_count(Ties()) == len(whole.variables) > 2 * len(merged.variables)
        assert merged.variable_of.keys() == whole.variable_of.keys()
        assert sum(factor.count for factor in merged.factors) == sum(factor.count for factor in whole.factors)
        for v, variable in enumerate(merged.variables):
            kind = "tensor" if isinstance(variable, TensorVariable) else "node"
            assert all(merged.variable_of[kind, name] == v for name in variable.members)
    assert counts[3] == counts[6]


@pytest.mark.parametrize("placements", ["S", "S,R"])
@pytest.mark.parametrize("name", ["recursive", "joint", "hybrid"])
def test_identical_layers_lose_nothing(name, placements):
    graph = build("transformer-3-8", **BLOCKS)
    plans = [search(graph, SearchOptions((2, 2), name, placements, Ties(repeats=repeats))) for repeats in (False, True)]
    plain, repeated = (plan.search.bytes for plan in plans)  # the smaller problem may be small enough to try more
    assert name in plain
    assert {tried: repeated[tried] for tried in plain} == plain
    assert all(plan.total_bytes == plan.search.bytes[plan.search.winner] for plan in plans)


def test_terms_of_one_sum_lie_alike_and_apart_from_it():
    graph = build("rnn-1-8", batch=4, unroll=4, input_width=6, classes=5)
    operands_of = operands_as_terms(graph)
    assert {len(operands) for operands in operands_of.values()} >= {4}
    coarse = Coarsenings(graph).of(Ties(unrolled=False))
    for node in (node for node in graph.nodes if node.name in operands_of):
        (terms,) = tensors(coarse, *node.inputs)
        assert terms not in tensors(coarse, *node.outputs)


def test_gradients_are_tied_to_the_forward_pass_by_a_rule_of_their_own():
    graph = build("mlp-2-8", batch=4)
    tied, free = Coarsenings(graph).of(Ties()), Coarsenings(graph).of(Ties(gradients=False))
    assert len(tensors(tied, "fc1", "relu1", "relu1.grad", "fc1.grad")) == 1
    forward, backward = tensors(free, "fc1", "relu1"), tensors(free, "relu1.grad", "fc1.grad")
    assert len(forward) == len(backward) == 1
    assert forward != backward
    assert len(tensors(free, "fc1.w", "fc1.w.grad", "fc1.w.velocity")) == 1


def test_rules_can_be_switched_off_and_are_recorded():
    graph = build("mlp-2-8", batch=4)
    rules = {"unrolled", "repeats"}
    assert set(search(graph, SearchOptions((2,), placements="S")).search.ties) == rules | {"updates"}
    assert set(search(graph, SearchOptions((2,), placements="S,R")).search.ties) == rules
    assert set(search(graph, SearchOptions((2,), "joint")).search.ties) == rules
    plan = search(graph, SearchOptions((2,), ties=Ties(), untie=("elementwise", "repeats")))
    assert set(plan.search.ties) == rules - {"repeats"} | {"gradients", "updates"}


def test_element_wise_ties_are_for_large_graphs():
    for layers, elementwise in ((8, False), (200, True)):
        graph = build(f"mlp-{layers}-8", batch=4)
        known = Coarsenings(graph)
        for placements, updates in (("S", True), ("S,R", False)):
            wanted = Ties(elementwise=elementwise, gradients=False, updates=updates)
            assert default_ties(SearchOptions((2,), placements=placements), known) == wanted
        assert default_ties(SearchOptions((2,), "joint"), known) == Ties(False, False, updates=False)
        untied = Coarsenings(graph).of(Ties(elementwise=False))
        assert (len(untied.variables) > Tuning().untied_variables) == elementwise


def told(factor):
    """What a factor says; signatures, which are one object per graph and node, by what they say."""

    def of(cost):
        if isinstance(cost, FetchCost):
            return cost
        return cost.signature.op, cost.signature.attributes, cost.signature.shapes, cost.output

    return factor.scope, of(factor.cost), factor.weight, factor.count


@pytest.mark.parametrize("seed", range(12))
def test_coarse_graphs_do_not_depend_on_what_was_asked_before(seed):
    graph, chance = random_graph(seed), random.Random(seed)
    rules = [field.name for field in fields(Ties)]
    untied = frozenset(chance.sample(list(graph.tensors), len(graph.tensors) // 4))
    asked = [
        (Ties.only(chance.sample(rules, chance.randrange(len(rules) + 1))), partial, kept)
        for partial in (False, True)
        for kept in (frozenset(), untied)
        for _ in range(8)
    ]
    chance.shuffle(asked)
    known = Coarsenings(graph)
    for ties, partial, kept in asked:
        coarse = known.of(ties, partial=partial, untied=kept)
        alone = Coarsenings(graph).of(ties, partial=partial, untied=kept)
        assert [variable.members for variable in coarse.variables] == [variable.members for variable in alone.variables]
        assert [told(factor) for factor in coarse.factors] == [told(factor) for factor in alone.factors]
        assert coarse.variable_of == alone.variable_of


def test_the_command_switches_rules_off(tmp_path, capsys):
    command = ["mlp-2-8", "--batch", "4", "--workers", "2", "--json", str(tmp_path / "plan.json")]
    rules = {"elementwise", "gradients", "updates", "unrolled", "repeats"}
    for given, wanted in {
        ("--ties", "all"): rules,
        ("--ties", "none"): set(),
        ("--ties", "updates, repeats"): {"updates", "repeats"},
        ("--ties", "all", "--untie", "elementwise,updates"): rules - {"elementwise", "updates"},
    }.items():
        with pytest.raises(SystemExit, match="0"):
            main([*command, *given])
        assert set(json.loads((tmp_path / "plan.json").read_text())["search"].get("ties", ())) == wanted
    for option in ("--ties", "--untie"):
        with pytest.raises(SystemExit, match="2"):
            main([*command, option, "layers"])
        assert "expected all, none or rules among elementwise" in capsys.readouterr().err


def test_many_steps_are_searched_without_heuristics():
    graph = build("transformer-2-64", batch=64, sequence=64, vocabulary=64, heads=4)
    plan = search(graph, SearchOptions((2,) * 6))
    assert list(plan.search.bytes) == ["recursive"]
    assert plan.total_bytes == plan.search.bytes["recursive"]


def test_which_nodes_read_terms():
    b = GraphBuilder()
    x, w = b.input("x", (4, 4)), b.input("w", (4, 4))
    parts = [b.apply("mm", x, w, name=f"p{i}") for i in range(2)]
    b.apply("add_n", *parts, name="yes")
    other = b.apply("mm", x, w, name="other", transpose_b=True)
    plain = b.apply("mm", x, w, name="plain")
    b.apply("add_n", other, plain, name="unlike")
    used = [b.apply("mm", x, w, name=f"u{i}") for i in range(2)]
    b.apply("add_n", *used, name="used_twice")
    b.apply("relu", used[0], name="again")
    shared = b.apply("mm", x, w, name="shared")
    b.apply("add_n", shared, shared, name="same")
    b.apply("add_n", x, w, name="inputs")
    largest = [b.apply("amax", x, name=f"m{i}", dims=(0,)) for i in range(2)]
    b.apply("add_n", *largest, name="maxima")
    both = frozenset({0, 1})
    assert operands_as_terms(b.finish({}, {})) == {"yes": both, "unlike": both}


def test_variables_of_nodes_have_one_signature():
    b = GraphBuilder()
    x = b.input("x", (4, 4))
    for step in range(3):
        with b.timestep(step):
            x = b.apply("relu", x, name="cell")
    coarse = Coarsenings(b.finish({}, {})).of(Ties())
    assert [len(v.members) for v in coarse.variables if isinstance(v, NodeVariable)] == [3]


def test_published_bytes_of_a_perceptron():
    options = {"batch": 512, "optimizer": "none", "first_input_gradient": True}
    graph = build("mlp-4-8192", **options)
    plan = search(graph, SearchOptions((2, 2, 2), placements="S"))
    loss = 4 * 512 * 8
    assert 4 * 150_994_944 <= plan.total_bytes <= 4 * 150_994_944 + 2 * loss
    with_copies = search(graph, SearchOptions((2, 2, 2), placements="S,R"))
    assert with_copies.total_bytes < 4 * 109_051_904


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_large_network_is_planned(batch_norm):
    options = {"batch": 8, "optimizer": "none" if not batch_norm else "momentum", "batch_norm": batch_norm}
    graph = build("wresnet-152-10", **options)
    plan = search(graph, SearchOptions((2, 2, 2)))
    assert plan.total_bytes == plan.search.bytes[plan.search.winner]
    if not batch_norm:
        assert plan.search.bytes["recursive"] < 4 * 9_625_189_120
