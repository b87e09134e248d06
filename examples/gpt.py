"""GPT: a decoder whose output layer is its embedding (Radford and others, 2019; Brown and others, 2020).

plan examples/gpt.py:make --workers 8 -o gpt2.json
plan examples/gpt.py:make_13b --workers 8 -o gpt13b.json
"""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        """Return, for x [n, length, width], what its positions see of those before them."""
        n, length, width = x.shape
        heads = (part.view(n, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        seen = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    """Attention and two fully connected layers, each normalized before and added to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        """Return x [n, length, width], changed."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Returns its loss, as it is given what follows each token."""

    def __init__(self, vocabulary, length, width, heads, layers):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("numbers", torch.arange(length))
        self.apply(self.start)

    def start(self, module):
        """Give weights the small first values that such models need."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens, target):
        """Return the mean cross entropy of tokens [n, length] and those that follow."""
        x = self.tokens(tokens) + self.positions(self.numbers)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), target.flatten())


def training(module, batch, vocabulary, length):
    """Return the module, example inputs, no loss and no targets of their own, and the optimizer."""
    tokens, target = torch.randint(0, vocabulary, (2, batch, length))
    return module, (tokens, target), None, (), torch.optim.AdamW(module.parameters(), lr=3e-4, weight_decay=0.1)


def make(batch: int = 16):
    """GPT-2 small: 124 million parameters."""
    return training(GPT(50257, 1024, 768, 12, 12), batch, 50257, 1024)


def make_13b(batch: int = 8):
    """GPT-3's model of 13 billion parameters."""
    return training(GPT(50257, 2048, 5120, 40, 40), batch, 50257, 2048)


def small(batch: int = 8):
    """The same in a size that any computer runs."""
    return training(GPT(24, 8, 16, 4, 2), batch, 24, 8)
