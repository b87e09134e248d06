"""Modules as users write them, small; each with inputs, loss and targets."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Block(nn.Module):
    def __init__(self, inner, outer, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.short = nn.Identity()
        if stride != 1 or inner != outer:
            self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Block(8, 8), Block(8, 16, 2))
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = self.blocks(F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = (
            part.view(n, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(seen.transpose(1, 2).reshape(n, length, width))


class Layer(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """It returns its loss, and its output layer is its embedding."""

    def __init__(self, vocabulary=17, width=16, heads=4, layers=2, length=6):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(1, length, width))
        self.layers = nn.Sequential(*(Layer(width, heads, causal=True) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, target):
        x = self.norm(self.layers(self.tokens(tokens) + self.positions))
        return F.cross_entropy(self.head(x).view(-1, self.head.weight.shape[0]), target.view(-1))


class ViT(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width))
        self.layers = nn.Sequential(Layer(width, 4, causal=False), Layer(width, 4, causal=False))
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.layers(x)[:, 0])


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(17, 8)
        self.lstm = nn.LSTM(8, 12, 2, batch_first=True)
        self.head = nn.Linear(12, 17)

    def forward(self, tokens):
        return self.head(self.lstm(self.tokens(tokens))[0]).transpose(1, 2)


class UNet(nn.Module):
    def __init__(self, transposed):
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.norm = nn.GroupNorm(4, 16)
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(16, 8, 3, 1, 1))
        if transposed:
            self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(16, 3, 1)

    def forward(self, x):
        first = F.silu(self.first(x))
        return self.last(torch.cat([first, self.up(F.silu(self.norm(self.down(first))))], dim=1))


class Mixture(nn.Module):
    """A mixture of experts, all of which see every sample."""

    def __init__(self, width=8, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(0.3 * torch.randn(experts, width, 16))
        self.down = nn.Parameter(0.3 * torch.randn(experts, 16, width))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        share = F.softmax(self.gate(x), dim=-1)
        hidden = F.gelu(torch.einsum("bd,edf->bef", x, self.up))
        found = torch.einsum("bef,efd->bed", hidden, self.down)
        return self.head((found * share.unsqueeze(-1)).sum(1))


class BERT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(17, 16), nn.Embedding(6, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 17)
        self.register_buffer("numbers", torch.arange(6))

    def forward(self, tokens):
        return self.head(self.encoder(self.tokens(tokens) + self.positions(self.numbers))).transpose(1, 2)


class Norms(nn.Module):
    """Normalisations, broadcasting either way, statistics, clipping, rolling, slicing."""

    def __init__(self):
        super().__init__()
        self.fc, self.batch = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.rms, self.layer = nn.RMSNorm(8), nn.LayerNorm(8, bias=False)

    def forward(self, x):
        y = self.layer(self.rms(self.batch(self.fc(x))))
        y = y / (1 + y.abs())
        z = (y - y.mean(-1, keepdim=True)) / torch.sqrt(y.var(-1, keepdim=True) + 0.1)
        return 2 - z**2 + torch.clamp(y, -0.5, 0.5) * torch.roll(y, 3, 1) + y[:, :1]


def mlp():
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 10))


def numbers(below, *shape):
    return torch.randint(0, below, shape)


def values(*shape):
    return torch.randn(*shape, dtype=torch.float64)


CASES = {
    "mlp": lambda: (mlp(), (values(8, 12),), F.cross_entropy, (numbers(10, 8),)),
    "resnet": lambda: (ResNet(), (values(4, 3, 32, 32),), F.cross_entropy, (numbers(10, 4),)),
    "gpt": lambda: (GPT(), (numbers(17, 4, 6), numbers(17, 4, 6)), None, ()),
    "vit": lambda: (ViT(), (values(4, 3, 16, 16),), F.cross_entropy, (numbers(10, 4),)),
    "lstm": lambda: (LSTM(), (numbers(17, 4, 5),), F.cross_entropy, (numbers(17, 4, 5),)),
    "unet": lambda: (UNet(transposed=True), (values(4, 3, 8, 8),), F.mse_loss, (values(4, 3, 8, 8),)),
    "unet-upsampled": lambda: (UNet(transposed=False), (values(4, 3, 8, 8),), F.mse_loss, (values(4, 3, 8, 8),)),
    "mixture": lambda: (Mixture(), (values(8, 8),), F.cross_entropy, (numbers(10, 8),)),
    "bert": lambda: (BERT(), (numbers(17, 4, 6),), F.cross_entropy, (numbers(17, 4, 6),)),
    "norms": lambda: (Norms(), (values(8, 8),), F.mse_loss, (values(8, 8),)),
}
