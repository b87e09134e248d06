"""Whole numbers, truth values, constants and frozen weights: a graph of them trains as in PyTorch, in any plan."""

from functools import cache

import numpy as np
import pytest

from planner.graph import GraphBuilder, Init, Optimizer, training_graph
from planner.layout import Shard, Ways
from planner.plans.plan import Plan, single_worker, undivided
from planner.program.lower import lower
from planner.search import SearchOptions, search
from simulator.simulation import simulated
from tests.cross.loopback import Loopback
from topologies import load_topology

torch = pytest.importorskip("torch")

BATCH, LENGTH, WIDTH, WORDS, LR = 8, 6, 4, 10, 0.1
UNIFORM = Init("uniform", scale=1.0)
WEIGHTS = ("words", "places", "steps", "head")
CAUSAL = np.tril(np.ones((LENGTH, LENGTH), bool))


@cache
def graph():
    b = GraphBuilder("float64")
    tokens = b.input("tokens", (BATCH, LENGTH), Init("data", below=WORDS), "int32")
    words, places = b.weight("words", (WORDS, WIDTH), UNIFORM), b.weight("places", (LENGTH + 1, WIDTH), UNIFORM)
    steps, head = b.weight("steps", (LENGTH,), UNIFORM), b.weight("head", (WIDTH, WIDTH), UNIFORM)
    still = b.weight("still", (WIDTH, WIDTH), UNIFORM, frozen=True)
    first = b.constant("first", np.arange(LENGTH) % 2 == 0, role="buffer")
    there = b.apply("cast", b.apply("ne_scalar", tokens, name="there", value=3), name="counted", dtype="int32")
    place = b.apply("mul", b.apply("cumsum", there, name="order", dim=1, extents={"i1": LENGTH}), there, name="place")
    x = b.apply(
        "add", b.apply("embedding", words, tokens, name="x"), b.apply("embedding", places, place, name="p"), name="xp"
    )
    scores = b.apply("einsum", x, x, name="scores", equation="bqd,bkd->bqk")
    distance = b.apply("sub", steps, steps, name="distance", a_dims=(0,), dims=(1,))
    scores = b.apply("add", distance, scores, name="moved", a_dims=(1, 2))
    hidden = b.apply("logical_not", b.constant("causal", CAUSAL), name="hidden")
    scores = b.apply("masked_fill", scores, hidden, name="masked", dims=(1, 2), value=-np.inf)
    most = b.apply("amax", scores, name="most", dims=(2,))
    weights = b.apply("softmax", scores, most, b.apply("sum_exp", scores, most, name="all"), name="weights")
    out = b.apply("einsum", weights, x, still, head, name="out", equation="bqk,bkd,de,ef->bqf")
    values, indices = b.apply_all("topk", out, name="top", outputs=("values", "indices"), k=2, dim=2)
    hot = b.apply("one_hot", indices, name="hot", depth=WIDTH, dtype="float64")
    gate = b.apply("einsum", values, hot, name="gate", equation="bqk,bqke->bqe")
    gated = b.apply("mul", out, b.apply("stop_gradient", gate, name="stopped"), name="gated")
    kept = b.apply(
        "where", b.apply("ge", out, gate, name="greater"), b.input("zero", (), Init("zeros")), gated, name="kept"
    )
    kept = b.apply("where", first, kept, gate, name="turns", dims=(1,))
    loss = b.apply("mean", b.apply("square", kept, name="squares"), name="loss", dims=(0, 1, 2), count=BATCH * LENGTH)
    return training_graph(b, {"loss": loss}, Optimizer("sgd", lr=LR))


@pytest.mark.parametrize("op", ["amax", "amin"])
def test_parts_of_whole_numbers_are_combined(op):
    b = GraphBuilder()
    b.apply(op, b.input("numbers", (BATCH, LENGTH), Init("data", below=WORDS), "int32"), name=op, dims=(0,))
    graph = b.finish({}, {})
    plan = Plan(graph, 0, Ways((2,)), {"numbers": (Shard(0),), op: (Shard(0),)}, {op: ("r0",)})
    loop, alone = (Loopback(version, lower(version)) for version in (plan, undivided(graph)))
    for run in (loop, alone):
        run.step()
    np.testing.assert_array_equal(loop.gather(op), alone.gather(op))


def by_pytorch(values, batches):
    """Train by PyTorch on the same tokens; return the weights."""
    held = {name: torch.tensor(values[name], requires_grad=name in WEIGHTS) for name in (*WEIGHTS, "still")}
    words, places, steps, head, still = (held[name] for name in (*WEIGHTS, "still"))
    optimizer = torch.optim.SGD([held[name] for name in WEIGHTS], lr=LR)
    for batch in batches:
        tokens = torch.tensor(batch, dtype=torch.int64)
        there = (tokens != 3).int()
        x = words[tokens] + places[(there.cumsum(1) * there).long()]
        scores = x @ x.mT + (steps[:, None] - steps)
        weights = scores.masked_fill(~torch.tensor(CAUSAL), -torch.inf).softmax(-1)
        out = weights @ x @ still @ head
        top = out.topk(2, dim=-1)
        hot = torch.nn.functional.one_hot(top.indices, WIDTH).double()
        gate = (top.values[..., None] * hot).sum(-2)
        kept = torch.where(out >= gate, 0.0, out * gate.detach())
        kept = torch.where((torch.arange(LENGTH) % 2 == 0)[:, None], kept, gate)
        optimizer.zero_grad()
        (kept.square().sum() / (BATCH * LENGTH)).backward()
        optimizer.step()
    return {name: tensor.detach().numpy() for name, tensor in held.items()}


def trained(plan, steps):
    """Run a plan's program; return first values, the batches, and all weights, each put together of its tiles."""
    run = Loopback(plan, lower(plan))
    first = {name: run.gather(name) for name in (*WEIGHTS, "still")}
    batches = []
    for _ in range(steps):
        run.step()
        batches.append(run.gather("tokens"))
    return first, batches, {name: run.gather(name) for name in first}


@pytest.mark.parametrize(("ways", "placements"), [((), "S"), ((2,), "S"), ((2, 2, 2), "S,R"), ((2, 2), "S,R,P")])
def test_trains_as_pytorch_does(ways, placements):
    plan = search(graph(), SearchOptions(ways=ways or (2,), placements=placements))
    first, batches, weights = trained(plan if ways else single_worker(plan), 3)
    expected = by_pytorch(first, batches)
    for name, array in weights.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(weights["still"], first["still"])


def test_nothing_is_made_for_what_is_not_trained():
    differentiated = {node.forward for node in graph().nodes if node.forward}
    assert differentiated.isdisjoint({"there", "counted", "order", "place", "hidden", "hot", "greater", "stopped"})
    assert set(graph().updates) == set(WEIGHTS)
    assert graph().tensors["first"].nbytes == LENGTH


def test_is_simulated_with_the_bytes_that_were_planned():
    plan = search(graph(), SearchOptions(ways=(2, 2)))
    moved = simulated(lower(plan), load_topology("p2.8xlarge")).timeline.bytes
    np.testing.assert_array_equal(moved, plan.bytes)
