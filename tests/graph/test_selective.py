"""Recomputation within attention: the same bits as without, and nothing of the scores kept for the backward pass."""

import numpy as np
import pytest

import planner
from planner.errors import PlanError
from planner.graph.facts import is_recomputed
from planner.models import build
from planner.plans.plan import undivided
from planner.program.lower import arena_sizes, lower
from tests.cross.loopback import Loopback

SIZE = {"batch": 4, "sequence": 16, "vocabulary": 11, "heads": 4, "dropout": 0.1, "attention_dropout": 0.1}


def trained(graph):
    plan = undivided(graph)
    run = Loopback(plan, lower(plan))
    run.step()
    return {name: run.gather(name) for name in plan.graph.updates}


def test_scores_are_computed_again_with_the_same_bits():
    plain, again = (build("transformer-2-16", recompute=kind, **SIZE) for kind in ("none", "selective"))
    copies = {node.forward for node in again.nodes if is_recomputed(again, node)}
    assert all(".attention." in name for name in copies)
    assert {f"l{layer}.attention.{name}" for layer in (0, 1) for name in ("scores", "softmax")} <= copies
    matrices = [name for name, tensor in again.tensors.items() if tensor.shape[-2:] == (16, 16) and name in copies]
    read = {name for node in again.nodes if node.forward and not is_recomputed(again, node) for name in node.inputs}
    assert matrices
    assert read.isdisjoint(matrices)
    expected, recomputed = trained(plain), trained(again)
    for name, values in expected.items():
        np.testing.assert_array_equal(recomputed[name], values, err_msg=name)
    assert arena_sizes(undivided(again)) < arena_sizes(undivided(plain))


def test_attention_that_stores_no_matrix_computes_nothing_again():
    graph = build("transformer-2-16", recompute="selective", flash=True, **SIZE | {"attention_dropout": 0.0})
    assert not any(is_recomputed(graph, node) for node in graph.nodes)


def test_a_graph_that_keeps_everything_is_refused():
    graph = build("transformer-2-16", **SIZE)
    with pytest.raises(PlanError, match="parallel tp=2,recompute=full: expected a graph that recomputes activations"):
        planner.plan(graph, parallel="tp=2,recompute=full")
