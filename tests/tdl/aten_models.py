"""Small models of four families, and their training steps as graphs of ATen operators."""

import torch
from torch import nn
from torch.func import functional_call, functionalize, grad_and_value
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after))
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        return functional.relu(self.second(functional.relu(self.first(x))) + self.shortcut(x))


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 6)
        self.cells = nn.LSTM(6, 4, 2, batch_first=True, dropout=0.1)
        self.logits = nn.Linear(4, 11)

    def forward(self, x):
        return self.logits(self.cells(self.tokens(x))[0])


class Block(nn.Module):
    def __init__(self, width, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))

    def attention(self, query, key, value):
        if self.fused:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        length = query.shape[2]
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        return self.dropout(functional.softmax(scores, dim=-1)) @ value

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).split(width, dim=2)
        heads = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in qkv)
        y = self.attention(*heads).transpose(1, 2).contiguous().view(batch, length, width)
        x = x + self.dropout(self.out(y))
        return x + self.dropout(self.down(functional.gelu(self.up(self.norms[1](x)))))


class GPT(nn.Module):
    def __init__(self, fused=False):
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Embedding(8, 8)
        self.blocks = nn.Sequential(*(Block(8, 2, fused) for _ in range(2)))
        self.norm, self.logits = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)
        self.logits.weight = self.tokens.weight

    def forward(self, x):
        places = self.places(torch.arange(x.shape[1]))
        return self.logits(self.norm(self.blocks(self.tokens(x) + places)))


def resnet():
    stem = (nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    blocks = (Residual(4, 4, 1), Residual(4, 6, 2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


def momentum(weights, gradients, velocity):
    velocity = {name: 0.9 * velocity[name] + gradients[name] for name in weights}
    return {name: weights[name] - 0.1 * velocity[name] for name in weights}, velocity


def adam(weights, gradients, state):
    means, squares, step = state
    step = step + 1
    means = {name: torch.lerp(means[name], gradients[name], 0.1) for name in weights}
    squares = {name: squares[name] * 0.99 + 0.01 * gradients[name] * gradients[name] for name in weights}
    first, second = 1 - 0.9**step, 1 - 0.99**step
    changed = {
        name: weights[name] - 0.01 * (means[name] / first) / ((squares[name] / second).sqrt() + 1e-8)
        for name in weights
    }
    return changed, (means, squares, step)


def tokens(*shape):
    return torch.randint(0, 11, shape)


FAMILIES = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)), torch.randn(2, 8), torch.tensor([0, 3]), momentum,
    ),
    "resnet": lambda: (resnet(), torch.randn(2, 3, 32, 32), torch.tensor([4, 1]), momentum),
    "lstm": lambda: (LSTM(), tokens(2, 3), tokens(2, 3), adam),
    "gpt": lambda: (GPT(), tokens(2, 5), tokens(2, 5), adam),
    "gpt, fused attention": lambda: (GPT(fused=True), tokens(2, 5), tokens(2, 5), adam),
}  # fmt: skip


def traced(family):
    """A training step as a graph module of ATen operators, and the arguments that it was traced with."""
    torch.manual_seed(0)
    model, x, labels, optimizer = FAMILIES[family]()
    model = model.double()
    x = x.double() if x.is_floating_point() else x
    weights, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    zeros = [{name: torch.zeros_like(weight) for name, weight in weights.items()} for _ in range(2)]
    state = zeros[0] if optimizer is momentum else (*zeros, torch.zeros((), dtype=torch.float64))

    def step(weights, state, buffers, x, labels):
        def loss(weights):
            # Batch norm counts its batches in place, which a function to be differentiated may not.
            copies = {name: buffer.clone() for name, buffer in buffers.items()}
            logits = functional_call(model, (weights, copies), (x,))
            return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

        gradients, value = grad_and_value(loss)(weights)
        return value, *optimizer(weights, gradients, state)

    arguments = (weights, state, buffers, x, labels)
    with torch.backends.mkldnn.flags(enabled=False):
        return make_fx(functionalize(step))(*arguments), arguments
