"""Bytes that count alike nodes once are the bytes of all exchanges, one by one."""

import numpy as np
import pytest

from planner.graph.ir import ITEM_BYTES
from planner.models import build
from planner.plans.traffic import Traffic
from planner.search import SearchOptions, search


@pytest.mark.parametrize("placements", ["S", "S,R", "S,R,P"])
@pytest.mark.parametrize(("name", "batch"), [("rnn-2-16", 8), ("mlp-4-32", 8), ("cnn-2-8", 4), ("transformer-2-16", 4)])
def test_bytes_are_those_of_all_exchanges(name, batch, placements):
    plan = search(build(name, batch=batch), SearchOptions((2, 2), placements=placements))
    total = np.zeros((4, 4), dtype=np.int64)
    for tensor, exchange, times in Traffic(plan).exchanges():
        total += times * exchange.moved() * ITEM_BYTES[plan.graph.tensors[tensor].dtype]
    np.testing.assert_array_equal(Traffic(plan).bytes(), total)
