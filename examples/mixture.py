"""A transformer whose fully connected layers are mixtures of experts, all of which see every token.

plan examples/mixture.py:make --workers 8 -o mixture.json
"""

import torch
import torch.nn.functional as F
from torch import nn


class Mixture(nn.Module):
    """Experts of two layers, their results weighted by a gate."""

    def __init__(self, width, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) / (4 * width) ** 0.5)

    def forward(self, x):
        """Return, for x [n, length, width], the sum over experts e of what they make of it."""
        share = F.softmax(self.gate(x), dim=-1)
        hidden = F.gelu(torch.einsum("nlw,ewf->nlef", x, self.up))
        outputs = torch.einsum("nlef,efw->nlew", hidden, self.down)
        return (outputs * share.unsqueeze(-1)).sum(2)


class Block(nn.Module):
    """Attention, and a mixture in place of the fully connected layers."""

    def __init__(self, width, heads, experts):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mixture, self.heads = Mixture(width, experts), heads

    def forward(self, x):
        """Return x [n, length, width], changed."""
        n, length, width = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.view(n, length, self.heads, -1).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(seen)
        return x + self.mixture(self.norm2(x))


class LanguageModel(nn.Module):
    """Predicts each token from those before it."""

    def __init__(self, vocabulary, length, width, heads, experts, layers):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads, experts) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens):
        """Return logits [n, length, vocabulary] of tokens [n, length]."""
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions)))


def loss(logits, target):
    """Mean cross entropy over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def training(module, batch, vocabulary, length):
    """Return the module, example inputs, the loss, its targets and the optimizer."""
    tokens, target = torch.randint(0, vocabulary, (2, batch, length))
    return module, tokens, loss, target, torch.optim.AdamW(module.parameters(), lr=3e-4)


def make(batch: int = 16):
    """Eight experts a layer."""
    return training(LanguageModel(32000, 512, 768, 12, 8, 6), batch, 32000, 512)


def small(batch: int = 8):
    """The same in a size that any computer runs."""
    return training(LanguageModel(24, 8, 16, 4, 4, 2), batch, 24, 8)
