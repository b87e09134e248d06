"""Modules with repeated blocks, each spelled in several ways that change nothing but names."""

import random

import torch
from torch import nn
from torch.nn import functional

BATCH = 16


class Residual(nn.Module):
    """A fully connected block added to its input."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Plain(nn.Module):
    """A layer of a perceptron."""

    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return self.fc(x).relu()


class Attention(nn.Module):
    """A transformer's layer, its norms before (as in GPT-2) or behind (as in BERT) what they normalize."""

    def __init__(self, width, before):
        super().__init__()
        self.before = before
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def attend(self, x):
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x):
        if self.before:
            x = x + self.attend(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.mlp(x))


class Bottleneck(nn.Module):
    """A block of a ResNet, whose first of a stage has a convolution beside it."""

    def __init__(self, before, width, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.beside = nn.Conv2d(before, width, 1, stride) if (before, stride) != (width, 1) else nn.Identity()

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.beside(x)).relu()


class ConvNeXt(nn.Module):
    """A block of a ConvNeXt, with a convolution for each channel."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x):
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(functional.gelu(self.up(y)))).permute(0, 3, 1, 2)


def blocks_of(kind, count, width):
    """Return the blocks of a network, and how many of them are of each run of isomorphic ones."""
    if kind == "resnet":
        wide = [Bottleneck(width, 2 * width, 2), *(Bottleneck(2 * width, 2 * width) for _ in range(count - 1))]
        return [*(Bottleneck(width, width) for _ in range(count)), *wide], (count, count - 1)[: 2 if count > 2 else 1]
    make = {
        "perceptron": lambda: Plain(width),
        "residual": lambda: Residual(width),
        "gpt": lambda: Attention(width, before=True),
        "bert": lambda: Attention(width, before=False),
        "convnext": lambda: ConvNeXt(width),
    }[kind]
    return [make() for _ in range(count)], (count,)


class Network(nn.Module):
    """A stem, blocks under a name, and a head."""

    def __init__(self, blocks, stem, head, spelling):
        super().__init__()
        self.spelling, self.count = spelling, len(blocks)
        self.stem, self.head = stem, head
        if spelling == "attributes":
            for number, block in enumerate(blocks):
                self.add_module(f"h{number}", block)
            self.plain = blocks
        elif spelling == "list":
            self.first, self.rest = blocks[0], nn.ModuleList(blocks[1:])
            self.plain = [blocks[0], *blocks[1:]]
        else:
            setattr(self, spelling, nn.ModuleList(blocks))

    def forward(self, x):
        x = self.stem(x)
        for block in self.plain if self.spelling in ("attributes", "list") else getattr(self, self.spelling):
            x = block(x)
        return self.head(x)


class Wrapped(nn.Module):
    """A network within another module."""

    def __init__(self, network):
        super().__init__()
        self.layers_0 = nn.ModuleDict({"core": network})

    def forward(self, x):
        return self.layers_0["core"](x)


class Mean(nn.Module):
    """The mean over all but samples and channels."""

    def forward(self, x):
        return x.mean((2, 3))


KINDS = ("perceptron", "residual", "gpt", "bert", "resnet", "convnext")


def drawn(seed):
    """Draw a kind of block, how many, and how wide."""
    chance = random.Random(seed)
    return KINDS[seed % len(KINDS)], chance.randint(2, 6), chance.choice([16, 32, 64])


def module(seed, spelling):
    """Return a module with inputs, loss and targets, and the lengths of its runs of isomorphic blocks."""
    kind, count, width = drawn(seed)
    torch.manual_seed(seed)
    blocks, runs = blocks_of(kind, count, width)
    if kind in ("resnet", "convnext"):
        stem, pooled = nn.Conv2d(3, width, 3, padding=1), 2 * width if kind == "resnet" else width
        head, inputs = nn.Sequential(Mean(), nn.Linear(pooled, 10)), torch.zeros(BATCH, 3, 8, 8)
        target, loss = torch.zeros(BATCH, dtype=torch.long), functional.cross_entropy
    else:
        shape = (BATCH, 8, 12) if kind in ("gpt", "bert") else (BATCH, 12)
        stem, head = nn.Linear(12, width), nn.Linear(width, 12)
        inputs, target, loss = torch.zeros(shape), torch.zeros(shape), functional.mse_loss
    network = Network(blocks, stem, head, "layers" if spelling == "wrapped" else spelling)
    network = Wrapped(network) if spelling == "wrapped" else network
    return network, (inputs,), loss, (target,), torch.optim.SGD(network.parameters(), 0.1), runs
