"""Tensor parallelism splits the same axes of a module's weights whatever stands between a weight and its product."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

import planner  # noqa: E402
import tensor_partitioner as tp  # noqa: E402
from planner.layout import signatures  # noqa: E402
from planner.parallel import Parallel  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from planner.search.alternatives.labels import Axes, Labelling  # noqa: E402
from planner.search.coarse import CoarseGraph  # noqa: E402

WAYS = {
    "as it is": F.linear,
    "cast": lambda x, w: F.linear(x, w.double().to(x.dtype)),
    "scaled": lambda x, w: F.linear(x, w * 0.5),
    "viewed": lambda x, w: F.linear(x, w.view(-1).view(w.shape)),
    "squashed": lambda x, w: F.linear(x, torch.tanh(w)),
    "scaled by rows": lambda x, w: F.linear(x, w * torch.full((w.shape[0], 1), 0.5, dtype=w.dtype)),
    "transposed twice, cast": lambda x, w: x @ w.t().contiguous().double().to(x.dtype),
}
PRECISIONS = {
    "float32": (None, torch.float32),
    "mixed": (torch.bfloat16, torch.float32),
    "bf16": (None, torch.bfloat16),
}
DEGREE = 4


class Layers(nn.Module):
    """Attention and two layers, whose products a function computes."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        self.table, self.norms = nn.Embedding(32, 16), nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.qkv, self.out = nn.Parameter(torch.zeros(48, 16)), nn.Parameter(torch.zeros(16, 16))
        self.up, self.down = nn.Parameter(torch.zeros(64, 16)), nn.Parameter(torch.zeros(16, 64))

    def forward(self, words):
        x = self.table(words)
        q, k, v = self.linear(self.norms[0](x), self.qkv).view(*words.shape, 3, 4, 4).permute(2, 0, 3, 1, 4)
        x = x + self.linear(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), self.out)
        x = x + self.linear(F.gelu(self.linear(self.norms[1](x), self.up)), self.down)
        return F.cross_entropy(self.linear(x, self.table.weight).flatten(0, 1), words.flatten())


def graph_of(linear, precision):
    autocast, dtype = PRECISIONS[precision]
    return from_torch(Layers(linear).to(dtype), (torch.ones(8, 8, dtype=torch.long),), autocast=autocast)


def split_dims(graph):
    """Return the dimensions of every parameter that tensor parallelism splits."""
    coarse = CoarseGraph(graph, signatures(graph), {}, (), (), {})
    axes = Axes(coarse, Labelling(coarse))
    places = axes.places(axes.of_tensor_parallelism(DEGREE, ()))
    weights = {name: tensor.shape for name, tensor in graph.tensors.items() if tensor.role == "weight" and tensor.init}
    return {name: sorted(set(places.get(("tensor", name), ()))) for name in weights}


@pytest.mark.parametrize(
    ("way", "precision"), [*((way, "mixed") for way in WAYS), ("as it is", "bf16"), ("scaled", "float32")]
)
def test_the_axes_are_those_of_plain_products(way, precision):
    plain = split_dims(graph_of(F.linear, "float32"))
    assert sum(map(bool, plain.values())) == 5
    assert split_dims(graph_of(WAYS[way], precision)) == plain


@pytest.mark.parametrize("parallel", ["tp=4,sp", "dp=2,tp=2"])
def test_mixed_precision_moves_no_more_than_single(parallel):
    moved = {
        precision: planner.plan(graph_of(F.linear, precision), parallel=Parallel.read(parallel)).total_bytes
        for precision in PRECISIONS
    }
    assert moved["bf16"] <= moved["mixed"] <= moved["float32"]


class Block(nn.Module):
    """A block whose weight of queries, keys and values is cast and then cut, before its products."""

    def __init__(self):
        super().__init__()
        self.norm, self.weight = nn.LayerNorm(16), nn.Parameter(torch.zeros(16, 48))
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (F.linear(h, part.t()).view(8, 8, 4, 4).transpose(1, 2) for part in self.weight.split(16, dim=1))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(8, 8, 16)
        return x + self.down(F.gelu(self.up(x)))


class Blocks(nn.Module):
    """Six of them, of which three are looked at."""

    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.Sequential(*(Block() for _ in range(6))), nn.Linear(16, 32)

    def forward(self, x):
        return self.head(self.layers(x)).square().mean()


def test_a_decision_counts_every_parameter():
    module, adamw = Blocks(), planner.Optimizer("adamw")
    graph = from_torch(module, (torch.zeros(8, 8, 16),), autocast=torch.bfloat16, optimizer=adamw)
    facts = tp.decide(replace(graph, name="blocks"), "hgx-h100", budget=0.1).model
    assert facts.layers == 6
    assert facts.parameters == sum(parameter.numel() for parameter in module.parameters())
