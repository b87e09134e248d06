"""Models of the zoo as users of PyTorch write them: each function returns a module, inputs, a loss and its targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor], tuple[Tensor, ...]]

STEPS = 20
"""Timesteps of the recurrent models, as in the zoo."""


def mlp(layers: int, width: int, batch: int) -> Made:
    """Fully connected layers of one width without biases, relu between them."""
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width, bias=False), nn.ReLU()]
    return nn.Sequential(*parts[:-1]), (torch.zeros(batch, width),), F.cross_entropy, (_labels(width, batch),)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with batch norm, added to the input or a projection of it."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width, **UNTRACKED)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width, **UNTRACKED)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs, **UNTRACKED)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs, **UNTRACKED))

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, 4 width, y, x] of [n, inputs, y, x]."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        found: Tensor = F.relu(y + (x if self.downsample is None else self.downsample(x)))
        return found


UNTRACKED: dict[str, Any] = {"track_running_stats": False}
"""The zoo's batch norm has no running statistics unless it is asked for them."""

UNITS = {14: (1, 1, 1, 1), 50: (3, 4, 6, 3)}


class ResNet(nn.Module):
    """A bottleneck ResNet for images of at least 64 pixels."""

    def __init__(self, depth: int, width: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width, **UNTRACKED)
        blocks, inputs = [], width
        for stage, units in enumerate(UNITS[depth]):
            for unit in range(units):
                blocks.append(Bottleneck(inputs, width << stage, 2 if stage and not unit else 1))
                inputs = 4 * (width << stage)
        self.layers = nn.Sequential(*blocks)
        self.fc = nn.Linear(inputs, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, classes] of images [n, 3, y, x]."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        found: Tensor = self.fc(F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1))
        return found


def wresnet(depth: int, widening: int, batch: int, image: int = 224) -> Made:
    """A wide ResNet."""
    module, images = ResNet(depth, 64 * widening, 1000), torch.zeros(batch, 3, image, image)
    return module, (images,), F.cross_entropy, (_labels(1000, batch),)


class Block(nn.Module):
    """Causal attention and a fully connected part, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [batch, length, width] with what its positions say of each other added."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=2)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        found: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return found


class GPT(nn.Module):
    """A pre-norm GPT with heads 64 wide, whose output layer is its embedding."""

    def __init__(self, layers: int, width: int, sequence: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(sequence, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [batch length, vocabulary] of every next token."""
        x = self.norm(self.blocks(self.tokens(tokens) + self.positions))
        found: Tensor = x.flatten(0, 1) @ self.tokens.weight.t()
        return found


def transformer(layers: int, width: int, batch: int, sequence: int = 1024, vocabulary: int = 32000) -> Made:
    """A GPT."""
    words = torch.zeros(batch, sequence, dtype=torch.long)
    return GPT(layers, width, sequence, vocabulary), (words,), F.cross_entropy, (_labels(vocabulary, batch * sequence),)


class Fused(nn.Module):
    """Stacked LSTM layers of nn.LSTM, and a classifier of every timestep."""

    def __init__(self, layers: int, hidden: int, inputs: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, layers, bias=False)
        self.fc = nn.Linear(hidden, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [steps batch, classes] of x [steps, batch, inputs]."""
        found: Tensor = self.fc(self.lstm(x)[0]).flatten(0, 1)
        return found


class Cell(nn.Module):
    """One layer of an LSTM written by hand."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(inputs, 4 * hidden, bias=False), nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the next state."""
        h, c = state
        i, f, g, o = (self.x(x) + self.h(h)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Unrolled(nn.Module):
    """Stacked LSTM layers and a classifier in a loop over timesteps."""

    def __init__(self, layers: int, hidden: int, inputs: int, classes: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(Cell(hidden if layer else inputs, hidden) for layer in range(layers))
        self.fc, self.hidden = nn.Linear(hidden, classes, bias=False), hidden

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [steps batch, classes] of x [steps, batch, inputs]."""
        zeros = torch.zeros(x.shape[1], self.hidden)
        outputs, states = [], [(zeros, zeros) for _ in self.cells]
        for y in x:
            for number, cell in enumerate(self.cells):
                states[number] = cell(states[number - 1][0] if number else y, states[number])
            outputs.append(self.fc(states[-1][0]))
        return torch.stack(outputs).flatten(0, 1)


def rnn(kind: type[nn.Module], layers: int, hidden: int, batch: int, width: int = 512) -> Made:
    """Stacked LSTM layers; `width` is that of a timestep's input, and how many classes there are."""
    module = kind(layers, hidden, width, width)
    return module, (torch.zeros(STEPS, batch, width),), F.cross_entropy, (_labels(width, STEPS * batch),)


def _labels(classes: int, count: int) -> Tensor:
    return torch.arange(count) % classes
