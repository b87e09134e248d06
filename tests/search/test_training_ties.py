"""What coarsening ties of what is computed again, and of 16-bit copies of weights."""

from dataclasses import replace

import pytest

from planner.models import build
from planner.search import Ties
from planner.search.coarse import Coarsenings

UNTIED = Ties(elementwise=False, gradients=False, updates=False)
TINY = {"batch": 16}


def tied(coarse, kind, *names):
    return len({coarse.variable_of[kind, name] for name in names}) == 1


@pytest.mark.parametrize("name", ["mlp-4-8", "rnn-2-6"])
def test_variables_do_not_grow_with_micro_batches(name):
    counts = [len(Coarsenings(build(name, batch=16, micro_batches=count)).of(UNTIED).variables) for count in (2, 4, 8)]
    assert counts[0] == counts[1] == counts[2]


def test_what_is_computed_again_is_computed_alike():
    graph = build("mlp-8-8", recompute="segments", **TINY)
    coarse = Coarsenings(graph).of(replace(UNTIED, repeats=False))
    again = [node.name for node in graph.nodes if node.name.endswith(".again")]
    assert again
    for name in again:
        original = name.replace(".again", "")
        assert tied(coarse, "node", name, original)


def test_a_copy_of_a_weight_may_lie_otherwise_unless_updates_are_tied():
    graph = build("mlp-3-8", dtype="mixed", **TINY)
    for ties, expected in ((UNTIED, False), (Ties(updates=False), False), (Ties(), True)):
        coarse = Coarsenings(graph).of(replace(ties, repeats=False))
        assert tied(coarse, "tensor", "fc2.w", "fc2.w.bfloat16") == expected
