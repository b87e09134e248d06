"""What coarsening ties of micro-batches, of what is computed again, and of 16-bit copies of weights."""

from dataclasses import replace

import pytest

from planner.models import build
from planner.search import Ties
from planner.search.coarse.coarsen import coarsen

UNTIED = Ties(elementwise=False, gradients=False, updates=False)
TINY = {"batch": 16}


def tied(coarse, kind, *names):
    return len({coarse.variable_of[kind, name] for name in names}) == 1


@pytest.mark.parametrize("name", ["mlp-4-8", "rnn-2-6"])
def test_variables_do_not_grow_with_micro_batches(name):
    counts = [len(coarsen(build(name, batch=16, micro_batches=count), UNTIED).variables) for count in (2, 4, 8)]
    assert counts[0] == counts[1] == counts[2]


def test_micro_batches_decide_alike():
    coarse = coarsen(build("mlp-3-8", micro_batches=2, **TINY), replace(UNTIED, repeats=False))
    for node in ("fc1", "relu1", "fc2.grad_a", "fc2.grad_b"):
        assert tied(coarse, "node", f"{node}@0", f"{node}@1")
    assert tied(coarse, "tensor", "fc1@0", "fc1@1")
    assert tied(coarse, "tensor", "images@0", "images@1")
    assert not tied(coarse, "node", "fc1@0", "fc2@0")
    assert not tied(coarse, "node", "fc2.grad_a@0", "fc2.grad_b@0")


def test_what_is_computed_again_is_computed_alike():
    graph = build("mlp-8-8", recompute="segments", micro_batches=2, **TINY)
    coarse = coarsen(graph, replace(UNTIED, repeats=False))
    again = [node.name for node in graph.nodes if node.name.endswith(".again@0")]
    assert again
    for name in again:
        original = name.replace(".again", "")
        assert tied(coarse, "node", name, original, name.replace("@0", "@1"))


def test_a_copy_of_a_weight_may_lie_otherwise_unless_updates_are_tied():
    graph = build("mlp-3-8", dtype="mixed", **TINY)
    for ties, expected in ((UNTIED, False), (Ties(updates=False), False), (Ties(), True)):
        coarse = coarsen(graph, replace(ties, repeats=False))
        assert tied(coarse, "tensor", "fc2.w", "fc2.w.bfloat16") == expected
