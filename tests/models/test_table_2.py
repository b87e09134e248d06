"""Tofu's Table 2: weight, gradient and history (3W) of its benchmarks, in GiB, from the graphs alone."""

import pytest

from planner.models import ModelOptions, build

TABLE_2 = {
    "rnn-6-4k": 8.4,
    "rnn-8-4k": 11.4,
    "rnn-10-4k": 14.4,
    "rnn-6-6k": 18.6,
    "rnn-8-6k": 28.5,
    "rnn-10-6k": 32.1,
    "rnn-6-8k": 33.0,
    "rnn-8-8k": 45.3,
    "rnn-10-8k": 57.0,
    "wresnet-50-4": 4.2,
    "wresnet-101-4": 7.8,
    "wresnet-152-4": 10.5,
    "wresnet-50-6": 9.6,
    "wresnet-101-6": 17.1,
    "wresnet-152-6": 23.4,
    "wresnet-50-8": 17.1,
    "wresnet-101-8": 30.6,
    "wresnet-152-8": 41.7,
    "wresnet-50-10": 26.7,
    "wresnet-101-10": 47.7,
    "wresnet-152-10": 65.1,
}
OUTLIER = "rnn-8-6k"
"""Does not fit its neighbours in the table: (18.6 + 32.1) / 2 is 25.4."""


def three_weights_gib(name):
    graph = build(name, ModelOptions(batch=1, unroll=1))
    producers = {output: node for node in graph.nodes for output in node.outputs}
    updates = [producers[new] for old, new in graph.updates.items() if graph.tensors[old].role == "weight"]
    assert {len(node.inputs) for node in updates} == {3}
    return sum(graph.tensors[tensor].nbytes for node in updates for tensor in node.inputs) / 2**30


@pytest.mark.parametrize("name", [name for name in TABLE_2 if name != OUTLIER])
def test_sizes(name):
    assert three_weights_gib(name) == pytest.approx(TABLE_2[name], rel=0.03)


def test_the_outlier():
    assert three_weights_gib(OUTLIER) == pytest.approx(25.4, rel=0.01)
    assert three_weights_gib(OUTLIER) < 0.9 * TABLE_2[OUTLIER]
