"""Modules whose files engines read, small: each with inputs, loss and targets."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from examples import gpt

BATCH, LENGTH, VOCABULARY, WIDTH = 8, 8, 32, 128


def mlp():
    """Three layers without biases."""
    layers = [part for _ in range(3) for part in (nn.Linear(16, 16, bias=False), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), (torch.zeros(BATCH, 16),), F.cross_entropy, (torch.arange(BATCH),)


class Decoder(nn.Module):
    """A GPT of one layer that returns logits; its output layer is its embedding."""

    def __init__(self, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.block, self.norm = gpt.Block(WIDTH, 2), nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.norm(self.block(self.tokens(tokens) + self.positions))
        return x.flatten(0, 1) @ self.tokens.weight.t()


def decoder(vocabulary=VOCABULARY):
    words = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    return Decoder(vocabulary), (words,), F.cross_entropy, (torch.arange(BATCH * LENGTH) % VOCABULARY,)
