"""A language model as a user of PyTorch writes it, and how the planner is told of it."""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, HEADS, SEQUENCE = 1000, 256, 8, 64


class Block(nn.Module):
    """Causal attention and a fully connected part, each added to its input."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        """Return x [batch, length, width] with what its positions say of each other added."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    """A small GPT whose output layer is its embedding."""

    def __init__(self, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(SEQUENCE, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        """Return the logits [batch, length, vocabulary] of every next token."""
        x = self.blocks(self.tokens(tokens) + self.positions)
        return self.norm(x) @ self.tokens.weight.t()


def loss(logits, target):
    """Mean cross entropy over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def make(batch: int = 16):
    """Return the module, example inputs, the loss and what it is compared with, and the optimizer."""
    tokens = torch.zeros(batch, SEQUENCE, dtype=torch.long)
    model = LanguageModel()
    return model, (tokens,), loss, (tokens,), torch.optim.AdamW(model.parameters(), lr=3e-4)
