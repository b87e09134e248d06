"""Attention of imported modules is one operator wherever PyTorch's stores no matrix, and trains as in eager mode."""

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from planner.plans.plan import undivided  # noqa: E402
from planner.program.lower import lower  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from planner.search import SearchOptions, search  # noqa: E402
from tests.cross.loopback import Loopback  # noqa: E402
from tests.pytorch.eager import differences, trained_alike  # noqa: E402
from tests.pytorch.models import values  # noqa: E402

SAMPLES, QUERIES, KEYS, WIDTH, HEADS = 2, 6, 8, 16, 4

PLAIN, BIASED, STORED = "attention", "biased_attention", "softmax"


class Attending(nn.Module):
    """Attends from x to y, from x to x where it is given no y, by a function of heads [b, h, s, c]; returns a loss."""

    def __init__(self, function, of_keys=HEADS, dtype=None):
        super().__init__()
        self.function, self.of_keys, self.dtype = function, of_keys, dtype
        self.q, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = (nn.Linear(WIDTH, WIDTH // HEADS * of_keys) for _ in range(2))
        self.slope = nn.Parameter(torch.randn(HEADS, 1, 1))

    def forward(self, x, y=None):
        y = x if y is None else y
        with torch.autocast("cpu", self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            heads = [
                part(rows).unflatten(-1, (count, -1)).transpose(1, 2)
                for part, rows, count in ((self.q, x, HEADS), (self.k, y, self.of_keys), (self.v, y, self.of_keys))
            ]
            mixed = self.function(self, *heads)
            return self.out(mixed.transpose(1, 2).flatten(2)).to(x.dtype).square().sum()


def attend(**settings):
    return lambda module, q, k, v: F.scaled_dot_product_attention(q, k, v, **settings)


def hiding(*shape):
    """A mask of truth values that shows every query some key."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6
    return mask.index_fill(-1, torch.tensor([1]), True)


def blind(*shape):
    """A mask that hides all keys from a query."""
    return hiding(*shape).index_fill(-2, torch.tensor([2]), False)


def by_data(module, q, k, v):
    """Hide keys by what they hold, all of them from queries of the first sample's."""
    shown = (k[:, :1, :, 0] > 0)[:, None] & (torch.arange(SAMPLES) > 0)[:, None, None, None]
    return F.scaled_dot_product_attention(q, k, v, shown)


def sloped(slope, q, k, v):
    """Add numbers to scores, of each head for each distance."""
    distance = torch.arange(QUERIES)[:, None] - torch.arange(QUERIES)
    return F.scaled_dot_product_attention(q, k, v, slope * distance)


def in_three_dimensions(module, *heads):
    mixed = F.scaled_dot_product_attention(*(x.flatten(0, 1) for x in heads))
    return mixed.unflatten(0, (SAMPLES, HEADS))


CASES = {
    "plain": (attend(), PLAIN),
    "causal": (attend(is_causal=True), PLAIN),
    "causal by a mask": (attend(attn_mask=torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril()), PLAIN),
    "a mask that shows all": (attend(attn_mask=torch.ones(QUERIES, QUERIES, dtype=torch.bool)), PLAIN),
    "a mask of rows and keys": (attend(attn_mask=hiding(QUERIES, QUERIES)), BIASED),
    "a mask of all": (attend(attn_mask=hiding(SAMPLES, HEADS, QUERIES, QUERIES), scale=0.7), BIASED),
    "rows that see nothing": (attend(attn_mask=blind(QUERIES, QUERIES)), BIASED),
    "numbers": (attend(attn_mask=torch.linspace(-1, 1, HEADS * QUERIES).double().view(HEADS, 1, QUERIES)), BIASED),
    "by data": (by_data, BIASED),
    "without a gradient": (lambda module, *heads: sloped(module.slope.detach(), *heads), BIASED),
    "learned": (lambda module, *heads: sloped(module.slope, *heads), STORED),
    "three dimensions": (in_three_dimensions, STORED),
    "values repeated": (lambda module, q, k, v: F.scaled_dot_product_attention(q, k, v[:1].expand_as(v)), STORED),
}


def trained(function, of_keys=HEADS, *others):
    return trained_alike(Attending(function, of_keys), (values(SAMPLES, QUERIES, WIDTH), *others), bar=1e-10)


def ops(graph):
    return {node.op for node in graph.nodes} & {PLAIN, BIASED, STORED}


@pytest.mark.parametrize("name", CASES)
def test_it_trains_as_in_eager_mode(name):
    function, op = CASES[name]
    assert ops(trained(function)) == {op}


@pytest.mark.parametrize(("of_keys", "causal"), [(1, False), (2, True)])
def test_queries_share_heads_of_keys(of_keys, causal):
    graph = trained(attend(enable_gqa=True, is_causal=causal), of_keys)
    assert ops(graph) == {PLAIN}
    (node,) = (node for node in graph.nodes if node.op == PLAIN)
    assert [graph.tensors[name].shape[1] for name in node.inputs] == [HEADS, of_keys, of_keys]


@pytest.mark.parametrize("causal", [False, True])
def test_other_queries_than_keys(causal):
    assert ops(trained(attend(is_causal=causal), HEADS, values(SAMPLES, KEYS, WIDTH))) == {PLAIN}


def test_no_gradient_of_a_mask_is_computed():
    assert not any(node.op.endswith("backward_bias") for node in trained(CASES["numbers"][0]).nodes)


def test_probabilities_that_are_dropped_are_stored():
    graph = from_torch(Attending(attend(dropout_p=0.5)), (torch.randn(SAMPLES, QUERIES, WIDTH),))
    assert ops(graph) == {STORED}


def test_autocast_computes_it_in_16_bits():
    x = torch.randn(SAMPLES, QUERIES, WIDTH)
    graph, of_loss, of_parameters = differences(Attending(attend(is_causal=True), dtype=torch.bfloat16), (x,), steps=1)
    (node,) = (node for node in graph.nodes if node.op == PLAIN)
    assert {graph.tensors[name].dtype for name in node.inputs} == {"bfloat16"}
    assert max(of_loss, *of_parameters.values()) < 2.0**-6


@pytest.mark.parametrize(
    ("name", "ways"), [("causal", (3,)), ("a mask of all", (2, 2)), ("rows that see nothing", (2,))]
)
def test_workers_move_the_bytes_that_are_planned_and_train_as_one(name, ways):
    graph = trained(CASES[name][0])
    plan = search(graph, SearchOptions(ways=ways))
    alone, several = (Loopback(each, lower(each)) for each in (undivided(graph), plan))
    with np.errstate(divide="ignore"):  # logarithms of truth values
        alone.step()
        several.step()
    assert several.moved.sum() == plan.total_bytes
    for tensor in graph.updates:
        np.testing.assert_allclose(several.gather(tensor), alone.gather(tensor), rtol=0, atol=1e-12)
