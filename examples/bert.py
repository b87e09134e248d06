"""An encoder like BERT's (Devlin and others, 2018), of PyTorch's own layers, which fills in masked words.

plan examples/bert.py:make --workers 8 -o bert.json
"""

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    """Predicts every token from all of them."""

    def __init__(self, vocabulary, length, width, heads, layers):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("numbers", torch.arange(length))

    def forward(self, tokens):
        """Return logits [n, length, vocabulary] of tokens [n, length]."""
        x = self.norm(self.tokens(tokens) + self.positions(self.numbers))
        return self.head(self.encoder(x))


def loss(logits, target):
    """Mean cross entropy over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def training(module, batch, vocabulary, length):
    """Return the module, example inputs, the loss, its targets and the optimizer."""
    tokens, target = torch.randint(0, vocabulary, (2, batch, length))
    return module, tokens, loss, target, torch.optim.AdamW(module.parameters(), lr=1e-4)


def make(batch: int = 64):
    """The sizes of BERT base."""
    return training(Encoder(30522, 512, 768, 12, 12), batch, 30522, 512)


def small(batch: int = 8):
    """The same in a size that any computer runs."""
    return training(Encoder(24, 8, 16, 4, 2), batch, 24, 8)
