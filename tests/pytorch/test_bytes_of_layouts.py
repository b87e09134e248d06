"""A module moves the bytes, and takes the time, of a graph of the same sizes that is built of catalog operators.

The modules are written as published ones are: keys and values repeated for the queries that share them, norms in
float32, products by `addmm`, labels shifted and ignored, a GELU written out.
"""

import math
from functools import cache

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

import planner  # noqa: E402
from planner.parallel import Parallel  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from simulator.projection.network import cluster  # noqa: E402
from tensor_partitioner.decision.sources import source_of  # noqa: E402
from tensor_partitioner.projection import project_source  # noqa: E402

LAYERS, WIDTH, HEADS, GROUPS, HIDDEN, WORDS, SAMPLES, LENGTH = 8, 1024, 32, 8, 2816, 32000, 32, 1024
LAYOUTS = ("tp=8,sp", "pp=4,micro-batch=4", "dp=8,zero=3", "dp=2,cp=4")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOLERANCE = 0.05
SIZES = {"heads": HEADS, "vocabulary": WORDS, "sequence": LENGTH}
ZOO = {
    "llama": (f"llama-{LAYERS}-{WIDTH}", {**SIZES, "groups": GROUPS, "hidden": HIDDEN}),
    "gpt": (f"transformer-{LAYERS}-{WIDTH}", {**SIZES, "qkv_bias": True, "flash": True}),
}


class Norm(nn.Module):
    """A root mean square norm, computed in float32."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def turned(x, cos, sin):
    """Rotate the halves of each head by its position."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def repeated(x, times):
    """Repeat each head [b, g, s, c] for the queries that share it."""
    samples, heads, length, width = x.shape
    return x[:, :, None].expand(samples, heads, times, length, width).reshape(samples, heads * times, length, width)


class Attention(nn.Module):
    """Grouped queries, with rotary positions."""

    def __init__(self):
        super().__init__()
        self.q, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, WIDTH * GROUPS // HEADS, bias=False) for _ in "kv")

    def forward(self, x, cos, sin):
        q, k, v = (part(x).view(*x.shape[:2], -1, WIDTH // HEADS).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        k, v = (repeated(heads, HEADS // GROUPS) for heads in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class LlamaLayer(nn.Module):
    """Attention and a gated feed-forward layer."""

    def __init__(self):
        super().__init__()
        self.norms, self.attention = nn.ModuleList(Norm() for _ in range(2)), Attention()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norms[0](x), cos, sin)
        h = self.norms[1](x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def loss_of(logits, labels):
    """Return the mean loss of the next words; the last word's is ignored."""
    labels = F.pad(labels, (0, 1), value=-100)[..., 1:]
    return F.cross_entropy(logits.float().view(-1, WORDS), labels.reshape(-1), ignore_index=-100)


class Llama(nn.Module):
    """A language model of such layers."""

    def __init__(self):
        super().__init__()
        self.table, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList(LlamaLayer() for _ in range(LAYERS))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words, labels):
        x = self.table(words)
        places, pairs = (torch.arange(count) for count in (words.shape[1], WIDTH // HEADS // 2))
        angles = places[:, None] * 1e4 ** (-pairs / len(pairs))
        cos, sin = (f(torch.cat((angles, angles), -1)).to(x.dtype) for f in (torch.cos, torch.sin))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return loss_of(self.head(self.norm(x)), labels)


class Product(nn.Module):
    """A layer whose weight is [inputs, outputs]."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        product = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return product.view(*x.shape[:-1], -1)


class GptLayer(nn.Module):
    """Attention and a feed-forward layer with a GELU of elementary functions."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = Product(WIDTH, 3 * WIDTH), Product(WIDTH, WIDTH)
        self.up, self.down = Product(WIDTH, 4 * WIDTH), Product(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = self.qkv(self.norms[0](x)).split(WIDTH, dim=2)
        q, k, v = (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in heads)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        h = self.up(self.norms[1](x))
        wave = torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0)))
        return x + self.down(0.5 * h * (1 + wave))


class Gpt(nn.Module):
    """A language model of such layers, with learned positions and tied embeddings."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers, self.norm = nn.Sequential(*(GptLayer() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)

    def forward(self, words, labels):
        x = self.words(words) + self.positions(torch.arange(words.shape[1]))
        return loss_of(F.linear(self.norm(self.layers(x)), self.words.weight), labels)


MODULES = {"llama": Llama, "gpt": Gpt}


@cache
def sources(name, precision):
    """Return a module and the zoo's model as sources of replicas."""
    words = torch.ones(SAMPLES, LENGTH, dtype=torch.long)
    module, adamw = MODULES[name]().to(PRECISIONS[precision]), planner.Optimizer("adamw")
    graph = from_torch(module, {"words": words, "labels": words}, optimizer=adamw)
    model, options = ZOO[name]
    machine, given = cluster("hgx-h100").built, {**options, "dtype": precision, "optimizer": "adamw"}
    return source_of(graph, machine, None, {})[0], source_of(model, machine, SAMPLES, given)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODULES)
def test_a_module_moves_the_bytes_of_the_catalogs_graph(name, precision, layout):
    machine, parallel = cluster("hgx-h100"), Parallel.read(layout)
    module, expected = (
        project_source(source, SAMPLES, parallel, machine, "compile") for source in sources(name, precision)
    )
    assert module.sent_bytes == pytest.approx(expected.sent_bytes, rel=TOLERANCE)
    assert module.seconds == pytest.approx(expected.seconds, rel=TOLERANCE)


def test_keys_of_one_head_are_not_repeated():
    def mixed(q, k, v):
        k, v = (repeated(heads, 4) for heads in (k, v))
        return F.scaled_dot_product_attention(q, k, v).square().mean()

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.kv = nn.Parameter(torch.ones(2, 4, 8, 4)), nn.Parameter(torch.ones(2, 2, 1, 8, 4))

        def forward(self, x):
            return mixed(self.q * x, *(part * x for part in self.kv))

    graph = from_torch(Shared(), (torch.zeros(2, 1, 8, 4),))
    (node,) = (node for node in graph.nodes if node.op == "attention")
    assert [graph.tensors[name].shape for name in node.inputs] == [(2, 4, 8, 4), (2, 1, 8, 4), (2, 1, 8, 4)]
