"""A classifier of fully connected layers.

plan examples/mlp.py:make --workers 8 -o mlp.json
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


def training(batch, width, layers, inputs, classes):
    """Return the module, example inputs, the loss, its targets and the optimizer."""
    widths = [inputs] + [width] * layers
    hidden = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
    module = nn.Sequential(*hidden, nn.Linear(width, classes))
    images, labels = torch.randn(batch, inputs), torch.randint(0, classes, (batch,))
    return module, images, F.cross_entropy, labels, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def make(batch: int = 512):
    """Four layers of 4096."""
    return training(batch, 4096, 4, 784, 10)


def small(batch: int = 16):
    """The same in a size that any computer runs."""
    return training(batch, 32, 2, 16, 8)
