"""Modules as users write them, small; each with inputs, loss and targets. Most are the examples."""

from functools import partial
from importlib import import_module

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from examples import gpt
from planner.pytorch.user_model import user_model

EXAMPLES = ("mlp", "resnet50", "lstm", "gpt", "vit", "bert", "unet", "mixture")

GPT = partial(gpt.GPT, 17, 6, 16, 4, 2)
"""It returns its loss, and its output layer is its embedding."""


OF_AN_UNKNOWN_OPERATOR = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        return torch.logcumsumexp(self.layer(x), dim=1).mean()

def make():
    return Model(), torch.randn(8, 6)
"""
"""A file whose model has an operator that the graph has none for."""


class Constrained(nn.Module):
    """Weights that forward masks, and bounds in norm or size, before it reads them; one holds queries, keys, values."""

    def __init__(self):
        super().__init__()
        self.table, self.conv = nn.Embedding(12, 8, max_norm=0.5), nn.Conv1d(8, 8, 3, padding=1)
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.randn(8))
        self.register_buffer("mask", torch.tensor([1.0, 1.0, 0.0]).expand(8, 8, 3).clone())

    def forward(self, words):
        self.conv.weight.data *= self.mask
        self.qkv.weight.data = torch.renorm(self.qkv.weight.data, p=2, dim=0, maxnorm=1)
        self.head.weight.data[:, 0].zero_()
        with torch.no_grad():
            self.scale.clamp_(-0.5, 0.5)
            norms = self.head.weight.norm(dim=0, keepdim=True)
            self.head.weight *= norms.clamp(max=0.3) / (norms + 1e-8)
        x = self.conv(self.table(words).mT).mT * self.scale
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.head(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)).mean(1)


def numbers(below, *shape):
    return torch.randint(0, below, shape)


def values(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def example(name):
    """An example in its small size, what it is given in double precision."""
    model = user_model(import_module(f"examples.{name}").small())
    given = [
        [tensor.double() if tensor.is_floating_point() else tensor for tensor in some]
        for some in (model.inputs, model.targets)
    ]
    return model.module, given[0], model.loss, given[1]


CASES = {name: partial(example, name) for name in EXAMPLES} | {
    "constrained": lambda: (Constrained(), (numbers(12, 8, 6),), F.cross_entropy, (numbers(4, 8),))
}
