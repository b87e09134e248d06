"""A module moves the bytes, and takes the time, of a graph of the same sizes that is built of catalog operators.

The module is written as published ones are: keys and values repeated for the queries that share them, norms in
float32, labels shifted and ignored.
"""

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
TOLERANCE = 0.05
OPTIONS = {"heads": HEADS, "groups": GROUPS, "hidden": HIDDEN, "vocabulary": WORDS, "sequence": LENGTH}


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


@cache
def sources():
    """Return a module and the zoo's model as sources of replicas."""
    words = torch.ones(SAMPLES, LENGTH, dtype=torch.long)
    module, adamw = Llama().to(torch.bfloat16), planner.Optimizer("adamw")
    graph = from_torch(module, {"words": words, "labels": words}, optimizer=adamw)
    machine, given = cluster("hgx-h100").built, {**OPTIONS, "dtype": "bfloat16", "optimizer": "adamw"}
    return source_of(graph, machine, None, {})[0], source_of(f"llama-{LAYERS}-{WIDTH}", machine, SAMPLES, given)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_module_moves_the_bytes_of_the_catalogs_graph(layout):
    machine, parallel = cluster("hgx-h100"), Parallel.read(layout)
    module, expected = (project_source(source, SAMPLES, parallel, machine, "compile") for source in sources())
    assert module.sent_bytes == pytest.approx(expected.sent_bytes, rel=TOLERANCE)
    assert module.seconds == pytest.approx(expected.seconds, rel=TOLERANCE)
