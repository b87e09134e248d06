"""A language model of two LSTM layers (Zaremba and others, 2014).

plan examples/lstm.py:make --workers 8 -o lstm.json
"""

import torch
import torch.nn.functional as F
from torch import nn


class LanguageModel(nn.Module):
    """Predicts each word from those before it."""

    def __init__(self, vocabulary, width, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        """Return logits [n, length, vocabulary] of tokens [n, length]."""
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states)


def loss(logits, target):
    """Mean cross entropy over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def training(batch, length, vocabulary, width):
    """Return the module, example inputs, the loss, its targets and the optimizer."""
    module = LanguageModel(vocabulary, width)
    tokens, target = torch.randint(0, vocabulary, (2, batch, length))
    return module, tokens, loss, target, torch.optim.SGD(module.parameters(), lr=1.0)


def make(batch: int = 64):
    """The paper's large model, which unrolls 35 words."""
    return training(batch, 35, 10_000, 1500)


def small(batch: int = 8):
    """The same in a size that any computer runs."""
    return training(batch, 5, 24, 16)
